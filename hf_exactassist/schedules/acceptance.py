"""How far drafts of a row are accepted, position by position, by what has been seen of late (contract 0x05A)."""

from __future__ import annotations


# what is believed of a position before anything is seen, and how many sightings' worth that counts for
PRIOR_RATE, PRIOR_WEIGHT = 0.7, 2.0
# how many sightings' worth the rate of all positions counts for in the rate of one: positions differ less than the few
# sightings of each make believe
_POOLED_WEIGHT = 4.0
# what a round counts for after each later one
_DECAY = 0.95


class Acceptance:
    """Reach-conditioned acceptance rates: each position counts only where it was reached.

    A draft that was accepted whole says nothing of the positions behind it, which then count as the others do.

    Args:
        limit (`int`): positions.
        prior (`float`): the rate that is believed in before anything is seen.
        weight (`float`): how many sightings' worth that counts for.
    """

    def __init__(self, limit: int, prior: float = PRIOR_RATE, weight: float = PRIOR_WEIGHT) -> None:
        self._prior, self._weight = prior, weight
        self._reached, self._kept = [0.0] * limit, [0.0] * limit

    def observe(self, drafted: int, accepted: int) -> None:
        """Learns how a draft of at least one token ended."""
        for i in range(len(self._reached)):
            reached, kept = i < min(accepted + 1, drafted), i < accepted
            self._reached[i] = self._reached[i] * _DECAY + reached
            self._kept[i] = self._kept[i] * _DECAY + kept

    def overall(self) -> float:
        """The rate expected where nothing is known of the position."""
        return (self._prior * self._weight + sum(self._kept)) / (self._weight + sum(self._reached))

    def rates(self) -> list[float]:
        """The rate expected at each position."""
        pooled = self.overall()
        return [
            (pooled * _POOLED_WEIGHT + kept) / (_POOLED_WEIGHT + reached)
            for kept, reached in zip(self._kept, self._reached, strict=True)
        ]
