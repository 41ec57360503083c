"""A model's own weights, computed with in a finer dtype: a second opinion without the rounding of the first.

Rounding can make a right way to run a model look wrong, the more so in half precision. The copies made here share the
weights; each block widens its own for the time of its forward, so one block more has to fit in memory.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import PreTrainedModel


# by the dtype of a model, those that round less
FINER = {
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
}


def computing_in(dtype: torch.dtype, model: PreTrainedModel) -> PreTrainedModel | None:
    """A copy that computes in a finer dtype; it shares the weights of the model, which stays as it was.

    Args:
        dtype (`torch.dtype`): one of those in `FINER` for the model's.
        model (`PreTrainedModel`): the model.

    Returns:
        `PreTrainedModel`: for a few forwards; `None` where weights are quantized, lie elsewhere or cannot be shared.
    """
    tensors = [*model.parameters(), *model.buffers()]
    offloaded = any(hasattr(module, "_hf_hook") for module in model.modules())
    if offloaded or not all(_is_ordinary(tensor) for tensor in tensors):
        return None
    try:
        exact = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    except Exception:  # whatever hangs on a model and cannot be copied
        return None
    if hasattr(exact, "set_experts_implementation"):
        # the kernel that groups experts takes no doubles; the copy has a configuration of its own
        exact.set_experts_implementation("eager")
    blocks = set(getattr(model, "_no_split_modules", None) or ())
    for module in [*exact.modules()]:
        # what a block computes with may be weights of modules that it never calls
        parts = [*module.modules()] if type(module).__name__ in blocks else [module]
        _Widened(parts, dtype).attach(module)
    # a model makes masks and states in the dtype of its first parameter
    sign = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=model.device), requires_grad=False)
    exact._parameters = {"dtype": sign, **exact._parameters}
    return exact


def _is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether it holds its values as they are: not on disk, not packed by a quantization library."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_meta
    return plain and tensor.dtype not in (torch.uint8, torch.int8)


class _Widened:
    """Replaces the tensors of some modules by wider ones for the time of a forward."""

    def __init__(self, modules: list[torch.nn.Module], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.tables: list[dict[str, Any]] = [table for part in modules for table in (part._parameters, part._buffers)]
        self.narrow: list[tuple[dict[str, Any], str, torch.Tensor]] = []

    def attach(self, module: torch.nn.Module) -> None:
        module.register_forward_pre_hook(self.widen)
        module.register_forward_hook(self.put_back, always_call=True)

    def widen(self, *_: Any) -> None:
        for table in self.tables:
            for name, tensor in table.items():
                if tensor is not None and self.dtype in FINER.get(tensor.dtype, ()):
                    self.narrow.append((table, name, tensor))
                    wide = tensor.detach().to(self.dtype)
                    is_parameter = isinstance(tensor, torch.nn.Parameter)
                    table[name] = torch.nn.Parameter(wide, requires_grad=False) if is_parameter else wide

    def put_back(self, *_: Any) -> None:
        while self.narrow:
            table, name, tensor = self.narrow.pop()
            table[name] = tensor
