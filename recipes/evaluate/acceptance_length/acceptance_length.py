"""How many draft tokens a round of assisted generation accepts."""

import datasets
import evaluate

from hf_exactassist.ledger import (
    counted_survival,
    expected_accepted,
    observed_rates,
    prefix_law,
    progress_by_length,
    reach_rates,
    survival,
)


_DESCRIPTION = """
How many draft tokens a round of assisted generation (speculative decoding) accepts and how many tokens it publishes,
with the rate of each draft position counted only where that position is reached.
"""

_KWARGS_DESCRIPTION = """
The configuration "rounds" (default) takes one entry for each row and round.

Args:
    drafted: tokens of the draft.
    accepted: tokens of it that were accepted.
    published: tokens the round added to the text: the accepted ones and the one after them, less what a stop cut off.

The configuration "positions" takes one entry for each call, as `assist_stats` counts.

Args:
    drafted_by_position: how often each draft position was proposed.
    accepted_by_position: how often each was accepted and published.
    row_rounds: rounds, counted for each row that took part.

Returns:
    rounds: how many there were.
    drafted: draft tokens of all rounds.
    acceptance_rate: share of them that was accepted and published; None if nothing was drafted.
    mean_accepted: accepted and published draft tokens per round.
    mean_published: tokens per round. From positions: one more than mean_accepted, which leaves out that a stop inside
        a draft takes the one after it away.
    rates: for each position, how often it is accepted where it is reached.
    survival: for j = 1, 2, ..., the probability that the first j draft tokens are accepted.
    prefix_law: for a = 0, 1, ..., the probability that exactly a of them are.
    expected_accepted: E[A], the sum of survival: what drafts of the greatest length seen would have accepted.
    expected_published: E[G], with the token after them.

Examples:

    Three rounds with drafts of two tokens:

    >>> acceptance_length = evaluate.load("recipes/evaluate/acceptance_length", module_type="measurement")
    >>> results = acceptance_length.compute(drafted=[2, 2, 2], accepted=[2, 0, 1], published=[3, 1, 2])
    >>> results["mean_accepted"], results["mean_published"]
    (1.0, 2.0)
    >>> [round(rate, 3) for rate in results["rates"]]
    [0.667, 0.5]
    >>> [round(chance, 3) for chance in results["survival"]]
    [0.667, 0.333]

    The same rounds as two calls have counted them:

    >>> acceptance_length = evaluate.load("recipes/evaluate/acceptance_length", "positions", module_type="measurement")
    >>> acceptance_length.add_batch(drafted_by_position=[[2, 2]], accepted_by_position=[[1, 1]], row_rounds=[2])
    >>> acceptance_length.add_batch(drafted_by_position=[[1, 1]], accepted_by_position=[[1, 0]], row_rounds=[1])
    >>> results = acceptance_length.compute()
    >>> results["mean_accepted"], round(results["expected_published"], 3)
    (1.0, 2.0)
"""

_CITATION = """
@inproceedings{leviathan2023fast,
    title = {Fast Inference from Transformers via Speculative Decoding},
    author = {Leviathan, Yaniv and Kalman, Matan and Matias, Yossi},
    booktitle = {International Conference on Machine Learning},
    year = {2023}
}
"""

# floats, since `evaluate` would cut 1.5 to 1 without a word
_COUNT = datasets.Value("float64")
_FEATURES = {
    "rounds": {"drafted": _COUNT, "accepted": _COUNT, "published": _COUNT},
    "positions": {
        "drafted_by_position": datasets.Sequence(_COUNT),
        "accepted_by_position": datasets.Sequence(_COUNT),
        "row_rounds": _COUNT,
    },
}


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class AcceptanceLength(evaluate.Measurement):
    def _info(self):
        # what `evaluate` calls a configuration that nobody named
        self.config_name = "rounds" if self.config_name == "default" else self.config_name
        if self.config_name not in _FEATURES:
            raise ValueError(f"Unknown configuration {self.config_name!r}: choose one of {', '.join(_FEATURES)}.")
        return evaluate.MeasurementInfo(
            module_type="measurement",
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(_FEATURES[self.config_name]),
        )

    def add_batch(self, **columns):
        """Adds counts, one list for each input."""
        missing = [name for name in _FEATURES[self.config_name] if columns.get(name) is None]
        if missing:
            raise ValueError(f"The configuration {self.config_name!r} also needs {', '.join(missing)}.")
        super().add_batch(**columns)

    def add(self, **values):
        """Adds the counts of one round, or of one call."""
        self.add_batch(**{name: [value] for name, value in values.items()})

    def _compute(self, **columns):
        counts = {name: _whole(name, column) for name, column in columns.items()}
        if not all(counts.values()):
            raise ValueError("There are no rounds to measure.")
        return (_from_rounds if self.config_name == "rounds" else _from_positions)(**counts)


def _from_rounds(drafted, accepted, published):
    rounds = list(zip(drafted, accepted, published, strict=True))
    surviving = survival(observed_rates(rounds))
    kept = sum(min(pair) for pair in zip(accepted, published, strict=True))
    return _results(len(rounds), sum(drafted), kept, sum(published), surviving)


def _from_positions(drafted_by_position, accepted_by_position, row_rounds):
    drafted, accepted = _column_sums(drafted_by_position), _column_sums(accepted_by_position)
    rounds = sum(row_rounds)
    if max(drafted, default=0) > rounds:
        raise ValueError(f"{max(drafted)} drafts cannot be made in {rounds} rounds: `row_rounds` counts every row.")
    if not rounds:
        raise ValueError("There are no rounds to measure.")
    return _results(rounds, sum(drafted), sum(accepted), rounds + sum(accepted), counted_survival(drafted, accepted))


def _results(rounds, drafted, kept, published, surviving):
    return {
        "rounds": rounds,
        "drafted": drafted,
        "acceptance_rate": kept / drafted if drafted else None,
        "mean_accepted": kept / rounds,
        "mean_published": published / rounds,
        "rates": reach_rates(surviving),
        "survival": surviving,
        "prefix_law": prefix_law(surviving),
        "expected_accepted": expected_accepted(surviving),
        "expected_published": progress_by_length(surviving)[-1],
    }


def _column_sums(rows):
    """Calls may have drafted to different depths."""
    return [sum(row[place] for row in rows if place < len(row)) for place in range(max(map(len, rows)))]


def _whole(name, value):
    if isinstance(value, list):
        return [_whole(name, part) for part in value]
    # NaN and infinity leave a rest that is NaN
    if value is None or not value % 1 == 0 or value < 0:
        raise ValueError(f"`{name}` holds {value}: counts are whole numbers from 0.")
    return int(value)
