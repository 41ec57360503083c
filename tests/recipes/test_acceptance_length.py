"""Accepted and published tokens per round, computed by hand."""

import pytest

from hf_exactassist.telemetry import AssistStats


# drafts of 3, 3, 2 and 3 tokens; the third text ends inside its accepted draft, the fourth drafts nothing
ROUNDS = {"drafted": [3, 3, 2, 0], "accepted": [3, 1, 2, 0], "published": [4, 2, 1, 1]}


def test_by_hand(load):
    results = load("acceptance_length").compute(**ROUNDS)
    # published: 4 + 2 + 1 + 1; accepted and published: 3 + 1 + 1 + 0
    assert results["rounds"] == 4 and results["drafted"] == 8
    assert results["mean_published"] == 2.0
    assert results["mean_accepted"] == 1.25
    assert results["acceptance_rate"] == 5 / 8
    # reached: position 1 three times, 2 twice (the stop is before it once), 3 once
    assert results["rates"] == [1.0, 0.5, 1.0]
    assert results["survival"] == [1.0, 0.5, 0.5]
    assert results["prefix_law"] == [0.0, 0.5, 0.0, 0.5]
    assert results["expected_accepted"] == 2.0 and results["expected_published"] == 3.0


def test_a_rate_over_all_drafted_tokens_is_another(load):
    results = load("acceptance_length").compute(drafted=[4, 4], accepted=[0, 4], published=[1, 5])
    assert results["rates"] == [0.5, 1.0, 1.0, 1.0]
    assert results["acceptance_rate"] == 0.5


def test_batches_are_one_sample(load):
    module = load("acceptance_length")
    for start in (0, 2):
        module.add_batch(**{name: column[start : start + 2] for name, column in ROUNDS.items()})
    assert module.compute() == load("acceptance_length").compute(**ROUNDS)


def test_single_rounds(load):
    module = load("acceptance_length")
    for values in zip(*ROUNDS.values(), strict=True):
        module.add(**dict(zip(ROUNDS, values, strict=True)))
    assert module.compute() == load("acceptance_length").compute(**ROUNDS)


def test_positions_by_hand(load):
    module = load("acceptance_length", "positions")
    # two calls that drafted to different depths
    results = module.compute(
        drafted_by_position=[[6, 6, 4], [2]], accepted_by_position=[[5, 3, 1], [1]], row_rounds=[7, 3]
    )
    assert results["rounds"] == 10 and results["drafted"] == 18
    assert results["mean_accepted"] == 1.0 and results["mean_published"] == 2.0
    assert results["survival"] == [6 / 8, 3 / 6, 1 / 4]
    assert results["rates"] == pytest.approx([0.75, 2 / 3, 0.5])


def test_positions_agree_with_the_counters_they_come_from(load):
    stats = AssistStats(row_rounds=7, accepted=9, drafted_by_position=[6, 6, 4], accepted_by_position=[5, 3, 1])
    module = load("acceptance_length", "positions")
    module.add(
        drafted_by_position=stats.drafted_by_position,
        accepted_by_position=stats.accepted_by_position,
        row_rounds=stats.row_rounds,
    )
    assert module.compute()["mean_published"] == stats.tokens_per_round


def test_nothing_drafted(load):
    results = load("acceptance_length").compute(drafted=[0, 0], accepted=[0, 0], published=[1, 1])
    assert results["acceptance_rate"] is None and results["rates"] == [] and results["expected_published"] == 1.0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"drafted": [2], "accepted": [1]}, "also needs published"),
        ({"drafted": [2, 2], "accepted": [1, 1], "published": [2]}, "Mismatch in the number"),
        ({"drafted": [], "accepted": [], "published": []}, "no rounds"),
        ({"drafted": [2], "accepted": [1.5], "published": [2]}, "`accepted` holds 1.5"),
        ({"drafted": [2], "accepted": [None], "published": [2]}, "`accepted` holds None"),
        ({"drafted": [float("inf")], "accepted": [1], "published": [2]}, "`drafted` holds inf"),
        ({"drafted": [-1], "accepted": [0], "published": [1]}, "`drafted` holds -1"),
        ({"drafted": [1], "accepted": [2], "published": [2]}, "cannot publish 2"),
        ({"drafted": [2], "accepted": [1], "published": [3]}, "cannot publish 3"),
        ({"drafted": [2], "accepted": [1], "published": [0]}, "cannot publish 0"),
        ({"drafted": [2], "accepted": [1], "published": [2], "rounds": [1]}, "Bad inputs|unexpected keyword"),
    ],
)
def test_impossible_rounds_are_refused(load, columns, message):
    with pytest.raises((ValueError, TypeError), match=message):
        load("acceptance_length").compute(**columns)


@pytest.mark.parametrize(
    ("drafted", "accepted", "rounds", "message"),
    [
        ([[2, 2]], [[1]], [2], "One count of each kind"),
        ([[2, 2]], [[1, 2]], [2], "leave out what stands behind a rejection"),
        ([[2]], [[3]], [3], "cannot be accepted 3 times of 2"),
        ([[4]], [[2]], [3], "cannot be made in 3 rounds"),
        ([[]], [[]], [0], "no rounds"),
        ([[2.5]], [[1]], [3], "`drafted_by_position` holds 2.5"),
        ([None], [[1]], [3], "`drafted_by_position` holds None"),
        ([2], [[1]], [3], "don't match the expected format"),
    ],
)
def test_impossible_positions_are_refused(load, drafted, accepted, rounds, message):
    with pytest.raises(ValueError, match=message):
        load("acceptance_length", "positions").compute(
            drafted_by_position=drafted, accepted_by_position=accepted, row_rounds=rounds
        )


def test_an_unknown_configuration_is_refused(load):
    with pytest.raises(ValueError, match="choose one of rounds, positions"):
        load("acceptance_length", "tokens")
