"""Figures of a made-up measurement, by hand; nothing is timed here."""

import json

import pytest

from hf_exactassist.benchmark.clocks import Taken
from hf_exactassist.benchmark.forwards import Forwards
from hf_exactassist.benchmark.measuring import Case, Difference, Sample, first_difference
from hf_exactassist.benchmark.prompts import Batch
from hf_exactassist.benchmark.report import figures
from hf_exactassist.benchmark.variants import OURS, PLAIN, TRANSFORMERS, Variant
from hf_exactassist.telemetry import AssistStats


PLAIN_, K2, DEFAULT, THEIRS = Variant(PLAIN), Variant(OURS, 2), Variant(OURS), Variant(TRANSFORMERS, 2)


def taken(cpu: float) -> Taken:
    return Taken(cpu, 2 * cpu)


def stats(rounds: int, drafted: list[int], accepted: list[int]) -> AssistStats:
    return AssistStats(
        rounds=rounds,
        drafted=sum(drafted),
        accepted=sum(accepted),
        published=rounds + sum(accepted) + 1,
        drafted_by_position=drafted,
        accepted_by_position=accepted,
    )


def made(
    draft_step: float = 1.0, k2: float = 95.0, default: float = 100.0, accepted: tuple[int, int] = (4, 2)
) -> Case:
    """Two batches of a prompt each, 11 tokens each. A step takes 10 s, a block of three 12 s, a prompt 5 s and 1 s."""
    batches = [Batch("prose", (0,)), Batch("code", (1,))]
    counted = stats(5, [5, 5], list(accepted))
    samples = {
        PLAIN_: [Sample(r, b, taken(105.0 + r), 11, 11, None) for r in range(3) for b in range(2)],
        THEIRS: [],
        K2: [Sample(r, b, taken(k2), 11, 11, counted) for r in range(3) for b in range(2)],
        DEFAULT: [Sample(r, b, taken(default), 11, 11, counted) for r in range(3) for b in range(2)],
    }
    forwards = Forwards(
        taken(5.0),
        taken(1.0),
        {1: (taken(10.0), taken(10.0)), 2: (taken(11.0),), 3: (taken(12.0), taken(12.0), taken(99.0))},
        (taken(draft_step),) * 3,
    )
    shares = {K2: {"target": 60.0, "draft": 10.0, "total": 100.0, "target_forwards": 6, "draft_forwards": 11}}
    return Case(
        "greedy",
        1,
        batches,
        samples,
        refused={THEIRS: "it does not want to"},
        differences={DEFAULT: Difference(1, 3, 7, None)},
        forwards=[(0, forwards), (1, forwards)],
        shares=shares,
    )


def by_name(report: dict, way: Variant) -> dict:
    return next(one for one in report["variants"] if one["name"] == way.name)


def test_time_per_token_and_speedups():
    report = figures(made(), "cpu")
    assert report["repeats"] == 3
    plain, ours = by_name(report, PLAIN_)["measured"], by_name(report, K2)["measured"]
    # two batches of 106 s in the middle repeat, 22 tokens
    assert plain["seconds_per_token"] == pytest.approx(
        {"lower": 211 / 22, "median": 212 / 22, "upper": 213 / 22}, rel=1e-9
    )
    assert ours["speedup"] == pytest.approx(106 / 95)
    assert ours["wall"]["seconds_per_token"]["median"] == pytest.approx(2 * 190 / 22)
    assert ours["speedup_of_repeats"]["upper"] == pytest.approx(106.5 / 95)
    assert by_name(report, K2)["by_kind"]["code"] == pytest.approx({"speedup": 106 / 95, "accepted_per_round": 6 / 5})


def test_a_speedup_is_a_ratio_of_medians():
    case = made()
    seconds = (50.0, 95.0, 190.0)
    case.samples[K2] = [Sample(r, b, taken(seconds[r]), 11, 11, stats(5, [5], [4])) for r in range(3) for b in (0, 1)]
    case.samples[PLAIN_] = [
        Sample(r, b, taken((380.0, 106.0, 95.0)[r]), 11, 11, None) for r in range(3) for b in (0, 1)
    ]
    found = by_name(figures(case, "cpu"), K2)["measured"]
    # of the repeats' own ratios, 7.6, 106 / 95 and 0.5, the mean is another
    assert found["speedup"] == pytest.approx(106 / 95)
    case.samples[PLAIN_] = [
        Sample(r, b, taken((95.0, 380.0, 106.0)[r]), 11, 11, None) for r in range(3) for b in (0, 1)
    ]
    found = by_name(figures(case, "cpu"), K2)["measured"]
    assert found["speedup"] == pytest.approx(106 / 95) and found["speedup_of_repeats"]["median"] == pytest.approx(1.9)


def test_wall_time_can_be_the_judge():
    case = made()
    slow = [Sample(s.repeat, s.batch, Taken(s.taken.cpu, 1000.0), 11, 11, s.stats) for s in case.samples[K2]]
    case.samples[K2] = slow
    assert by_name(figures(case, "wall"), K2)["measured"]["speedup"] == pytest.approx(0.212)
    assert by_name(figures(case, "cpu"), K2)["measured"]["speedup"] == pytest.approx(106 / 95)


