"""What a page says, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .acceptance import acceptance
from .blocks import Block, Figure, Page, Points, Section, Table, Text
from .circumstances import circumstances
from .kinds import kinds
from .overview import overview
from .quality import quality
from .reasons import reasons
from .speed import speed
from .words import at, count, counted, plainly


def page(report: dict[str, Any]) -> Page:
    """A report as headings, tables and pictures.

    Args:
        report (`dict[str, Any]`): what `report.json` holds; any part may be missing.
    """
    target = at(report, "header", "target", "name") or "a model"
    conclusions = tuple(at(report, "conclusions") or ())
    block = Points(conclusions) if conclusions else Text("None yet.")
    return Page(
        title=f"Evaluation of {target}",
        lead=_lead(report),
        warnings=_warnings(report),
        sections=(
            Section("conclusions", "Conclusions", (block,)),
            *(_mode(report, mode) for mode in at(report, "modes") or []),
            *_telling(circumstances(report)),
        ),
    )


def _mode(report: dict[str, Any], mode: dict[str, Any]) -> Section:
    name = at(mode, "mode") or "decoding"
    parts = {"overview": overview, "quality": quality, "acceptance": acceptance, "speed": speed, "kinds": kinds}
    made = [part(report, mode, f"{name}-{anchor}") for anchor, part in {**parts, "reasons": reasons}.items()]
    told = _telling([one for one in made if one is not None])
    return Section(name, f"{name.capitalize()} decoding", sections=tuple(told))


def _telling(sections: Sequence[Section]) -> list[Section]:
    """Those that say something."""
    return [one for one in map(_without_gaps, sections) if one.blocks]


def _without_gaps(section: Section) -> Section:
    """Without tables in which nothing is told but names; without words that would be left alone."""
    blocks: list[Block] = []
    for block in section.blocks:
        if isinstance(block, Figure):
            tables = tuple(table for table in block.tables if table.tells)
            blocks += [replace(block, tables=tables)] if tables else []
        elif not isinstance(block, Table) or block.tells:
            blocks.append(block)
    kept = () if all(isinstance(block, Text) for block in blocks) else tuple(blocks)
    return replace(section, blocks=kept)


def _lead(report: dict[str, Any]) -> str:
    assistants = [one["name"] for one in at(report, "header", "assistants") or [] if at(one, "name")]
    told = [f"Assisted by {plainly(assistants)}"] if assistants else []
    prompts, source = at(report, "prompts", "count"), at(report, "prompts", "dataset")
    if prompts is not None:
        told.append(counted(prompts, "prompt") + (f" ({source})" if source else ""))
    tokens, date = at(report, "settings", "max_new_tokens"), at(report, "header", "date")
    told += [f"up to {tokens} tokens each"] if tokens is not None else []
    told += [str(date)[:10]] if date else []
    return "; ".join(told) + "." if told else ""


def _warnings(report: dict[str, Any]) -> tuple[str, ...]:
    if at(report, "complete"):
        return ()
    done, planned = at(report, "steps", "done"), at(report, "steps", "all")
    known = "" if done is None or planned is None else f": {count(done)} of {counted(planned, 'step')} were done"
    return (f"This evaluation is incomplete{known}. Figures are of that part, which may lack ways and prompts.",)
