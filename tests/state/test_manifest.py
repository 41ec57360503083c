"""The round coordinate in writing: canonical JSON, digests, and a named refusal for every single field."""

import copy
import enum
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.torch_version import TorchVersion
from transformers import MaxTimeCriteria

import hf_exactassist
from hf_exactassist import errors
from hf_exactassist.records import CallIdentity, Coordinate, RowCoordinate, Spent
from hf_exactassist.state import manifest
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


# --- canonical JSON


def test_canonical_json_has_one_spelling():
    value = {"b": [1, 2.5, None, True], "a": {"ü": "grün", "A": ()}}
    assert manifest.canonical(value) == '{"a":{"A":[],"ü":"grün"},"b":[1,2.5,null,true]}'
    turned = {"a": {"A": [], "ü": "grün"}, "b": (1, 2.5, None, True)}
    assert manifest.canonical(turned) == manifest.canonical(value)
    assert manifest.digest(turned) == manifest.digest(value)


def test_numbers_that_json_lacks_are_written_as_their_names():
    numbers = [float("inf"), -float("inf"), float("nan")]
    assert manifest.canonical(numbers) == '["inf","-inf","nan"]'
    assert json.loads(manifest.canonical(numbers)) == ["inf", "-inf", "nan"]


def test_kinds_of_numbers_stay_apart():
    """One, one point nothing and true are equal in Python and are not the same setting."""
    digests = {manifest.digest(value) for value in (1, 1.0, True, "1", [1], {"1": 1}, None, 0.0, -0.0, 0, False)}
    assert len(digests) == 11


def test_subclasses_count_as_the_plain_values_they_are():
    class Word(str, enum.Enum):
        A = "a"

    plain = {"a": "a", "b": 2, "c": 0.5, "d": "inf", "e": "2.13"}
    value = {"a": Word.A, "b": enum.IntEnum("N", {"B": 2}).B, "c": np.float64(0.5), "d": np.float64("inf")}
    value["e"] = TorchVersion("2.13")
    assert manifest.canonical(value) == manifest.canonical(plain)
    manifest.require_same({"call": value}, {"call": plain})
    assert type(manifest.manifest(Coordinate(manifest.identify(value), 0, "replay", ()))["call"]["e"]) is str


@pytest.mark.parametrize("value", [{1, 2}, b"x", torch.tensor(1), object(), 1j, torch.float32])
def test_other_things_are_refused(value):
    for nested in (value, [value], {"a": {"b": (value,)}}):
        with pytest.raises(TypeError, match=f"plain values, got {type(value).__name__}"):
            manifest.canonical(nested)
    with pytest.raises(TypeError, match="keys are strings"):
        manifest.canonical({1: 2})


def test_names_that_are_no_unicode_have_digests():
    """As `os.fsdecode` gives them for file names in another encoding."""
    name = b"gr\xfcn".decode("utf-8", "surrogateescape")
    assert manifest.digest(name) != manifest.digest("gr?n")


def test_a_pinned_digest():
    """What is written down today can be compared with tomorrow's."""
    value = {
        "target": {"dtype": "torch.float32", "adapters": []},
        "seed": 7,
        "limits": [0.5, float("inf")],
        "eos": None,
    }
    assert manifest.digest(value) == "0b0afdf02a5430d0c5b6339af68d1032b09b47f56c72f90a590bcd9244913be0"


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def _turned(value, as_tuple):
    """The same value with dicts filled in the other order and lists as tuples."""
    if isinstance(value, dict):
        return {key: _turned(part, as_tuple) for key, part in reversed(value.items())}
    if isinstance(value, list):
        parts = [_turned(part, as_tuple) for part in value]
        return tuple(parts) if as_tuple else parts
    return value


def _spelled(value):
    """Equality that tells 1, 1.0, True, 0.0 and -0.0 apart."""
    if isinstance(value, dict):
        return "dict", frozenset((key, _spelled(part)) for key, part in value.items())
    if isinstance(value, list):
        return "list", tuple(map(_spelled, value))
    return type(value).__name__, repr(value)


