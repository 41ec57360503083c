"""How many tokens are drafted and which setting says so (user-reports A89 to A93, contract 0x06G)."""

import copy
import math

import pytest
import torch
from transformers import GenerationConfig

import hf_exactassist
from hf_exactassist import InvalidArgument
from hf_exactassist.drafters import AssistantModelDrafter, PromptLookupDrafter
from tests.tiny import EVEN_NOISE, contrary, noisy, prompts, tiny


NEW = 24
SETTINGS = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": NEW}


class Trace(list):
    """Per round: `(wanted, tokens, probs, prefixes)`."""

    def wanted(self, row=0):
        return [lengths[row] for lengths, *_ in self]


@pytest.fixture
def trace(monkeypatch):
    """Spies on what is drafted, by whichever drafter."""
    seen = Trace()
    for kind in (AssistantModelDrafter, PromptLookupDrafter):

        def spy(self, lengths, propose=kind.propose):
            rows = self.context.rows
            prefixes = [rows.ids[row, : rows.lengths[row]].tolist() for row in rows.active]
            draft = propose(self, lengths)
            tokens = [draft.tokens[i, :length].tolist() for i, length in enumerate(draft.lengths)]
            seen.append((list(lengths), tokens, draft.probs, prefixes))
            return draft

        monkeypatch.setattr(kind, "propose", spy)
    return seen


@pytest.fixture
def target():
    return tiny()


def assisted(target, assistant, inputs=None, **settings):
    inputs = prompts([6]) if inputs is None else inputs
    return hf_exactassist.generate(target, **inputs, **{**SETTINGS, **settings}, assistant_model=assistant)


# --- precedence ---

PLACES = ("kwargs", "generation_config", "target", "assistant")


def call_with(target, name, values, base=None):
    """A call by an all-accepted assistant in which `name` is set at the given places."""
    assistant = copy.deepcopy(target)
    settings = {**SETTINGS, **(base or {})}
    for place, model in (("target", target), ("assistant", assistant)):
        if place in values:
            setattr(model.generation_config, name, values[place])
    if "generation_config" in values:
        settings = {"generation_config": GenerationConfig(**{**settings, name: values["generation_config"]})}
    if "kwargs" in values:
        settings[name] = values["kwargs"]
    hf_exactassist.generate(target, **prompts([6]), **settings, assistant_model=assistant)


@pytest.mark.parametrize("strongest", range(len(PLACES)))
def test_the_strongest_num_assistant_tokens_wins(target, trace, strongest):
    """A89: kwargs > generation_config > target's config > assistant's config."""
    values = {place: 2 + i for i, place in enumerate(PLACES) if i >= strongest}
    call_with(target, "num_assistant_tokens", values)
    assert trace.wanted()[0] == 2 + strongest


def test_five_tokens_are_drafted_where_nothing_is_set(target, trace):
    """A92: our default, constant, without a threshold."""
    assisted(target, copy.deepcopy(target))
    assert trace.wanted() == [5, 5, 5, 4]


@pytest.mark.parametrize("strongest", range(len(PLACES)))
def test_the_strongest_schedule_wins(target, trace, strongest):
    """A89 for the schedule: the weaker places ask for the opposite."""
    other = "constant" if strongest % 2 else "heuristic"
    asked = "heuristic" if strongest % 2 else "constant"
    values = {place: other for i, place in enumerate(PLACES) if i > strongest}
    call_with(target, "num_assistant_tokens_schedule", {**values, PLACES[strongest]: asked})
    assert trace.wanted()[1] == (7 if asked == "heuristic" else 5)


@pytest.mark.parametrize("strongest", range(len(PLACES)))
def test_the_strongest_confidence_threshold_wins(target, trace, strongest):
    """A89 for the threshold: 1.0 stops after one token, 0 never."""
    values = {place: 1.0 for i, place in enumerate(PLACES) if i > strongest}
    call_with(target, "assistant_confidence_threshold", {**values, PLACES[strongest]: 0.0})
    assert len(trace[0][1][0]) == 5
    trace.clear()
    values = {place: 0.0 for i, place in enumerate(PLACES) if i > strongest}
    call_with(target, "assistant_confidence_threshold", {**values, PLACES[strongest]: 1.0})
    assert len(trace[0][1][0]) == 1


@pytest.mark.parametrize("place", ["kwargs", "generation_config", "target"])
def test_prompt_lookup_is_found_at_every_place(target, trace, place):
    """A89 for prompt lookup, whose number is its switch."""
    prompt = {"input_ids": torch.tensor([[5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6]])}
    settings = dict(SETTINGS)
    if place == "kwargs":
        settings["prompt_lookup_num_tokens"] = 3
    elif place == "target":
        target.generation_config.prompt_lookup_num_tokens = 3
    else:
        settings = {"generation_config": GenerationConfig(**SETTINGS, prompt_lookup_num_tokens=3)}
    hf_exactassist.generate(target, **prompt, **settings)
    assert trace and set(trace.wanted()[:3]) == {3}


