"""What an assistant with another tokenizer reads: the published text, whatever pieces it comes in (A32)."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_exactassist.vocabulary.admission import pair_of
from tests.vocabulary.kinds import KINDS, with_markers


made = functools.cache(lambda name: KINDS[name]())
PAIRS = [(a, b) for a in KINDS for b in KINDS if a != b]
HEAD = 2000

# words and gaps as people write them, and anything at all
WORDS = [
    "the",
    "isn't",
    "café",
    "e\u0301",
    "\u0301",
    "日本語",
    "🤗",
    "👨\u200d👩\u200d👧",
    "x1",
    "2,500",
    "don",
    "'",
    "#",
    "¼",
    "ﬁ",
]
GAPS = ["", " ", "  ", "   ", "\n", "\n\n", "\t", " \n ", "\r\n", "\u00a0", ". ", ", "]
WRITTEN = st.lists(st.tuples(st.sampled_from(GAPS), st.sampled_from(WORDS)), max_size=12).map(
    lambda parts: "".join(gap + word for gap, word in parts)
)
TEXTS = st.one_of(WRITTEN, st.text(max_size=30), st.tuples(WRITTEN, st.sampled_from(GAPS)).map("".join))
# U+FFFD stands for bytes that are no text, and a text that has it cannot be told from them
CLEAN = TEXTS.filter(lambda text: "\ufffd" not in text)


def pair(target, assistant):
    return pair_of(HEAD, HEAD, made(target), made(assistant))


def as_read(assistant, text):
    """What the assistant's tokenizer makes of the text at once."""
    return made(assistant).encode(text, add_special_tokens=False) if text else []


@pytest.mark.parametrize(("target", "assistant"), PAIRS)
def test_pieces_in_any_portions_are_read_as_the_whole_text(target, assistant):
    found = pair(target, assistant)

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(CLEAN, st.lists(st.integers(1, 4), min_size=1, max_size=8))
    def check(text, portions):
        ids = made(target).encode(text, add_special_tokens=False)
        whole = b"".join(found.target.text.get(token, b"") for token in ids)
        whole = whole.removeprefix(b" ") if found.target.strips_first_space else whole
        transcript, at, turn = found.new_transcript(), 0, 0
        while at < len(ids):
            size = portions[turn % len(portions)]
            transcript.extend(ids[at : at + size])
            at, turn = at + size, turn + 1
        assert not transcript.pending
        assert transcript.tokens == as_read(assistant, whole.decode())

    check()


@pytest.mark.parametrize(("target", "assistant"), PAIRS)
def test_a_long_text_is_not_encoded_again_and_again(target, assistant):
    found, text = pair(target, assistant), "It isn't over, said the queen.  Then what?\n" * 40
    transcript = found.new_transcript()
    for token in made(target).encode(text, add_special_tokens=False):
        transcript.extend([token])
    assert transcript.tokens == as_read(assistant, text)
    assert transcript.whole_encodings < 12 and transcript.lossy == 0


def test_half_a_character_waits_for_its_rest():
    found = pair("byte level", "sentencepiece")
    ids = made("byte level").encode("a🤗b", add_special_tokens=False)
    transcript, seen = found.new_transcript(), []
    for token in ids:
        transcript.extend([token])
        seen.append((len(transcript.tokens), bool(transcript.pending)))
    assert any(pending for _, pending in seen) and not transcript.pending
    assert transcript.tokens == as_read("sentencepiece", "a🤗b")


def test_bytes_that_are_no_text_are_read_as_a_mark_for_them():
    """A model may publish what no tokenizer would: half a character, and then a letter."""
    found = pair("byte level", "tiktoken")
    (half, *_), (letter,) = (made("byte level").encode(text, add_special_tokens=False) for text in ("🤗", "q"))
    transcript = found.new_transcript()
    for token in (letter, half, letter, letter):
        transcript.extend([token])
    assert transcript.tokens == as_read("tiktoken", "q\ufffdqq")


def test_special_tokens_go_by_content_and_role_and_there_is_one_beginning():
    """A32: no BOS is added twice; markers that mean nothing to the assistant are text to it."""
    from tokenizers.processors import TemplateProcessing

    ours = with_markers(KINDS["byte level"](), "<|user|>", "<|only here|>")
    theirs = with_markers(KINDS["tiktoken"](), "<|user|>")
    begin = theirs.bos_token_id
    theirs.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
    )
    found = pair_of(HEAD, HEAD, ours, theirs)
    transcript = found.new_transcript()
    assert transcript.tokens == [begin]
    text = [ours.bos_token_id, *ours.encode("<|user|>Hello<|only here|>", add_special_tokens=False), ours.eos_token_id]
    for token in text:
        transcript.extend([token])
    user = theirs.convert_tokens_to_ids("<|user|>")
    expected = [begin, user, *theirs.encode("Hello<|only here|>", add_special_tokens=False), theirs.eos_token_id]
    assert transcript.tokens == expected
