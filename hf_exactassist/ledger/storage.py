"""What a round keeps only for a while: rows of keys and values, and buffers (contract 0x05F)."""

from __future__ import annotations

from collections.abc import Sequence

from .progress import expected_accepted, progress_by_length


def written_rows(length: int, layout: str) -> int:
    """Rows of keys and values that the target's forward over a draft writes.

    Args:
        length (`int`): tokens per draft.
        layout (`str`): `"replay"` or `"retained"`; only the first writes the last published token's row too, which
            plain decoding would have written anyway.

    Raises:
        ValueError: there is no such layout, or the length is negative.
    """
    if layout not in ("replay", "retained"):
        raise ValueError(f'`layout` is "replay" or "retained", got {layout!r}.')
    _check(length=length)
    return length + (layout == "replay")


def discarded_rows(surviving: Sequence[float]) -> float:
    """Expected draft tokens whose keys and values are written and forgotten; a stop may make it more.

    Args:
        surviving (`Sequence[float]` of length `K`): as from [`~hf_exactassist.ledger.survival`].

    Raises:
        ValueError: a number is no probability, or they rise.
    """
    return len(surviving) - expected_accepted(surviving)


def temporary_bytes(length: int, row_bytes: int, place_bytes: int = 0, rows: int = 1) -> int:
    """Bytes that a round needs beyond those of the published text.

    Args:
        length (`int`): tokens per draft.
        row_bytes (`int`): keys and values of one token, all layers.
        place_bytes (`int`): scores, probabilities and masks of one scored place; there are `length + 1`.
        rows (`int`): rows of the batch.

    Raises:
        ValueError: a number is negative.
    """
    _check(length=length, row_bytes=row_bytes, place_bytes=place_bytes, rows=rows)
    return rows * (length * row_bytes + (length + 1) * place_bytes)


def temporary_bytes_per_token(surviving: Sequence[float], row_bytes: int, place_bytes: int = 0) -> float:
    """[`temporary_bytes`] of a row for each token that its rounds publish, in the long run.

    Args:
        surviving (`Sequence[float]` of length `K`): as from [`~hf_exactassist.ledger.survival`].
        row_bytes (`int`): see [`temporary_bytes`].
        place_bytes (`int`): see [`temporary_bytes`].

    Raises:
        ValueError: a chance is no probability, chances rise, or a number is negative.
    """
    return temporary_bytes(len(surviving), row_bytes, place_bytes) / progress_by_length(surviving)[-1]


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise ValueError(f"`{name}` cannot be negative, got {number}.")
