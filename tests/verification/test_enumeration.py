"""The laws of shipped and of wrong judges, every random choice enumerated (contract 0x03F - 0x03H, 0x04G - 0x04H)."""

import random
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_exactassist.records import Draft, Uniforms, Verdict
from hf_exactassist.verification.coupling import take_row, verify_sampled
from hf_exactassist.verification.distributions import inverse_cdf, probabilities
from hf_exactassist.verification.enumeration import PointMass, decode_law, round_law, target_law, total_variation
from hf_exactassist.verification.greedy import verify_greedy


EXACT = 1e-12
WRONG = 1e-3


def scripted(seed, vocabulary, zeros=0.0):
    """A law whose every prefix has its own row; a share of the entries is 0."""

    @cache
    def law(prefix):
        draw = random.Random(f"{seed}/{prefix}")
        weights = [0.0 if draw.random() < zeros else draw.random() ** 2 + 0.01 for _ in range(vocabulary)]
        weights = weights if any(weights) else [1.0] * vocabulary
        return [weight / sum(weights) for weight in weights]

    return law


def scripted_token(seed, vocabulary):
    return PointMass(cache(lambda prefix: random.Random(f"{seed}/{prefix}").randrange(vocabulary)))


def keeps(p, q, uniforms):
    return uniforms * q < p


def first_rejection(kept):
    return kept.long().cumprod(dim=1).sum(dim=1)


def positive_part(p, q):
    return (p - q).clamp_min(0)


def textbook(scores, draft, uniforms, keeps=keeps, count=first_rejection, recovered=positive_part, bonus=None):
    """The contract's rule written down a second time, for drafts of one length; its parts can be replaced."""
    p = scores.exp()
    width = draft.tokens.shape[1]
    drafted = draft.tokens[..., None]
    if draft.probs is None:
        q = torch.zeros_like(p[:, :width]).scatter_(-1, drafted, 1.0)
    else:
        q = draft.probs
    kept = keeps(p[:, :width].gather(-1, drafted)[..., 0], q.gather(-1, drafted)[..., 0], uniforms.accept)
    accepted = count(kept)
    left = recovered(p[:, :width], q)
    # where nothing is left the branch has no probability, and any row will do
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, p[:, :width])
    ends = torch.cat([left, p[:, -1:] if bonus is None or not width else bonus(p, q)], dim=1)
    return Verdict(accepted, inverse_cdf(take_row(ends, accepted), take_row(uniforms.terminal, accepted)))


def faulty(**parts):
    return lambda scores, draft, uniforms: textbook(scores, draft, uniforms, **parts)


def shifted(scores, draft, uniforms):
    """Row `i` judges draft token `i + 1`: the off-by-one of 0x04A."""
    return verify_sampled(torch.cat([scores[:, :1], scores[:, :-1]], dim=1), draft, uniforms)


def stale_draft_law(scores, draft, uniforms):
    """The tokens were drawn from another law than the one they are judged with (0x02B, 0x03D)."""
    stale = None if draft.probs is None else torch.full_like(draft.probs, 1 / scores.shape[-1])
    return verify_sampled(scores, Draft(draft.tokens, draft.lengths, stale), uniforms)


def last_row_ends(scores, draft, uniforms):
    """The terminal token is always drawn from the last row, also after a rejection."""
    verdict = verify_sampled(scores, draft, uniforms)
    return Verdict(verdict.accepted, inverse_cdf(probabilities(scores)[:, -1], uniforms.terminal[:, -1]))


def points_as_target_draws(scores, draft, uniforms):
    """Point masses judged as if their tokens had been drawn from the target's own rows."""
    return verify_sampled(scores, Draft(draft.tokens, draft.lengths, probabilities(scores)[:, :-1]), uniforms)


CORRECT = {"shipped": verify_sampled, "textbook": textbook}
FAULTS = {
    "recovered from p": faulty(recovered=lambda p, q: p),
    "recovered from q": faulty(recovered=lambda p, q: q),
    "recovered from |p - q|": faulty(recovered=lambda p, q: (p - q).abs()),
    "goes on after a rejection": faulty(count=lambda kept: kept.long().sum(dim=1)),
    "bonus from q": faulty(bonus=lambda p, q: q[:, -1:]),
    "bonus from the row before": faulty(bonus=lambda p, q: p[:, -2:-1]),
    "accepts too much": faulty(keeps=lambda p, q, u: u * q < 1.05 * p),
    "accepts too little": faulty(keeps=lambda p, q, u: u * q < 0.95 * p),
    "accepts every draft": faulty(keeps=lambda p, q, u: u < 1),
    "accepts on a threshold": faulty(keeps=lambda p, q, u: (p > 0.3) | (u > 2)),
    "rejects every draft": faulty(keeps=lambda p, q, u: u > 2),
    "shifted row": shifted,
    "another draft law": stale_draft_law,
    "last row ends the round": last_row_ends,
}
POINT_FAULTS = [fault for fault in FAULTS if fault not in ("another draft law", "recovered from q")]


