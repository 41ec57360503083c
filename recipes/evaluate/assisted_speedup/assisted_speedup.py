"""How many times as fast assisted generation is, from paired times."""

import datasets
import evaluate
import numpy as np

from hf_exactassist.evaluation import speed_ratio
from hf_exactassist.evaluation.bootstrap import FEWEST
from hf_exactassist.ledger import CostParts, best_length, break_even_acceptance, progress_by_length, time_per_token


_DESCRIPTION = """
How many times as fast assisted generation (speculative decoding) is as plain generation: the ratio of time per token,
all times over all tokens, with a paired bootstrap interval. With the costs of a round it also says which acceptance
pays and which draft length is best.
"""

_KWARGS_DESCRIPTION = """
Args:
    plain_seconds: for each prompt (or batch), what the plain call took.
    plain_tokens: new tokens of that call.
    assisted_seconds: what the assisted call took on the same prompt.
    assisted_tokens: new tokens of that call.
    level (float): how often such intervals hold the true ratio, 0.95 by default.
    resamples (int): how often prompts are drawn anew, 5000 by default.
    seed (int): of these draws, 0 by default.
    draft_cost (float, optional): of one draft step, in any unit.
    verify_costs (list of float, optional): of the target's forward over a draft of 0, 1, ..., K tokens, in the same
        unit; the first is a plain step.
    survival (list of float, optional): of 1, ..., K draft tokens, as the module `acceptance_length` returns it.

Returns:
    speedup: plain time per token over assisted time per token.
    low, high: ends of the interval; None for fewer than five pairs, which do not tell how ratios scatter.
    level: of the interval.
    pairs: how many there were.
    plain_seconds_per_token, assisted_seconds_per_token: the parts of the ratio.

    With costs, for draft lengths 1, ..., K:
    break_even_acceptance: the rate, the same for every draft token, at which drafts begin to pay; None where not even
        perfect ones do.
    With survival too, for draft lengths 0, ..., K:
    predicted_speedup: by the cost model.
    best_length: the length with the most tokens per cost; 0 says that drafts do not pay.

Examples:

    One prompt is four times as fast and the other, which takes longer, twice; the mean of ratios would be 3:

    >>> assisted_speedup = evaluate.load("recipes/evaluate/assisted_speedup", module_type="measurement")
    >>> results = assisted_speedup.compute(
    ...     plain_seconds=[1.0, 2.0], plain_tokens=[10, 20], assisted_seconds=[0.25, 1.0], assisted_tokens=[10, 20]
    ... )
    >>> round(results["speedup"], 3), results["low"], results["high"]
    (2.4, None, None)

    A draft token costs a tenth of a plain step and is accepted four times of five:

    >>> results = assisted_speedup.compute(
    ...     plain_seconds=[3.0], plain_tokens=[30], assisted_seconds=[2.0], assisted_tokens=[30],
    ...     draft_cost=0.1, verify_costs=[1.0, 1.0, 1.1], survival=[0.8, 0.64]
    ... )
    >>> [round(rate, 2) for rate in results["break_even_acceptance"]]
    [0.1, 0.24]
    >>> results["best_length"], [round(speedup, 2) for speedup in results["predicted_speedup"]]
    (2, [1.0, 1.64, 1.88])
"""

_CITATION = """
@inproceedings{leviathan2023fast,
    title = {Fast Inference from Transformers via Speculative Decoding},
    author = {Leviathan, Yaniv and Kalman, Matan and Matias, Yossi},
    booktitle = {International Conference on Machine Learning},
    year = {2023}
}
@book{efron1993bootstrap,
    title = {An Introduction to the Bootstrap},
    author = {Efron, Bradley and Tibshirani, Robert J.},
    publisher = {Chapman and Hall},
    year = {1993}
}
"""

_COLUMNS = ("plain_seconds", "plain_tokens", "assisted_seconds", "assisted_tokens")


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class AssistedSpeedup(evaluate.Measurement):
    def _info(self):
        return evaluate.MeasurementInfo(
            module_type="measurement",
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            # floats for tokens too, since `evaluate` would cut 1.5 to 1 without a word
            features=datasets.Features({name: datasets.Value("float64") for name in _COLUMNS}),
        )

    def add_batch(self, **columns):
        """Adds pairs of calls, one list for each input."""
        missing = [name for name in _COLUMNS if columns.get(name) is None]
        if missing:
            raise ValueError(f"A speed-up also needs {', '.join(missing)}.")
        super().add_batch(**columns)

    def add(self, **values):
        """Adds one pair of calls."""
        self.add_batch(**{name: [value] for name, value in values.items()})

    def _compute(
        self,
        plain_seconds,
        plain_tokens,
        assisted_seconds,
        assisted_tokens,
        level=0.95,
        resamples=5000,
        seed=0,
        draft_cost=None,
        verify_costs=None,
        survival=None,
    ):
        if not plain_seconds:
            raise ValueError("There are no pairs of calls to compare.")
        if not 0 < level < 1 or resamples < 1:
            raise ValueError(f"A level lies between 0 and 1 and there are resamples: got {level} and {resamples}.")
        for name, column in (("plain_tokens", plain_tokens), ("assisted_tokens", assisted_tokens)):
            if not all(count is not None and count % 1 == 0 for count in column):
                raise ValueError(f"`{name}` must hold whole numbers, got {column}.")
        for name, column in (("plain_seconds", plain_seconds), ("assisted_seconds", assisted_seconds)):
            if None in column:
                raise ValueError(f"`{name}` lacks a time.")
        plain = time_per_token(plain_seconds, plain_tokens)
        assisted = time_per_token(assisted_seconds, assisted_tokens)
        columns = np.array([plain_seconds, plain_tokens, assisted_seconds, assisted_tokens])
        low, high = _interval(columns, level, resamples, seed)
        return {
            "speedup": plain / assisted,
            "low": low,
            "high": high,
            "level": level,
            "pairs": columns.shape[1],
            "plain_seconds_per_token": plain,
            "assisted_seconds_per_token": assisted,
            **_model(draft_cost, verify_costs, survival),
        }


def _interval(columns, level, resamples, seed):
    """Ends of the interval of the ratio; prompts are drawn anew with both of their calls. `columns`: `(4, P)`."""
    if columns.shape[1] < FEWEST:
        return None, None
    found = speed_ratio(columns[2:].T, columns[:2].T, level, resamples, seed)
    return found.low, found.high


def _model(draft_cost, verify_costs, survival):
    """What the costs of a round say."""
    if draft_cost is None and verify_costs is None and survival is None:
        return {}
    if draft_cost is None or verify_costs is None or len(verify_costs) < 2:
        raise ValueError("A cost model has a `draft_cost` and `verify_costs` for drafts of 0, 1 or more tokens.")
    costs = [CostParts(draft=length * draft_cost, verify=verify).total for length, verify in enumerate(verify_costs)]
    rates = [break_even_acceptance(length, cost, costs[0]) for length, cost in enumerate(costs)][1:]
    if survival is None:
        return {"break_even_acceptance": rates}
    if len(survival) != len(rates):
        raise ValueError(
            f"`survival` has {len(survival)} lengths and `verify_costs` {len(rates)} besides the plain step: cut one."
        )
    progress = progress_by_length(survival)
    return {
        "break_even_acceptance": rates,
        "predicted_speedup": [tokens * costs[0] / cost for tokens, cost in zip(progress, costs, strict=True)],
        "best_length": best_length(progress, costs),
    }
