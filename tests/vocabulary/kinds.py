"""Small tokenizers of every kind, trained on a few lines."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


TEXT = [
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer",
    "the slings and arrows of outrageous fortune, or to take arms against a sea of troubles.",
    "def f(x):\n    return [i * 3 for i in range(12)]\n\n  # naïve café, über Δλ Жук 日本語 🤗",
    "It's 3.14, isn't it?\tThe END of 2,500 WORDS...  and   spaces!",
]
# the splitting of tiktoken's cl100k, in the words of Rust's regular expressions
_TIKTOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def fast(tokenizer, **roles):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **roles)


def byte_level(size=420, roles=("<s>", "</s>"), split=None, text=TEXT):
    """As GPT-2's, or with another splitting as tiktoken's."""
    tokenizer = Tokenizer(models.BPE())
    parts = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)]
    if split is not None:
        parts = [pre_tokenizers.Split(Regex(split), "isolated"), *parts]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(roles),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    return fast(tokenizer, bos_token=roles[0], eos_token=roles[1])


def sentencepiece(size=700, roles=("<bos>", "<eos>"), prefix=True, text=TEXT):
    """As Llama 2's (a space of its own in front) or Gemma's (none): BPE over a space sign, bytes to fall back on."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    if not prefix:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    stripped = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", *roles, *bytes_], show_progress=False, max_token_length=8
    )
    spaced = [line.replace(" ", " ▁").split(" ") for line in text]
    tokenizer.train_from_iterator((word for line in spaced for word in line), trainer)
    state = fast(tokenizer, bos_token=roles[0], eos_token=roles[1], unk_token="<unk>")
    # bytes are ordinary tokens, as converted checkpoints have them
    return _without_added(state, bytes_)


def _without_added(tokenizer, names):
    import json

    description = json.loads(tokenizer.backend_tokenizer.to_str())
    description["added_tokens"] = [entry for entry in description["added_tokens"] if entry["content"] not in names]
    roles = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token")}
    return fast(Tokenizer.from_str(json.dumps(description)), **roles)


def unigram(size=300, roles=("<s>", "</s>"), text=TEXT):
    """As T5's and XLNet's: no merges, the likeliest cut of each word."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<unk>", *roles], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(text, trainer)
    return fast(tokenizer, bos_token=roles[0], eos_token=roles[1], unk_token="<unk>")


def wordpiece(size=300, roles=("[CLS]", "[SEP]"), lowercase=False, text=TEXT):
    """As BERT's: words and their continuations, spaces forgotten."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=["[UNK]", *roles], show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    return fast(tokenizer, bos_token=roles[0], eos_token=roles[1], unk_token="[UNK]")


def tiktoken(size=420, roles=("<|begin|>", "<|end|>"), text=TEXT):
    return byte_level(size, roles, split=_TIKTOKEN, text=text)


KINDS = {
    "byte level": byte_level,
    "tiktoken": tiktoken,
    "sentencepiece": sentencepiece,
    "sentencepiece, no space in front": lambda **given: sentencepiece(prefix=False, **given),
}


def with_markers(tokenizer, *markers):
    """Chat markers and other tokens added later."""
    tokenizer.add_tokens(
        [AddedToken(marker, special=True, normalized=False) for marker in markers], special_tokens=True
    )
    return tokenizer
