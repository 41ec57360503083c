"""What shows that nothing has changed, or that something has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .blocks import Alarm, Block, Points, Section, Table, Text
from .ways import Way, measured, together, ways
from .words import NOTHING, at, count, quoted, share, short, span


# all of them are in report.json
_DIVERGENCES = 12


def quality(report: dict[str, Any], mode: dict[str, Any], anchor: str) -> Section | None:
    """Conclusions first, then what they rest on; `None` where no way was compared."""
    found = [way for way in measured(ways(report, mode)) if way.at("quality")]
    if not found:
        return None
    blocks: list[Block] = []
    conclusions = [(way, told) for way in found if (told := way.at("quality", "conclusion"))]
    if conclusions:
        blocks.append(Points(together(found, conclusions)))
    for part in (_identity, _divergences, _findings, _likelihoods, _metrics, _untested):
        blocks += part(found)
    return Section(anchor, "Quality", tuple(blocks))


def _identity(found: Sequence[Way]) -> list[Block]:
    compared = [way for way in found if way.at("quality", "identical") is not None]
    rows = []
    for way in compared:
        kinds = [at(one, "kind") for one in way.at("quality", "divergences") or []]
        faults = kinds.count("fault")
        rows.append(
            (
                way.label,
                count(way.at("quality", "texts")),
                count(way.at("quality", "identical")),
                Alarm(count(faults)) if faults else count(faults),
                count(kinds.count("numerical tie")),
                share(way.at("quality", "identity_rate")),
            )
        )
    columns = ("Way", "Texts", "Identical", "By a fault", "At a numerical tie", "Share identical")
    return [Table("Texts that are plain decoding's, token for token", columns, tuple(rows))] if rows else []


def _divergences(found: Sequence[Way]) -> list[Block]:
    parted = [(way, one) for way in found for one in way.at("quality", "divergences") or []]
    # faults first: they are what must be looked at
    parted.sort(key=lambda item: at(item[1], "kind") != "fault")
    rows = tuple(
        (
            way.label,
            Alarm("fault") if at(one, "kind") == "fault" else at(one, "kind") or NOTHING,
            short(at(one, "margin")),
            count(at(one, "prompt")),
            count(at(one, "position")),
            _token(at(one, "plain"), at(one, "plain_text")),
            _token(at(one, "assisted"), at(one, "assisted_text")),
        )
        for way, one in parted[:_DIVERGENCES]
    )
    if not rows:
        return []
    columns = ("Way", "Kind", "Margin", "Prompt", "Position", "Plain", "Assisted")
    table = Table("Where texts part first; prompts and positions counted from 0", columns, rows)
    more = len(parted) - len(rows)
    return [table, Text(f"{count(more)} more are in report.json.")] if more else [table]


def _token(token: int | None, text: str | None) -> str:
    if token is None:
        return "ended"
    return str(token) if text is None else f"{quoted(text)} ({token})"


def _findings(found: Sequence[Way]) -> list[Block]:
    rows = tuple(
        (
            way.label,
            at(one, "subject") or NOTHING,
            Alarm("differs") if at(one, "differs") else "no difference found",
            short(at(one, "p_value")),
            short(at(one, "alpha")),
            _would_find(one),
            short(at(one, "statistic")),
        )
        for way in found
        for one in way.at("quality", "findings") or []
    )
    if not rows:
        return []
    columns = ("Way", "What was compared", "Outcome", "p", "Level", "What would have been found", "Statistic")
    return [
        Table("Tests of equal laws", columns, rows),
        Text("A test says that laws differ where p is at most its level; where it does not, that is no proof."),
    ]


def _would_find(finding: dict[str, Any]) -> str:
    smallest, alternative = at(finding, "smallest"), at(finding, "alternative")
    if smallest is None or alternative is None:
        return "nothing that was tried"
    # not str.format: it would look into whatever stands between braces
    told = alternative.replace("{}", short(smallest))
    power = at(finding, "power")
    return told if power is None else f"{told}, with probability {power:g}"


def _likelihoods(found: Sequence[Way]) -> list[Block]:
    rows = tuple(
        (
            way.label,
            short(at(one, "mean")),
            span(at(one, "low"), at(one, "high"), short),
            share(at(one, "level")),
        )
        for way in found
        if (one := way.at("quality", "likelihood"))
    )
    columns = ("Way", "Difference, nats", "Interval", "Confidence")
    caption = "Mean log-likelihood per token under the target, assisted less plain, paired by prompt"
    return [Table(caption, columns, rows)] if rows else []


def _metrics(found: Sequence[Way]) -> list[Block]:
    results = [(way, one) for way in found for one in way.at("quality", "metrics") or []]
    rows = tuple(
        (
            way.label,
            at(one, "name") or NOTHING,
            short(at(one, "plain")),
            short(at(one, "assisted")),
            short(at(one, "mean")),
            span(at(one, "low"), at(one, "high"), short),
            share(at(one, "level")),
            count(at(one, "prompts")),
        )
        for way, one in results
    )
    if not rows:
        return []
    columns = ("Way", "Metric", "Plain", "Assisted", "Difference", "Interval", "Confidence", "Prompts")
    told = [(way, sentence) for way, one in results if (sentence := at(one, "sentence"))]
    return [Table("Task metrics, paired by prompt", columns, rows), *([Points(together(found, told))] if told else [])]


def _untested(found: Sequence[Way]) -> list[Block]:
    told = [(way, why) for way in found for why in dict.fromkeys(way.at("quality", "not_tested") or [])]
    return [Text("Not tested:"), Points(together(found, told))] if told else []
