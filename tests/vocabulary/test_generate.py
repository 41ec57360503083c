"""Calls across two tokenizers through the front door: the target's text, and nothing of the assistant changes."""

import pytest
import torch

import hf_exactassist
from hf_exactassist import AssistedDecoding
from hf_exactassist.schedules import ConstantSchedule
from tests.tiny import tiny
from tests.vocabulary import test_law
from tests.vocabulary.kinds import KINDS, with_markers


PROMPTS = ["To be, or not to be", "The END of 2,500", "naïve café: 日本語 and"]
PAIRS = [(a, b) for a in KINDS for b in KINDS if a != b]


def models(target, assistant, architecture="llama"):
    """Random models over real tokenizers; heads of the sizes the tokenizers ask for, one of them padded."""
    ours, theirs = KINDS[target](), KINDS[assistant]()
    ours.pad_token, ours.padding_side = ours.eos_token, "left"
    small = {"num_hidden_layers": 1} if architecture == "llama" else {}
    pair = tiny(vocabulary=len(ours) + 3), tiny(architecture, vocabulary=len(theirs), seed=3, **small)
    for model, tokenizer in zip(pair, (ours, theirs), strict=True):
        model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.pad_token_id = model.config.pad_token_id = 0
    return *pair, ours, theirs


def state(model):
    return (
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        [(name, type(part)) for name, part in model.named_modules()],
        model.config.to_dict(),
        model.generation_config.to_dict(),
    )


def unchanged(model, before):
    now = state(model)
    return now[1:] == before[1:] and all(torch.equal(now[0][name], tensor) for name, tensor in before[0].items())


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("target", "assistant"), PAIRS)
def test_greedy_text_is_the_targets(target, assistant, rows):
    """Rows 2, 4 and 5; A34 to A38."""
    ours, theirs, tokenizer, other = models(target, assistant)
    inputs = tokenizer(PROMPTS[:rows], return_tensors="pt", padding=True, return_token_type_ids=False)
    before = state(theirs)
    settings = {"do_sample": False, "max_new_tokens": 24}
    plain = ours.generate(**inputs, **settings)
    both = {"tokenizer": tokenizer, "assistant_tokenizer": other}
    output = hf_exactassist.generate(
        ours, **inputs, **settings, **both, assistant_model=theirs, return_dict_in_generate=True
    )
    assert output.sequences.tolist() == plain.tolist()
    assert output.assist_stats.draft_forwards and unchanged(theirs, before)


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("rows", [1, 3])
def test_drafts_of_a_good_assistant_are_accepted(rows, k):
    """One that knows the target's text, and says it in its own tokens: what both have is right at once."""
    ours, theirs, tokenizer, other = models("byte level", "tiktoken")
    inputs = tokenizer(PROMPTS[:rows], return_tensors="pt", padding=True, return_token_type_ids=False)
    settings = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None}
    plain = ours.generate(**inputs, **settings)
    texts = [other.encode(text) for text in tokenizer.batch_decode(plain, skip_special_tokens=True)]

    def hook(module, args, kwargs, output):
        # whatever it has read, its favourite is what follows that token in the text
        for i, ids in enumerate(kwargs["input_ids"]):
            for j, token in enumerate(ids.tolist()[-output.logits.shape[1] :]):
                for text in texts:
                    places = [at for at, one in enumerate(text[:-1]) if one == token]
                    for at in places:
                        output.logits[i, j, text[at + 1]] += 50
        return output

    theirs.register_forward_hook(hook, with_kwargs=True)
    output = hf_exactassist.generate(
        ours, **inputs, **settings, tokenizer=tokenizer, assistant_tokenizer=other, assistant_model=theirs,
        num_assistant_tokens=k, return_dict_in_generate=True,
    )  # fmt: skip
    assert output.sequences.tolist() == plain.tolist()
    assert output.assist_stats.accepted


@pytest.mark.parametrize("fails", ["refused", "raises"])
def test_the_assistant_is_unchanged_when_a_call_fails(fails):
    ours, theirs, tokenizer, other = models("byte level", "sentencepiece")
    before, inputs = state(theirs), tokenizer(PROMPTS[:1], return_tensors="pt", return_token_type_ids=False)
    settings = {"tokenizer": tokenizer, "assistant_tokenizer": other, "assistant_model": theirs, "max_new_tokens": 9}
    if fails == "refused":
        with pytest.raises(hf_exactassist.UnsupportedDecodingMode):
            hf_exactassist.generate(ours, **inputs, **settings, num_beams=3)
    else:

        def criterion(input_ids, scores, **kwargs):
            if input_ids.shape[1] > inputs["input_ids"].shape[1] + 4:
                raise RuntimeError("from within")
            return torch.zeros(len(input_ids), dtype=torch.bool)

        with pytest.raises(RuntimeError, match="from within"):
            hf_exactassist.generate(ours, **inputs, **settings, stopping_criteria=[criterion])
    assert unchanged(theirs, before)


