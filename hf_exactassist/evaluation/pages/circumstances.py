"""What the figures depend on: settings, data, machine and versions."""

from __future__ import annotations

from typing import Any

from .blocks import Block, Section, Table
from .words import NOTHING, at, count, plainly


def circumstances(report: dict[str, Any]) -> list[Section]:
    """Settings, data, models, and where it was measured."""
    settings = {name: value for name, value in (at(report, "settings") or {}).items() if name != "arms"}
    data = {name: value for name, value in (at(report, "prompts") or {}).items() if name not in ("rows", "kinds")}
    header = {
        name: value for name, value in (at(report, "header") or {}).items() if name not in ("target", "assistants")
    }
    header["processes"] = at(report, "processes")
    header["digest of what no clock decides"] = at(report, "digest")
    return [
        Section("settings", "Settings", (_pairs("Settings", settings),)),
        Section("data", "Data", (_pairs("Data", data), *_kinds(at(report, "prompts", "kinds") or {}))),
        Section("models", "Models", (_models(report),)),
        Section("versions", "Machine and versions", (_pairs("Machine and versions", header),)),
    ]


def _pairs(caption: str, values: dict[str, Any]) -> Table:
    rows = tuple((name.replace("_", " "), plainly(value)) for name, value in values.items())
    return Table(caption, ("Name", "Value"), rows)


def _kinds(kinds: dict[str, int]) -> list[Block]:
    rows = tuple((kind, count(number)) for kind, number in kinds.items())
    return [Table("Prompts by kind", ("Kind", "Prompts"), rows)] if rows else []


def _models(report: dict[str, Any]) -> Table:
    named = [("target", at(report, "header", "target"))]
    named += [("assistant", one) for one in at(report, "header", "assistants") or []]
    rows = tuple(
        (
            role,
            plainly(at(one, "name")),
            plainly(at(one, "class")),
            NOTHING if at(one, "parameters") is None else f"{one['parameters'] / 1e6:,.1f} M",
            plainly(at(one, "dtype")),
            plainly(at(one, "attention")),
        )
        for role, one in named
    )
    return Table("Models", ("Role", "Name", "Class", "Parameters", "Precision", "Attention"), rows)
