"""Whether a model's blocks can be compiled: looked at, and then tried, before the first token."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from ..errors import UnsupportedArgument
from ..memory import is_out_of_memory
from ..state.fixed import rounded
from . import admission, compat, compiled, inputs, probes
from .hooks import hooks_of
from .runner import RowRunner


_WAY_OUT = {"target": 'pass `compile="draft"`, or leave `compile` out', "assistant": "leave `compile` out"}
# settings in which a model has passed
_PASSED: weakref.WeakKeyDictionary[PreTrainedModel, set[Any]] = weakref.WeakKeyDictionary()


def require(model: PreTrainedModel, role: str, rows: int, width: int, position_limit: int | None = None) -> None:
    """Refuses a model whose block forwards cannot be compiled.

    One block is compiled and compared with the same forward uncompiled, once per model and number of rows; a call of
    that shape finds it ready.

    Args:
        model (`PreTrainedModel`): an admitted model.
        role (`str`): `"target"` or `"assistant"`, for the message.
        rows (`int`): rows of the call.
        width (`int`): tokens of a usual block.
        position_limit (`int`, *optional*): see [`RowRunner`].

    Raises:
        UnsupportedArgument: with the reason.
    """
    reason = _surface(model)
    if not reason:
        setting = (rounded(rows), width, model.dtype, model.device, position_limit, hooks_of(model), compiled.BACKEND)
        known = _PASSED.setdefault(model, set())
        if setting not in known:
            reason = _trial(model, rounded(rows), width, position_limit)
            if not reason:
                known.add(setting)
    if reason:
        raise UnsupportedArgument(
            f"The forwards of the {role} {type(model).__name__} cannot be compiled: {reason} For this model, "
            f"{_WAY_OUT[role]}."
        )


def _surface(model: PreTrainedModel) -> str:
    """What rules compiled blocks out by the looks of it, if anything does."""
    admitted = admission.admit(model)
    if admitted.strategy != admission.ROWS:
        return f"it runs {admitted.strategy}, over storage that is not of fixed shape."
    devices = {str(tensor.device) for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) != 1 or "meta" in devices:
        return "its weights are offloaded, or on several devices."
    return ""


@torch.no_grad()
def _trial(model: PreTrainedModel, rows: int, width: int, position_limit: int | None) -> str:
    """Compiles one block and compares it with the same block uncompiled; says what is wrong, if anything."""
    vocabulary = compat.text_config(model).vocab_size
    device = compat.model_device(model, torch.device("cpu"))
    ids = (torch.arange(rows * 2, device=device).reshape(rows, 2) + 3) % vocabulary
    block = (torch.arange(rows * width, device=device).reshape(rows, width) + 5) % vocabulary
    mask = torch.ones_like(ids)
    got = []
    with (
        probes.quiet(),
        inputs.undisturbed(model),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
    ):
        try:
            positions = model._prepare_position_ids_for_generation(ids, {"attention_mask": mask})
            for runner in (RowRunner(model, position_limit), compiled.CompiledRows(model, position_limit)):
                kwargs = {"attention_mask": mask, "position_ids": positions, "use_cache": True}
                runner.prefill(ids, GenerationConfig(), kwargs)
                got.append(runner.forward(block, [2] * rows).logits.float())
            # Python that changes from call to call, as a hook may, would be compiled anew each time
            with torch._dynamo.config.patch(error_on_recompile=True):
                runner.forward(block, [2] * rows)
        except Exception as error:  # whatever a compiler says of a model, or for want of its own tools
            if is_out_of_memory(error):
                raise
            said = " ".join(str(error).split())[:300]
            return f"`torch.compile` failed ({type(error).__name__}: {said})."
    plain, ours = got
    difference = float((plain - ours).abs().max() / plain.std().clamp_min(1e-12))
    bound = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.1
    # not the other way round: NaN is no pass
    if difference <= bound:
        return ""
    return f"compiled they differ by {difference:.2g} standard deviations of a logit."