@settings(max_examples=150, deadline=None)
@given(_PLAIN, _PLAIN, st.booleans())
def test_digests_are_equal_exactly_for_equal_values(one, other, as_tuple):
    """Contract 0x01A."""
    assert manifest.digest(one) == manifest.digest(_turned(one, as_tuple))
    assert (manifest.digest(one) == manifest.digest(other)) == (_spelled(one) == _spelled(other))


# --- every field of a real manifest


@pytest.fixture(scope="module")
def real():
    """The manifest of a sampled call with an assistant, processors, criteria and two rows, in the middle of it."""
    target = tiny()
    session = hf_exactassist.start(
        target,
        **prompts([9, 6]),
        assistant_model=noisy(target, EVEN_NOISE["llama"]),
        do_sample=True,
        seed=28,
        row_ids=[4, 9],
        temperature=0.9,
        top_k=40,
        repetition_penalty=1.1,
        eos_token_id=[7, 23],
        pad_token_id=0,
        max_new_tokens=40,
        num_assistant_tokens=3,
        stopping_criteria=[MaxTimeCriteria(1e6), lambda ids, scores: torch.zeros(len(ids), dtype=torch.bool)],
    )
    session.step()
    session.step()
    whole = session.manifest()
    assert len(whole["round"]["rows"]) == 2 and whole["round"]["rows"][0]["spent"]["accept"] > 0
    return whole


# path (places in lists as #) to the error that names a change of it
_MODEL = {
    "class": errors.ModelChanged,
    "name": errors.ModelChanged,
    "revision": errors.RevisionChanged,
    "config": errors.ModelChanged,
    "weights": errors.ModelChanged,
    "adapters": errors.AdaptersChanged,
    "dtype": errors.DtypeChanged,
    "attention": errors.AttentionChanged,
    "training": errors.ModelChanged,
    "device": errors.ModelChanged,
    "autocast": errors.DtypeChanged,
    "matmul_precision": errors.DtypeChanged,
}
# of the processors of the manifest below
_SETTINGS = (
    "penalty",
    "logits_indices",
    "cu_seq_lens_q",
    "temperature",
    "top_k",
    "filter_value",
    "min_tokens_to_keep",
)
NAMED = {
    "call.libraries.hf_exactassist": errors.LibrariesChanged,
    "call.libraries.numpy": errors.LibrariesChanged,
    "call.libraries.python": errors.LibrariesChanged,
    "call.libraries.torch": errors.LibrariesChanged,
    "call.libraries.transformers": errors.LibrariesChanged,
    **{f"call.target.{field}": error for field, error in _MODEL.items()},
    "call.drafter.kind": errors.DrafterChanged,
    "call.drafter.unknown_token": errors.DrafterChanged,
    "call.drafter.confidence_threshold": errors.DrafterChanged,
    **{f"call.drafter.model.{field}": error for field, error in _MODEL.items()},
    "call.drafter.token_map.shared": errors.TokenMapChanged,
    "call.drafter.token_map.size": errors.TokenMapChanged,
    "call.drafter.processors": errors.ProcessorsChanged,
    "call.drafter.processors.#.class": errors.ProcessorsChanged,
    "call.drafter.processors.#.digest": errors.ProcessorsChanged,
    **{f"call.drafter.processors.#.settings.{name}": errors.ProcessorsChanged for name in _SETTINGS},
    "call.schedule.kind": errors.ScheduleChanged,
    "call.schedule.num_assistant_tokens": errors.ScheduleChanged,
    "call.token_map.vocabulary": errors.TokenMapChanged,
    "call.processors": errors.ProcessorsChanged,
    "call.processors.#.class": errors.ProcessorsChanged,
    "call.processors.#.digest": errors.ProcessorsChanged,
    **{f"call.processors.#.settings.{name}": errors.ProcessorsChanged for name in _SETTINGS},
    "call.stopping.pad": errors.StoppingChanged,
    "call.stopping.max_length": errors.StoppingChanged,
    "call.stopping.eos": errors.StoppingChanged,
    "call.stopping.eos.#": errors.StoppingChanged,
    "call.stopping.criteria": errors.StoppingChanged,
    "call.stopping.criteria.#.class": errors.StoppingChanged,
    "call.stopping.criteria.#.digest": errors.StoppingChanged,
    "call.stopping.criteria.#.max_time": errors.StoppingChanged,
    "call.prompt.embeddings": errors.PrefixChanged,
    "call.prompt.encoder": errors.PrefixChanged,
    "call.coupling": errors.CouplingChanged,
    "call.streams.kind": errors.StreamsChanged,
    "call.streams.seed": errors.StreamsChanged,
    "call.streams.rows": errors.StreamsChanged,
    "call.streams.rows.#": errors.StreamsChanged,
    "round.generation": errors.GenerationChanged,
    "round.layout": errors.LayoutChanged,
    "round.rows": errors.RowsChanged,
    "round.ended": errors.PrefixChanged,
    "round.rows.#.row": errors.RowsChanged,
    "round.rows.#.prefix": errors.PrefixChanged,
    "round.rows.#.length": errors.PrefixChanged,
    "round.rows.#.cached": errors.CacheLengthChanged,
    "round.rows.#.position": errors.PositionsChanged,
    "round.rows.#.spent.draft": errors.StreamsChanged,
    "round.rows.#.spent.accept": errors.StreamsChanged,
    "round.rows.#.spent.terminal": errors.StreamsChanged,
    "round.rows.#.spent.ordinary": errors.StreamsChanged,
}


