"""Costs of rounds and what follows for draft lengths, by hand (contract 0x05C, 0x05E)."""

import pytest

from hf_exactassist.evaluation import costs
from hf_exactassist.evaluation.costs import RoundCosts
from tests.evaluation.made import STATS, call, events, look, plain, row


def taken(propose, score, state=0.0, make_ready=0.0):
    return {"make_ready": make_ready, "propose": propose, "score": score, "process": state / 2, "judge": state / 2}


def drafting(*lengths, propose=1.0, score=10.0, per_token=2.0, state=1.0, **more):
    """A log with a round for each draft length, all accepted, whose costs lie on straight lines."""
    rounds = [[row([], 0, 1)], *([row(list(range(length)), length, 1)] for length in lengths)]
    seconds = {
        number: taken(length * propose, score + per_token * length, state) for number, length in enumerate(lengths, 1)
    }
    return events(*rounds, seconds={0: {"score": 5.0}, **seconds}, **more)


def test_lines():
    found = costs.round_costs([look(drafting(1, 3, 3))], [])
    assert found.draft == pytest.approx((0.0, 1.0)) and found.verify == pytest.approx((10.0, 2.0))
    assert found.rest == 1.0
    assert [found.at(length) for length in (0, 1, 5)] == pytest.approx([11.0, 14.0, 26.0])
    # the three rounds' stages took 54; timed, they took 60
    timed = [call(stats=STATS | {"rounds": 3, "seconds": 60.0})]
    assert costs.round_costs([look(drafting(1, 3, 3))], timed).rest == pytest.approx(3.0)


def test_an_outlier_does_not_move_a_median():
    log = drafting(1, 1, 1, 3, 3, 3)
    next(event for event in log if event.get("generation") == 1)["seconds"]["score"] = 500.0
    assert costs.round_costs([look(log)], []).verify == pytest.approx((10.0, 2.0))


def test_one_length_alone():
    """Tokens are drafted at one price each, and a wider forward costs no more."""
    found = costs.round_costs([look(drafting(4, 4))], [])
    assert found.draft == (0.0, 1.0) and found.verify == (18.0, 0.0)


def test_costs_never_fall_with_length():
    falling = costs.round_costs([look(drafting(1, 3, per_token=-2.0))], [])
    assert falling.verify == (6.0, 0.0)
    # nor is nothing dearer than something
    steep = costs.round_costs([look(drafting(2, 4, score=-3.0))], [])
    assert steep.verify[0] == 0.0 and steep.verify[1] > 0
    assert costs.round_costs([], []) is None and costs.round_costs([look(events([row([], 0, 1)]))], []) is None


def test_time_split_and_what_lies_beyond():
    """Stages of the two rounds: 4 drafting, 28 verifying, 2 on state; timed, a round took 20 and not 17."""
    looks = [look(drafting(1, 3))]
    assert costs.time_split(looks, []) == {"draft": 4 / 34, "verify": 28 / 34, "state": 2 / 34, "other": 0.0}
    timed = [call(stats=STATS | {"rounds": 2, "seconds": 40.0})]
    assert costs.beyond_stages(looks, timed) == 3.0
    assert costs.time_split(looks, timed) == {"draft": 0.1, "verify": 0.7, "state": 0.05, "other": 0.15}
    # faster without the log than its stages alone: noise
    assert costs.beyond_stages(looks, [call(stats=STATS | {"rounds": 2, "seconds": 30.0})]) == 0.0
    # another unit tells nothing
    assert costs.beyond_stages(looks, [call(batch=1, stats=STATS | {"rounds": 2, "seconds": 40.0})]) == 0.0
    assert costs.time_split([], []) is None


@pytest.mark.parametrize(("layout", "verify"), [("replay", 10.0), ("retained", 13.0)])
def test_reading_the_frontier_is_verifying(layout, verify):
    """What is done before drafting is a forward in one layout and letting rows go in the other."""
    log = events([row([], 0, 1)], [row([1], 1, 1)], layout=layout, seconds={1: taken(1.0, 10.0, 2.0, 3.0)})
    (one,) = costs.timed_rounds([look(log)])
    assert (one.draft, one.verify, one.state) == (1.0, verify, 15.0 - verify)