@pytest.mark.parametrize("architecture", ["gpt2", "mistral", "gemma3"])
def test_assistants_of_any_kind(architecture):
    """Positions that end, and windows that are shorter than what is read again."""
    ours, theirs, tokenizer, other = models("byte level", "tiktoken", architecture)
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    settings = {"do_sample": False, "max_new_tokens": 40}
    plain = ours.generate(**inputs, **settings)
    given = {"tokenizer": tokenizer, "assistant_tokenizer": other, "assistant_model": theirs}
    assert hf_exactassist.generate(ours, **inputs, **settings, **given).tolist() == plain.tolist()


def test_stop_strings_and_processors_work_on_the_targets_side():
    """A target's ids never reach the assistant; what is forbidden is not drafted."""
    ours, theirs, tokenizer, other = models("byte level", "tiktoken")
    inputs = tokenizer(PROMPTS[:2], return_tensors="pt", padding=True, return_token_type_ids=False)
    settings = {"do_sample": False, "max_new_tokens": 24, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2}
    text = tokenizer.batch_decode(ours.generate(**inputs, **settings))[0]
    settings |= {"stop_strings": [text[-4:-2]], "tokenizer": tokenizer, "suppress_tokens": [5, 9, 300]}
    plain = ours.generate(**inputs, **settings)
    output = hf_exactassist.generate(ours, **inputs, **settings, assistant_tokenizer=other, assistant_model=theirs)
    assert output.tolist() == plain.tolist()


def test_encodings_of_whole_texts_and_lossy_ones_are_counted():
    """An assistant that cannot say "c" encodes a text with one anew each round; one that can, once."""
    ids = torch.tensor([[3, 1, 1]])
    settings = {"do_sample": False, "max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0}

    def counted(name, rows=ids):
        target, assistant = test_law.PAIRS[name]
        theirs = test_law.model(assistant, 2)
        loop = AssistedDecoding(test_law.drafter(target, assistant, theirs), ConstantSchedule(2))
        given = {"attention_mask": torch.ones_like(rows), "custom_generate": loop, "return_dict_in_generate": True}
        return test_law.model(target, 1).generate(rows, **given, **settings).assist_stats

    one, two = counted("assistant within target"), counted("assistant within target", ids.repeat(2, 1))
    assert one.rounds > 1
    assert (one.text_realignments, one.lossy_alignments) == (one.rounds - 1, one.rounds)
    assert (two.text_realignments, two.lossy_alignments) == (2 * one.text_realignments, 2 * one.lossy_alignments)
    kept = counted("permuted ids", ids % 3)
    assert kept.rounds > 1 and (kept.text_realignments, kept.lossy_alignments) == (0, 0)
    total = one + two
    assert (total.text_realignments, total.lossy_alignments) == (3 * one.rounds - 3, 3 * one.rounds)


@pytest.mark.parametrize("where", ["both", "assistant"])
def test_tokens_that_the_assistant_has_no_embedding_for(where):
    """Added to a tokenizer, and the model left as it was: they are read as something else, and cost drafts alone."""
    ours, theirs, tokenizer, other = models("byte level", "tiktoken")
    for one in (tokenizer, other) if where == "both" else (other,):
        with_markers(one, "<|im_start|>", *(f"<|more {i}|>" for i in range(8)))
        one.add_tokens(["or not", "END of"])
    assert len(other) > theirs.get_input_embeddings().num_embeddings
    marked = ["<|im_start|>To be, or not to be", "The END of 2,500"]
    if where == "both":
        ours.resize_token_embeddings(len(tokenizer) + 3)
    inputs = tokenizer(marked, return_tensors="pt", padding=True, return_token_type_ids=False)
    settings = {"do_sample": False, "max_new_tokens": 24}
    plain = ours.generate(**inputs, **settings)
    given = {"tokenizer": tokenizer, "assistant_tokenizer": other, "assistant_model": theirs}
    assert hf_exactassist.generate(ours, **inputs, **settings, **given).tolist() == plain.tolist()


@pytest.mark.parametrize("which", ["tokenizer", "assistant_tokenizer"])
@pytest.mark.parametrize("given", ["HuggingFaceTB/SmolLM2-135M", 3, object()], ids=["name", "number", "object"])
def test_what_is_no_tokenizer(which, given):
    ours, theirs, tokenizer, other = models("byte level", "tiktoken")
    both = {"tokenizer": tokenizer, "assistant_tokenizer": other, which: given}
    inputs = tokenizer(PROMPTS[:1], return_tensors="pt", return_token_type_ids=False)
    with pytest.raises(hf_exactassist.InvalidArgument, match=f"`{which}` must be a tokenizer.*from_pretrained"):
        hf_exactassist.generate(ours, **inputs, **both, assistant_model=theirs, max_new_tokens=4)
