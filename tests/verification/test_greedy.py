"""Greedy judging (contract 0x02D)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_exactassist.records import Draft, Uniforms
from hf_exactassist.verification.coupling import verify_sampled
from hf_exactassist.verification.greedy import near_ties, verify_greedy


INF = math.inf


def one_hot_scores(choices, vocabulary=4):
    """Scores `(B, K + 1, V)` whose arg-max tokens are `choices`."""
    return torch.nn.functional.one_hot(torch.tensor(choices), vocabulary).float()


def judged(scores, tokens, lengths=None, probs=None):
    tokens = torch.tensor(tokens, dtype=torch.long)
    verdict = verify_greedy(scores, Draft(tokens, lengths or (tokens.shape[1],) * len(tokens), probs))
    return verdict.accepted.tolist(), verdict.terminal.tolist()


def serial(scores, tokens, length):
    """What plain greedy decoding would have published along the draft, row by row."""
    for place in range(length):
        choice = max(range(scores.shape[-1]), key=lambda token: (scores[place, token].item(), -token))
        if choice != tokens[place]:
            return place, choice
    return length, max(range(scores.shape[-1]), key=lambda token: (scores[length, token].item(), -token))


@pytest.mark.parametrize(
    "draft, accepted, terminal",
    [
        ([0, 0, 0], 0, 2),  # recovered in the first place
        ([2, 0, 0], 1, 1),
        ([2, 1, 1], 2, 3),
        ([2, 1, 3], 3, 0),  # bonus
        ([0, 1, 3], 0, 2),  # matches behind a mismatch do not count (0x03G)
        ([2, 0, 3], 1, 1),
    ],
)
def test_0x02D_the_longest_matching_prefix_is_kept(draft, accepted, terminal):
    assert judged(one_hot_scores([[2, 1, 3, 0]]), [draft]) == ([accepted], [terminal])


def test_rows_of_different_draft_length_end_in_their_own_bonus_row():
    scores = one_hot_scores([[2, 1, 3, 0]] * 4)
    tokens = [[2, 1, 3]] * 4
    assert judged(scores, tokens, (0, 1, 2, 3)) == ([0, 1, 2, 3], [2, 1, 3, 0])


def test_a_tie_goes_to_the_token_plain_decoding_takes():
    scores = torch.tensor([[[1.0, 5.0, 5.0, -INF], [0.0, 0.0, 0.0, 0.0]]]).expand(2, 2, 4)
    expected = scores[0].argmax(dim=-1).tolist()
    assert expected == [1, 0]
    assert judged(scores, [[1], [2]]) == ([1, 0], [0, 1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_no_draft_is_plain_greedy_decoding(dtype):
    scores = torch.tensor([[[0.0, -INF, 1.0]], [[-INF, -5.0, -INF]]], dtype=dtype)
    verdict = verify_greedy(scores, Draft.empty(2, "cpu"))
    assert (verdict.accepted.tolist(), verdict.terminal.tolist()) == ([0, 0], [2, 1])


def test_rows_beyond_a_draft_mean_nothing():
    scores = one_hot_scores([[2, 1, 3, 0], [2, 1, 3, 0]])
    tokens = torch.tensor([[2, 1, 3], [2, -1, 99]])
    scores[1, 2:] = math.nan
    probs = torch.full((2, 3, 4), math.nan)
    verdict = verify_greedy(scores, Draft(tokens, (3, 1), probs))
    assert (verdict.accepted.tolist(), verdict.terminal.tolist()) == ([3, 1], [0, 1])


def score_batches(width=3, vocabulary=3, rows=2):
    cell = st.integers(0, 2).map(float)  # few values, many ties
    return st.tuples(
        st.lists(cell, min_size=rows * (width + 1) * vocabulary, max_size=rows * (width + 1) * vocabulary),
        st.lists(st.integers(0, vocabulary - 1), min_size=rows * width, max_size=rows * width),
        st.tuples(*[st.integers(0, width)] * rows),
    )


@settings(deadline=None)
@given(score_batches())
def test_any_batch_is_judged_as_serial_decoding_row_by_row(batch):
    cells, tokens, lengths = batch
    scores = torch.tensor(cells).reshape(2, 4, 3)
    tokens = torch.tensor(tokens).reshape(2, 3)
    expected = [serial(scores[row], tokens[row].tolist(), lengths[row]) for row in range(2)]
    accepted, terminal = judged(scores, tokens.tolist(), lengths)
    assert list(zip(accepted, terminal, strict=True)) == expected


@settings(deadline=None)
@given(score_batches(), st.randoms(use_true_random=False), st.booleans())
def test_0x02D_the_sampled_rule_with_all_mass_on_one_token_is_the_greedy_rule(batch, random, point_mass):
    _, tokens, lengths = batch
    choices = [[random.randrange(3) for _ in range(4)] for _ in range(2)]
    scores = one_hot_scores(choices, 3).log()
    tokens = torch.tensor(tokens).reshape(2, 3)
    weights = torch.tensor([random.random() + 0.01 for _ in range(18)]).reshape(2, 3, 3)
    draft = Draft(tokens, lengths, None if point_mass else weights / weights.sum(-1, keepdim=True))
    noise = Uniforms(
        torch.tensor([random.random() for _ in range(6)], dtype=torch.float64).reshape(2, 3),
        torch.tensor([random.random() for _ in range(8)], dtype=torch.float64).reshape(2, 4),
    )
    sampled, greedy = verify_sampled(scores, draft, noise), verify_greedy(scores, draft)
    assert torch.equal(sampled.accepted, greedy.accepted)
    assert torch.equal(sampled.terminal, greedy.terminal)


@pytest.mark.parametrize(
    ("best", "second", "dtype", "tie"),
    [
        # units in the last place: 0.125 for 16 to 32 in bfloat16, a hundredth of a half of 4 in float16
        (20.0, 19.75, torch.bfloat16, True),
        (20.0, 19.7, torch.bfloat16, False),
        (-20.0, -20.25, torch.bfloat16, True),
        (4.0, 4.0 - 2**-7, torch.float16, True),
        (4.0, 4.0 - 2**-6, torch.float16, False),
        (0.0, 0.0, torch.bfloat16, True),
        (1.0, -INF, torch.bfloat16, False),
    ],
)
def test_near_ties_are_two_units_in_the_last_place(best, second, dtype, tie):
    assert near_ties(torch.tensor([[second, best, -100.0]]), dtype).tolist() == [tie]
