"""What drafting brings and costs, in plain numbers (contract 0x05).

*Rates* are of a position where it is reached: all before it accepted, the text not ended. *Survival* is the chance
that everything up to a position is accepted; most functions take it, since it assumes nothing about positions being
independent.
"""

from .costs import CostParts, best_length, break_even_acceptance, leviathan_speedup, speedup, time_per_token
from .prefixes import (
    counted_rates,
    counted_survival,
    observed_counts,
    observed_rates,
    prefix_law,
    reach_rates,
    survival,
)
from .progress import expected_accepted, progress_by_length, round_progress, uniform_progress, unstopped_survival
from .storage import discarded_rows, temporary_bytes, temporary_bytes_per_token, written_rows


__all__ = [
    "CostParts",
    "best_length",
    "break_even_acceptance",
    "counted_rates",
    "counted_survival",
    "discarded_rows",
    "expected_accepted",
    "leviathan_speedup",
    "observed_counts",
    "observed_rates",
    "prefix_law",
    "progress_by_length",
    "reach_rates",
    "round_progress",
    "speedup",
    "survival",
    "temporary_bytes",
    "temporary_bytes_per_token",
    "time_per_token",
    "uniform_progress",
    "unstopped_survival",
    "written_rows",
]
