"""Positions named by a tensor are the positions a number asks for, in every causal-LM type of Transformers."""

import pytest
import torch

from hf_exactassist.models import admission, compat, heads

from .build import TYPES, NotBuilt, build


pytestmark = [pytest.mark.zoo, pytest.mark.timeout(120, method="thread")]


@pytest.mark.parametrize("model_type", TYPES)
@torch.no_grad()
def test_named_positions_are_the_last(model_type):
    try:
        model = build(model_type).requires_grad_(False)
    except NotBuilt as error:
        pytest.skip(f"not built: {error}")
    if "logits_to_keep" not in compat.forward_parameters(model) or not admission.admit(model).admitted:
        pytest.skip("never asked for the last positions")
    named = heads.last_positions(model, 2, 6)
    if model_type == "fuyu":
        # takes numbers alone, and says so
        assert named == 2
        return
    assert isinstance(named, torch.Tensor)
    ids = torch.tensor([[5, 9, 7, 12, 6, 8]])
    ours, theirs = (model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits for keep in (named, 2))
    assert ours.shape[:2] == (1, 2)
    torch.testing.assert_close(ours, theirs)
