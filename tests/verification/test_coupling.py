"""Maximal coupling, one round at a time (contract 0x03A - 0x03H)."""

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_exactassist.records import Draft, Uniforms
from hf_exactassist.verification.coupling import accepted_prefix, accepts, keeps, residual, verify_sampled
from hf_exactassist.verification.distributions import inverse_cdf, probabilities


INF = math.inf
LAST = 1 - 2**-53  # the largest uniform there is

# the one position of 0x03E: proposals of A are kept half of the time
P = [0.30, 0.50, 0.20]
Q = [0.60, 0.25, 0.15]


def log(probs):
    return torch.tensor(probs, dtype=torch.float64).log()


def one_draft(p, q, token, accept, terminal, bonus=None):
    """Judges the draft `token ~ q` under `p` once per pair of noise numbers; `q=None` is a point mass.

    Returns:
        pairs (accepted, terminal token).
    """
    rows = len(accept)
    scores = torch.stack([log(p), log(bonus or p)]).expand(rows, 2, len(p))
    probs = None if q is None else torch.tensor(q, dtype=torch.float64).expand(rows, 1, len(p))
    accept = torch.tensor(accept, dtype=torch.float64)[:, None]
    terminal = torch.tensor(terminal, dtype=torch.float64)[:, None].expand(rows, 2)
    verdict = verify_sampled(
        scores, Draft(torch.full((rows, 1), token), (1,) * rows, probs), Uniforms(accept, terminal)
    )
    return list(zip(verdict.accepted.tolist(), verdict.terminal.tolist(), strict=True))


def inside(low, high):
    """Probes of an interval: its middle, and just inside both ends."""
    margin = min(1e-9, (high - low) / 4)
    return [low + margin, (low + high) / 2, high - margin]


def recovered_cells(p, q):
    """Intervals of the terminal noise after a rejection, by 0x03C: (token, low, high)."""
    left = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    edges = [edge / sum(left) for edge in accumulate(left, initial=0.0)]
    cells = [(token, edges[token], edges[token + 1]) for token in range(len(p))]
    return [cell for cell in cells if cell[2] > cell[1]]


def coupling(p, q):
    """The joint law of proposed and published token (0x03E), every interval of noise probed on the shipped judge."""
    joint = [[0.0] * len(p) for _ in p]
    for token, proposed in enumerate(q):
        if not proposed:
            continue
        keep = min(1.0, p[token] / proposed)
        for kept, low, high in ((True, 0.0, keep), (False, keep, 1.0)):
            if high - low < 1e-12:
                continue
            # the bonus row has one token only: it must not be mistaken for a recovered one
            for published, start, end in [(0, 0.0, 1.0)] if kept else recovered_cells(p, q):
                probes = [(u, v) for u in inside(low, high) for v in inside(start, end)]
                found = one_draft(p, q, token, *zip(*probes, strict=True), bonus=[1.0] + [0.0] * (len(p) - 1))
                assert found == [(int(kept), published)] * len(probes)
                joint[token][token if kept else published] += proposed * (high - low) * (end - start)
    return joint


def test_0x03E_acceptance_of_an_overproduced_token():
    assert one_draft(P, Q, 0, [0.0, 0.5 - 1e-12, 0.5 + 1e-12, LAST], [0.5] * 4, bonus=[0, 0, 1]) == [
        (1, 2),
        (1, 2),
        (0, 1),
        (0, 1),
    ]


@pytest.mark.parametrize("token", [1, 2])
def test_0x03D_an_underproduced_token_is_always_kept(token):
    assert one_draft(P, Q, token, [0.0, LAST], [0.5] * 2, bonus=[1, 0, 0]) == [(1, 0)] * 2


