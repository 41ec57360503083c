"""Names that differ between the supported Transformers releases (5.17 and later), and shapes of public classes."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.models.whisper.generation_whisper import WhisperGenerationMixin
from transformers.utils import ModelOutput


# `past_key_values` until 5.22, `cache` since
CACHE_ARGUMENT = (
    "cache"
    if "cache" in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    else "past_key_values"
)
CACHE_FIELD = "cache" if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__ else "past_key_values"

# describes inputs that are read with the prompt, in classes that make their features inside the forward (Qwen2-Audio)
DESCRIBES_FEATURES = {"feature_attention_mask"}


def forward_parameters(model: PreTrainedModel) -> frozenset[str]:
    """Parameter names of the model's forward."""
    if "forward" in vars(model):
        return frozenset(inspect.signature(model.forward).parameters)
    return _parameters(type(model).forward)


@functools.lru_cache(maxsize=64)
def _parameters(method: Callable[..., Any]) -> frozenset[str]:
    """Parameter names of a method, `self` left out."""
    return frozenset([*inspect.signature(method).parameters][1:])


def all_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The model and all modules in it, each once; as `modules()`, which takes several times as long."""
    found, waiting = {}, [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting += [child for child in module._modules.values() if child is not None]
    return [*found.values()]


def module_of(model: PreTrainedModel, name: str) -> Any:
    """What a model's `get_input_embeddings`, `get_decoder` and the like give; `None` where they cannot."""
    try:
        return getattr(model, name)()
    except (AttributeError, NotImplementedError):
        return None


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
    config = text_config(model)
    return getattr(config, "max_position_embeddings", None) or getattr(config, "max_target_positions", None)


def turning_points(model: PreTrainedModel) -> list[tuple[int, bool]]:
    """Lengths at which the model computes earlier positions anew: a block across one differs from single steps.

    Returns:
        `list[tuple[int, bool]]`: each length in tokens, and whether everything beyond it is computed alike again.
    """
    config = text_config(model)
    rope = getattr(config, "rope_parameters", None) or {}
    points = []
    # one set of parameters, or one per layer type
    for parameters in [rope] if "rope_type" in rope else [part for part in rope.values() if isinstance(part, dict)]:
        if "dynamic" in str(parameters.get("rope_type")):
            points.append((config.max_position_embeddings, False))
        elif parameters.get("rope_type") == "longrope":
            points.append((parameters["original_max_position_embeddings"], True))
    if getattr(config, "keep_window_size", None) is not None:
        # Doge chooses the keys to keep by the number of keys in the forward
        points.append((config.keep_window_size, False))
    return points


def cache_argument(model: PreTrainedModel) -> str:
    """What the model calls its cache; recurrent classes had a name of their own until 5.22."""
    names = forward_parameters(model)
    return "cache_params" if "cache_params" in names and CACHE_ARGUMENT not in names else CACHE_ARGUMENT


def keeps_images_in_cache(model: PreTrainedModel) -> bool:
    """Whether some layers of the cache hold images, read by cross-attention, and not the text (Mllama)."""
    return bool(getattr(text_config(model), "cross_attention_layers", None))


def carries_past(model: PreTrainedModel) -> bool:
    """Whether a step can be shown new tokens alone: in a cache, or in a state of the class's own kind."""
    return bool(forward_parameters(model) & {CACHE_ARGUMENT, "cache_params", "state", "mems"})


def new_cache(model: PreTrainedModel) -> DynamicCache | EncoderDecoderCache | None:
    """An empty cache as `generate` makes it; `None` for classes that carry their past in another way."""
    supports = getattr(model, "_supports_default_dynamic_cache", None)
    if supports is not None and not supports():
        return None
    cache = DynamicCache(config=text_config(model))
    # what an encoder said does not slide out of sight
    return EncoderDecoderCache(cache, DynamicCache()) if reads_encoder(model) else cache


def cache_parts(cache: Any) -> tuple[Any, ...]:
    """The cache itself, or the two that one of an encoder-decoder model is made of."""
    if isinstance(cache, EncoderDecoderCache):
        return cache.self_attention_cache, cache.cross_attention_cache
    return (cache,)


def rows_of(value: Any, rows: Sequence[int], batch: int) -> Any:
    """Some rows of whatever has `batch` of them: a tensor, or model outputs and tuples of such; else the value."""
    if isinstance(value, torch.Tensor):
        return value[list(rows)] if value.dim() and value.shape[0] == batch else value
    if isinstance(value, ModelOutput):
        # made anew by its class, it would lose the keys that some encoders add
        chosen = copy.copy(value)
        for name, part in value.items():
            chosen[name] = rows_of(part, rows, batch)
        return chosen
    return tuple(rows_of(part, rows, batch) for part in value) if isinstance(value, tuple) else value


def is_encoder_decoder(model: PreTrainedModel) -> bool:
    """Whether the model has an encoder of its own beside the decoder."""
    return bool(model.config.is_encoder_decoder)


def reads_encoder(model: PreTrainedModel) -> bool:
    """Whether the decoder attends to what an encoder said: one of its own, or one whose outputs it is given."""
    return is_encoder_decoder(model) or "encoder_outputs" in forward_parameters(model)


def encoder_width(model: PreTrainedModel) -> int:
    """Columns of the encoder outputs that the model's decoder takes."""
    config = getattr(model.config, "encoder", None) or model.config
    return getattr(config, "hidden_size", None) or config.d_model


def has_whisper_generate(model: PreTrainedModel) -> bool:
    """Whether the class prepares audio in a `generate` of its own and then decodes with the usual one."""
    return isinstance(model, WhisperGenerationMixin)


def prepares_inputs_itself(model: PreTrainedModel) -> bool:
    """Whether code from outside Transformers decides what the model is shown at each step."""
    names = ("prepare_inputs_for_generation", "_update_model_kwargs_for_generation")
    owners = [getattr(getattr(model, name), "__module__", "") or "" for name in names]
    return not all(owner.partition(".")[0] == "transformers" for owner in owners)


def head_size(model: PreTrainedModel) -> int:
    """Columns of the model's logits."""
    head = model.get_output_embeddings()
    if head is None:
        return text_config(model).vocab_size
    weight = getattr(head, "weight", None)
    # quantized layers pack theirs, or have a method of that name
    if isinstance(weight, torch.Tensor) and weight.is_floating_point():
        return weight.shape[0]
    return head.out_features


def declared_tokens(model: PreTrainedModel) -> dict[str, frozenset[Any]]:
    """What a model's configurations say of its vocabulary.

    Args:
        model (`PreTrainedModel`): the model.

    Returns:
        `dict[str, frozenset]`: under `"model_type"` the type of the part that decodes text, and under each role such
        as `"eos_token_id"` the ids that any configuration gives it; roles without an id in the head are left out.
    """
    size, config = head_size(model), text_config(model)
    found = {"model_type": frozenset({config.model_type})}
    for role in ("bos_token_id", "eos_token_id", "pad_token_id"):
        named = [getattr(part, role, None) for part in (config, model.config, model.generation_config)]
        ids = {token for value in named for token in (value if isinstance(value, (list, tuple)) else [value])}
        inside = frozenset(token for token in ids if isinstance(token, int) and 0 <= token < size)
        if inside:
            found[role] = inside
    return found


def takes_outliers_apart(model: PreTrainedModel) -> bool:
    """Whether 8-bit layers of bitsandbytes compute a column otherwise where any token of a forward is large in it."""
    layers = (module for module in model.modules() if type(module).__name__ == "Linear8bitLt")
    return any(layer.state.threshold > 0 for layer in layers)