@pytest.mark.parametrize("judge", CORRECT.values(), ids=CORRECT)
@pytest.mark.parametrize("seed", range(3))
def test_0x04H_a_round_has_the_target_law_over_all_eight_sequences(seed, judge):
    p, q = scripted(f"p{seed}", 2), scripted(f"q{seed}", 2)
    # the chain rule by hand
    target = {s: p(())[s[0]] * p(s[:1])[s[1]] * p(s[:2])[s[2]] for s in product(range(2), repeat=3)}
    assert len(target) == 8
    assert total_variation(target_law(p, 3), target) < EXACT
    for found in (round_law(p, q, 2, 3, judge), decode_law(p, q, 2, 3, judge=judge)):
        assert set(found) == set(target)
        assert total_variation(found, target) < EXACT


@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize("k", [0, 1, 2, 3])
@pytest.mark.parametrize("vocabulary", [3, 4])
def test_0x03F_rounds_and_decodes_have_the_target_law(vocabulary, k, zeros):
    p = scripted("p", vocabulary, zeros)
    target = target_law(p, 4)
    assert (len(target) == vocabulary**4) == (zeros == 0)
    for q in (scripted("q", vocabulary, zeros), p, scripted_token("d", vocabulary)):
        for found in (round_law(p, q, k, 4), decode_law(p, q, k, 4)):
            assert total_variation(found, target) < EXACT
            assert set(found) == set(target)  # nothing impossible, not even with a probability of rounding


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 3), st.sampled_from([0.0, 0.3, 0.6]), st.booleans())
def test_0x03F_any_laws(seed, vocabulary, k, zeros, point_mass):
    p = scripted(("p", seed), vocabulary, zeros)
    q = scripted_token(seed, vocabulary) if point_mass else scripted(("q", seed), vocabulary, zeros)
    assert total_variation(round_law(p, q, k, k + 1), target_law(p, k + 1)) < EXACT


@pytest.mark.parametrize("point_mass", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_0x06_eos_inside_a_block_ends_the_sequence(k, point_mass):
    p, eos, horizon = scripted("p", 3), 1, 4
    q = scripted_token("d", 3) if point_mass else scripted("q", 3)
    found, target = decode_law(p, q, k, horizon, eos=eos), target_law(p, horizon, eos=eos)
    assert set(found) == set(target)
    assert total_variation(found, target) < EXACT
    assert {len(tokens) for tokens in found} == {1, 2, 3, 4}
    for tokens in found:
        assert eos not in tokens[:-1]
        assert len(tokens) == horizon or tokens[-1] == eos
    # each ending sums what an endless decode does with the same beginning
    endless = target_law(p, horizon)
    for tokens, mass in found.items():
        beginning = sum(weight for longer, weight in endless.items() if longer[: len(tokens)] == tokens)
        assert mass == pytest.approx(beginning, abs=EXACT)


def test_the_horizon_caps_the_draft():
    widths = []

    def watching(scores, draft, uniforms):
        widths.append(draft.tokens.shape[1])
        return verify_sampled(scores, draft, uniforms)

    found = decode_law(scripted("p", 2), scripted("q", 2), 3, 3, judge=watching)
    assert {len(tokens) for tokens in found} == {3}
    assert set(widths) == {2, 1, 0}


def test_a_decode_of_no_tokens():
    assert decode_law(scripted("p", 2), scripted("q", 2), 2, 0) == target_law(scripted("p", 2), 0) == {(): 1.0}


@pytest.mark.parametrize("vocabulary, k, horizon", [(2, 2, 3), (3, 2, 4)])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_judge_is_seen(fault, vocabulary, k, horizon):
    p, q = scripted("p", vocabulary), scripted("q", vocabulary)
    target = target_law(p, horizon)
    assert total_variation(round_law(p, q, k, horizon, textbook), target) < EXACT
    assert total_variation(round_law(p, q, k, horizon, FAULTS[fault]), target) > WRONG
    assert total_variation(decode_law(p, q, k, horizon, judge=FAULTS[fault]), target) > WRONG


@pytest.mark.parametrize("fault", POINT_FAULTS)
def test_a_wrong_judge_of_point_masses_is_seen(fault):
    p, q = scripted("p", 3), scripted_token("d", 3)
    target = target_law(p, 4)
    assert total_variation(round_law(p, q, 2, 4, textbook), target) < EXACT
    assert total_variation(round_law(p, q, 2, 4, FAULTS[fault]), target) > WRONG


def test_point_masses_have_no_other_law_than_their_own():
    p, q = scripted("p", 3), scripted_token("d", 3)
    assert total_variation(round_law(p, q, 2, 3, points_as_target_draws), target_law(p, 3)) > WRONG


def test_0x04H_one_token_marginals_would_miss_some_faults():
    """Why whole sequences are compared: these judges are right about every first token."""

    def first(law):
        marginal = {}
        for tokens, mass in law.items():
            marginal[tokens[:1]] = marginal.get(tokens[:1], 0.0) + mass
        return marginal

    p, q = scripted("p", 3), scripted("q", 3)
    target = target_law(p, 4)
    for fault in ("bonus from q", "bonus from the row before"):
        found = round_law(p, q, 2, 4, FAULTS[fault])
        assert total_variation(first(found), first(target)) < EXACT
        assert total_variation(found, target) > WRONG


def test_0x03A_acceptance_at_equality_publishes_an_impossible_token_at_zero():
    """`u <= ratio` and `u < ratio` have the same law; but 0 is a number that generators return."""
    lenient = faulty(keeps=lambda p, q, u: u * q <= p)
    p, q = scripted("p", 3, zeros=0.4), scripted("q", 3)
    assert total_variation(round_law(p, q, 2, 3, lenient), target_law(p, 3)) < EXACT

    scores = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]], dtype=torch.float64).log()
    zero = Uniforms(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64))
    for probs in (None, torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)):
        draft = Draft(torch.tensor([[0]]), (1,), probs)
        assert lenient(scores, draft, zero).accepted.tolist() == [1]  # token 0, which the target excludes
        verdict = verify_sampled(scores, draft, zero)
        assert (verdict.accepted.tolist(), verdict.terminal.tolist()) == ([0], [1])


