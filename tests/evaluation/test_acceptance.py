"""Ledgers of logged calls, by hand (contract 0x05A, 0x05B)."""

import pytest

from hf_exactassist.evaluation.acceptance import acceptance, over_text
from hf_exactassist.evaluation.rounds import row_rounds
from tests.evaluation.made import call, events, look, row


# one row: 1 token; 3 drafts, 1 kept; 3 drafts, all kept; 3 drafts, the second kept ends the text
LOG = events(
    [row([], 0, 1)],
    [row([2, 3, 4], 1, 9)],
    [row([5, 6, 7], 3, 8)],
    [row([2, 3, 4], 2)],
)


def test_by_hand():
    """Position 1: 3 of 3; position 2: reached 3, kept 2, of which one ends the text; position 3: reached 1, kept 1."""
    found = acceptance([look(LOG)], [], ["prose"])
    assert (found["rounds"], found["row_rounds"], found["drafted"], found["accepted"]) == (3, 3, 9, 6)
    # the prompt's own token, 2, 4 and 2
    assert found["published"] == 9 and found["rate"] == 6 / 9
    assert found["tokens_per_round"] == 8 / 3
    assert found["reached"] == [3, 3, 1] and found["by_position"] == [1.0, 2 / 3, 1.0]
    assert found["survival"] == pytest.approx([1, 2 / 3, 2 / 3])
    assert found["prefix_law"] == pytest.approx([0, 1 / 3, 0, 2 / 3])
    assert found["expected_accepted"] == pytest.approx(7 / 3)
    # behind the second place half of the texts go on: 1 + 1 + 1/3 + 1/3
    assert found["expected_progress"] == pytest.approx(8 / 3)
    assert found["tokens_per_target_forward"] is None


def test_drafts_of_other_lengths_count_for_what_they_have():
    """Drafts of 2, 1 and 0 tokens: the second place is reached once, and no draft is no rejection."""
    log = events([row([], 0, 1)], [row([2, 3], 1, 4)], [row([2], 0, 4)], [row([], 0, 4)])
    found = acceptance([look(log)], [], ["prose"])
    assert found["reached"] == [2, 1] and found["by_position"] == [0.5, 0.0]
    assert found["survival"] == [0.5, 0.0] and found["expected_progress"] == 1.5
    assert found["rate"] == 1 / 3 and found["tokens_per_round"] == 4 / 3


def test_places_never_reached_have_no_rate_but_a_law():
    """Every first draft token is rejected: a prefix of 0 is certain, and longer ones have no probability."""
    found = acceptance([look(events([row([], 0, 1)], [row([2, 3, 4], 0, 9)]))], [], ["prose"])
    assert found["by_position"] == [0.0] and found["reached"] == [1]
    assert found["survival"] == [0.0] * 3 and found["prefix_law"] == [1.0, 0, 0, 0]
    assert found["expected_accepted"] == 0 and found["expected_progress"] == 1


def test_places_behind_a_stop_are_not_guessed():
    found = acceptance([look(events([row([], 0, 1)], [row([2, 3, 4], 1)]))], [], ["prose"])
    assert found["survival"] == [1.0] and found["expected_progress"] == 1.0
    assert found["tokens_per_round"] == 1.0


def test_batches_and_kinds():
    """Two rows, of which the second has a kind of its own; forwards come from the timed calls."""
    log = events(
        [row([], 0, 1), row([], 0, 1, row=1)],
        [row([2, 3], 2, 4), row([2, 3], 0, 4, row=1)],
        [row([2, 3], 1, 4, row=1)],
    )
    timed = call(stats={"steps": 5, "target_forwards": 3})
    found = acceptance([look(log), look(LOG, batch=2)], [timed, call()], ["prose", "code", "prose"])
    assert found["rounds"] == 5 and found["row_rounds"] == 6
    assert found["tokens_per_target_forward"] == 2.0
    assert found["by_kind"] == {
        "prose": {"prompts": 2, "rate": 8 / 11, "tokens_per_round": 11 / 4},
        "code": {"prompts": 1, "rate": 1 / 4, "tokens_per_round": 3 / 2},
    }


def test_over_the_text():
    """14 tokens before a draft of 3: the first two lie in the first stretch, the third in the second."""
    long = events([row([], 0, 1)], [row(list(range(12)), 12, 3)], [row([7, 8, 9], 2, 1)])
    found = over_text(row_rounds(long))
    assert found == [
        {"from": 0, "to": 16, "rate": 1.0, "decisions": 14},
        {"from": 16, "to": 32, "rate": 0.0, "decisions": 1},
    ]


def test_without_rounds_there_is_nothing_to_say():
    assert acceptance([], [], ["prose"]) is None
    assert acceptance([look(events([row([], 0, 1)]))], [], ["prose"]) is None
    nothing = acceptance([look(events([row([], 0, 1)], [row([], 0, 1)]))], [], ["prose"])
    assert nothing["rate"] is None and nothing["prefix_law"] == [1.0] and nothing["expected_progress"] == 1.0