def test_a_step_without_the_prompt():
    """5 s for the prompt: (17 - 5) / 4, (11 - 5) / 2 and (29 - 5) / 4 for the steps behind it."""
    looks = [look(drafting(1)), look(drafting(1), batch=1), look(drafting(1), batch=2)]
    before = [
        plain(texts=[range(5), range(3)], prompts=[0, 1], seconds={"cpu": 90.0, "wall": 17.0}),
        plain(batch=1, texts=[range(3)], seconds=11.0),
        plain(batch=2, texts=[range(5)], seconds=29.0),
        plain(batch=3, texts=[range(5)], seconds=1000.0),
    ]
    assert costs.step_seconds(before, looks) == 3.0
    assert costs.step_seconds([], looks) is costs.step_seconds(before, []) is None
    assert costs.step_seconds([plain(texts=[[1]], seconds=9.0)], looks) is None
    assert costs.step_seconds([plain(texts=[range(3)], seconds=4.0)], looks) is None


def test_the_longest_draft_of_a_batch_is_what_a_round_takes():
    log = events([row([], 0, 1), row([], 0, 1, row=1)], [row([1], 1, 1), row([1, 2, 3], 0, 9, row=1)])
    assert [one.length for one in costs.timed_rounds([look(log)])] == [3]


PRICE = RoundCosts(draft=(0.0, 1.0), verify=(10.0, 0.0), rest=0.0)


def test_predictions():
    """Half of the first tokens accepted, then always: tokens 1, 1.5, 2, at costs 10, 11, 12."""
    log = events([row([], 0, 1)], [row([1, 2], 2, 3)], [row([1, 2], 0, 3)])
    found = costs.predicted([look(log)], PRICE, 10.0)
    assert found["lengths"] == [0, 1, 2] and found["best_length"] == 2
    assert found["speedup"] == pytest.approx([1.0, 15 / 11, 20 / 12])
    # where a plain step is much cheaper than a round's forward, no drafts are best
    assert costs.predicted([look(log)], PRICE, 5.0)["best_length"] == 0


def test_ends_of_texts_bring_no_further_token():
    """All drafts are accepted, and half of the texts end with the first one: tokens 1, 1.5, 2 and not 1, 2, 3."""
    log = events([row([], 0, 1)], [row([1, 2], 2, 3)], [row([1, 2], 1)])
    found = costs.predicted([look(log)], PRICE, 10.0)
    assert found["speedup"] == pytest.approx([1.0, 15 / 11, 20 / 12])


def test_expectations():
    """2 tokens a round on average, at a cost of 12, against 10 for a step; 1 + a + a² = 1.2 breaks even."""
    log = events([row([], 0, 1)], [row([1, 2], 2, 3)], [row([1, 2], 0, 3)])
    found = costs.expectations([look(log)], PRICE, 10.0)
    assert found["expected_speedup"] == pytest.approx(2 * 10 / 12)
    rate = found["break_even_acceptance"]
    assert 1 + rate + rate**2 == pytest.approx(1.2)


def test_what_cannot_be_expected():
    none = {"expected_speedup": None, "break_even_acceptance": None}
    log = look(events([row([], 0, 1)], [row([1], 1, 3)]))
    assert costs.expectations([log], None, 10.0) == costs.expectations([log], PRICE, None) == none
    assert costs.expectations([], PRICE, 10.0) == none
    without = costs.expectations([look(events([row([], 0, 1)], [row([], 0, 3)]))], PRICE, 10.0)
    assert without == {"expected_speedup": 1.0, "break_even_acceptance": None}
    # two tokens a round cannot pay for one that costs eleven steps
    assert costs.expectations([log], PRICE, 1.0)["break_even_acceptance"] is None
