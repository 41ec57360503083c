"""Drafts that end where one token more is not worth its time (contract 0x05C, 0x05E)."""

import pytest
import torch

import hf_exactassist
from hf_exactassist import AssistedDecoding
from hf_exactassist.drafters import AssistantModelDrafter
from hf_exactassist.schedules import AdaptiveSchedule, ConstantSchedule, RoundCosts
from hf_exactassist.schedules.confidence import Confidence
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


SURE, UNSURE = 0.99, 0.3
GREEDY = {"do_sample": False, "max_new_tokens": 40, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture
def no_clock(monkeypatch):
    """Costs stay what they are given."""
    monkeypatch.setattr(RoundCosts, "observe", lambda self, rows, length, seconds: None)


def schedule(price=0.2, limit=8):
    made = AdaptiveSchedule(RoundCosts(lambda rows, length: 1 + price * length), limit)
    made.follow_clock()
    return made


def taught(price=0.2, rows=(0,)):
    """A schedule that has seen that sure tokens are always accepted, and others never."""
    made = schedule(price)
    for _ in range(30):
        for row in rows:
            made.lengths(rows)
            made.goes_on(rows, [[SURE, SURE, UNSURE]] * len(rows))
            made.observe(row, 3, 2)
    made.lengths(rows)
    return made


def test_a_sure_draft_goes_on_and_an_unsure_one_ends():
    made = taught()
    assert made.goes_on([0], [[SURE]]) and made.goes_on([0], [[SURE, SURE]])
    assert not made.goes_on([0], [[UNSURE]]) and not made.goes_on([0], [[SURE, UNSURE]])


def test_what_a_token_costs_decides_too():
    assert taught(0.2).goes_on([0], [[SURE]]) and not taught(3.0).goes_on([0], [[SURE]])


def test_no_draft_is_longer_than_the_limit():
    made = taught()
    assert made.goes_on([0], [[SURE] * 7]) and not made.goes_on([0], [[SURE] * 8])


def test_rows_of_a_batch_go_on_together():
    """One row that gains enough for two carries the other along; two that gain nothing end."""
    made = taught(0.1, rows=(0, 1))
    assert made.goes_on([0, 1], [[SURE], [UNSURE]])
    assert not made.goes_on([0, 1], [[UNSURE], [UNSURE]])


def test_tokens_behind_a_rejection_say_nothing():
    made = schedule()
    made.lengths([0])
    for _ in range(20):
        made.goes_on([0], [[SURE, UNSURE, UNSURE, UNSURE]])
        made.observe(0, 4, 0)
    untouched = Confidence()
    assert made._experience.confidence.rate(UNSURE, 0.5) == untouched.rate(UNSURE, 0.5)
    assert made._experience.confidence.rate(SURE, 0.5) < 0.1


def test_a_drafter_that_asks_is_left_to_end_its_drafts_itself(no_clock):
    made = schedule(0.02)
    fixed = made.lengths([0])
    assert 0 < fixed[0] < 8
    made.timed(1, fixed[0], 1.0)
    made.costs._seen = {1: {0: (1.0, 1.0, 1)}}
    for most in (4, 8, 8, 8):
        # the first drafts are short, whatever the drafter says
        assert made.goes_on([0], [[SURE] * (most - 1)]) and not made.goes_on([0], [[SURE] * most])
        made.observe(0, most, most)
        made.lengths([0])
    assert made.lengths([0]) == [8]


def test_a_useless_drafter_is_found_out_with_few_tokens():
    made, drafted = schedule(), []
    for _ in range(40):
        (length,) = made.lengths([0])
        made.observe(0, length, 0)
        made.timed(1, length, 1 + 0.2 * length)
        drafted.append(length)
    assert max(drafted) <= 4 and sum(drafted) <= 10


def run(lengths, how, price=0.15, kind="adaptive"):
    target, asked = tiny(), []
    made = ConstantSchedule(4) if kind == "constant" else schedule(price)
    goes_on = made.goes_on

    def spy(rows, confidences):
        answer = goes_on(rows, confidences)
        asked.append((len(confidences[0]), answer))
        return answer

    made.goes_on = spy
    drafter = AssistantModelDrafter(noisy(target, EVEN_NOISE["llama"]), torch.ones(64, dtype=torch.bool))
    settings = {**GREEDY, **how}
    inputs = prompts(lengths)
    loop = AssistedDecoding(drafter, made)
    output = target.generate(**inputs, **settings, custom_generate=loop, return_dict_in_generate=True)
    return target, inputs, output, asked


@pytest.mark.parametrize("lengths", [(6,), (6, 2, 9)])
def test_greedy_text_is_plain_whatever_the_lengths(lengths, no_clock):
    target, inputs, output, asked = run(lengths, {})
    assert output.sequences.tolist() == target.generate(**inputs, **GREEDY).tolist()
    # drafts of several lengths, ended before the limit
    ends = {drafted for drafted, went_on in asked if not went_on}
    assert len(ends) >= 2 and min(ends) < 8


def test_shared_noise_ends_drafts_too(no_clock):
    how = {"do_sample": True, "top_k": 0}
    target, inputs = tiny(), prompts((6,))
    torch.manual_seed(3)
    plain = target.generate(**inputs, **{**GREEDY, **how})
    made = schedule(0.05)
    drafter = AssistantModelDrafter(noisy(target, EVEN_NOISE["llama"]), torch.ones(64, dtype=torch.bool))
    torch.manual_seed(3)
    loop = AssistedDecoding(drafter, made, coupling="shared_noise")
    ours = target.generate(**inputs, **{**GREEDY, **how}, custom_generate=loop)
    assert ours.tolist() == plain.tolist() and made._asked


def test_maximal_coupling_does_not_ask():
    """How long its drafts are must not hang on times."""
    *_, asked = run((6,), {"do_sample": True, "top_k": 0})
    assert asked == []


def test_fixed_drafts_do_not_ask():
    *_, asked = run((6,), {}, kind="constant")
    assert asked == []


@pytest.mark.default_schedule
def test_the_front_door():
    target = tiny()
    output = hf_exactassist.generate(
        target, **prompts((6, 3)), **GREEDY, assistant_model=noisy(target, 0.01), return_dict_in_generate=True
    )
    assert output.sequences.tolist() == target.generate(**prompts((6, 3)), **GREEDY).tolist()


@pytest.mark.default_schedule
@pytest.mark.parametrize(
    "settings",
    [
        {"logits_processor": [lambda ids, scores: scores]},
        {"prefix_allowed_tokens_fn": lambda row, ids: list(range(80))},
        {"guidance_scale": 1.5},
        {"assistant_confidence_threshold": 0.3},
        {"repetition_penalty": 1.3},
        {"stopping_criteria": [lambda ids, scores: False]},
    ],
    ids=lambda settings: next(iter(settings)),
)
@pytest.mark.parametrize("lengths", [(6,), (6, 2)])
def test_drafts_that_end_at_once_beside_everything_else(monkeypatch, settings, lengths):
    """Every draft ends with its first token, whatever else looks at drafts."""
    monkeypatch.setattr(AdaptiveSchedule, "lengths", lambda self, rows: [5] * len(rows))
    monkeypatch.setattr(AdaptiveSchedule, "goes_on", lambda self, rows, confidences: False)
    target, inputs = tiny(), prompts(lengths)
    plain = target.generate(
        **inputs, **GREEDY, **{k: v for k, v in settings.items() if k != "assistant_confidence_threshold"}
    )
    output = hf_exactassist.generate(
        target, **inputs, **GREEDY, **settings, assistant_model=noisy(target, 0.01), return_dict_in_generate=True
    )
    assert output.sequences.tolist() == plain.tolist()
    assert output.assist_stats.drafted > 0 and len(output.assist_stats.drafted_by_position) == 1
