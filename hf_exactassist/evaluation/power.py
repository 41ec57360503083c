"""What a test could have found: differences of a stated kind, tried from large to small."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


# halvings of the range searched
_HALVINGS = 9


def tempered(probs: np.ndarray, temperature: float) -> np.ndarray:
    """Laws flattened (above 1) or sharpened (below 1) by a temperature; what is excluded stays so.

    Args:
        probs (`np.ndarray` of shape `(..., V)`): probabilities.
        temperature (`float`): above 0; 1 changes nothing.

    Returns:
        `np.ndarray` of shape `(..., V)`: float64.

    Raises:
        ValueError: the temperature is not above 0.
    """
    if not temperature > 0:
        raise ValueError(f"Temperatures are above 0, got {temperature}.")
    # relative to the likeliest token nothing overflows
    weights = (probs / probs.max(axis=-1, keepdims=True)) ** (1 / temperature)
    laws: np.ndarray = weights / weights.sum(axis=-1, keepdims=True)
    return laws


def smallest_found(found: Callable[[float], float], most: float, power: float) -> float:
    """The smallest difference that is found often enough.

    Args:
        found (`Callable[[float], float]`): how often a difference is found; should not fall as it grows.
        most (`float`): largest difference to try.
        power (`float`): how often is enough.

    Returns:
        `float`: on the safe side by less than `most / 500`; infinite if not even `most` is found often enough.
    """
    if most <= 0 or found(most) < power:
        return math.inf
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) >= power else (middle, high)
    return high


def threshold(null: np.ndarray, alpha: float) -> float:
    """What a statistic must exceed for a Monte Carlo p-value of at most `alpha`.

    Args:
        null (`np.ndarray` of shape `(R,)`): the statistic where the laws are equal.
        alpha (`float`): level of the test.

    Raises:
        ValueError: no p-value can be that small with so few simulations.
    """
    beyond = math.floor(alpha * (len(null) + 1) + 1e-9)
    if beyond < 1:
        raise ValueError(f"A level of {alpha} needs {math.ceil(1 / alpha)} simulations or more, got {len(null)}.")
    # as many may lie at or beyond a rejected statistic, itself among them
    return float(np.sort(null)[-beyond])


def unseen_share(trials: int, confidence: float) -> float:
    """Largest share of cases that may all have been missed in independent trials (Clopper and Pearson 1934).

    Args:
        trials (`int`): without a single case, at least 1.
        confidence (`float`): how surely a larger share would have shown a case.
    """
    return float(1 - (1 - confidence) ** (1 / trials))
