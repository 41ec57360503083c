"""How many draft tokens are accepted: survival, its rates, and both from what was counted (contract 0x05A)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Sequence


def survival(rates: Sequence[float]) -> list[float]:
    """Probability that the first `j` draft tokens are accepted.

    Args:
        rates (`Sequence[float]` of length `K`): of each position, how often it is accepted where it is reached. Rates
            over all drafted tokens, reached or not, are other numbers.

    Returns:
        `list[float]` of length `K`: for `j = 1 ... K`, never rising.

    Raises:
        ValueError: a rate is no probability, or belongs to a position that no prefix reaches.
    """
    reached = True
    for position, rate in enumerate(rates, 1):
        if not 0 <= rate <= 1:
            raise ValueError(f"Acceptance rates lie between 0 and 1, got {rate}.")
        if rate and not reached:
            raise ValueError(f"Position {position} cannot have a rate of {rate}: no prefix reaches it.")
        reached = rate > 0
    return list(itertools.accumulate(rates, operator.mul))


def reach_rates(surviving: Sequence[float]) -> list[float]:
    """How often each draft token is accepted where it is reached: what [`survival`] was made of.

    Args:
        surviving (`Sequence[float]` of length `K`): as from [`survival`].

    Returns:
        `list[float]`: one rate for each position that is ever reached.

    Raises:
        ValueError: a number is no probability, or they rise.
    """
    check_survival(surviving)
    reached = itertools.takewhile(bool, [1.0, *surviving])
    return [chance / before for chance, before in zip(surviving, reached, strict=False)]


def prefix_law(surviving: Sequence[float]) -> list[float]:
    """Probability that exactly `a` draft tokens are accepted.

    Args:
        surviving (`Sequence[float]` of length `K`): as from [`survival`].

    Returns:
        `list[float]` of length `K + 1`: for `a = 0 ... K`, of sum 1.

    Raises:
        ValueError: a number is no probability, or they rise.
    """
    check_survival(surviving)
    return [chance - further for chance, further in itertools.pairwise([1.0, *surviving, 0.0])]


def check_survival(surviving: Sequence[float]) -> None:
    """Refuses what cannot be chances of growing prefixes.

    Raises:
        ValueError: a number is no probability, or they rise.
    """
    before = 1.0
    for position, chance in enumerate(surviving, 1):
        if not 0 <= chance <= 1:
            raise ValueError(f"Survival lies between 0 and 1, got {chance}.")
        if chance > before:
            raise ValueError(
                f"Survival rises from {before} to {chance} at position {position}: a longer prefix cannot be accepted "
                "more often. Rates become survival by `survival(rates)`."
            )
        before = chance


def counted_rates(reached: Sequence[int], accepted: Sequence[int]) -> list[float]:
    """Rates from counts.

    Args:
        reached (`Sequence[int]`): how often each position was tested, all before it accepted.
        accepted (`Sequence[int]`): how often each was accepted.

    Returns:
        `list[float]`: one rate for each position that was ever reached.

    Raises:
        ValueError: the counts contradict each other, as where tokens behind a rejection are counted.
    """
    _check_counts(reached, accepted)
    for position, (tested, before) in enumerate(zip(reached[1:], accepted, strict=False), 2):
        if tested > before:
            raise ValueError(
                f"Position {position} counts {tested} tests where {before} prefixes reach it: leave out what stands "
                "behind a rejection."
            )
    return [kept / tested for tested, kept in zip(reached, accepted, strict=True) if tested]


def observed_rates(rounds: Iterable[tuple[int, int, int]]) -> list[float]:
    """Rates from single rounds, whose drafts may differ in length.

    Args:
        rounds (`Iterable[tuple[int, int, int]]`): see [`observed_counts`].

    Returns:
        `list[float]`: one rate for each position that was ever reached.

    Raises:
        ValueError: see [`observed_counts`].
    """
    return counted_rates(*observed_counts(rounds))


def observed_counts(rounds: Iterable[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """What [`counted_rates`] takes, from single rounds.

    Args:
        rounds (`Iterable[tuple[int, int, int]]`): of each row and round, the tokens drafted, accepted and published.
            What a stop cut off was not reached.

    Returns:
        `tuple[list[int], list[int]]`: how often each position was reached, and how often accepted; as many as were
        ever reached.

    Raises:
        ValueError: a round publishes nothing, accepts more than was drafted, or publishes more than what it accepts
            and one token.
    """
    reached: list[int] = []
    kept: list[int] = []
    for drafted, accepted, published in rounds:
        if not 0 <= accepted <= drafted or not 1 <= published <= accepted + 1:
            raise ValueError(
                f"A round that drafts {drafted} and accepts {accepted} tokens cannot publish {published}: it "
                "publishes the accepted ones and the one after them, less what a stop cuts off, but one at least."
            )
        for i in range(min(drafted, published)):
            if i == len(reached):
                reached.append(0)
                kept.append(0)
            reached[i] += 1
            kept[i] += i < accepted
    return reached, kept


def counted_survival(drafted: Sequence[int], accepted: Sequence[int]) -> list[float]:
    """Survival from counts over whole drafts; what a rejection or a stop cut off counts as not accepted.

    Args:
        drafted (`Sequence[int]`): how often each position was drafted.
        accepted (`Sequence[int]`): how often each was accepted, all before it too.

    Returns:
        `list[float]`: one probability for each position that was ever drafted, never rising.

    Raises:
        ValueError: the counts contradict each other.
    """
    _check_counts(drafted, accepted)
    for position, (before, kept) in enumerate(itertools.pairwise(accepted), 2):
        if kept > before:
            raise ValueError(
                f"Position {position} is accepted {kept} times and the one before it {before}: leave out what stands "
                "behind a rejection."
            )
    tried = itertools.takewhile(bool, drafted)
    # rounds at the end of a text are shorter, which can make a later position look better
    return list(itertools.accumulate((kept / count for count, kept in zip(tried, accepted, strict=False)), min))


def _check_counts(tried: Sequence[int], accepted: Sequence[int]) -> None:
    if len(tried) != len(accepted):
        raise ValueError(f"One count of each kind for each position: got {len(tried)} and {len(accepted)}.")
    for position, (count, kept) in enumerate(zip(tried, accepted, strict=True), 1):
        if not 0 <= kept <= count:
            raise ValueError(f"Position {position} cannot be accepted {kept} times of {count}.")
