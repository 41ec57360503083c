"""The joint law of the real loop is plain `generate`'s, every random choice walked (contract 0x03, 0x04H, 0x06J)."""

import pytest
import torch
from transformers import GenerationMixin

import hf_exactassist
from hf_exactassist import AssistedDecoding
from hf_exactassist.drafters import AssistantModelDrafter, PromptLookupDrafter
from hf_exactassist.models.admission import admit
from hf_exactassist.models.runner import RowRunner
from hf_exactassist.schedules import ConstantSchedule, DraftSchedule, HeuristicSchedule
from hf_exactassist.verification.enumeration import total_variation
from tests.exactness.hash_model import hash_pair
from tests.exactness.walk import law, prepare
from tests.tiny import noisy, tiny


# (vocabulary, new tokens) per draft length: a draft is at most two tokens shorter than what is generated
SIZES = {1: (4, 3), 2: (4, 4), 3: (2, 5), 8: (2, 5)}
SETTINGS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "eos": {"eos_token_id": 1, "pad_token_id": 0},
    "min_length": {"eos_token_id": 1, "pad_token_id": 0, "min_new_tokens": 2},
}
# a vocabulary of two tokens has nothing to truncate
CASES = [
    (name, k, *SIZES[k])
    for name in SETTINGS
    for k in SIZES
    if SIZES[k][0] > 2 or name not in ("top_k", "top_p", "min_p")
]
# long drafts over a larger vocabulary, cut by the budget
CASES += [(name, k, 4, 4) for name in ("plain", "eos", "top_k", "top_p", "min_p") for k in (3, 8)]


def settings(tokens, **others):
    return {"do_sample": True, "max_new_tokens": tokens, "top_k": 0, **others}


def drafter(assistant, vocabulary, **kwargs):
    return AssistantModelDrafter(assistant, torch.ones(vocabulary, dtype=torch.bool), **kwargs)


def row_of(output, row=0):
    return tuple(output[row].tolist())


def plain_law(target, inputs, **kwargs):
    run = prepare(target, inputs, **kwargs)
    plain = law(lambda: row_of(run(GenerationMixin._sample)))
    assert len(plain) > 3, "the law under test must be spread out"
    return plain


def assisted_law(target, inputs, loop, row=0, walked_rows=None, **kwargs):
    run = prepare(target, inputs, **kwargs)
    return law(lambda: row_of(run(loop), row), walked_rows)


def prompt(vocabulary, length=3):
    return {"input_ids": torch.randint(vocabulary, (1, length), generator=torch.Generator().manual_seed(length))}


@pytest.mark.parametrize(("name", "k", "vocabulary", "tokens"), CASES)
def test_law_is_the_targets(name, k, vocabulary, tokens):
    target, assistant = hash_pair(vocabulary)
    kwargs, inputs = settings(tokens, **SETTINGS[name]), prompt(vocabulary)
    loop = AssistedDecoding(drafter(assistant, vocabulary), ConstantSchedule(k))
    plain, ours = plain_law(target, inputs, **kwargs), assisted_law(target, inputs, loop, **kwargs)
    assert total_variation(plain, ours) < 1e-6


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt2"])
def test_law_on_real_architectures_through_the_front_door(architecture):
    """Fewer paths, but nothing is prepared beforehand and attention is attention."""
    target = tiny(architecture, vocabulary=4)
    assistant = noisy(target, 0.4)
    kwargs, inputs = settings(3, eos_token_id=None), prompt(4)
    plain = law(lambda: row_of(target.generate(**inputs, **kwargs)))
    ours = law(lambda: row_of(hf_exactassist.generate(target, **inputs, **kwargs, assistant_model=assistant)))
    assert total_variation(plain, ours) < 1e-6


