"""What a cache of Transformers' own holds at one moment, to go back to.

Full attention is put back by its length, since later tokens only come behind. Sliding layers make new tensors of
bounded size whenever they move on, so holding on to the old ones is enough. Recurrent and convolution states are
overwritten in place and are cloned; they are small. Quantized layers write nothing in place either. Layers of unknown
class are copied whole. Keys and values of cross-attention never change after the first forward.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from transformers import cache_utils
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
    QuantizedCache,
)


def _classes(*names: str) -> tuple[type, ...]:
    """Those of the named layer classes that this release of Transformers has."""
    return tuple(getattr(cache_utils, name) for name in names if hasattr(cache_utils, name))


_EMPTY = _classes("DummyLayer")
_FULL = (DynamicLayer, *_classes("LinearAttentionAndFullAttentionLayer"))
_LINEAR = _classes("LinearAttentionLayer", "LinearAttentionAndSlidingWindowAttentionLayer")
_KNOWN = (*_EMPTY, *_FULL, *_LINEAR, DynamicSlidingWindowLayer)
_QUANTIZED = _classes("BaseQuantizedLayer", "QuantizedLayer")
_LENGTH = "length of keys and values"


def layers_of(cache: Cache) -> list[Any]:
    """The layers that grow with the text; what a decoder knows of its encoder stays as it is."""
    return cache.self_attention_cache.layers if isinstance(cache, EncoderDecoderCache) else cache.layers


def copied(cache: Cache | None) -> Cache | None:
    """A cache that goes on by itself. Quantized layers write nothing in place, and not all of them can be copied."""
    if not isinstance(cache, QuantizedCache):
        return copy.deepcopy(cache)
    other = copy.copy(cache)
    other.layers = [copy.copy(layer) for layer in cache.layers]
    return other


def take(cache: Cache) -> list[dict[str, Any]]:
    """Everything the layers of a cache hold.

    Args:
        cache (`Cache`): a dynamic cache; it may be empty.

    Returns:
        `list[dict]`: one entry per layer, for [`put_back`].
    """
    return [_copied(layer, vars(layer), shorten=True) for layer in layers_of(cache)]


def put_back(cache: Cache, snapshot: list[dict[str, Any]]) -> None:
    """Makes a cache hold what it held, if it has gone on since; the snapshot can be used again."""
    layers = layers_of(cache)
    del layers[len(snapshot) :]
    for layer, held in zip(layers, snapshot, strict=True):
        attributes = _copied(layer, held, shorten=False)
        length = attributes.pop(_LENGTH, None)
        if length is not None:
            attributes["keys"], attributes["values"] = layer.keys[:, :, :length], layer.values[:, :, :length]
        vars(layer).update(attributes)


def is_croppable(cache: Cache) -> bool:
    """Whether forgetting the last keys and values is all there is to going back."""
    return all(type(layer) in (DynamicLayer, *_EMPTY) for layer in layers_of(cache))


def crop(cache: Cache, length: int) -> None:
    """Forgets what lies behind the first `length` tokens of a croppable cache."""
    for layer in layers_of(cache):
        if type(layer) is DynamicLayer and layer.is_initialized:
            layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]


def tokens_before_quantizing(cache: Cache) -> int:
    """Tokens that may be read in one block of a cache that quantizes what it keeps, every so many tokens.

    The one after which it quantizes is read alone, as then it does so whatever the release.
    """
    layer = layers_of(cache)[0]
    if not hasattr(layer, "residual_length") or not layer.is_initialized:
        return sys.maxsize
    kept = layer.keys.shape[-2] if layer.keys.dim() == 4 else 0
    return max(layer.residual_length - 1 - kept, 1)


def _copied(layer: Any, attributes: dict[str, Any], shorten: bool) -> dict[str, Any]:
    if isinstance(layer, _QUANTIZED):
        # it makes new tensors for all it keeps
        return dict(attributes)
    if type(layer) not in _KNOWN:
        return copy.deepcopy(attributes)
    tensors = {name: part for name, part in attributes.items() if isinstance(part, torch.Tensor)}
    kept = copy.deepcopy({name: part for name, part in attributes.items() if name not in tensors})
    if shorten and type(layer) in _FULL and "keys" in tensors:
        kept[_LENGTH] = tensors.pop("keys").shape[2]
        del tensors["values"]
    return {**kept, **tensors}