def test_0x03E_residual():
    left = residual(torch.tensor([P]).double(), torch.tensor([Q]).double())
    torch.testing.assert_close(left / left.sum(), torch.tensor([[0, 0.25 / 0.30, 0.05 / 0.30]]).double())
    edge = 0.25 / 0.30
    assert one_draft(P, Q, 0, [0.9] * 4, [0.0, edge - 1e-12, edge + 1e-12, LAST]) == [(0, 1), (0, 1), (0, 2), (0, 2)]


def test_0x03E_the_whole_coupling_matrix():
    expected = [[0.30, 0.25, 0.05], [0, 0.25, 0], [0, 0, 0.15]]
    found = coupling(P, Q)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=1e-15)
    assert sum(found[i][i] for i in range(3)) == pytest.approx(0.70, abs=1e-15)


@st.composite
def pairs(draw):
    """Two distributions over one vocabulary, zeros and equality included."""
    size = draw(st.integers(1, 5))
    weights = st.lists(st.integers(0, 8), min_size=size, max_size=size).filter(any)
    p = draw(weights)
    q = draw(st.one_of(weights, st.just(p)))
    return [x / sum(p) for x in p], [x / sum(q) for x in q]


@settings(deadline=None)
@given(pairs())
def test_0x03B_one_token_has_the_target_law_and_is_kept_as_often_as_possible(pair):
    p, q = pair
    joint = coupling(p, q)
    for token in range(len(p)):
        assert sum(row[token] for row in joint) == pytest.approx(p[token], abs=1e-12)
        assert sum(joint[token]) == pytest.approx(q[token], abs=1e-12)
    total_variation = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    assert sum(joint[i][i] for i in range(len(p))) == pytest.approx(1 - total_variation, abs=1e-12)


@settings(deadline=None)
@given(pairs(), st.data())
def test_0x03C_a_point_mass_is_kept_with_its_probability_and_else_excluded(pair, data):
    p, _ = pair
    token = data.draw(st.integers(0, len(p) - 1))
    law = [0.0] * len(p)
    one_hot = [float(i == token) for i in range(len(p))]
    for u in inside(0.0, p[token]) if p[token] else []:
        assert one_draft(p, None, token, [u], [0.5], bonus=one_hot) == [(1, token)]
    law[token] = p[token]
    if p[token] < 1:
        for published, start, end in recovered_cells(p, one_hot):
            probes = [(u, v) for u in inside(p[token], 1.0) for v in inside(start, end)]
            assert one_draft(p, None, token, *zip(*probes, strict=True)) == [(0, published)] * len(probes)
            law[published] += (1 - p[token]) * (end - start)
    assert law == pytest.approx(p, abs=1e-12)


def test_0x03A_a_token_of_target_probability_zero_is_rejected_even_at_zero():
    zero = torch.zeros(1)
    assert not accepts(zero, torch.ones(1), zero)
    assert not accepts(zero, torch.tensor([1e-30]), zero)
    assert one_draft([0.0, 1.0], [0.5, 0.5], 0, [0.0], [0.0]) == [(0, 1)]
    assert one_draft([0.0, 1.0], None, 0, [0.0], [0.0]) == [(0, 1)]


def test_0x03A_acceptance_is_strict():
    quarter, half = torch.tensor([0.25]).double(), torch.tensor([0.5]).double()
    assert not accepts(quarter, half, half)
    assert accepts(quarter, half, torch.nextafter(half, half - half))