def test_rounds_efficiency_and_break_even():
    report = figures(made(), "cpu")
    plain, ours = by_name(report, PLAIN_)["rounds"], by_name(report, K2)["rounds"]
    # 2 x 10 steps in 2 x (106 - 5) s
    assert plain["seconds"] == pytest.approx(10.1) and plain["efficiency"] == pytest.approx(10 / 10.1)
    # (2 x 95 - 2 x (5 + 1)) s in 10 rounds; each 2 x 1 + 12 s of forwards
    assert ours["seconds"] == pytest.approx(17.8)
    assert ours["efficiency"] == pytest.approx(14 / 17.8)
    # 1 + 6/5 tokens a round
    assert ours["tokens_per_round"] == pytest.approx(2.2)
    assert ours["expected_speedup"] == pytest.approx(10 * 2.2 / 14)
    # 1 + a + a^2 = 17.8 / 10.1
    a = ours["break_even_acceptance"]
    assert 1 + a + a * a == pytest.approx(17.8 / 10.1)
    assert by_name(report, DEFAULT)["rounds"]["break_even_acceptance"] is None


def test_rounds_that_took_less_than_nothing_break_even_nowhere():
    """The prompts are taken off as they take alone: 2 x (5 + 1) s, of which the whole call took 10."""
    ours = by_name(figures(made(k2=5.0), "cpu"), K2)["rounds"]
    assert ours["seconds"] < 0 and ours["break_even_acceptance"] is None


def test_forwards_and_acceptance():
    report = figures(made(), "cpu")
    forwards, acceptance = report["forwards"], report["acceptance"]
    # an outlier does not move a median
    assert forwards["target"][3]["median"] == 12.0
    assert forwards["cost_ratio"] == pytest.approx(0.1)
    assert (forwards["target_prefill"], forwards["draft_prefill"]) == (10.0, 2.0)
    # 1 + a = (1 + 11) / 10
    assert forwards["break_even_acceptance"][1] == pytest.approx(0.2)
    assert acceptance["survival"] == pytest.approx([0.8, 0.4]) and acceptance["from"] == K2.name
    assert acceptance["by_position"] == pytest.approx([0.8, 0.5])
    assert acceptance["expected_speedup"] == pytest.approx({1: 18 / 12, 2: 22 / 14})


def test_texts_shares_and_refusals():
    report = figures(made(), "cpu")
    assert by_name(report, K2)["text"] == {"identical": True, "first_difference": None}
    differs = by_name(report, DEFAULT)["text"]
    assert differs["first_difference"] == {"prompt": 1, "position": 3, "plain": 7, "other": None}
    assert by_name(report, K2)["inside"]["forward_share"] == pytest.approx(0.7)
    assert by_name(report, DEFAULT)["inside"] is None
    theirs = by_name(report, THEIRS)
    assert theirs["reason"] == "it does not want to" and theirs["measured"] is None and theirs["text"] is None
    json.dumps(report)


def test_broken_off_repeats_do_not_count():
    case = made()
    del case.samples[DEFAULT][-1]
    report = figures(case, "cpu")
    assert report["repeats"] == 2
    assert by_name(report, PLAIN_)["measured"]["seconds_per_token"]["median"] == pytest.approx(105.5 / 11)
    assert len(by_name(report, PLAIN_)["samples"]) == 6
    # nor do their counters: 5 rounds on each of 2 batches, twice
    assert by_name(report, K2)["rounds"]["rounds"] == by_name(report, K2)["rounds"]["stats"]["rounds"] == 20


def test_nothing_was_measured():
    case = made()
    case.samples = {way: [] for way in case.samples}
    case.forwards, case.no_forwards = [], "no cache"
    report = figures(case, "cpu")
    assert report["repeats"] == 0 and report["advice"] == "" and report["acceptance"] is None
    assert report["forwards"]["reason"] == "no cache"
    assert by_name(report, PLAIN_)["reason"] == "not measured"


@pytest.mark.parametrize(
    ("case", "says"),
    [
        (
            made(),
            "Drafting pays: 1.12 times as fast as plain (K=2), 1.06 with the defaults; forwards alone would allow",
        ),
        (
            made(k2=120.0),
            "Drafting pays: 1.06 times as fast as plain (the defaults); forwards alone would allow 1.57.",
        ),
        # 1 + a = (4 + 11) / 10, and of first draft tokens 1 in 5 is accepted
        (
            made(draft_step=4.0, k2=120.0, default=130.0, accepted=(1, 0)),
            "This pair cannot pay: a draft step costs 0.40 of a target step, so at least 0.50 of drafts would have to "
            "be accepted, and 0.20 of first draft tokens are.",
        ),
        (
            made(draft_step=20.0, k2=120.0, default=130.0, accepted=(1, 0)),
            "This pair cannot pay: a draft step costs 2.00 of a target step, too much even if every draft were",
        ),
    ],
)
def test_advice(case, says):
    assert figures(case, "cpu")["advice"].startswith(says)


def test_advice_where_the_forwards_would_pay():
    case = made(k2=120.0, default=130.0)
    # 14 s of forwards in (240 - 12) / 10 s
    assert figures(case, "cpu")["advice"] == (
        "Drafting does not pay here, though it could. The forwards alone would allow 1.57 at K=2, and 0.88 is "
        "reached: they account for 0.61 of the time of K=2."
    )


def test_first_difference():
    assert first_difference([[1, 2]], [[1, 2]], [4]) is None
    assert first_difference([[1, 2], [3, 4]], [[1, 2], [3, 5]], [4, 9]) == Difference(9, 1, 4, 5)
    assert first_difference([[1, 2]], [[1, 2, 3]], [4]) == Difference(4, 2, None, 3)
