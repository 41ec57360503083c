"""Objects around a model: the ones that leave its computation as it is, and the ones that do not.

Neither PEFT nor torch's compiler is imported here: where nobody has imported them, no object can be one of theirs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from ..errors import InvalidArgument, UnsupportedArchitecture, UnsupportedArgument


# a forward of these hands its arguments to the model inside; AdaLoRA's adds to the loss alone
_PLAIN_FORWARDS = ("BaseTuner.forward", "AdaLoraModel.forward")
# what PEFT's wrapper itself takes, for each row of the batch
_PER_ROW = ("adapter_names", "alora_offsets", "task_ids")


def uncompiled(model: Any) -> Any:
    """The module given to `torch.compile`, which is also what plain `compiled.generate` runs."""
    compiled: Any = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    while isinstance(model, compiled):
        model = model._orig_mod
    return model


def is_peft(model: Any) -> bool:
    """Whether this is PEFT's object around a model."""
    peft: Any = sys.modules.get("peft")
    return peft is not None and isinstance(model, (peft.PeftModel, peft.PeftMixedModel))


def unwrapped(model: Any, role: str) -> PreTrainedModel:
    """The Transformers model inside, whose layers hold the adapters of PEFT.

    Args:
        model (`Any`): a Transformers model, a PEFT model, or what `torch.compile` made of one.
        role (`str`): `"target"` or `"assistant"`, for the message.

    Returns:
        `PreTrainedModel`: the model.

    Raises:
        InvalidArgument: another object.
    """
    inside = uncompiled(model)
    while is_peft(inside):
        injects = not any(config.is_prompt_learning for config in _active(inside))
        inside = uncompiled(inside.base_model.model if injects else inside.base_model)
    if isinstance(inside, PreTrainedModel) and inside.can_generate():
        return inside
    raise InvalidArgument(
        f"The {role} must be a Transformers model that can generate, or one wrapped by PEFT or `torch.compile`, got "
        f"{type(model).__name__}: load it with `AutoModelForCausalLM.from_pretrained(...)`, or pass the model inside, "
        "for example `parallel.module`."
    )


def require_same(model: Any, role: str) -> None:
    """Refuses a wrapper that does not compute what the model inside computes.

    Args:
        model (`Any`): as for [`unwrapped`].
        role (`str`): `"target"` or `"assistant"`, for the message.

    Raises:
        UnsupportedArchitecture: only the wrapper computes the right thing.
    """
    model = uncompiled(model)
    while is_peft(model):
        configs = _active(model)
        kinds = ", ".join(str(getattr(config.peft_type, "value", config.peft_type)) for config in configs)
        inside, reason = model.base_model, ""
        if any(config.is_prompt_learning for config in configs):
            if not model._adapters_disabled:
                reason = f"{kinds} puts learned states before each prompt, outside the model"
        else:
            inside = inside.model
            if any(getattr(config, "alora_invocation_tokens", None) for config in configs):
                reason = "activated LoRA begins where PEFT finds its invocation tokens in the row"
            elif _forward_of(model.base_model) not in (*_PLAIN_FORWARDS, _forward_of(inside)):
                reason = f"{kinds} computes outside the model too"
        if reason:
            raise UnsupportedArchitecture(
                f"The {role} {type(model).__name__} is not supported: {reason}. Drop the assistant for this call, or "
                "choose an adapter that works in the model's layers alone, such as LoRA."
            )
        model = uncompiled(inside)


def _active(model: Any) -> list[Any]:
    """Configurations of a PEFT model's active adapters."""
    names = model.active_adapter
    return [model.peft_config[name] for name in ([names] if isinstance(names, str) else names)]


def check_arguments(model: Any, kwargs: dict[str, Any]) -> None:
    """Refuses what PEFT's wrapper takes for each row of a batch and gives to hooks of its own.

    Raises:
        UnsupportedArgument: such an argument.
    """
    given = [name for name in _PER_ROW if kwargs.get(name) is not None]
    if is_peft(model) and given:
        raise UnsupportedArgument(
            f"`{given[0]}` goes with the rows of a whole batch, which an assistant takes apart: choose one adapter "
            "for the call, `model.set_adapter(name)`, or drop the assistant for this call."
        )


def _forward_of(module: Any) -> str:
    return getattr(module.forward, "__qualname__", "")


@contextlib.contextmanager
def generating_as(outer: Any, model: PreTrainedModel) -> Iterator[None]:
    """Gives the model inside the generation config of its wrapper, as PEFT's own `generate` does, for a while."""
    own: GenerationConfig | None = model.generation_config
    model.generation_config = outer.generation_config
    try:
        yield
    finally:
        model.generation_config = own