@pytest.mark.parametrize("length", [1, 4])
def test_law_over_a_static_cache_with_windows(length):
    """Of a sliding and a full layer; the prompt is shorter and longer than the window."""
    target = tiny("gemma3", vocabulary=3, sliding_window=3)
    kwargs, inputs = settings(3, eos_token_id=None, cache_implementation="static"), prompt(3, length)
    plain = law(lambda: row_of(target.generate(**inputs, **kwargs)))
    assert len(plain) > 3
    door = {"assistant_model": noisy(target, 0.4), "num_assistant_tokens": 2}
    ours = law(lambda: row_of(hf_exactassist.generate(target, **inputs, **kwargs, **door)))
    assert total_variation(plain, ours) < 1e-6


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("name", ["plain", "eos", "repetition_penalty"])
def test_law_of_each_row_of_a_ragged_batch(name, row):
    """The other rows draw numbers of their own meanwhile, and finish when they will."""
    vocabulary, tokens = 3, 4
    target, assistant = hash_pair(vocabulary)
    ids = torch.randint(vocabulary, (3, 4), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3], mask[1, :1] = 0, 0
    kwargs = settings(tokens, **SETTINGS[name])
    loop = AssistedDecoding(drafter(assistant, vocabulary), ConstantSchedule(2))
    batch = {"input_ids": ids, "attention_mask": mask}
    alone = {"input_ids": ids[row : row + 1], "attention_mask": mask[row : row + 1]}
    plain = plain_law(target, alone, **kwargs)
    ours = assisted_law(target, batch, loop, row, {row}, **kwargs)
    # the batch may be longer than the row: compare what the row published
    width = len(next(iter(plain)))
    assert total_variation(pad(plain, 4 + tokens), pad(ours, 4 + tokens)) < 1e-6 and width == 4 + tokens


def pad(law_, width):
    """The law over sequences filled up with padding, as rows of a batch are."""
    return {sequence + (0,) * (width - len(sequence)): mass for sequence, mass in law_.items()}


@pytest.mark.parametrize("num_tokens", [1, 3])
def test_law_with_prompt_lookup(num_tokens):
    """Point-mass drafts: exact although nothing is known of how they were chosen (DESIGN: q = one-hot)."""
    target, _ = hash_pair(3)
    inputs = {"input_ids": torch.tensor([[0, 1, 2, 0, 1]])}
    loop = AssistedDecoding(PromptLookupDrafter(num_tokens, 2), ConstantSchedule(num_tokens))
    kwargs = settings(4)
    assert total_variation(plain_law(target, inputs, **kwargs), assisted_law(target, inputs, loop, **kwargs)) < 1e-6


@pytest.mark.parametrize(
    "drafting",
    [{"confidence_threshold": 0.45}, {"warper_settings": {"temperature": 0.5}}, {"warper_settings": {"top_k": 1}}],
    ids=["threshold", "own temperature", "own top_k"],
)
@pytest.mark.parametrize("schedule", [ConstantSchedule(2), HeuristicSchedule(1)], ids=["constant", "heuristic"])
def test_law_does_not_depend_on_how_is_drafted(drafting, schedule):
    """A25: any temperature of the assistant; early stops and growing drafts look only at what was reached."""
    target, assistant = hash_pair(3)
    loop = AssistedDecoding(drafter(assistant, 3, **drafting), schedule)
    kwargs, inputs = settings(4, temperature=0.9), prompt(3)
    assert total_variation(plain_law(target, inputs, **kwargs), assisted_law(target, inputs, loop, **kwargs)) < 1e-6


@pytest.mark.parametrize("noise", [0.0, 50.0], ids=["assistant equals target", "assistant is noise"])
def test_law_with_extreme_assistants(noise):
    """Rows 23 and A26: equal laws leave no residual; far laws live on it."""
    target, assistant = hash_pair(3, noise=noise)
    loop, kwargs, inputs = AssistedDecoding(drafter(assistant, 3), ConstantSchedule(2)), settings(4), prompt(3)
    assert total_variation(plain_law(target, inputs, **kwargs), assisted_law(target, inputs, loop, **kwargs)) < 1e-6


def test_law_with_unshared_tokens():
    """Rows 2 and 3: tokens the assistant does not share are never drafted and still have the target's mass."""
    target, _ = hash_pair(4)
    _, assistant = hash_pair(3)
    shared = torch.tensor([True, True, True, False])
    loop = AssistedDecoding(AssistantModelDrafter(assistant, shared), ConstantSchedule(2))
    kwargs, inputs = settings(4), prompt(4)
    ours = assisted_law(target, inputs, loop, **kwargs)
    assert total_variation(plain_law(target, inputs, **kwargs), ours) < 1e-6
    assert sum(mass for sequence, mass in ours.items() if 3 in sequence[3:]) > 0.1


