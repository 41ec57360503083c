"""The round coordinate in writing: canonical JSON, its SHA-256, and by name what differs (contract 0x01A, 0x01D).

A digest is provenance: equal digests mean that target law, proposal law, prefix and cache mean the same. What is bound
to a coordinate is refused wherever another one is in force.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from .. import errors
from ..records import CallIdentity, Coordinate


# by the first of these names on a field's path; the fallbacks hold where none stands there
_ERRORS: dict[str, type[errors.StaleRound]] = {
    "generation": errors.GenerationChanged,
    "layout": errors.LayoutChanged,
    "prefix": errors.PrefixChanged,
    "length": errors.PrefixChanged,
    "prompt": errors.PrefixChanged,
    "ended": errors.PrefixChanged,
    "cached": errors.CacheLengthChanged,
    "position": errors.PositionsChanged,
    "spent": errors.StreamsChanged,
    "streams": errors.StreamsChanged,
    "coupling": errors.CouplingChanged,
    "libraries": errors.LibrariesChanged,
    "processors": errors.ProcessorsChanged,
    "token_map": errors.TokenMapChanged,
    "schedule": errors.ScheduleChanged,
    "stopping": errors.StoppingChanged,
    "revision": errors.RevisionChanged,
    "adapters": errors.AdaptersChanged,
    "dtype": errors.DtypeChanged,
    "autocast": errors.DtypeChanged,
    "matmul_precision": errors.DtypeChanged,
    "attention": errors.AttentionChanged,
    "class": errors.ModelChanged,
    "name": errors.ModelChanged,
    "config": errors.ModelChanged,
    "weights": errors.ModelChanged,
    "training": errors.ModelChanged,
    "device": errors.ModelChanged,
}
_FALLBACKS: dict[str, type[errors.StaleRound]] = {
    "rows": errors.RowsChanged,
    "drafter": errors.DrafterChanged,
    "target": errors.ModelChanged,
}
# of a drafter, all else is called as its maker likes, perhaps like a field above
_OF_A_DRAFTER = ("model", "token_map", "processors")
# public attributes that count, or follow from others, and set nothing
_COUNTERS = ("forwards", "stops_early")


def settings_of(thing: Any) -> dict[str, Any]:
    """Class and public plain attributes of an object, as a manifest holds them; counters of work are left out."""
    plain = (bool, int, float, str, type(None))
    held = getattr(thing, "__dict__", {})
    public = {k: v for k, v in held.items() if not k.startswith("_") and isinstance(v, plain)}
    settings = {k: v for k, v in public.items() if k not in _COUNTERS}
    return {"kind": f"{type(thing).__module__}.{type(thing).__qualname__}", **settings}


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces; numbers that JSON lacks are written as strings.

    Args:
        value: made of dicts with string keys, sequences, strings, numbers, booleans and `None`.

    Returns:
        `str`: equal for equal values, whatever the order their dicts were filled in.

    Raises:
        TypeError: something else is in it.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """SHA-256 of [`canonical`], in hexadecimal."""
    # names of files need not be Unicode, and Python holds what is not as lone surrogates
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def identify(manifest: Mapping[str, Any]) -> CallIdentity:
    """A call's manifest together with its digest."""
    return CallIdentity(digest(manifest), manifest)


def round_manifest(coordinate: Coordinate) -> dict[str, Any]:
    """What of a coordinate changes from round to round, for JSON."""
    rows = [{**vars(row), "spent": row.spent._asdict()} for row in coordinate.rows]
    ended = [{"row": row, "prefix": prefix} for row, prefix in coordinate.ended]
    return {"generation": coordinate.generation, "layout": coordinate.layout, "rows": rows, "ended": ended}


def coordinate_digest(coordinate: Coordinate) -> str:
    """SHA-256 of a whole coordinate; the call's part comes in as its own digest."""
    return digest({"call": coordinate.call.digest, "round": round_manifest(coordinate)})


def manifest(coordinate: Coordinate) -> dict[str, Any]:
    """A coordinate in full.

    Returns:
        `dict[str, Any]`: `"call"` (models, processors, settings), `"round"` (rows, positions, numbers used) and
        `"digest"`; ready for JSON.
    """
    return {
        "call": _plain(coordinate.call.manifest),
        "round": round_manifest(coordinate),
        "digest": coordinate_digest(coordinate),
    }


def require_same(bound: Mapping[str, Any], current: Mapping[str, Any], what: str = "This round") -> None:
    """Refuses a manifest that is not the one in force.

    Args:
        bound (`Mapping`): of a proposal, verification or commit, or of an earlier run.
        current (`Mapping`): the one in force.
        what (`str`): begins the message.

    Raises:
        StaleRound: the subclass that belongs to the first differing field.
    """
    if not isinstance(bound, Mapping) or not isinstance(current, Mapping):
        raise errors.InvalidArgument("Manifests are dicts as `session.manifest()` returns them.")
    for part in ("round", "call"):
        for path, old, new in _differences(_plain(bound.get(part)), _plain(current.get(part)), (part,)):
            fix = (
                "Its time is over: forget it, and step again."
                if path[0] == "round"
                else "Put that back and step again, or start a new call."
            )
            raise error_for(path)(
                f"{what} belongs to another state: {'.'.join(path)} is {_shown(new)} now and was {_shown(old)}. {fix}"
            )


def require_current(bound: Coordinate, current: Coordinate, what: str) -> None:
    """As [`require_same`], for coordinates; equal ones cost one comparison."""
    if bound != current:
        require_same(manifest(bound), manifest(current), what)


def error_for(path: tuple[str, ...]) -> type[errors.StaleRound]:
    """The error that names a field of the manifest."""
    if path[:2] == ("call", "drafter") and not set(path[2:3]) & set(_OF_A_DRAFTER):
        return errors.DrafterChanged
    found = [table[part] for table in (_ERRORS, _FALLBACKS) for part in path if part in table]
    return found[0] if found else errors.StaleRound


def _differences(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _differences(old.get(key), new.get(key), (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, pair in enumerate(zip(old, new, strict=True)):
            yield from _differences(*pair, (*path, str(place)))
    elif old != new or type(old) is not type(new):
        yield path, old, new


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"A manifest's keys are strings, got {list(value)!r}.")
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if value is None or isinstance(value, bool):
        return value
    # of a subclass (torch's version, NumPy's numbers, enumerations) the plain value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    raise TypeError(f"A manifest holds plain values, got {type(value).__name__}.")


def _shown(value: Any) -> str:
    text = canonical(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
