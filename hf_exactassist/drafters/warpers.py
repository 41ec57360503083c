"""The assistant's own sampling settings, where its generation config sets them explicitly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import GenerationConfig
from transformers.generation import logits_process as hf


# in the order in which Transformers applies them
_WARPERS = {
    "temperature": hf.TemperatureLogitsWarper,
    "top_h": hf.TopHLogitsWarper,
    "top_k": hf.TopKLogitsWarper,
    "top_p": hf.TopPLogitsWarper,
    "min_p": hf.MinPLogitsWarper,
    "typical_p": hf.TypicalLogitsWarper,
    "epsilon_cutoff": hf.EpsilonLogitsWarper,
    "eta_cutoff": hf.EtaLogitsWarper,
}
_OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}


def own_settings(generation_config: GenerationConfig) -> dict[str, Any]:
    """The warper settings that an assistant's generation config sets.

    Args:
        generation_config (`GenerationConfig`): the assistant's, as loaded.

    Returns:
        `dict[str, Any]`: names and values of those that are not `None`.
    """
    values = {name: getattr(generation_config, name, None) for name in _WARPERS}
    return {name: value for name, value in values.items() if value is not None}


def with_own_warpers(processors: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
    """The target's list with the assistant's warpers in place of those of the same kind.

    Args:
        processors (`Sequence`): the target's processors; not changed.
        settings (`dict[str, Any]`): from [`own_settings`].

    Returns:
        `list`: processors for the draft.
    """
    kinds = list(_WARPERS.values())
    theirs = {kind: p for p in processors for kind in kinds if type(p) is kind}
    for name, value in settings.items():
        theirs.pop(_WARPERS[name], None)
        if value != _OFF.get(name):
            theirs[_WARPERS[name]] = _WARPERS[name](value)
    first = next((i for i, p in enumerate(processors) if type(p) in kinds), None)
    others = [p for p in processors if type(p) not in kinds]
    if first is None:
        # warpers come after the processors and before a final normalisation
        first = len(others) - sum(type(p) is hf.LogitNormalization for p in others)
    warpers = [theirs[kind] for kind in kinds if kind in theirs]
    return others[:first] + warpers + others[first:]
