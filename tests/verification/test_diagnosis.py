"""How two distributions differ, by hand, and that it is what the judge does (contract 0x03B, 0x03E)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_exactassist.diagnosis import divergence, expected_acceptance, most_rejected, same_top, total_variation
from hf_exactassist.verification.coupling import keeps


# the position of 0x03E: 0.3 of proposals are A in vain, and B and C are drafted too seldom by 0.25 and 0.05
P = [0.30, 0.50, 0.20]
Q = [0.60, 0.25, 0.15]
# B and nothing else
NARROW = [0.00, 1.00, 0.00]

ALL = [total_variation, expected_acceptance, divergence, same_top, most_rejected]


def rows(*laws):
    return torch.tensor(laws, dtype=torch.float64)


def test_rejected_and_accepted_mass():
    p, q = rows(P, P, P), rows(Q, P, NARROW)
    assert total_variation(p, q).tolist() == pytest.approx([0.3, 0.0, 0.5])
    assert expected_acceptance(p, q).tolist() == pytest.approx([0.7, 1.0, 0.5])


def test_divergence():
    found = divergence(rows(P, P, P, NARROW), rows(Q, P, NARROW, P))
    by_hand = 0.3 * math.log(0.5) + 0.5 * math.log(2) + 0.2 * math.log(4 / 3)
    # the other way round a cut-off token does no harm
    assert found.tolist() == pytest.approx([by_hand, 0.0, math.inf, math.log(2)])
    assert divergence(rows(NARROW), rows(NARROW)).tolist() == [0.0]


def test_top_tokens():
    p = rows(P, P, [0.4, 0.4, 0.2])
    assert same_top(p, rows(Q, NARROW, [0.4, 0.3, 0.3])).tolist() == [False, True, True]


def test_tokens_rejected_most_often():
    """Over two places: A 0.3 and 0, B 0 and 0.5."""
    p, q = rows(P, P), rows(Q, NARROW)
    assert most_rejected(p, q) == [(1, pytest.approx(0.5)), (0, pytest.approx(0.3))]
    assert most_rejected(p, q, count=1) == [(1, pytest.approx(0.5))]
    # what the target says instead: A 0.3, B 0.25, C 0.05 + 0.2
    assert most_rejected(q[:1], p[:1]) == [(1, pytest.approx(0.25)), (2, pytest.approx(0.05))]
    assert most_rejected(rows(P), rows(P)) == []
    # any number of axes, and equal ones in order
    sure = torch.eye(100, dtype=torch.float64).reshape(10, 10, 100)
    assert most_rejected(sure.flip(0), sure, count=100) == [(token, 1.0) for token in range(100)]


def test_places_keep_their_axes():
    p = rows(P, Q).expand(4, 2, 3)
    for measure in (total_variation, expected_acceptance, divergence, same_top):
        assert measure(p, p).shape == (4, 2)
    # a draft in half precision is measured as well, no rougher than it is
    found = total_variation(p.float(), p.to(torch.float16))
    assert found.dtype == torch.float64 and found.max() < 1e-3


LAWS = st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(sum)


@given(LAWS, LAWS, st.booleans())
def test_acceptance_is_the_judges(target, draft, given_tokens):
    """Every token the draft may propose and every number it may be judged with, as fine as the verdict depends on."""
    p = rows([weight / sum(target) for weight in target])
    q = torch.eye(4, dtype=torch.float64) if given_tokens else rows([weight / sum(draft) for weight in draft])
    # an edge lies at `p / q`, a multiple of 1 / (sum(target) * weight)
    steps = sum(target) * math.lcm(*(weight for weight in draft if weight))
    numbers = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    for law in q:
        chance = 0.0
        for token in range(4):
            if law[token]:
                tokens = torch.full((steps,), token)
                probs = None if given_tokens else law.expand(steps, 4)
                kept = keeps(p.log().expand(steps, 4), tokens, probs, numbers)
                chance += float(law[token]) * float(kept.double().mean())
        assert float(expected_acceptance(p[0], law)) == pytest.approx(chance)
        assert 1 - float(total_variation(p[0], law)) == pytest.approx(chance)


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize(
    ("p", "q", "why"),
    [
        (rows(P), rows(P)[0], r"got \(1, 3\) and \(3,\)"),
        (torch.tensor(1.0), torch.tensor(1.0), "same shape"),
        (rows(P).log(), rows(P), "`p` is no distribution"),
        (rows(P), rows(P) * 0.9, "`q` is no distribution"),
        (rows(P), rows([1.2, -0.2, 0.0]), "`q` is no distribution"),
        (rows([0.0, 0.0, 0.0]), rows(P), "`p` is no distribution"),
        (rows([math.nan, 1.0, 0.0]), rows(P), "`p` is no distribution"),
    ],
)
def test_what_is_no_pair_of_distributions(measure, p, q, why):
    with pytest.raises(ValueError, match=why):
        measure(p, q)
