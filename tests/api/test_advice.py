"""What the counters say of whether drafting pays (contract 0x05C, 0x05E; user report A10)."""

import copy

import pytest
import torch

import hf_exactassist
from hf_exactassist import AssistStats
from hf_exactassist.ledger import speedup
from tests.tiny import prompts, tiny


# a draft token costs a fifth of a plain step
COSTS = [1.0, 1.2, 1.4, 1.6, 1.8]


def stats(kept, costs=COSTS, drafted=4, rounds=10, **others):
    """Ten rounds of so many drafts each, of which `kept[i]` were accepted up to position `i`."""
    tried = [rounds] * drafted
    return AssistStats(
        rounds=rounds,
        row_rounds=rounds,
        steps=rounds + sum(kept),
        drafted=sum(tried),
        accepted=sum(kept),
        drafted_by_position=tried,
        accepted_by_position=[*kept],
        costs=costs,
        **others,
    )


def test_a_pair_that_pays():
    good = stats([9, 8, 7, 6])
    assert good.tokens_per_round == 4 and good.expected_speedup == pytest.approx(4 / 1.8)
    assert "pays: about 2.22 times the speed of plain steps, at 4.00 tokens a round (by the sizes" in good.advice
    assert "(by times of rounds)" in stats([9, 8, 7, 6], timed=True).advice
    broken_even = good.break_even_acceptance
    assert speedup(1 + sum(broken_even**i for i in range(1, 5)), 1.8) == pytest.approx(1)


def test_a_pair_that_cannot_pay():
    bad = stats([1, 0, 0, 0])
    assert bad.expected_speedup == pytest.approx(1.1 / 1.8)
    assert "a draft token costs 0.20 of a plain step (by the sizes of the models" in bad.advice
    assert "0.10 of first draft tokens are accepted. Drop prompt lookup" in bad.advice
    assert "Drop the assistant" in stats([1, 0, 0, 0], draft_forwards=40).advice
    dear = stats([10, 10, 10, 10], costs=[1.0, 3.0, 5.0, 7.0, 9.0])
    assert dear.break_even_acceptance is None and "costs 2.00 of a plain step" in dear.advice


def test_drafts_that_are_too_long():
    """Of four tokens one pays, which is less than four cost."""
    long = stats([5, 0, 0, 0])
    assert long.expected_speedup < 1 and long.advice.startswith("Drafts of 1 token would pay")


def test_rounds_without_drafts_cost_a_plain_step():
    mixed = stats([9, 8, 7, 6])
    mixed.rounds = mixed.row_rounds = 20
    mixed.steps += 10
    assert mixed.expected_speedup == pytest.approx((1 + 30 / 20) / ((10 * 1.8 + 10 * 1.0) / 20))


@pytest.mark.parametrize(
    "unknown", [AssistStats(), stats([9, 8, 7, 6], costs=[]), stats([9, 8, 7, 6], costs=COSTS[:4])]
)
def test_nothing_is_said_where_nothing_is_known(unknown):
    assert unknown.expected_speedup is None and unknown.break_even_acceptance is None and unknown.advice == ""


def test_a_batch_is_as_slow_as_its_slowest_row():
    """Two rows, one of which is accepted whole and is done after two rounds; the other needs ten for as much."""
    slow = stats([2, 2, 2, 2])
    slow.row_rounds, slow.steps = 12, 10
    assert slow.expected_speedup < 1 < slow.tokens_per_round
    assert slow.expected_speedup == pytest.approx(10 / (10 * (10 * 1.8 + 2 * 1.0) / 12))


def test_no_draft_at_all_is_explained():
    idle = AssistStats(rounds=3, row_rounds=3, steps=3, costs=COSTS)
    assert idle.advice.startswith("Nothing was drafted")


def test_calls_are_told_together():
    total = sum([stats([9, 8, 7, 6]), stats([1], costs=COSTS[:2], drafted=1)])
    assert total.row_rounds == 20 and total.costs == COSTS
    cost = (10 * 1.8 + 10 * 1.2) / 20
    assert total.expected_speedup == pytest.approx((1 + 31 / 20) / cost)


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("drafter", ["assistant", "prompt lookup"])
def test_every_call_knows_its_costs(drafter, do_sample):
    target, inputs = tiny(), prompts([6, 9])
    assistant = {"assistant_model": copy.deepcopy(target)}
    drafting = assistant if drafter == "assistant" else {"prompt_lookup_num_tokens": 3}
    settings = {"do_sample": do_sample, "max_new_tokens": 20, "pad_token_id": 0, "return_dict_in_generate": True}
    output = hf_exactassist.generate(target, **inputs, **drafting, **settings, num_assistant_tokens=3)
    told = output.assist_stats
    assert len(told.costs) > len(told.drafted_by_position) and told.expected_speedup > 0 and told.seconds > 0
    assert told.rounds <= told.row_rounds <= 2 * told.rounds
    price = told.costs[1] / told.costs[0] - 1
    assert price > (0.9 if drafter == "assistant" else -1e-9) and torch.isfinite(torch.tensor(told.costs)).all()