def test_law_where_processors_leave_the_drafter_nothing():
    """Both tokens that it knows are soon used up: what it drafts then has no law, and is not kept (contract 0x03A)."""
    vocabulary = 5
    target, assistant = hash_pair(vocabulary)
    kwargs, inputs = settings(4, no_repeat_ngram_size=1), {"input_ids": torch.tensor([[3]])}
    drafter = AssistantModelDrafter(assistant, torch.tensor([True, True, False, False, False]))
    dead, propose = [], drafter.propose

    def spy(lengths):
        draft = propose(lengths)
        dead.append(draft.probs is not None and bool((draft.probs.sum(-1) == 0).any()))
        return draft

    drafter.propose = spy
    loop = AssistedDecoding(drafter, ConstantSchedule(3))
    assert total_variation(plain_law(target, inputs, **kwargs), assisted_law(target, inputs, loop, **kwargs)) < 1e-6
    assert any(dead)


class _Peeking(DraftSchedule):
    """Cheats: the next draft's length depends on a token that was drafted and never reached."""

    def __init__(self, watched):
        self.watched = watched

    def length(self, row):
        tokens = getattr(self.watched, "last", None)
        return 2 if tokens is None or tokens[0, -1] == 0 else 0


class _Watched(AssistantModelDrafter):
    def propose(self, lengths):
        draft = super().propose(lengths)
        self.last = draft.tokens if draft.tokens.shape[1] == 2 else None
        return draft

    def start(self, context):
        super().start(context)
        self.last = None


def test_a_schedule_that_looks_at_unreached_drafts_bends_the_law():
    """Numbers of unreached positions are used again, so such a choice is correlated with them: the walk sees it."""
    target, assistant = hash_pair(3)
    watched = _Watched(assistant, torch.ones(3, dtype=torch.bool))
    loop, kwargs, inputs = AssistedDecoding(watched, _Peeking(watched)), settings(5), prompt(3)
    assert total_variation(plain_law(target, inputs, **kwargs), assisted_law(target, inputs, loop, **kwargs)) > 1e-3


def scarce(monkeypatch, target, columns):
    """Forwards of the target over more columns find no memory."""
    assert admit(target).admitted  # the probe has memory
    forward = RowRunner.forward

    def limited(self, tokens, *args, **kwargs):
        if self.model is target and tokens.shape[1] > columns:
            raise torch.OutOfMemoryError("out of memory")
        return forward(self, tokens, *args, **kwargs)

    monkeypatch.setattr(RowRunner, "forward", limited)


def test_law_where_long_blocks_find_no_memory(monkeypatch):
    """An EOS shortens drafts, but not blocks: whether memory suffices must not hang on what was drawn."""
    target, assistant = hash_pair(2)
    loop = AssistedDecoding(drafter(assistant, 2), ConstantSchedule(3))
    kwargs, inputs = settings(5, eos_token_id=1, pad_token_id=0), prompt(2)
    plain = plain_law(target, inputs, **kwargs)
    scarce(monkeypatch, target, 3)
    assert total_variation(plain, assisted_law(target, inputs, loop, **kwargs)) < 1e-6


def test_no_memory_with_a_drafter_that_stops_early_is_an_error(monkeypatch):
    """Making the round again only where the draft got long would bend the law."""
    target, assistant = hash_pair(3)
    loop = AssistedDecoding(drafter(assistant, 3, confidence_threshold=0.01), ConstantSchedule(2), seed=1)
    run = prepare(target, prompt(3), **settings(4))
    scarce(monkeypatch, target, 2)
    with pytest.raises(torch.OutOfMemoryError) as error:
        run(loop)
    assert len(error.value.published[0]) == 1


def test_law_beyond_a_window_whose_storage_is_used_again():
    target = tiny("mistral", vocabulary=4, sliding_window=3)
    kwargs, inputs = settings(3, eos_token_id=None), prompt(4, 40)
    plain = law(lambda: row_of(target.generate(**inputs, **kwargs)))
    ours = law(lambda: row_of(hf_exactassist.generate(target, **inputs, **kwargs, assistant_model=noisy(target, 0.4))))
    assert len(plain) > 8 and total_variation(plain, ours) < 1e-6
