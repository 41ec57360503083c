"""Hidden states and attentions of rows that are read one by one, put together as those of a batch.

Tokens lie on the second last axis; the last one of self-attention counts slots of the batch, padding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


# by the name an output has in a decoder alone, and in one with an encoder
NAMES = {
    "hidden_states": ("hidden_states", "decoder_hidden_states"),
    "attentions": ("attentions", "decoder_attentions"),
    "cross_attentions": ("cross_attentions",),
}
Layers = tuple[torch.Tensor | None, ...]


def of_tokens(outputs: Any, count: int, end: int) -> dict[str, Layers]:
    """What a forward of one row says about its last tokens.

    Args:
        outputs (`ModelOutput`): of a batch of one.
        count (`int`): tokens.
        end (`int`): slots up to the last of them.

    Returns:
        `dict[str, tuple]`: per layer `(..., count, D)`, or `None` where it says nothing.
    """
    found: dict[str, Layers] = {}
    for name, names in NAMES.items():
        layers = next((part for part in (getattr(outputs, other, None) for other in names) if part is not None), None)
        if layers is None:
            continue
        parts = [None if layer is None else layer[0, ..., -count:, :] for layer in layers]
        if name == "attentions":
            # keys before those that the layer still has, and padding; RWKV calls something else so
            parts = [_padded(p, end - p.shape[-1], 0) if p is not None and p.dim() == 3 else p for p in parts]
        found[name] = tuple(parts)
    return found


def one_after_the_other(pieces: Sequence[dict[str, Layers]]) -> dict[str, Layers]:
    """Of several forwards of a row."""
    return {name: tuple(map(_joined, *(piece[name] for piece in pieces))) for name in pieces[0]}


def last(said: dict[str, Layers], count: int) -> dict[str, Layers]:
    """Of the last tokens alone."""
    return {name: tuple(p if p is None else p[..., -count:, :] for p in layers) for name, layers in said.items()}


def batched(rows: Sequence[dict[str, Layers] | None], width: int, right: bool) -> dict[str, Layers]:
    """Of rows beside each other, `(B, ..., width, D)`; zeros where a row has fewer tokens or fewer keys."""
    names = next((row for row in rows if row is not None), {})
    return {
        name: tuple(
            _beside([None if row is None else row[name][i] for row in rows], width, right)
            for i in range(len(names[name]))
        )
        for name in names
    }


def _joined(*parts: torch.Tensor | None) -> torch.Tensor | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    widest = max(part.shape[-1] for part in given)
    return torch.cat([_padded(part, 0, widest - part.shape[-1]) for part in given], dim=-2)


def _beside(parts: Sequence[torch.Tensor | None], width: int, right: bool) -> torch.Tensor | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    widest = max(part.shape[-1] for part in given)
    table = given[0].new_zeros((len(parts), *given[0].shape[:-2], width, widest))
    for row, part in zip(table, parts, strict=True):
        if part is not None:
            count = part.shape[-2]
            first = width - count if right else 0
            row[..., first : first + count, : part.shape[-1]] = part
    return table


def _padded(part: torch.Tensor, left: int, right: int) -> torch.Tensor:
    return torch.nn.functional.pad(part, (max(left, 0), right))
