"""How near to the best fixed draft length, chosen afterwards, a schedule can come at all: a simulation for row f.

    python -m tools.speed.hindsight

Texts whose tokens are each drafted right with one probability, decoded at the cost of the large pair. Beside the
adaptive schedule stands a fixed length that is best for that probability on average: who takes it knows the pair as
well as can be, but not which tokens will be right. What both lack of 1 on short texts is luck, which only choosing
afterwards turns to account.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

from hf_exactassist.schedules import AdaptiveSchedule, Experience, RoundCosts

from .lengths import LENGTHS


TEXTS = 200
# as measured on smollm2-wide16 and its drafts, in plain steps
START, EACH = 1.06, 0.18


def cost(rows: int, length: int) -> float:
    """Of a round with drafts of so many tokens."""
    return 1.0 if length == 0 else START + EACH * length


def decode(
    right: Sequence[bool], choose: Callable[[], int], told: Callable[[int, int], None] = lambda *_: None
) -> float:
    """What a text costs; `right[t]` is whether its token `t` would be drafted right."""
    place, spent = 1, 0.0
    while place < len(right):
        length = min(choose(), len(right) - place - 1)
        accepted = next((i for i in range(length) if not right[place + i]), length)
        spent += cost(1, length)
        told(length, accepted)
        place += accepted + 1
    return spent


class Pair:
    """Calls of one pair, the earlier of which teach the later ones."""

    def __init__(self) -> None:
        self.schedule = AdaptiveSchedule(RoundCosts(cost), experience=Experience())

    def decode(self, right: Sequence[bool]) -> float:
        """What a text costs with the adaptive schedule."""
        schedule = self.schedule
        schedule.start()
        schedule.expect([0], len(right))
        schedule.follow_clock()

        def told(length: int, accepted: int) -> None:
            schedule.observe(0, length, accepted)
            schedule.timed(1, length, cost(1, length))

        return decode(right, lambda: schedule.lengths([0])[0], told)


def against_hindsight(tokens: int, rate: float, earlier: int) -> tuple[float, float]:
    """Medians over texts: of the length that is best on average, and of the schedule after so many earlier calls."""
    adaptive, fixed = [], []
    for seed in range(TEXTS):
        drawn = random.Random(seed)
        texts = [[drawn.random() < rate for _ in range(tokens)] for _ in range(earlier + 1)]
        pair = Pair()
        adaptive.append([pair.decode(text) for text in texts][-1])
        fixed.append({length: decode(texts[-1], lambda length=length: length) for length in LENGTHS})
    best = [min(costs.values()) for costs in fixed]
    known = min(LENGTHS, key=lambda length: sum(costs[length] for costs in fixed))
    return (
        statistics.median(least / costs[known] for least, costs in zip(best, fixed, strict=True)),
        statistics.median(least / spent for least, spent in zip(best, adaptive, strict=True)),
    )


def main() -> None:
    """Prints a table."""
    print("tokens  rate  best on average  adaptive, first call  adaptive, fourth call")
    for tokens in (40, 128, 512):
        for rate in (0.85, 0.7, 0.5):
            known, first = against_hindsight(tokens, rate, 0)
            _, later = against_hindsight(tokens, rate, 3)
            print(f"{tokens:6}  {rate:.2f}  {known:15.3f}  {first:20.3f}  {later:21.3f}")


if __name__ == "__main__":
    main()
