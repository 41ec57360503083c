"""Does assistance change anything, on someone's own data? What `exactassist evaluate` computes and may say.

What stands here takes numbers and gives numbers; models are run by `running.evaluate` alone. A test can only fail to
find a difference, so each one says how large a difference it would have found. That the laws are equal is proved
elsewhere, by enumeration (`tests/exactness`).
"""

from .bootstrap import MeanDifference, SpeedRatio, mean_difference, speed_ratio
from .causes import diagnose_log
from .conclusion import conclude_greedy, conclude_metric, conclude_sampled, conclude_shared_noise
from .greedy import Divergence, GreedySummary, compare_texts, first_difference, summarise
from .power import tempered
from .sampled import Finding, LikelihoodFinding, lengths, likelihoods, next_tokens


__all__ = [
    "Divergence",
    "Finding",
    "GreedySummary",
    "LikelihoodFinding",
    "MeanDifference",
    "SpeedRatio",
    "compare_texts",
    "conclude_greedy",
    "conclude_metric",
    "conclude_sampled",
    "conclude_shared_noise",
    "diagnose_log",
    "first_difference",
    "lengths",
    "likelihoods",
    "mean_difference",
    "next_tokens",
    "speed_ratio",
    "summarise",
    "tempered",
]
