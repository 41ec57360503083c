"""How long a round takes, by draft length and rows: an estimate, corrected by what rounds have taken (0x05C)."""

from __future__ import annotations

from collections.abc import Callable, Sequence


# what a time counts for after each later one of the same length
_DECAY = 0.8
# how far off one may be and still count in full: a machine that does other things too is slower, never faster
_TOO_SHORT, _TOO_LONG = 0.5, 1.25
# what the estimate of a length counts for beside times of rounds
_ESTIMATE_WEIGHT = 0.3
# how much of what a draft is estimated to add is believed in any case
_TRUST = 0.5
# what times of earlier calls count for: the machine may have been busy, and rounds that are not made are not timed
_FADING = 0.25
# rounds after which a time is old
_STALE = 100


class RoundCosts:
    """Cost of a round of so many rows with drafts of so many tokens.

    Only ratios matter, so the estimate may be in any unit until times are told. What is learned may serve any number
    of calls.

    Args:
        estimate (`Callable[[int, int], float]`): `estimate(rows, length)`, positive and rising.
        reading (`float`): what each token takes that the assistant reads before it drafts, in the estimate's unit.
    """

    def __init__(self, estimate: Callable[[int, int], float], reading: float = 0.0) -> None:
        self._estimate = estimate
        self._reading = reading
        # by rows and length: decayed mean and weight of the times seen, and when the last one was
        self._seen: dict[int, dict[int, tuple[float, float, int]]] = {}
        self._guesses: dict[int, list[float]] = {}
        self._count = 0

    def observe(self, rows: int, length: int, seconds: float) -> None:
        """Learns what a round has taken."""
        times = self._seen.setdefault(rows, {})
        mean, weight, _ = times.get(length, (seconds, 0.0, 0))
        seconds = min(max(seconds, mean * _TOO_SHORT), mean * _TOO_LONG)
        weight = weight * _DECAY + 1
        self._count += 1
        times[length] = (mean + (seconds - mean) / weight, weight, self._count)

    def fade(self) -> None:
        """A new call begins."""
        for times in self._seen.values():
            times.update({length: (mean, weight * _FADING, at) for length, (mean, weight, at) in times.items()})

    def knows(self, length: int) -> bool:
        """Whether a round with such drafts has ever been timed, whatever the number of rows."""
        return any(length in times for times in self._seen.values())

    def is_fresh(self, rows: int, length: int) -> bool:
        """Whether a round like this has been timed of late."""
        time = self._seen.get(rows, {}).get(length)
        return time is not None and self._count - time[2] < _STALE

    def estimated(self, rows: int, limit: int) -> list[float]:
        """Cost of a round by draft length, `0 ... limit`, whatever has been observed."""
        if len(self._guesses.get(rows, ())) <= limit:
            self._guesses[rows] = [self._estimate(rows, length) for length in range(limit + 1)]
        return self._guesses[rows][: limit + 1]

    def catching_up(self, rows: int, tokens: int) -> float:
        """What the assistant's reading of so many tokens takes, in rounds without drafts; always an estimate."""
        return self._reading * tokens / self.estimated(rows, 0)[0]

    def table(self, rows: int, limit: int) -> list[float]:
        """Expected cost of a round by draft length, `0 ... limit`, by what has been observed."""
        guess, seen = self.estimated(rows, limit), self._seen
        if not seen:
            return guess
        # rows leave a batch one by one: times of other counts tell how fast the machine is
        scale = self._scale(min(seen, key=lambda count: abs(count - rows)))
        costs, times = [scale * cost for cost in guess], seen.get(rows, {})
        # drafts cost the same for each token, and something to begin with
        drafted = [(length, mean, weight) for length, (mean, weight, _) in times.items() if 0 < length <= limit]
        if drafted:
            anchors = [(length, costs[length], _ESTIMATE_WEIGHT) for length in {1, limit}]
            start, slope = _line([*anchors, *drafted])
            # beginning a draft costs something too
            costs[0] = min(costs[0] * (start + slope) / costs[1], start)
            costs[1:] = [start + slope * length for length in range(1, limit + 1)]
        if 0 in times:
            costs[0] = times[0][0]
        # nor can a draft cost next to nothing, whatever clocks say
        floors = [costs[0] * (1 + _TRUST * (cost / guess[0] - 1)) for cost in guess]
        return [max(pair) for pair in zip(costs, floors, strict=True)]

    def _scale(self, rows: int) -> float:
        """Seconds for each unit of the estimate, by the times of a number of rows."""
        times = self._seen[rows]
        expected = sum(weight * self._estimate(rows, length) for length, (_, weight, _) in times.items())
        return sum(weight * mean for mean, weight, _ in times.values()) / expected


def _line(points: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """The weighted least-squares line through `(length, cost, weight)`, rising and above zero at its beginning."""
    total = sum(weight for _, _, weight in points)
    x = sum(weight * length for length, _, weight in points) / total
    y = sum(weight * cost for _, cost, weight in points) / total
    spread = sum(weight * (length - x) ** 2 for length, _, weight in points)
    joint = sum(weight * (length - x) * (cost - y) for length, cost, weight in points)
    slope = min(max(joint / spread if spread else 0.0, 0.0), 0.99 * y / x)
    return y - slope * x, slope
