"""Top-k, found in groups, is what Transformers leaves (contract 0x06J)."""

import math

import pytest
import torch
from transformers import TopKLogitsWarper

from hf_exactassist.state.top_k import top_k


KINDS = {
    "all different": lambda scores: scores,
    "many equal": torch.round,
    "all equal": torch.zeros_like,
    "few legal": lambda scores: scores.masked_fill(torch.rand_like(scores) < 0.999, -math.inf),
    "none legal": lambda scores: torch.full_like(scores, -math.inf),
    "in order": lambda scores: scores.sort(dim=-1).values,
    "one group": lambda scores: scores.index_fill(1, torch.arange(5, scores.shape[1], 1024), 30.0),
    "infinite": lambda scores: scores.index_fill(1, torch.tensor([7, 2000]), math.inf),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "k"), [(4096, 1), (4097, 50), (8192, 7), (9999, 256), (50257, 50)])
def test_it_keeps_what_transformers_keeps(size, k, dtype, kind):
    generator = torch.Generator().manual_seed(size)
    torch.manual_seed(k)
    scores = KINDS[kind](4 * torch.randn(3, size, generator=generator, dtype=dtype))
    before = scores.clone()
    warper = TopKLogitsWarper(k)
    assert torch.equal(top_k(scores, k, warper.filter_value), warper(None, scores))
    assert torch.equal(scores, before)
    assert torch.equal(top_k(scores[1:2], k, -9.0), TopKLogitsWarper(k, filter_value=-9.0)(None, scores[1:2]))


def test_what_it_is_not_made_for_is_left_to_transformers():
    scores = torch.randn(2, 8192)
    assert top_k(scores, 50, -math.inf) is not None
    assert top_k(scores, 300, -math.inf) is None
    assert top_k(scores[:, :4000], 50, -math.inf) is None
    assert top_k(scores.bfloat16(), 50, -math.inf) is None
    scores[1, 100] = math.nan
    assert top_k(scores, 50, -math.inf) is None