def test_0x02D_the_greedy_judge_has_the_law_of_greedy_decoding():
    def judge(scores, draft, uniforms):
        return verify_greedy(scores, draft)

    p, tokens = scripted("p", 4), ()
    for _ in range(4):
        row = p(tokens)
        tokens += (row.index(max(row)),)
    for q in (scripted("q", 4), scripted_token("d", 4)):
        found = decode_law(p, q, 2, 4, judge=judge)
        assert set(found) == {tokens}
        assert found[tokens] == pytest.approx(1, abs=EXACT)


def test_total_variation():
    assert total_variation({(0,): 0.5, (1,): 0.5}, {(0,): 0.25, (2,): 0.75}) == 0.75
    assert total_variation({}, {}) == total_variation({(0,): 1.0}, {(0,): 1.0, (1,): 0.0}) == 0
    assert total_variation({(0,): 1.0}, {(1,): 1.0}) == 1


def test_a_law_of_one_token():
    assert decode_law(lambda prefix: [1.0], lambda prefix: [1.0], 2, 3) == {(0, 0, 0): 1.0}


@pytest.mark.parametrize("row", [[0.5, 0.4], [1.5, -0.5], [float("nan"), 1.0], [[1.0]], 1.0])
def test_what_is_no_probability_row_is_refused(row):
    fine = scripted("p", 2)
    with pytest.raises(ValueError, match="`p` after"):
        target_law(lambda prefix: row, 1)
    with pytest.raises(ValueError, match="`q` after"):
        round_law(fine, lambda prefix: row, 1, 2)


def test_laws_over_different_vocabularies_are_refused():
    with pytest.raises(ValueError, match="speaks about 2 tokens and `q` about 3"):
        round_law(scripted("p", 2), scripted("q", 3), 1, 2)


@pytest.mark.parametrize("k, horizon", [(2, 2), (-1, 3)])
def test_a_horizon_that_cannot_hold_a_round_is_refused(k, horizon):
    with pytest.raises(ValueError, match="horizon"):
        round_law(scripted("p", 2), scripted("q", 2), k, horizon)


def test_a_negative_draft_length_is_refused():
    with pytest.raises(ValueError, match="negative"):
        decode_law(scripted("p", 2), scripted("q", 2), -1, 3)


@pytest.mark.parametrize("accept", [False, True])
def test_a_judge_that_bisection_cannot_follow_is_refused(accept):
    """Both judges are exact ones, for which a law would come out wrong."""

    def turned(scores, draft, uniforms):
        if accept:
            return verify_sampled(scores, draft, Uniforms(1 - uniforms.accept, uniforms.terminal))
        return verify_sampled(scores, draft, Uniforms(uniforms.accept, 1 - uniforms.terminal))

    with pytest.raises(ValueError, match="one direction"):
        round_law(scripted("p", 3), scripted("q", 3), 2, 3, turned)