# --- schedules ---


def test_a_constant_schedule_stays_the_same(target, trace):
    assisted(target, contrary(target), num_assistant_tokens=3, num_assistant_tokens_schedule="constant")
    # one token per round: 23 remain after the prefill
    assert trace.wanted() == [min(3, remaining - 1) for remaining in range(NEW - 1, 0, -1)]


@pytest.mark.parametrize("schedule", ["heuristic", "heuristic_transient"])
def test_a_heuristic_schedule_grows_by_two_where_all_was_accepted(target, trace, schedule):
    """A90. 24 tokens: 1, then 3 + 1, 5 + 1, 7 + 1, and 5 remain for the last round."""
    assisted(target, copy.deepcopy(target), num_assistant_tokens=3, num_assistant_tokens_schedule=schedule)
    assert trace.wanted() == [3, 5, 7, 4]


@pytest.mark.parametrize("schedule", ["heuristic", "heuristic_transient"])
def test_a_heuristic_schedule_shrinks_by_one_and_not_below_one(target, trace, schedule):
    """A90."""
    assisted(target, contrary(target), num_assistant_tokens=3, num_assistant_tokens_schedule=schedule)
    assert trace.wanted() == [3, 2] + [1] * (NEW - 4) + [0]


def test_each_row_has_its_own_heuristic(target, trace):
    """What a row drafts does not depend on its company (contract 0x06D): batch traces are the batch-1 traces."""
    inputs = prompts([4, 9, 6])
    assistant = noisy(target, 0.03)
    settings = {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic"}
    output = assisted(target, assistant, inputs, **settings)
    batch = {}
    for lengths, tokens, _, prefixes in trace:
        for wanted, drafted, prefix in zip(lengths, tokens, prefixes, strict=True):
            batch.setdefault(tuple(prefix[:9]), []).append((wanted, drafted))
    assert output.shape[0] == len(batch) == 3
    for index in range(3):
        trace.clear()
        assisted(target, assistant, {name: value[index : index + 1] for name, value in inputs.items()}, **settings)
        single = [(lengths[0], tokens[0]) for lengths, tokens, _, _ in trace]
        assert batch[tuple(inputs["input_ids"][index].tolist())] == single
    assert len({wanted for rounds in batch.values() for wanted, _ in rounds}) > 3


@pytest.mark.parametrize("schedule", ["constant", "heuristic", "heuristic_transient"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_two_equal_calls_draft_alike(target, trace, schedule, do_sample):
    """A90, A91: nothing that a call learned lives on, whatever the schedule."""
    assistant, runs = noisy(target, 0.03), []
    for _ in range(2):
        trace.clear()
        settings = {"do_sample": True, "seed": 5, "top_k": 20} if do_sample else {}
        assisted(
            target,
            assistant,
            prompts([4, 9]),
            num_assistant_tokens_schedule=schedule,
            assistant_confidence_threshold=0.3,
            **settings,
        )
        runs.append([(lengths, tokens) for lengths, tokens, *_ in trace])
    assert runs[0] == runs[1] and len(runs[0]) > 2


# --- confidence threshold ---


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.9])
def test_a_draft_ends_with_the_first_token_below_the_threshold(target, trace, threshold, do_sample):
    """A91: in every round the threshold that was asked for is the one applied, to the assistant's own probability."""
    # sharper than the target, so that its probabilities lie on both sides
    assistant = noisy(target, EVEN_NOISE["llama"])
    with torch.no_grad():
        assistant.lm_head.weight.mul_(2.5)
    settings = {"do_sample": True, "seed": 0, "top_k": 0} if do_sample else {}
    output = assisted(target, assistant, assistant_confidence_threshold=threshold, num_assistant_tokens=6, **settings)
    if not do_sample:
        assert torch.equal(output, target.generate(**prompts([6]), **SETTINGS))
    reasons = set()
    for (wanted,), (tokens,), _, (prefix,) in trace:
        if not wanted:
            continue
        with torch.no_grad():
            logits = assistant(input_ids=torch.tensor([prefix + tokens]), use_cache=False).logits[0]
        laws = logits[len(prefix) - 1 : -1].softmax(-1)
        sure = [bool(law[token] >= threshold) for law, token in zip(laws, tokens, strict=True)]
        assert all(sure[:-1]) and (not sure[-1] or len(tokens) == wanted)
        reasons.add((sure[-1], len(tokens) > 1))
    assert (False, False) in reasons or (False, True) in reasons
    assert len(reasons) > 1


@pytest.mark.parametrize("off", [0, 0.0, None])
def test_a_threshold_of_zero_or_none_is_off(target, trace, off):
    """A92: Transformers fills `None` with 0.4; here both mean off."""
    assistant = tiny(seed=7)
    with torch.no_grad():
        assistant.lm_head.weight.mul_(0.01)  # never sure of anything
    assisted(target, assistant, assistant_confidence_threshold=0.4)
    assert {len(tokens[0]) for lengths, tokens, *_ in trace if lengths[0]} == {1}
    trace.clear()
    assisted(target, assistant, assistant_confidence_threshold=off)
    assert all(len(tokens[0]) == lengths[0] for lengths, tokens, *_ in trace) and trace.wanted()[0] == 5


# --- what the caller owns ---


def owned(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return copy.deepcopy(model.generation_config.to_dict()), copy.deepcopy(model.config.to_dict()), state


@pytest.mark.parametrize("schedule", ["constant", "heuristic", "heuristic_transient"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_a_call_changes_neither_model_nor_any_config(target, schedule, do_sample):
    """A90, A93; contract 0x00G: configs, weights and attributes are deep-equal before and after."""
    assistant = noisy(target, 0.03)
    assistant.generation_config.num_assistant_tokens = 3
    assistant.generation_config.repetition_penalty = 1.3
    assistant.generation_config.temperature = 0.7
    target.generation_config.assistant_confidence_threshold = 0.2
    config = GenerationConfig(**SETTINGS, num_assistant_tokens_schedule=schedule, stop_strings=None)
    before = [owned(target), owned(assistant), copy.deepcopy(config.to_dict())]
    attributes = [set(vars(model)) for model in (target, assistant)]
    settings = {"do_sample": True, "seed": 2} if do_sample else {}
    for _ in range(2):
        hf_exactassist.generate(
            target, **prompts([4, 9]), generation_config=config, assistant_model=assistant, **settings
        )
        # after each call, since two changes may cancel
        after = [owned(target), owned(assistant), config.to_dict()]
        for ours, theirs in zip(before[:2], after[:2], strict=True):
            assert ours[:2] == theirs[:2]
            assert ours[2].keys() == theirs[2].keys()
            assert all(torch.equal(value, theirs[2][name]) for name, value in ours[2].items())
        assert before[2] == after[2]
        assert [set(vars(model)) for model in (target, assistant)] == attributes


# --- invalid values ---

INVALID = [
    *[("num_assistant_tokens", value) for value in (0, -1, 2.5, "5", True, math.nan, math.inf)],
    *[("assistant_confidence_threshold", value) for value in (-0.1, 1.5, "high", math.nan)],
    *[("num_assistant_tokens_schedule", value) for value in ("fast", "", 3)],
]


@pytest.mark.parametrize("place", ["kwargs", "assistant"])
@pytest.mark.parametrize("name, value", INVALID)
def test_values_without_a_meaning_are_refused_by_name(target, name, value, place):
    assistant = noisy(target)
    if place == "assistant":
        setattr(assistant.generation_config, name, value)
    with pytest.raises(InvalidArgument, match=name) as refusal:
        assisted(target, assistant, **({name: value} if place == "kwargs" else {}))
    assert repr(value) in str(refusal.value)


@pytest.mark.parametrize("name", ["prompt_lookup_num_tokens", "max_matching_ngram_size"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "5", math.nan, math.inf])
def test_values_without_a_meaning_are_refused_for_prompt_lookup(target, name, value):
    settings = {**SETTINGS, "prompt_lookup_num_tokens": 3, name: value}
    with pytest.raises(InvalidArgument, match=name):
        hf_exactassist.generate(target, **prompts([6]), **settings)


def test_a_whole_number_may_come_as_a_float(target, trace):
    """Transformers' own heuristic leaves floats such as 7.0 in generation configs."""
    assisted(target, copy.deepcopy(target), num_assistant_tokens=7.0)
    assert trace.wanted()[0] == 7


def test_arguments_that_contradict_each_other_are_refused(target):
    with pytest.raises(InvalidArgument, match="prompt_lookup_num_tokens"):
        assisted(target, noisy(target), prompt_lookup_num_tokens=3)
    with pytest.raises(InvalidArgument, match="from_pretrained"):
        assisted(target, "a name")


def test_the_target_may_be_its_own_assistant(target, trace):
    """One object in both roles keeps two caches."""
    assert torch.equal(assisted(target, target), target.generate(**prompts([6]), **SETTINGS))
    assert trace.wanted() == [5, 5, 5, 4]
