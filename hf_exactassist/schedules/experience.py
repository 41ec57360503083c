"""How drafts of a pair have fared in earlier calls: what a new call begins with, instead of a guess."""

from __future__ import annotations

from .acceptance import PRIOR_RATE, PRIOR_WEIGHT
from .confidence import Confidence


# how many sightings' worth the guess counts for, and what a sighting counts for after each later round
_GUESS_WEIGHT, _DECAY = 4.0, 0.99
# what a sighting of earlier calls counts for in a new one, whose text may be of another kind, and all of them at most
_CARRIED, _CARRIED_MOST = 0.06, 8.0


class Experience:
    """Kept with a pair of models by those calls whose text does not depend on draft lengths.

    Attributes:
        confidence (`Confidence`): what the drafter's own probabilities are worth.
    """

    def __init__(self) -> None:
        self.confidence = Confidence()
        self._reached = self._kept = 0.0

    def observe(self, drafted: int, accepted: int) -> None:
        """Learns how a draft of at least one token ended."""
        self._reached = self._reached * _DECAY + min(accepted + 1, drafted)
        self._kept = self._kept * _DECAY + min(accepted, drafted)

    def rate(self) -> float:
        """How often a draft token is accepted where it is reached."""
        return (PRIOR_RATE * _GUESS_WEIGHT + self._kept) / (_GUESS_WEIGHT + self._reached)

    def weight(self) -> float:
        """How many sightings' worth that is in a new call: the more, the more there were."""
        return min(PRIOR_WEIGHT + _CARRIED * self._reached, _CARRIED_MOST)