def test_0x03D_a_token_the_draft_law_excludes_makes_no_ratio():
    zero, half = torch.zeros(1), torch.full((1,), 0.5)
    assert accepts(half, zero, torch.tensor([LAST]).double())
    assert not accepts(zero, zero, zero)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_0x03D_equal_rows_never_reject(dtype):
    p = probabilities(torch.randn(64, 50, generator=torch.Generator().manual_seed(0)).mul(4)).to(dtype)
    p = p[p > 0]
    # in float32 this uniform would be 1, and reject
    assert accepts(p, p, torch.full(p.shape, LAST, dtype=torch.float64)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_0x03D_a_rejection_of_equal_rows_still_ends_in_a_reachable_token(dtype):
    scores = torch.tensor([[0.3, -INF, 1.7, 0.2]], dtype=dtype).expand(3, 2, 4)
    p = probabilities(scores)
    # a uniform of 1 does not exist; it forces the branch that has probability 0
    noise = Uniforms(torch.ones(3, 1).double(), torch.tensor([[0.0], [0.5], [LAST]]).double().expand(3, 2))
    verdict = verify_sampled(scores, Draft(torch.tensor([[0]] * 3), (1,) * 3, p[:, :1]), noise)
    assert verdict.accepted.tolist() == [0, 0, 0]
    assert verdict.terminal.tolist() == [0, 2, 3]


def test_0x03D_an_empty_residual_is_the_target_row_and_leaves_other_rows_alone():
    p = torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.75, 0.0]])
    q = torch.tensor([[0.25, 0.75, 0.0], [0.75, 0.25, 0.0]])
    assert residual(p, q).tolist() == [[0.25, 0.75, 0.0], [0.0, 0.5, 0.0]]


def test_0x03D_rounding_leaves_no_negative_mass():
    p = probabilities(torch.randn(200, 30, generator=torch.Generator().manual_seed(1)).double())
    sign = torch.randint(-1, 2, p.shape, generator=torch.Generator().manual_seed(2))
    q = torch.where(sign > 0, p * (1 + 2**-52), torch.where(sign < 0, p * (1 - 2**-52), p))
    left = residual(p, q)
    assert (left >= 0).all() and (left.sum(dim=-1) > 0).all()
    assert ((left == 0) | (p > q)).all()
    for uniform in (0.0, 0.5, LAST):
        token = inverse_cdf(left, torch.full((200,), uniform).double())
        assert (p > q).gather(1, token[:, None]).all()


