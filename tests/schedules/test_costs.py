"""What rounds cost: estimates, and what clocks make of them (contract 0x05C)."""

import pytest
import torch

from hf_exactassist.models.effort import Effort, round_estimate
from hf_exactassist.schedules import RoundCosts
from tests.tiny import tiny


def estimate(rows, length):
    return 1 + 0.1 * length * rows


def test_without_times_the_estimate_is_all_there_is():
    costs = RoundCosts(estimate)
    assert costs.table(1, 3) == costs.estimated(1, 3) == pytest.approx([1, 1.1, 1.2, 1.3])
    assert costs.estimated(2, 1) == pytest.approx([1, 1.2])


def test_times_set_the_scale():
    costs = RoundCosts(estimate)
    costs.observe(1, 0, 20.0)
    assert costs.table(1, 2) == pytest.approx([20, 22, 24])
    # what is not affected: the estimate
    assert costs.estimated(1, 2) == pytest.approx([1, 1.1, 1.2])


def test_the_line_of_drafts_is_found():
    costs = RoundCosts(estimate)
    for _ in range(20):
        for length in (1, 2, 4, 8):
            costs.observe(1, length, 3.0 + 0.5 * length)
        costs.observe(1, 0, 2.0)
    table = costs.table(1, 8)
    assert table[0] == pytest.approx(2.0)
    for length in range(1, 9):
        assert table[length] == pytest.approx(3.0 + 0.5 * length, rel=0.1)


def test_a_round_without_drafts_is_guessed_from_those_with():
    costs = RoundCosts(estimate)
    for _ in range(30):
        costs.observe(1, 5, 15.0)
    assert costs.table(1, 5)[0] == pytest.approx(10.0, rel=0.05)


def test_one_slow_round_changes_little():
    costs = RoundCosts(estimate)
    for _ in range(10):
        costs.observe(1, 0, 1.0)
    costs.observe(1, 0, 100.0)
    assert costs.table(1, 0)[0] < 1.3


def test_drafts_never_cost_next_to_nothing():
    """A clock that says so is wrong: an assistant's forward takes time."""
    costs = RoundCosts(lambda rows, length: 1 + length)
    for _ in range(10):
        costs.observe(1, 0, 1.0)
        costs.observe(1, 4, 0.9)
    table = costs.table(1, 4)
    assert table == sorted(table) and table[4] >= 3


def test_other_numbers_of_rows_tell_the_scale():
    costs = RoundCosts(estimate)
    costs.observe(8, 0, 5.0)
    assert costs.table(7, 1)[0] == pytest.approx(5.0)


def test_times_grow_old():
    costs = RoundCosts(estimate)
    assert not costs.is_fresh(1, 0)
    costs.observe(1, 0, 1.0)
    assert costs.is_fresh(1, 0) and not costs.is_fresh(2, 0)
    assert costs.knows(0) and not costs.knows(3)
    for _ in range(200):
        costs.observe(1, 3, 1.0)
    assert not costs.is_fresh(1, 0)


def test_larger_models_are_estimated_to_take_longer():
    small, large = tiny(num_hidden_layers=1), tiny(num_hidden_layers=4)
    assert Effort(large).seconds(1) > 2 * Effort(small).seconds(1) / 1.5
    assert Effort(large).seconds(64) > Effort(large).seconds(1)
    # half as many bytes are read in half the time
    assert Effort(large.to(torch.bfloat16)).seconds(1) < Effort(tiny(num_hidden_layers=4)).seconds(1)
    rounds = round_estimate(large, small)
    assert rounds(1, 0) < rounds(1, 1) < rounds(1, 2) < rounds(2, 2)
    assert rounds(1, 2) - rounds(1, 1) == pytest.approx(rounds(1, 1) - rounds(1, 0))


def test_what_reads_the_prompt_alone_does_not_count():
    """An encoder is no part of a round, nor is a table that is only looked up."""
    from tests.tiny_encoder_decoder import tiny as encoder_decoder

    model = encoder_decoder("t5")
    everything = sum(part.numel() * part.element_size() for part in model.parameters())
    counted = sum(part.numel() * part.element_size() for part in model.get_decoder().parameters())
    assert counted < everything
    deep = encoder_decoder("t5")
    before = Effort(deep).seconds(1)
    deep.get_encoder().extra = torch.nn.Linear(4000, 4000)
    assert Effort(deep).seconds(1) == before


def test_a_busy_machine_does_not_write_a_pair_off_for_ever():
    """Drafts looked dear in one call, and are tried again in the next ones, where they are cheap."""
    costs = RoundCosts(lambda rows, length: 1 + 0.2 * length)
    for _ in range(5):
        costs.observe(1, 0, 1.0)
        costs.observe(1, 1, 2.5)
    dear = costs.table(1, 4)
    costs.fade()
    faded = costs.table(1, 4)
    assert dear[1] > faded[1] > 1.2
    costs.observe(1, 0, 1.0)
    costs.observe(1, 1, 1.2)
    assert costs.table(1, 4)[1] < 0.75 * dear[1]
