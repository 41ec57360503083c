"""The joint law with processors and criteria that remember, every random choice walked (contract 0x06D, 0x06J)."""

import pytest
import torch
from transformers.generation import SynthIDTextWatermarkingConfig, WatermarkingConfig

from hf_exactassist import AssistedDecoding
from hf_exactassist.drafters import AssistantModelDrafter, PromptLookupDrafter
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.state.recall import Recall
from hf_exactassist.verification.enumeration import total_variation
from tests.exactness.hash_model import hash_pair
from tests.exactness.remembering import Automaton, Counter, EndsOnce, Patience, Saving, prefix_function
from tests.exactness.walk import law


# (vocabulary, new tokens) per draft length
SIZES = {1: (3, 3), 2: (3, 4), 8: (2, 5)}
EOS = {"eos_token_id": 1, "pad_token_id": 0}


class Odd(Counter):
    """Forbids a token every third call, so that a call too many or too few shows."""

    def __call__(self, input_ids, scores):
        scores = super().__call__(input_ids, scores).clone()
        scores[:, 0] += -torch.inf if self.calls % 3 == 0 else 0.0
        return scores


# each makes what one call is given; nothing is shared between the paths of a walk
CASES = {
    "counter": lambda vocabulary: {"logits_processor": [Odd()]},
    "automaton": lambda vocabulary: {"logits_processor": [Automaton(1)]},
    "raises after its end": lambda vocabulary: {"logits_processor": [EndsOnce(3, 1)], **EOS},
    "saves itself": lambda vocabulary: {"logits_processor": [Saving()]},
    "prefix function": lambda vocabulary: {"prefix_allowed_tokens_fn": prefix_function(vocabulary)},
    "guidance": lambda vocabulary: {"guidance_scale": 1.7},
    "guidance, negative prompt": lambda vocabulary: {
        "guidance_scale": 0.4, "negative_prompt_ids": torch.tensor([[1, 0, 1]])
    },
    "synthid": lambda vocabulary: {
        "watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=2, keys=[5, 77, 3], context_history_size=2)
    },
    "patience": lambda vocabulary: {"stopping_criteria": [Patience(2)]},
    "counter and patience": lambda vocabulary: {
        "logits_processor": [Odd()], "stopping_criteria": [Patience(3)], **EOS
    },
}  # fmt: skip


def decodes(target, assistant, name, k, tokens, vocabulary, inputs, row=0):
    """Plain decoding and ours, of one row, as functions that start afresh every time."""
    common = {**inputs, "do_sample": True, "top_k": 0, "max_new_tokens": tokens}

    def plain():
        return tuple(target.generate(**common, **CASES[name](vocabulary))[row].tolist())

    def ours():
        drafter = AssistantModelDrafter(assistant, torch.ones(vocabulary, dtype=torch.bool))
        loop = AssistedDecoding(drafter, ConstantSchedule(k))
        return tuple(target.generate(**common, **CASES[name](vocabulary), custom_generate=loop)[row].tolist())

    return plain, ours


def prompt(vocabulary, rows=1):
    return {"input_ids": torch.randint(vocabulary, (rows, 3), generator=torch.Generator().manual_seed(3))}


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_law_is_the_targets(name, k):
    """Rows 9 to 11."""
    vocabulary, tokens = SIZES[k]
    # one that forbids a token until its end needs two others
    vocabulary = max(vocabulary, 3) if name == "raises after its end" else vocabulary
    target, assistant = hash_pair(vocabulary)
    plain, ours = map(law, decodes(target, assistant, name, k, tokens, vocabulary, prompt(vocabulary)))
    assert len(plain) > 1, "the law under test must be spread out"
    assert total_variation(plain, ours) < 1e-6


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("name", ["counter", "automaton", "prefix function", "guidance", "synthid", "patience"])
def test_law_of_each_row_of_a_batch(name, row):
    """Rows keep in step where one memory serves them all. The other row draws numbers of its own meanwhile."""
    vocabulary, tokens = 3, 4
    target, assistant = hash_pair(vocabulary)
    ids = prompt(vocabulary, rows=2)["input_ids"]
    _, ours = decodes(target, assistant, name, 2, tokens, vocabulary, {"input_ids": ids}, row)
    plain, _ = decodes(target, assistant, name, 2, tokens, vocabulary, {"input_ids": ids[row : row + 1]})
    assert total_variation(law(plain), law(ours, {row})) < 1e-6


def test_law_with_a_watermark_that_hashes_the_token_itself():
    """KGW's self-hash looks at the forty best tokens: a larger vocabulary, and top-k to keep the walk small."""
    target, assistant = hash_pair(40)
    given = {**prompt(40), "do_sample": True, "top_k": 2, "max_new_tokens": 4}
    given["watermarking_config"] = WatermarkingConfig(bias=1.0, seeding_scheme="selfhash", context_width=2)

    def ours():
        drafter = AssistantModelDrafter(assistant, torch.ones(40, dtype=torch.bool))
        return tuple(
            target.generate(**given, custom_generate=AssistedDecoding(drafter, ConstantSchedule(2)))[0].tolist()
        )

    plain = law(lambda: tuple(target.generate(**given)[0].tolist()))
    assert len(plain) > 3 and total_variation(plain, law(ours)) < 1e-6


@pytest.mark.parametrize("name", ["counter", "automaton", "prefix function"])
def test_law_with_prompt_lookup(name):
    """Drafts of certain tokens, which the processor may forbid."""
    target, _ = hash_pair(3)
    common = {"input_ids": torch.tensor([[0, 1, 2, 0, 1]]), "do_sample": True, "top_k": 0, "max_new_tokens": 4}

    def ours():
        loop = AssistedDecoding(PromptLookupDrafter(3), ConstantSchedule(3))
        return tuple(target.generate(**common, **CASES[name](3), custom_generate=loop)[0].tolist())

    plain = law(lambda: tuple(target.generate(**common, **CASES[name](3))[0].tolist()))
    assert total_variation(plain, law(ours)) < 1e-6


def test_a_processor_called_once_too_often_is_found_out(monkeypatch):
    """The trap itself: as if one rejected draft had been processed and not taken back."""
    settle = Recall.settle
    target, assistant = hash_pair(3)
    plain, ours = decodes(target, assistant, "counter", 2, 4, 3, prompt(3))

    def one_more_call(self, memory):
        settle(self, memory)
        if memory.copies and self._copied[0].calls == 2:
            self._copied[0].calls += 1

    monkeypatch.setattr(Recall, "settle", one_more_call)
    assert total_variation(law(plain), law(ours)) > 0.01