@pytest.mark.parametrize("uniform", [0.0, 0.5, LAST])
@pytest.mark.parametrize("q", [None, [0.2, 0.3, 0.5]])
def test_0x03D_one_legal_token(q, uniform):
    legal = [0.0, 1.0, 0.0]
    assert one_draft(legal, q, 1, [uniform], [uniform]) == [(1, 1)]
    for token in (0, 2):
        assert one_draft(legal, q, token, [uniform], [uniform]) == [(0, 1)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_scores_are_judged_as_their_float32_values(dtype):
    scores, draft, noise = random_round(rows=16, width=3, vocabulary=6, seed=3)
    scores = scores.to(dtype)
    narrow = Draft(draft.tokens, draft.lengths, draft.probs.to(dtype))
    wide = Draft(draft.tokens, draft.lengths, narrow.probs.float())
    same(verify_sampled(scores, narrow, noise), verify_sampled(scores.float(), wide, noise))


def random_round(rows, width, vocabulary, seed, point_mass=False):
    """Drafts of all lengths from 0 to `width`, with masked scores and drafts of target probability 0 among them."""
    random = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(*shape, generator=random, dtype=torch.float64)

    scores = uniform(rows, width + 1, vocabulary).mul(3)
    scores[uniform(rows, width + 1, vocabulary) < 0.2] = -INF
    scores[..., 0] = 1.0
    probs = uniform(rows, width, vocabulary) + 0.01
    tokens = torch.randint(0, vocabulary, (rows, width), generator=random)
    lengths = tuple(row % (width + 1) for row in range(rows))
    draft = Draft(tokens, lengths, None if point_mass else probs / probs.sum(-1, keepdim=True))
    noise = Uniforms(uniform(rows, width) ** 3, uniform(rows, width + 1))  # small numbers: long accepted runs
    return scores, draft, noise


def same(one, other):
    assert one.accepted.tolist() == other.accepted.tolist()
    assert one.terminal.tolist() == other.terminal.tolist()


def test_0x03G_the_first_rejection_ends_the_round():
    kept = torch.tensor([[True, False, True], [False, True, True], [True, True, False], [True, True, True]])
    assert accepted_prefix(kept, (3, 3, 3, 3)).tolist() == [1, 0, 2, 3]
    assert accepted_prefix(kept, (0, 1, 1, 2)).tolist() == [0, 0, 1, 2]
    assert accepted_prefix(kept[:, :0], (0,) * 4).tolist() == [0] * 4


def round_of_three(accept, terminal):
    """Every position drafts token 0 from (1/2, 1/2, 0, 0, 0), keeps it below 1/2 and can only recover `place + 2`."""
    rows = [[0.25, 0.25, 0.5, 0, 0], [0.25, 0.25, 0, 0.5, 0], [0.25, 0.25, 0, 0, 0.5]]
    scores = log([[*rows, [0, 0.5, 0, 0, 0.5]]])
    probs = torch.tensor([[[0.5, 0.5, 0, 0, 0]] * 3]).double()
    noise = Uniforms(torch.tensor([accept]).double(), torch.tensor([terminal]).double())
    verdict = verify_sampled(scores, Draft(torch.zeros(1, 3, dtype=torch.long), (3,), probs), noise)
    return verdict.accepted.item(), verdict.terminal.item()


@pytest.mark.parametrize(
    "accept, expected",
    [
        ([0.7, 0.1, 0.1], (0, 2)),
        ([0.1, 0.7, 0.1], (1, 3)),
        ([0.1, 0.1, 0.7], (2, 4)),
        ([0.7, 0.7, 0.7], (0, 2)),
    ],
)
def test_0x03G_the_recovered_token_comes_from_the_row_of_the_first_rejection(accept, expected):
    assert round_of_three(accept, [0.5] * 4) == expected


def test_0x03H_the_bonus_token_comes_from_the_row_after_the_draft():
    assert round_of_three([0.1] * 3, [0.5, 0.5, 0.5, 0.2]) == (3, 1)
    assert round_of_three([0.1] * 3, [0.5, 0.5, 0.5, 0.8]) == (3, 4)


@pytest.mark.parametrize("point_mass", [False, True])
def test_0x06D_noise_that_is_not_reached_changes_nothing(point_mass):
    scores, draft, noise = random_round(rows=40, width=4, vocabulary=5, seed=4, point_mass=point_mass)
    verdict = verify_sampled(scores, draft, noise)
    ahead = torch.arange(5)[None, :] - verdict.accepted[:, None]
    other = Uniforms(
        torch.where(ahead[:, :4] > 0, 1 - noise.accept, noise.accept),
        torch.where(ahead != 0, 1 - noise.terminal, noise.terminal),
    )
    same(verify_sampled(scores, draft, other), verdict)


@pytest.mark.parametrize("probs", [None, torch.zeros(2, 0, 3)])
def test_no_draft_is_plain_sampling(probs):
    scores = log([[[0.25, 0.0, 0.75]], [[0.25, 0.0, 0.75]]])
    draft = Draft(torch.zeros(2, 0, dtype=torch.long), (0, 0), probs)
    noise = Uniforms(torch.zeros(2, 0).double(), torch.tensor([[0.2], [0.3]]).double())
    verdict = verify_sampled(scores, draft, noise)
    assert (verdict.accepted.tolist(), verdict.terminal.tolist()) == ([0, 0], [0, 2])


@pytest.mark.parametrize("point_mass", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_batch_of_all_lengths_is_judged_row_by_row(seed, point_mass):
    scores, draft, noise = random_round(rows=60, width=4, vocabulary=4, seed=seed, point_mass=point_mass)
    together = verify_sampled(scores, draft, noise)
    assert {0, 1, 2} <= set(together.accepted.tolist())  # or the comparison would be an idle one
    for row, length in enumerate(draft.lengths):
        # the row alone, at its own width
        alone = verify_sampled(
            scores[row : row + 1, : length + 1],
            Draft(
                draft.tokens[row : row + 1, :length],
                (length,),
                None if point_mass else draft.probs[row : row + 1, :length],
            ),
            Uniforms(noise.accept[row : row + 1, :length], noise.terminal[row : row + 1, : length + 1]),
        )
        assert together.accepted[row] == alone.accepted[0]
        assert together.terminal[row] == alone.terminal[0]


@pytest.mark.parametrize("point_mass", [False, True])
@pytest.mark.parametrize("junk_token", [0, 3])
@pytest.mark.parametrize("junk", [math.nan, INF, -INF, 1e30])
def test_what_lies_beyond_a_draft_means_nothing(junk, junk_token, point_mass):
    scores, draft, noise = random_round(rows=20, width=4, vocabulary=4, seed=7, point_mass=point_mass)
    same(verify_sampled(*spoilt(scores, draft, noise, junk, junk_token)), verify_sampled(scores, draft, noise))


@pytest.mark.parametrize("point_mass", [False, True])
@pytest.mark.parametrize("junk_token", [-1, -100, 4, 50256])
def test_padding_that_is_no_token_means_nothing(junk_token, point_mass):
    scores, draft, noise = random_round(rows=20, width=4, vocabulary=4, seed=7, point_mass=point_mass)
    same(verify_sampled(*spoilt(scores, draft, noise, 0.0, junk_token)), verify_sampled(scores, draft, noise))


def spoilt(scores, draft, noise, junk, junk_token):
    """The same round with other contents in the places that mean nothing."""
    lengths = torch.tensor(draft.lengths)[:, None]
    beyond = torch.arange(5) > lengths
    undrafted = torch.arange(4) >= lengths
    return (
        scores.masked_fill(beyond[..., None], junk),
        Draft(
            draft.tokens.masked_fill(undrafted, junk_token),
            draft.lengths,
            None if draft.probs is None else draft.probs.masked_fill(undrafted[..., None], junk),
        ),
        Uniforms(noise.accept.masked_fill(undrafted, junk), noise.terminal.masked_fill(beyond, junk)),
    )


@pytest.mark.parametrize("point_mass", [False, True])
def test_judging_changes_none_of_its_arguments(point_mass):
    scores, draft, noise = random_round(rows=8, width=3, vocabulary=4, seed=8, point_mass=point_mass)
    tensors = [scores, draft.tokens, noise.accept, noise.terminal, *([] if point_mass else [draft.probs])]
    before = [tensor.clone() for tensor in tensors]
    verify_sampled(scores, draft, noise)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, before, strict=True))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("uniform", [0.0, 0.5, LAST])
