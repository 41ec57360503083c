"""Names that differ between the supported Transformers releases (5.17 and later), and shapes of public classes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput


# `past_key_values` until 5.22, `cache` since
CACHE_ARGUMENT = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else "past_key_values"
)
CACHE_FIELD = "cache" if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__ else "past_key_values"


def forward_parameters(model: PreTrainedModel) -> set[str]:
    """Parameter names of the model's forward."""
    return set(inspect.signature(model.forward).parameters)


def model_device(model: PreTrainedModel, fallback: torch.device) -> torch.device:
    """Where inputs of the model go. An offloaded model reports `meta`, which no input can live on."""
    device = getattr(model, "device", fallback)
    return fallback if device.type == "meta" else device


def text_config(model: PreTrainedModel) -> Any:
    """The configuration of the part that decodes text."""
    return model.config.get_text_config(decoder=True)


def layer_windows(model: PreTrainedModel) -> list[int | None]:
    """Sliding window of each cache layer, `None` for full attention, as Transformers' own cache reads the config."""
    layers = DynamicCache(config=text_config(model)).layers
    return [layer.sliding_window if layer.is_sliding else None for layer in layers]


def position_limit(model: PreTrainedModel) -> int | None:
    """Positions the model was made for, if its configuration says so; a learned table ends there."""
    return getattr(text_config(model), "max_position_embeddings", None)


def head_size(model: PreTrainedModel) -> int:
    """Columns of the model's logits."""
    head = model.get_output_embeddings()
    return text_config(model).vocab_size if head is None else head.weight.shape[0]
