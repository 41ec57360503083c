"""How far drafts are accepted, from the acceptance log (contract 0x05A, 0x05B, 0x05E)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .. import ledger
from .records import Call, Look
from .rounds import RowRound, row_rounds


# tokens of text that share a rate
BIN = 16


def acceptance(looks: Sequence[Look], calls: Sequence[Call], kinds: Sequence[str]) -> dict[str, Any] | None:
    """Acceptance figures of one way of decoding. Rates are `None` where nothing was drafted.

    Args:
        looks (`Sequence[Look]`): logged calls.
        calls (`Sequence[Call]`): timed calls with their counters; forwards are counted in them alone.
        kinds (`Sequence[str]`): of each prompt of the prompt set, its kind.

    Returns:
        `dict[str, Any]`, *optional*: `None` without logged rounds. Beside the ledger's figures of [`ledger_figures`]:

        * `rounds`, `row_rounds`, `drafted`, `accepted`, `published`, `rate`: as in `assist_stats`; the prompt's own
          first token is published in no round.
        * `tokens_per_round`: tokens that a row gets from a round, on average; less than in `assist_stats` where a
          stop leaves out the token after the accepted ones.
        * `tokens_per_target_forward`: steps of plain decoding to each forward of the target, prompts included.
        * `over_text`: `rate` and number of `decisions` for stretches of 16 new tokens.
        * `by_kind`: `prompts`, `rate` and `tokens_per_round` for each kind of prompt.
    """
    parts = [(look.prompts[part.row], part) for look in looks for part in row_rounds(look.events)]
    rounds = [part for _, part in parts if part.generation > 0]
    if not rounds:
        return None
    return {
        "rounds": sum(event.get("generation", 0) > 0 for look in looks for event in look.events),
        "row_rounds": len(rounds),
        "drafted": sum(part.drafted for part in rounds),
        "accepted": sum(part.accepted for part in rounds),
        "published": sum(len(part.published) for _, part in parts),
        "rate": _rate(rounds),
        "tokens_per_round": _progress(rounds),
        "tokens_per_target_forward": _per_forward(calls),
        **ledger_figures(rounds),
        "over_text": over_text(rounds),
        "by_kind": _by_kind([(prompt, part) for prompt, part in parts if part.generation > 0], kinds),
    }


def ledger_figures(rounds: Sequence[RowRound]) -> dict[str, Any]:
    """The law of the accepted prefix, for drafts of the greatest length that occurred.

    Args:
        rounds (`Sequence[RowRound]`): without the reading of prompts. Shorter drafts count for the positions they
            have.

    Returns:
        `dict[str, Any]`: `reached` (how often each position was reached), `by_position` (its rate then), `survival`
        and `prefix_law` if texts never ended, `expected_accepted` (`E[A]`, of these), and `expected_progress` (`E[G]`,
        with stops as often as they were).
    """
    surviving, going_on = survivals(rounds)
    reached, kept = ledger.observed_counts(part.counts for part in rounds)
    return {
        "reached": reached,
        "by_position": ledger.counted_rates(reached, kept),
        "survival": surviving,
        "prefix_law": ledger.prefix_law(surviving),
        "expected_accepted": ledger.expected_accepted(surviving),
        "expected_progress": ledger.progress_by_length(going_on)[-1],
    }


def survivals(rounds: Sequence[RowRound]) -> tuple[list[float], list[float]]:
    """Survival of drafts, and what is left of it where texts end.

    Args:
        rounds (`Sequence[RowRound]`): without the reading of prompts.

    Returns:
        `tuple[list[float], list[float]]`: as from [`~hf_exactassist.ledger.survival`] and
        [`~hf_exactassist.ledger.unstopped_survival`]; as many as the longest draft has tokens, less those of which
        nothing is known since every text ended before.
    """
    reached, kept = ledger.observed_counts(part.counts for part in rounds)
    rates = ledger.counted_rates(reached, kept)
    cuts = Counter(part.accepted for part in rounds if part.cut)
    stops = [cuts[position] / count if count else 0.0 for position, count in enumerate(kept, 1)]
    longest = max((part.drafted for part in rounds), default=0)
    surviving, going_on = ledger.survival(rates), ledger.unstopped_survival(rates, stops)
    if surviving and not surviving[-1]:
        # what is never reached for want of acceptance is never accepted
        surviving, going_on = (some + [0.0] * (longest - len(some)) for some in (surviving, going_on))
    return surviving, going_on


def over_text(rounds: Sequence[RowRound]) -> list[dict[str, Any]]:
    """How often drafts were accepted where they were reached, by their place in the new text.

    Args:
        rounds (`Sequence[RowRound]`): of any prompts.

    Returns:
        `list[dict[str, Any]]`: `from` and `to` (not included), `rate`, `decisions`; stretches without a decision are
        left out.
    """
    tested, kept = Counter[int](), Counter[int]()
    for part in rounds:
        for place, decision in enumerate(part.decisions, part.at):
            tested[place // BIN] += 1
            kept[place // BIN] += decision["accepted"]
    return [
        {"from": BIN * number, "to": BIN * (number + 1), "rate": kept[number] / count, "decisions": count}
        for number, count in sorted(tested.items())
    ]


def _by_kind(parts: Sequence[tuple[int, RowRound]], kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[tuple[int, RowRound]]] = {kind: [] for kind in kinds}
    for prompt, part in parts:
        groups[kinds[prompt]].append((prompt, part))
    return {
        kind: {
            "prompts": len({prompt for prompt, _ in mine}),
            "rate": _rate([part for _, part in mine]),
            "tokens_per_round": _progress([part for _, part in mine]),
        }
        for kind, mine in groups.items()
        if mine
    }


def _rate(rounds: Sequence[RowRound]) -> float | None:
    drafted = sum(part.drafted for part in rounds)
    return sum(part.accepted for part in rounds) / drafted if drafted else None


def _progress(rounds: Sequence[RowRound]) -> float:
    return sum(len(part.published) for part in rounds) / len(rounds)


def _per_forward(calls: Sequence[Call]) -> float | None:
    told = [call.stats for call in calls if call.stats is not None]
    forwards = sum(stats["target_forwards"] for stats in told)
    # `steps` leaves out the one that comes with the prompt
    return sum(stats["steps"] + 1 for stats in told) / forwards if forwards else None