def test_no_extreme_of_the_noise_publishes_an_impossible_token(seed, uniform):
    scores, draft, noise = random_round(rows=20, width=4, vocabulary=4, seed=seed)
    verdict = verify_sampled(
        scores, draft, Uniforms(torch.full_like(noise.accept, uniform), torch.full_like(noise.terminal, uniform))
    )
    for row, accepted in enumerate(verdict.accepted.tolist()):
        published = [*draft.tokens[row, :accepted].tolist(), verdict.terminal[row].item()]
        assert all(scores[row, place, token] > -INF for place, token in enumerate(published))


def test_a_token_without_probability_in_its_own_law_is_not_kept():
    """It was not drawn, whatever the target thinks of it; the target's own law takes its place (contract 0x03A)."""
    scores, tokens = torch.zeros(1, 2, 4), torch.tensor([[3, 1]])
    probs = torch.zeros(1, 2, 4)
    probs[0, 1, 1] = 1.0
    uniforms = torch.zeros(1, 2, dtype=torch.float64)
    assert keeps(scores, tokens, probs, uniforms).tolist() == [[False, True]]
    terminal = torch.full((1, 3), 0.9, dtype=torch.float64)
    scores = torch.zeros(1, 3, 4)
    verdict = verify_sampled(scores, Draft(tokens, (2,), probs), Uniforms(uniforms, terminal))
    assert (verdict.accepted.tolist(), verdict.terminal.tolist()) == ([0], [3])
