"""Tests of equal laws: by hand, calibrated where laws are equal, and as sharp as they say where they are not."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_exactassist.evaluation import lengths, likelihoods, next_tokens, sampled, tempered

from .synthetic import EOS, TOKENS, draw, judged, law, likelihood, texts


@pytest.fixture
def p_values_only(monkeypatch):
    """What could have been found takes most of the time."""
    monkeypatch.setattr(sampled, "smallest_found", lambda *_: math.inf)


def drawn_from(laws, count, rng):
    return np.stack([draw(laws, rng) for _ in range(count)], axis=1)


# --- by hand ---


def test_fit_by_hand():
    """A, A, B where A has 1/2 and B and C 1/4: 1.5, 0.75 and 0.75 are expected."""
    ratio, likelihood = sampled._fit(np.array([[0, 1, 0]]), np.array([0.5, 0.25, 0.25]))[0]
    assert ratio == pytest.approx(2 * (2 * math.log(2 / 1.5) + math.log(1 / 0.75)))
    assert likelihood == pytest.approx(2 * math.log(0.5) + math.log(0.25))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_ratio_is_that_of_counts(tokens):
    probs = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    counts = np.bincount(tokens, minlength=5)
    seen = counts > 0
    by_counts = 2 * (counts[seen] * np.log(counts[seen] / (len(tokens) * probs[seen]))).sum()
    assert sampled._fit(np.array([tokens]), probs)[0, 0] == pytest.approx(by_counts)


def test_p_values_by_hand():
    # all eight signs alike: 2 of 256
    found = likelihoods(np.arange(1.0, 9.0), np.zeros(8), simulations=20000)
    assert found.statistic == found.difference.mean == 4.5
    assert found.p_value == pytest.approx(2 / 256, rel=0.2)
    # sums that are the same but for their last digits are counted
    for seed in range(20):
        gaps = np.abs(np.random.default_rng(seed).normal(size=10))
        assert likelihoods(gaps, np.zeros(10), simulations=8000).p_value > 1 / 2**10
    # four times one of two equally likely tokens: 2 of 16
    assert next_tokens([[0.5, 0.5]], [[1, 1, 1, 1]]).p_value == pytest.approx(2 / 16, rel=0.2)
    # of all texts the three shortest: 2 of 20
    apart = lengths([[1, 2, 3]], [[4, 5, 6]])
    assert apart.statistic == 1.0 and apart.p_value == pytest.approx(2 / 20, rel=0.2)
    # of each prompt the shorter one: 2 of 64. Exchanged between prompts, that would be nothing special
    within = lengths([[10], [20], [30], [40], [50], [60]], [[11], [21], [31], [41], [51], [61]])
    assert within.statistic == pytest.approx(1 / 6)
    assert lengths([[1]] * 6, [[9]] * 6).p_value == pytest.approx(2 / 64, rel=0.2)


def test_distance_by_hand():
    """One of two against one of three at or below 2; two of two against one of three at or below 4."""
    assert lengths([[1, 4]], [[2, 6, 7]]).statistic == pytest.approx(2 / 3)


def test_equal_texts_differ_in_nothing():
    same = np.arange(1, 21)
    assert likelihoods(-same, -same).p_value == 1.0
    assert lengths(same[:, None], same[:, None]).p_value == 1.0
    # nothing tells how they would scatter
    assert likelihoods(-same, -same).smallest == math.inf


def test_impossible_tokens():
    found = next_tokens([[0.5, 0.5, 0.0], [0.2, 0.4, 0.4]], [[0, 1], [2, 2]])
    assert 0 < found.p_value and math.isfinite(found.statistic)
    found = next_tokens([[0.5, 0.5, 0.0], [0.2, 0.4, 0.4]], [[0, 2], [2, 2]])
    assert found.p_value == 0.0 and found.statistic == math.inf and found.differs


def test_few_prompts_find_nothing():
    """Five signs cannot all be alike by a chance of less than 1/16."""
    rng = np.random.default_rng(0)
    assert likelihoods(rng.normal(size=5), rng.normal(size=5)).smallest == math.inf
    assert lengths([[3]] * 5, [[4]] * 5).smallest == math.inf
    assert next_tokens([[0.5, 0.5]], [[0]]).smallest == math.inf
    # one rare token of 50 is expected: to see none is no surprise, however sharp the law
    assert next_tokens([[0.98, 0.02]] * 50, [[0]] * 50).smallest == math.inf


def test_seeds():
    rng = np.random.default_rng(0)
    arms = rng.normal(size=(2, 20))
    assert likelihoods(*arms, seed=3) == likelihoods(*arms, seed=3)
    assert likelihoods(*arms, seed=3).p_value != likelihoods(*arms, seed=4).p_value


# --- equal laws ---


def far_from_uniform(p_values):
    """Kolmogorov-Smirnov, in units that 1.63 exceeds in one case of a hundred."""
    ordered = np.sort(p_values)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()) * math.sqrt(len(ordered))


@pytest.mark.usefixtures("p_values_only")
def test_likelihoods_of_equal_laws():
    rng = np.random.default_rng(0)
    found = []
    for seed in range(300):
        # skewed and of unequal scatter, as likelihoods are
        arms = -rng.exponential(size=(2, 12)) * np.arange(1, 13)
        found.append(likelihoods(*arms, alpha=0.05, simulations=199, seed=seed).p_value)
    assert far_from_uniform(found) < 1.63


@pytest.mark.usefixtures("p_values_only")
@pytest.mark.parametrize(("prompts", "draws"), [(30, 1), (6, 5), (2, 30)])
def test_next_tokens_of_equal_laws(prompts, draws):
    rng = np.random.default_rng(prompts)
    found = []
    for seed in range(300):
        laws = rng.dirichlet(np.full(12, 0.5), size=prompts)
        drawn = drawn_from(laws, draws, rng)
        # of some prefixes there are fewer
        drawn = [row[: 1 + seed % len(row)] if place % 3 == 0 else row for place, row in enumerate(drawn)]
        found.append(next_tokens(laws, drawn, alpha=0.05, simulations=199, seed=seed).p_value)
    assert far_from_uniform(found) < 1.63


@pytest.mark.usefixtures("p_values_only")
@pytest.mark.parametrize(("own", "others"), [(1, 1), (3, 2)])
def test_lengths_of_equal_laws(own, others):
    rng = np.random.default_rng(own)
    found = []
    for seed in range(300):
        # prompts differ more than texts, and many texts end at the budget
        means = rng.integers(1, 60, size=(15, 1))
        texts_of = np.minimum(rng.geometric(1 / means, size=(15, own + others)), 40)
        found.append(lengths(texts_of[:, :own], texts_of[:, own:], alpha=0.05, simulations=199, seed=seed).p_value)
    # distances tie, so that large p-values gather; small ones must be as rare as they say, and no rarer by much
    assert 0.05 < np.mean(np.array(found) <= 0.1) < 0.1 + 3 * math.sqrt(0.09 / 300)


# --- what they say they would have found ---


def test_smallest_difference_of_likelihoods():
    """For normal differences with 40 prompts: (2.39 + 1.28) / sqrt(40), a little more for unknown scatter."""
    rng = np.random.default_rng(0)
    smallest = [likelihoods(rng.normal(size=40), np.zeros(40), seed=seed).smallest for seed in range(12)]
    assert 0.58 < np.mean(smallest) < 0.64


def caught(test, arms_of, repeats=120, simulations=299):
    """How often a test finds what it is shown."""
    rng = np.random.default_rng(1)
    return np.mean([test(*arms_of(rng), simulations=simulations, seed=seed).differs for seed in range(repeats)])


@pytest.mark.parametrize(("prompts", "draws"), [(60, 1), (20, 6), (2, 150)])
def test_smallest_temperature(prompts, draws, monkeypatch):
    rng = np.random.default_rng(0)
    laws = rng.dirichlet(np.full(20, 0.5), size=prompts)
    smallest = next_tokens(laws, drawn_from(laws, draws, rng)).smallest
    assert 1.05 < smallest < 4
    monkeypatch.setattr(sampled, "smallest_found", lambda *_: math.inf)

    def rate(temperature):
        law = tempered(laws, temperature)
        return caught(next_tokens, lambda rng: (laws, drawn_from(law, draws, rng)))

    # the harder one is found as often as promised, give or take what 120 cases tell
    assert 0.8 < min(rate(smallest), rate(1 / smallest)) < 0.98
    # and half of the way is not
    assert min(rate(math.sqrt(smallest)), rate(1 / math.sqrt(smallest))) < 0.7


def test_smallest_share_of_broken_texts(monkeypatch):
    rng = np.random.default_rng(0)
    means = rng.integers(20, 80, size=(50, 1))

    def arms(share, rng):
        whole = np.minimum(rng.geometric(1 / means, size=(50, 4)), 64)
        broken = rng.integers(1, whole + 1)
        hit = (rng.random(whole.shape) < share) & (np.arange(4) < 2)
        both = np.where(hit, broken, whole)
        return both[:, :2], both[:, 2:]

    smallest = np.mean([lengths(*arms(0.0, rng), seed=seed).smallest for seed in range(6)])
    assert 0.1 < smallest < 0.8
    monkeypatch.setattr(sampled, "smallest_found", lambda *_: math.inf)
    assert 0.8 < caught(lengths, lambda rng: arms(smallest, rng)) < 0.98
    assert caught(lengths, lambda rng: arms(smallest / 2, rng)) < 0.7


# --- decoders ---


@pytest.mark.usefixtures("p_values_only")
@pytest.mark.parametrize(
    ("leniency", "least", "most"),
    [(1.0, 0.0, 0.05), (1.05, 0.9, 1.0)],
)
def test_a_judge_that_accepts_five_percent_too_many(leniency, least, most):
    """Eight prompts with 1500 drafts each, of a drafter that is surer than the target. The exact judge goes along."""
    p, _ = law()
    q = tempered(p, 0.8)
    prompts = np.arange(TOKENS)

    def arms(rng):
        rows = np.repeat(prompts, 1500)
        return p[prompts], judged(p[rows], q[rows], rng, leniency).reshape(TOKENS, 1500)

    assert least <= caught(next_tokens, arms, repeats=20, simulations=149) <= most


DECODERS = {
    "plain": lambda p, q: lambda last, rng: draw(p[last], rng),
    "exact": lambda p, q: lambda last, rng: judged(p[last], q[last], rng),
    "flat": lambda p, q: lambda last, rng: draw(tempered(p, 1.5)[last], rng),
    "sharp": lambda p, q: lambda last, rng: draw(tempered(p, 0.7)[last], rng),
    "drafts": lambda p, q: lambda last, rng: draw(q[last], rng),
}


@pytest.mark.usefixtures("p_values_only")
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoders(decoder):
    """Whole texts of 100 prompts: what is lossy is found out by likelihoods, lengths, or both, in 9 cases of 10."""
    p, q = law()
    rng, prompts = np.random.default_rng(2), np.arange(1, 101) % (TOKENS - 1) + 1
    found = []
    for seed in range(20):
        arms = [texts(DECODERS[name](p, q), prompts, rng) for name in (decoder, "plain")]
        likely = [[likelihood(t, first, p) for t, first in zip(arm, prompts, strict=True)] for arm in arms]
        long = [[[len(text)] for text in arm] for arm in arms]
        tests = [likelihoods(*likely, simulations=599, seed=seed), lengths(*long, simulations=599, seed=seed)]
        found.append(any(test.differs for test in tests))
    assert all(text[-1] == EOS or len(text) == 40 for arm in arms for text in arm)
    if decoder in ("plain", "exact"):
        assert np.mean(found) <= 0.15
    else:
        assert np.mean(found) >= 0.9


# --- what cannot be tested ---


@pytest.mark.parametrize(
    ("probs", "drawn", "why"),
    [
        ([0.5, 0.5], [[0]], r"got \(2,\) and 1"),
        ([[0.5, 0.5]], [[0], [1]], r"got \(1, 2\) and 2"),
        ([], [], "for each row"),
        ([[0.5, 0.5]], [[]], "one token or more"),
        ([[0.5, 0.5]], [0], "one token or more"),
        ([[0.5, 0.5]], [[0.5]], "one token or more"),
        ([[0.5, 0.4]], [[0]], "no distribution"),
        ([[-0.5, 1.5]], [[0]], "no distribution"),
        ([[math.nan, 1.0]], [[0]], "no distribution"),
        ([[0.5, 0.5]], [[2]], "none of 2 tokens"),
        ([[0.5, 0.5]], [[-1]], "none of 2 tokens"),
    ],
)
def test_what_are_no_laws_and_tokens(probs, drawn, why):
    with pytest.raises(ValueError, match=why):
        next_tokens(probs, drawn)


@pytest.mark.parametrize(
    ("assisted", "plain", "why"),
    [
        ([3, 4], [3, 4], r"got \(2,\) and \(2,\)"),
        ([[3], [4]], [[3]], r"got \(2, 1\) and \(1, 1\)"),
        ([[3]], [[]], "lengths: got"),
        ([[0]], [[3]], "above 0"),
        ([[3]], [[2.5]], "above 0"),
    ],
)
def test_what_are_no_lengths(assisted, plain, why):
    with pytest.raises(ValueError, match=why):
        lengths(assisted, plain)


def test_too_few_simulations():
    for test, arms in (
        (likelihoods, ([1.0, 2.0], [2.0, 3.0])),
        (next_tokens, ([[0.5, 0.5]], [[0]])),
        (lengths, ([[3]], [[4]])),
    ):
        with pytest.raises(ValueError, match="60 simulations or more, got 10"):
            test(*arms, simulations=10)
