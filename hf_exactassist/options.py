"""How a call is to be decoded, beyond what Transformers has names for; checked when it is made."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch

from .errors import InvalidArgument


COUPLINGS = ("maximal", "shared_noise")
LAYOUTS = ("replay", "retained")
COMPILED = ("draft", "both")


@dataclass(frozen=True)
class Options:
    """This library's own arguments of a call.

    Args:
        streamer (`BaseStreamer`, *optional*): gets every published token once.
        seed (`int`, *optional*): fixes what the call draws. Without, one number is taken from `generator`.
        generator (`torch.Generator`, *optional*): torch's global generator by default.
        row_ids (`Sequence[int]`, *optional*): identity of each row for its random numbers; its index by default.
        keep_cache (`bool`): fill the caller's cache even if no output object is returned.
        coupling (`str`): `"maximal"` accepts most drafts; `"shared_noise"` publishes token for token what plain
            `generate` would draw under the same `torch.manual_seed`, and leaves the generator as plain `generate`
            would.
        layout (`str`): `"replay"` reads the last published token together with the drafts; `"retained"` reads it
            beforehand, so that the cache is complete and the first draft's scores are known when drafting begins.
            The same tokens either way.
        compile (`str`, *optional*): `"draft"` runs the assistant's blocks through `torch.compile`, `"both"` the
            target's too.
        telemetry (`str`, `PathLike` or `Callable[[dict], None]`, *optional*): gets one record per reached decision and
            per round; a path is written as JSON lines.

    Raises:
        InvalidArgument: a value makes no sense.
    """

    streamer: Any = None
    seed: int | None = None
    generator: torch.Generator | None = None
    row_ids: Sequence[int] | None = None
    keep_cache: bool = False
    coupling: str = "maximal"
    layout: str = "replay"
    compile: str | None = None
    telemetry: str | PathLike[str] | Callable[[dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        """Checks every value."""
        for name, choices in (("coupling", COUPLINGS), ("layout", LAYOUTS), ("compile", (*COMPILED, None))):
            if getattr(self, name) not in choices:
                known = " or ".join(f'"{choice}"' if choice else "left out" for choice in choices)
                raise InvalidArgument(f"`{name}` must be {known}, got {getattr(self, name)!r}.")
        if self.seed is not None:
            object.__setattr__(self, "seed", _natural("seed", self.seed))
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise InvalidArgument(f"`generator` must be a `torch.Generator`, got {type(self.generator).__name__}.")
        if self.seed is not None and self.generator is not None:
            raise InvalidArgument("Give `seed` or `generator`, not both: either fixes what the call draws.")
        if self.row_ids is not None:
            if self.coupling == "shared_noise":
                raise InvalidArgument(
                    '`row_ids` means nothing with `coupling="shared_noise"`: plain sampling has none.'
                )
            if isinstance(self.row_ids, (str, bytes)) or not hasattr(self.row_ids, "__len__"):
                raise InvalidArgument(f"`row_ids` must be a sequence of non-negative integers, got {self.row_ids!r}.")
            object.__setattr__(self, "row_ids", tuple(_natural("row_ids", row) for row in self.row_ids))
        if self.telemetry is not None and not isinstance(self.telemetry, (str, PathLike)):
            if not callable(self.telemetry):
                kind = type(self.telemetry).__name__
                raise InvalidArgument(f"`telemetry` must be a path or a function of one record, got {kind}.")


def _natural(name: str, value: Any) -> int:
    """A non-negative integer, also from NumPy or torch."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidArgument(f"`{name}` must be made of non-negative integers, got {value!r}.")
    return number
