"""Probabilities and draws (contract 0x02A, 0x03D, 0x04J)."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_exactassist.verification.distributions import inverse_cdf, likeliest, online_probabilities, probabilities


INF = math.inf
LAST = 1 - 2**-53  # the largest uniform there is

SCORES = {
    "plain": [0.5, -1.25, 2.0, 0.0, 1.5, -3.0, 0.75],
    "rising": [-6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0],
    "falling": [6.0, 4.0, 2.0, 0.0, -2.0, -4.0, -6.0],
    "equal": [3.0] * 7,
    "masked": [-INF, 1.0, -INF, -INF, 0.5, 2.0, -INF],
    "masked first block": [-INF, -INF, -INF, 1.0, 0.0, 2.0, 1.0],
    "one legal token": [-INF, -INF, -INF, -INF, -700.0, -INF, -INF],
    "huge": [60000.0, 59999.0, -60000.0, 0.0, 59968.0, 60000.0, -INF],
    "hugely negative": [-60000.0, -59968.0, -60000.0, -INF, -60000.0, -60000.0, -60000.0],
    "nothing legal": [-INF] * 7,
}
IMPLEMENTATIONS = {
    "max-shift": probabilities,
    "online, blocks of 1": lambda scores: online_probabilities(scores, block=1),
    "online, blocks of 3": lambda scores: online_probabilities(scores, block=3),
    "online, one block": lambda scores: online_probabilities(scores, block=7),
    "online, block beyond V": online_probabilities,
}


def reference(scores):
    """Softmax by `math`, in float64 and with a correctly rounded sum."""
    top = max(scores)
    if top == -INF:
        return [0.0] * len(scores)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_0x04J_both_softmax_paths_agree_with_a_third_one(name, dtype):
    scores = torch.tensor(list(SCORES.values()), dtype=torch.float64).to(dtype)
    found = IMPLEMENTATIONS[name](scores)

    expected = torch.tensor([reference(row) for row in scores.tolist()], dtype=torch.float64)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = 1e-15 if dtype == torch.float64 else 1e-7
    torch.testing.assert_close(found.double(), expected, rtol=4 * tolerance, atol=tolerance)
    assert (found[scores == -INF] == 0).all()
    assert not found.isnan().any()


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_0x03D_one_legal_token_is_certain_and_no_legal_token_is_no_distribution(name):
    scores = torch.tensor([SCORES["one legal token"], SCORES["nothing legal"]])
    assert IMPLEMENTATIONS[name](scores).tolist() == [[0, 0, 0, 0, 1, 0, 0], [0] * 7]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_scores_are_normalised_in_float32(dtype):
    # 1000 equal weights: neither 1/1000 nor their running sum exists in 16 bits
    scores = torch.zeros(2, 3, 1000, dtype=dtype)
    for found in (probabilities(scores), online_probabilities(scores, block=64)):
        assert found.shape == scores.shape
        torch.testing.assert_close(found.double(), torch.full(scores.shape, 1e-3).double(), rtol=1e-6, atol=0)


def test_scores_are_left_alone():
    scores = torch.tensor([list(SCORES["masked"])])
    before = scores.clone()
    probabilities(scores)
    online_probabilities(scores, block=2)
    assert torch.equal(scores, before)


@pytest.mark.parametrize("block", [0, -1])
def test_a_block_holds_at_least_one_token(block):
    with pytest.raises(ValueError, match="block"):
        online_probabilities(torch.zeros(1, 3), block=block)


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.just(-INF), st.floats(-800, 800)), min_size=1, max_size=9),
    st.integers(1, 10),
)
def test_0x04J_the_two_paths_agree_on_any_row(row, block):
    scores = torch.tensor([row], dtype=torch.float64)
    torch.testing.assert_close(online_probabilities(scores, block), probabilities(scores), rtol=1e-13, atol=1e-300)
    assert probabilities(scores).sum().item() == pytest.approx(0 if max(row) == -INF else 1, abs=1e-14)


def drawn(weights, uniforms, dtype=torch.float64):
    """Tokens drawn from one row of weights."""
    table = torch.tensor(weights, dtype=dtype).expand(len(uniforms), -1)
    return inverse_cdf(table, torch.tensor(uniforms, dtype=torch.float64)).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_inverse_cdf_gives_each_token_exactly_its_interval(dtype):
    # of the mass 8: [0, 1) is token 0, [1, 3) token 2 and [3, 8) token 4
    edges = [0.0, 1 / 8 - 2**-53, 1 / 8, 3 / 8 - 2**-53, 3 / 8, LAST]
    assert drawn([1, 0, 2, 0, 5], edges, dtype) == [0, 0, 2, 2, 4, 4]


def test_inverse_cdf_needs_no_normalised_weights():
    for scale in (1e-300, 1e-20, 0.1, 1.0, 1e20, 1e300):
        weights = [0.25 * scale, 0.0, 0.75 * scale]
        assert drawn(weights, [0.0, 0.2499999999, 0.2500000001, LAST]) == [0, 0, 2, 2]


@pytest.mark.parametrize("weights, token", [([0, 0, 3, 0], 2), ([1e-30, 0, 0], 0), ([0, 0, 0.1], 2)])
def test_inverse_cdf_never_returns_a_token_of_weight_zero(weights, token):
    assert drawn(weights, [0.0, 2**-53, 0.5, LAST]) == [token] * 4


@pytest.mark.parametrize("weights", [[5e-324, 0.0], [0.0, 5e-324, 0.0], [0.3, 0.0], [1.0, 1e-9, 0.0]])
@pytest.mark.parametrize("uniform", [LAST, 1.0])
def test_inverse_cdf_has_a_token_for_a_threshold_that_rounds_to_the_total(weights, uniform):
    (token,) = drawn(weights, [uniform])
    assert token == max(i for i, weight in enumerate(weights) if weight > 0)


def test_inverse_cdf_treats_rows_apart():
    weights = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 3.0], [1.0, 3.0]])
    assert inverse_cdf(weights, torch.tensor([0.9, 0.1, 0.2, 0.3])).tolist() == [0, 1, 0, 1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=12).filter(any), st.integers(0, 2**20 - 1))
def test_inverse_cdf_agrees_with_exact_fractions(weights, numerator):
    # products of these numbers fit float64, so that the comparison knows no tolerance
    threshold = Fraction(numerator, 2**20) * sum(weights)
    expected = next(i for i in range(len(weights)) if sum(weights[: i + 1]) > threshold)
    assert drawn(weights, [numerator / 2**20]) == [expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "row",
    [
        [1, 3, 3, 2],
        [math.nan, 1, 2],
        [1, math.nan, math.inf, math.nan],
        [-math.inf] * 3,
        [0.0, -0.0],
        [-0.0, 0.0],
        [1, math.inf, math.inf],
    ],
)
def test_the_likeliest_token_is_the_one_torch_finds(row, dtype):
    """Of equals the first, as plain `generate` takes it."""
    scores = torch.tensor([row, row[::-1]], dtype=dtype)
    for table in (scores, scores[:, None], scores[0]):
        assert torch.equal(likeliest(table), table.argmax(dim=-1))


def test_the_likeliest_token_is_found_in_parts_of_larger_tables():
    scores = torch.randint(0, 50, (6, 4, 3000)).float().requires_grad_()
    for table in (scores, scores[:, 1:3], scores[..., ::2], scores.transpose(0, 1)):
        assert torch.equal(likeliest(table), table.argmax(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kept", [1, 50, 400, 4096])
def test_few_weights_give_the_tokens_that_the_whole_sum_gives(monkeypatch, dtype, kept):
    """The same intervals to the last bit, at their ends too."""
    generator = torch.Generator().manual_seed(kept)
    weights = torch.rand(40, 4096, generator=generator, dtype=dtype)
    weights *= torch.rand(40, 4096, generator=generator).argsort(dim=-1) < kept
    cdf = weights.double().cumsum(dim=-1)
    ends = (cdf / cdf[:, -1:])[range(40), torch.randint(0, 4096, (40,), generator=generator)].clamp_max(1 - 2**-53)
    for uniforms in (torch.rand(40, generator=generator, dtype=torch.float64), ends, ends.nextafter(ends + 1)):
        uniforms = uniforms.clamp_max(1 - 2**-53)
        found = inverse_cdf(weights, uniforms)
        with monkeypatch.context() as patch:
            patch.setattr("hf_exactassist.verification.distributions.LOOKS_ARE_FREE", ())
            assert torch.equal(found, inverse_cdf(weights, uniforms))
        assert bool((weights[range(40), found] > 0).all())


def test_where_there_is_no_law_the_answer_is_as_for_small_vocabularies(monkeypatch):
    weights = torch.zeros(3, 4096)
    weights[1, 7], weights[2, 5] = math.nan, 1.0
    found = inverse_cdf(weights, torch.full((3,), 0.5))
    with monkeypatch.context() as patch:
        patch.setattr("hf_exactassist.verification.distributions.LOOKS_ARE_FREE", ())
        assert torch.equal(found, inverse_cdf(weights, torch.full((3,), 0.5)))
