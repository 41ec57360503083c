"""The acceptance log's records, taken apart: what each row did in each round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .data import PromptSet
from .records import Look, Record, in_order


# stages of a round as the log times them
LAPS = ("make_ready", "propose", "score", "process", "judge")


@dataclass(frozen=True)
class RowRound:
    """A row's part of a round.

    Attributes:
        row (`int`): the row's place in its batch.
        generation (`int`): number of the round; round 0 reads the prompts and drafts nothing.
        at (`int`): new tokens the row had before.
        drafted (`int`): tokens drafted.
        accepted (`int`): of these, accepted and published.
        published (`tuple[int, ...]`): tokens published, at least one.
        terminal (`str`): how the log calls the last of them.
        stopped (`bool`): whether the text ended.
        decisions (`tuple[dict[str, Any], ...]`): the log's records of the drafts that were reached, in order.
    """

    row: int
    generation: int
    at: int
    drafted: int
    accepted: int
    published: tuple[int, ...]
    terminal: str
    stopped: bool
    decisions: tuple[dict[str, Any], ...]

    @property
    def counts(self) -> tuple[int, int, int]:
        """What [`~hf_exactassist.ledger.observed_counts`] takes."""
        return self.drafted, self.accepted, len(self.published)

    @property
    def cut(self) -> bool:
        """Whether no token stands behind the accepted ones: the last of them ended the text, or the batch's round."""
        return len(self.published) == self.accepted


def row_rounds(events: Iterable[Mapping[str, Any]]) -> list[RowRound]:
    """What each row did in each round, the reading of the prompts included.

    Args:
        events (`Iterable[Mapping[str, Any]]`): records of the acceptance log, of one call or several, as written.

    Raises:
        KeyError: a record lacks something.
    """
    found: list[RowRound] = []
    decisions: dict[tuple[str, int], list[dict[str, Any]]] = {}
    published: dict[tuple[str, int], int] = {}
    for event in events:
        if event["event"] == "decision":
            decisions.setdefault((event["round"], event["row"]), []).append(dict(event))
            continue
        call = event["round"].rpartition("/")[0]
        for part in event["rows"]:
            row = part["row"]
            at = published.get((call, row), 0)
            published[call, row] = at + len(part["published"])
            found.append(
                RowRound(
                    row,
                    event["generation"],
                    at,
                    part["drafted"],
                    part["accepted"],
                    tuple(part["published"]),
                    part["terminal"],
                    part["stopped"],
                    tuple(decisions.pop((event["round"], row), ())),
                )
            )
    return found


def rounds_table(records: Sequence[Record], prompts: PromptSet) -> list[dict[str, Any]]:
    """One flat line per round and prompt, for a table; every line has the same columns.

    Args:
        records (`Sequence[Record]`): of an evaluation, in any order.
        prompts (`PromptSet`): what was continued.

    Returns:
        `list[dict[str, Any]]`: in the order of the plan. `prompt` is the place in the prompt set and `index` the row
        of the data set; `at` counts the prompt's new tokens before the round; `overlap` is the mean over the reached
        drafts of the mass that both laws share, `None` where no law was kept; `seconds_...` are wall times of the
        whole batch's round, `None` for what a round does not do.
    """
    lines = []
    for look in in_order(records):
        if not isinstance(look, Look):
            continue
        seconds = {event["generation"]: event["seconds"] for event in look.events if event["event"] == "round"}
        unit = look.step.unit
        for part in row_rounds(look.events):
            place = look.prompts[part.row]
            overlaps = [one["overlap"] for one in part.decisions if one["overlap"] is not None]
            lines.append(
                {
                    "mode": unit.mode,
                    "arm": look.step.arm,
                    "repeat": unit.repeat,
                    "batch": unit.batch,
                    "prompt": place,
                    "index": prompts.prompts[place].index,
                    "kind": prompts.prompts[place].kind,
                    "round": part.generation,
                    "at": part.at,
                    "drafted": part.drafted,
                    "accepted": part.accepted,
                    "published": len(part.published),
                    "terminal": part.terminal,
                    "stopped": part.stopped,
                    "overlap": sum(overlaps) / len(overlaps) if overlaps else None,
                    **{f"seconds_{lap}": seconds[part.generation].get(lap) for lap in LAPS},
                }
            )
    return lines
