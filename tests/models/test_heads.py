"""A frozen head costs what another does: one product of matrices a forward, but for the one plain `generate` makes."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GenerationConfig

import hf_exactassist
from hf_exactassist.models import heads
from hf_exactassist.models.admission import admit, runner_for
from tests.exactness.test_lone_rows import built
from tests.tiny import ARCHITECTURES, VOCABULARY, prompts, tiny


GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 9}


class Products(TorchDispatchMode):
    """Notes the operators that make logits, and the shapes of these."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm") and out.shape[-1] == VOCABULARY:
            self.made.append((name, tuple(out.shape)))
        return out

    def batched(self):
        return [shape for name, shape in self.made if name in ("bmm", "baddbmm")]


def made(architecture, frozen):
    model = (built if architecture == "lfm2" else tiny)(architecture).to(torch.bfloat16)
    return model.requires_grad_(not frozen)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("lengths", [(6,), (6, 2, 4)])
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "lfm2"])
def test_heads_are_applied_by_one_product(architecture, lengths, frozen):
    target, inputs = made(architecture, frozen), prompts(lengths)
    assistant = copy.deepcopy(target)
    for model in (target, assistant):
        # compares forwards of its own
        admit(model)
    with Products() as plain:
        target.generate(**inputs, **{**GREEDY, "max_new_tokens": 1})
    settings = {"assistant_model": assistant, "num_assistant_tokens": 3, "return_dict_in_generate": True}
    with Products() as ours:
        stats = hf_exactassist.generate(target, **inputs, **GREEDY, **settings).assist_stats
    assert stats.drafted > stats.rounds > 0 and len(ours.made) > stats.rounds + stats.draft_forwards
    if architecture == "lfm2" and frozen:
        # row by row: what plain `generate` does for each of them
        assert ours.batched() == [(1, 1, VOCABULARY)] * len(lengths)
    else:
        assert ours.batched() == plain.batched()
        assert len(plain.batched()) == frozen


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_last_positions_are_the_last(architecture):
    model = tiny(architecture).requires_grad_(False)
    inputs = prompts((6, 2))
    positions = (inputs["attention_mask"].cumsum(1) - 1).clamp_min(0)
    block = prompts((4, 4), seed=3)["input_ids"]
    logits = {}
    for keep in (1, 2, 4, None):
        runner = runner_for(model)
        with torch.no_grad():
            kwargs = {"attention_mask": inputs["attention_mask"], "position_ids": positions, "use_cache": True}
            runner.prefill(inputs["input_ids"], GenerationConfig(), kwargs)
            logits[keep] = runner.forward(block, [6, 6], keep=keep).logits
    for keep in (1, 2, 4):
        torch.testing.assert_close(logits[keep], logits[None][:, -keep:])


def test_positions_are_named_only_where_it_helps():
    frozen, trained = made("llama", True), made("llama", False)
    assert heads.last_positions(frozen, 2, 5).tolist() == [-2, -1]
    assert heads.last_positions(frozen, 5, 5) == 5
    assert heads.last_positions(trained, 2, 5) == 2

    def forward(input_ids, logits_to_keep: int = 0): ...

    frozen.forward = forward
    assert heads.last_positions(frozen, 2, 5) == 2