def leaves(value, path=()):
    """Every place of a manifest that can change alone: plain values, and lists as a whole."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, (*path, key))
        return
    if isinstance(value, list):
        for place, part in enumerate(value):
            yield from leaves(part, (*path, place))
    yield path, value


def mutations(value):
    """Other values of a leaf: what changed shape alone could not tell."""
    if value is None:
        return ["value", 0]
    if isinstance(value, bool):
        return [not value, None, int(value)]
    if isinstance(value, (int, float)):
        return [value + 1, None, str(value), float(value) if isinstance(value, int) else int(value)]
    if isinstance(value, str):
        return [f"{value}x", value[:-1] + chr(ord(value[-1]) + 1) if value else "x", None]
    added = [*value, copy.deepcopy(value[-1]) if value else "added"]
    return [added, *([value[:-1], value[1:]] if value else []), *([value[::-1]] if value != value[::-1] else [])]


def mutated(whole, path, new):
    other = copy.deepcopy(whole)
    at = other
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = new
    return other


def pattern(path):
    return ".".join("#" if isinstance(part, int) else part for part in path)


def digest_of(whole):
    """As a round's digest is made: of the call's own digest and the round."""
    return manifest.digest({"call": manifest.digest(whole["call"]), "round": whole["round"]})


def test_the_table_names_every_field_and_no_other(real):
    """Contract 0x01D: a field without a name fails here."""
    fields = {pattern(path) for part in ("call", "round") for path, _ in leaves(real[part], (part,))}
    optional = {f"{path}.adapters" for path in ("call.target", "call.drafter.model")}
    assert fields == set(NAMED) and optional <= fields
    assert digest_of(real) == real["digest"]


def test_each_field_changed_alone_is_refused_by_its_name(real):
    """Contract 0x01D: independently, in both directions, with the path in the message and another digest."""
    count = 0
    for path, value in [leaf for part in ("call", "round") for leaf in leaves(real[part], (part,))]:
        expected = NAMED[pattern(path)]
        for new in mutations(value):
            other = mutated(real, path, new)
            for bound, current in ((real, other), (other, real)):
                with pytest.raises(errors.StaleRound) as caught:
                    manifest.require_same(bound, current)
                assert type(caught.value) is expected is not errors.StaleRound, (path, new)
                named = re.escape(".".join(map(str, path)))
                # reordered lists differ first somewhere inside
                assert re.search(rf"This round belongs to another state: {named}(\.\S+)? is ", str(caught.value))
            assert digest_of(other) != real["digest"], path
            count += 1
    assert count > 150


def test_a_field_that_is_missing_or_new_is_a_change(real):
    for path, _ in [leaf for part in ("call", "round") for leaf in leaves(real[part], (part,))]:
        if isinstance(path[-1], int):
            continue
        other = copy.deepcopy(real)
        at = other
        for part in path[:-1]:
            at = at[part]
        value = at.pop(path[-1])
        if value is None:
            # as good as there
            manifest.require_same(real, other)
            continue
        with pytest.raises(NAMED[pattern(path)]):
            manifest.require_same(real, other)
        with pytest.raises(NAMED[pattern(path)]):
            manifest.require_same(other, real)
    for part in ("target", "drafter", "processors", "stopping", "streams", "token_map", "libraries", "schedule"):
        other = {**real, "call": {key: value for key, value in real["call"].items() if key != part}}
        with pytest.raises(errors.StaleRound) as caught:
            manifest.require_same(real, other)
        assert type(caught.value) is not errors.StaleRound


def test_a_manifest_read_back_from_a_file_is_the_same(real):
    manifest.require_same(real, json.loads(json.dumps(real)))
    manifest.require_same(json.loads(json.dumps(real, sort_keys=True)), real)


def test_adapters_are_named_as_a_whole_and_inside(real):
    adapted = [{"active": ["a"], "merged": [], "disabled": False}] * 2
    for role in (("target",), ("drafter", "model")):
        with_adapters = mutated(real, ("call", *role, "adapters"), adapted)
        for new in (
            adapted[:1],
            [adapted[0], {**adapted[1], "active": ["b"]}],
            [{**adapted[0], "disabled": True}] * 2,
        ):
            with pytest.raises(errors.AdaptersChanged, match=f"call.{'.'.join(role)}.adapters"):
                manifest.require_same(with_adapters, mutated(with_adapters, ("call", *role, "adapters"), new))


@pytest.mark.parametrize("name", ["length", "name", "device", "dtype", "generation", "position", "layout"])
def test_settings_of_a_drafter_are_its_own_whatever_their_names(real, name):
    other = mutated(real, ("call", "drafter", name), 3)
    with pytest.raises(errors.DrafterChanged, match=rf"call\.drafter\.{name} is 3 now and was null"):
        manifest.require_same(real, other)


def test_messages_begin_with_what_was_refused_and_stay_short(real):
    long = mutated(real, ("call", "processors"), [{"class": "x" * 500, "digest": "y"}])
    with pytest.raises(
        errors.ProcessorsChanged, match=r"^This commit belongs to .*\.\.\. now and was .* again"
    ) as caught:
        manifest.require_same(real, long, "This commit")
    assert len(str(caught.value)) < 400


def test_coordinates_are_compared_by_digest_and_round():
    """Contract 0x01A: equal digests mean equal calls, however their manifests lie in memory."""
    call = manifest.identify({"b": 1, "a": [2]})
    rows = (RowCoordinate(0, "p", 5, 4, 5, Spent(accept=2)),)
    bound = Coordinate(call, 3, "replay", rows)
    same = Coordinate(CallIdentity(call.digest, {"a": (2,), "b": 1}), 3, "replay", rows)
    manifest.require_current(bound, same, "It")
    assert manifest.coordinate_digest(bound) == manifest.coordinate_digest(same) == manifest.manifest(bound)["digest"]
    with pytest.raises(
        errors.StreamsChanged, match=r"^It belongs .* round\.rows\.0\.spent\.accept is 3 now and was 2"
    ):
        moved = (RowCoordinate(0, "p", 5, 4, 5, Spent(accept=3)),)
        manifest.require_current(bound, Coordinate(call, 3, "replay", moved), "It")


def test_settings_of_an_object_leave_out_what_is_private_or_counts():
    class Thing:
        def __init__(self):
            self.width, self.name, self.threshold, self.on = 3, "x", float("inf"), None
            self._memory, self.model, self.forwards = 7, object(), 12

    kind = f"{__name__}.{Thing.__qualname__}"
    expected = {"kind": kind, "width": 3, "name": "x", "threshold": float("inf"), "on": None}
    assert manifest.settings_of(Thing()) == expected
