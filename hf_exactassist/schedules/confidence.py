"""How often tokens are accepted that a drafter is so sure of, by what has been seen of late."""

from __future__ import annotations

import bisect


# where one class of confidence ends and the next begins
_EDGES = (0.2, 0.4, 0.6, 0.8, 0.95)
# how many sightings' worth the rate of all tokens counts for
_PRIOR_WEIGHT = 2.0
# what a sighting counts for after each later one of its class
_DECAY = 0.98


class Confidence:
    """What a drafter's own probability of a token says about its acceptance."""

    def __init__(self) -> None:
        self._seen, self._kept = [0.0] * (len(_EDGES) + 1), [0.0] * (len(_EDGES) + 1)

    def observe(self, confidence: float, kept: bool) -> None:
        """Learns how a token that was reached ended."""
        place = bisect.bisect(_EDGES, confidence)
        self._seen[place] = self._seen[place] * _DECAY + 1
        self._kept[place] = self._kept[place] * _DECAY + kept

    def rate(self, confidence: float, overall: float) -> float:
        """How likely such a token is accepted, where `overall` is how likely any is."""
        place = bisect.bisect(_EDGES, confidence)
        return (overall * _PRIOR_WEIGHT + self._kept[place]) / (_PRIOR_WEIGHT + self._seen[place])
