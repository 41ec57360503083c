"""What a round publishes: accepted tokens and the one after them, up to a stop (contract 0x05A, 0x05B, 0x05D)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from .prefixes import check_survival, survival


def round_progress(accepted: int, stop: int | None = None) -> int:
    """Tokens of one round.

    Args:
        accepted (`int`): accepted draft tokens.
        stop (`int`, *optional*): the token of the round at which the text ends, counted from 1: the first stop token,
            or the last one of the budget. `None` if it goes on.

    Raises:
        ValueError: a count is impossible.
    """
    if accepted < 0:
        raise ValueError(f"Accepted tokens are counted from 0, got {accepted}.")
    _check_stop(stop)
    return accepted + 1 if stop is None else min(accepted + 1, stop)


def expected_accepted(surviving: Sequence[float]) -> float:
    """Expected accepted tokens of a draft as long as there are probabilities.

    Args:
        surviving (`Sequence[float]` of length `K`): as from [`~hf_exactassist.ledger.survival`].

    Raises:
        ValueError: a number is no probability, or they rise.
    """
    check_survival(surviving)
    return math.fsum(surviving)


def unstopped_survival(rates: Sequence[float], stops: Sequence[float]) -> list[float]:
    """Probability that the first `j` draft tokens are accepted and the text goes on behind them.

    Args:
        rates (`Sequence[float]` of length `K`): of each position, how often it is accepted where it is reached, which
            it is not behind a stop.
        stops (`Sequence[float]` of length `K`): how often the accepted token of each position ends the text.

    Returns:
        `list[float]` of length `K`: what [`progress_by_length`] takes in place of survival where texts end.

    Raises:
        ValueError: lengths differ, a number is no probability, or belongs to a position that no prefix reaches.
    """
    if len(rates) != len(stops):
        raise ValueError(f"One stop probability for each rate: got {len(rates)} rates and {len(stops)}.")
    for stop in stops:
        if not 0 <= stop <= 1:
            raise ValueError(f"Stop probabilities lie between 0 and 1, got {stop}.")
    return survival([rate * (1 - stop) for rate, stop in zip(rates, stops, strict=True)])


def progress_by_length(surviving: Sequence[float], budget: int | None = None) -> list[float]:
    """Expected tokens of a round by draft length.

    Args:
        surviving (`Sequence[float]` of length `K`): as from [`~hf_exactassist.ledger.survival`], or from
            [`unstopped_survival`].
        budget (`int`, *optional*): tokens the text may still get.

    Returns:
        `list[float]` of length `K + 1`: for drafts of `0 ... K` tokens; 1 for none.

    Raises:
        ValueError: a number is no probability, they rise, or the budget is used up.
    """
    check_survival(surviving)
    _check_stop(budget)
    # a longer prefix adds a token only where there is room for it
    added = surviving if budget is None else [s if j < budget else 0.0 for j, s in enumerate(surviving, 1)]
    return list(itertools.accumulate(added, initial=1.0))


def uniform_progress(rate: float, length: int) -> float:
    """Expected tokens of a round if every draft token has the same rate: `1 + rate + ... + rate**length`.

    Added up term by term, so that a rate of 1, or nearly so, needs no limit.

    Args:
        rate (`float`): between 0 and 1.
        length (`int`): tokens per draft.

    Raises:
        ValueError: the rate is no probability, or the length negative.
    """
    if length < 0:
        raise ValueError(f"A draft has no {length} tokens.")
    return progress_by_length(survival([rate] * length))[-1]


def _check_stop(stop: int | None) -> None:
    if stop is not None and stop < 1:
        raise ValueError(f"Every round publishes at least one token: the text cannot end at token {stop} of it.")
