"""Does assisted generation give what plain generation gives?"""

import math
from dataclasses import asdict

import datasets
import evaluate

from hf_exactassist.evaluation import (
    GreedySummary,
    conclude_greedy,
    conclude_sampled,
    first_difference,
    lengths,
    likelihoods,
)


_DESCRIPTION = """
Does assisted generation (speculative decoding) give what plain generation gives? Greedy texts are compared token for
token. Sampled texts may differ and still follow the same law: they are tested for it, with the smallest difference
that would have been found. The conclusion says in a sentence what was shown and what not.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions1: for each prompt, the new tokens of plain generation (a list of token ids), or its text.
    predictions2: the same for assisted generation on the same prompts. Cut off the padding behind the end of a row.
    sampled (bool): whether the texts were sampled, each independently of the other; greedy by default.
    log_likelihoods1 (list of float, optional): for each plain text, its mean log-likelihood per token under the
        target, in nats. For sampled texts only, and both or none.
    log_likelihoods2 (list of float, optional): the same for each assisted text.
    alpha (float): how often equal laws are said to differ, over all tests together, 0.05 by default.
    simulations (int): of each test, 2000 by default.
    seed (int): of the tests, 0 by default.

Returns:
    texts: how many were compared.
    conclusion: what may be concluded, in a sentence.

    Of greedy texts:
    identical: how many are the same.
    identity_rate: the share of them.
    first_differences: for each pair, the position of the first token (of texts: the first character) that differs,
        from 0; None if they are the same.

    Of sampled texts:
    differs: whether the laws are said to differ.
    findings: one for each test. `lengths` needs token ids, `likelihoods` log-likelihoods. Each has a statistic, a
        p_value, the alpha it is held against, and the smallest difference, of the kind `alternative`, that would have
        been found with probability `power`; None if none would.
    likelihood_difference: assisted less plain in nats per token, with low and high of the interval of this level;
        None without log-likelihoods.

Examples:

    >>> exactness = evaluate.load("recipes/evaluate/exactness", module_type="comparison")
    >>> results = exactness.compute(predictions1=[[5, 6, 7], [8, 9]], predictions2=[[5, 6, 7], [8, 3]])
    >>> results["identity_rate"], results["first_differences"]
    (0.5, [None, 1])

    Sampled texts that assistance would break off:

    >>> plain, broken = [[1] * 40] * 20, [[1] * 10] * 20
    >>> results = exactness.compute(predictions1=plain, predictions2=broken, sampled=True)
    >>> results["differs"], results["findings"][0]["subject"]
    (True, 'lengths')
"""

_CITATION = """
@inproceedings{leviathan2023fast,
    title = {Fast Inference from Transformers via Speculative Decoding},
    author = {Leviathan, Yaniv and Kalman, Matan and Matias, Yossi},
    booktitle = {International Conference on Machine Learning},
    year = {2023}
}
"""

_INPUTS = ("predictions1", "predictions2")


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class Exactness(evaluate.Comparison):
    def _info(self):
        # texts first: anything can be taken for a list, but not for a text
        kinds = (datasets.Value("string"), datasets.Sequence(datasets.Value("int64")))
        return evaluate.ComparisonInfo(
            module_type="comparison",
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=[datasets.Features(dict.fromkeys(_INPUTS, kind)) for kind in kinds],
        )

    def add_batch(self, **columns):
        """Adds pairs of texts, one list for each input."""
        missing = [name for name in _INPUTS if columns.get(name) is None]
        if missing:
            raise ValueError(f"A comparison also needs {', '.join(missing)}.")
        _check(*(columns[name] for name in _INPUTS))
        super().add_batch(**columns)

    def add(self, **values):
        """Adds one pair of texts."""
        self.add_batch(**{name: [value] for name, value in values.items()})

    def _compute(
        self,
        predictions1,
        predictions2,
        sampled=False,
        log_likelihoods1=None,
        log_likelihoods2=None,
        alpha=0.05,
        simulations=2000,
        seed=0,
    ):
        if sampled:
            given = (log_likelihoods1, log_likelihoods2)
            return _sampled(predictions1, predictions2, given, alpha, {"simulations": simulations, "seed": seed})
        if log_likelihoods1 is not None or log_likelihoods2 is not None:
            raise ValueError("Log-likelihoods are for sampled texts: pass `sampled=True`, or leave them out.")
        return _greedy(predictions1, predictions2)


def _check(plain, assisted):
    """`evaluate` turns numbers and missing texts into something else without a word."""
    if len(plain) != len(assisted):
        raise ValueError(f"One assisted text for each plain one: got {len(plain)} and {len(assisted)}.")
    if not len(plain):
        raise ValueError("There are no texts to compare.")
    kinds = {_kind(text) for text in (*plain, *assisted)}
    if kinds not in ({"text"}, {"tokens"}):
        raise ValueError("Predictions are either all texts or all lists of token ids (whole numbers).")


def _kind(prediction):
    if isinstance(prediction, str):
        return "text"
    tokens = prediction.tolist() if hasattr(prediction, "tolist") else prediction
    if not isinstance(tokens, (list, tuple)):
        return type(tokens).__name__
    return "tokens" if all(isinstance(token, int) or hasattr(token, "__index__") for token in tokens) else "others"


def _greedy(plain, assisted):
    places = [first_difference(*texts) for texts in zip(plain, assisted, strict=True)]
    texts, identical = len(places), places.count(None)
    if identical == texts:
        conclusion = conclude_greedy(GreedySummary(texts, ()))
    else:
        conclusion = (
            f"{texts - identical} of {texts} greedy texts {'differs' if texts - identical == 1 else 'differ'} from "
            "plain generate's; texts alone do not tell whether that is a fault or a numerical tie, where rounding "
            "decides between tokens: `exactassist evaluate` looks at the target's scores."
        )
    return {
        "texts": texts,
        "identical": identical,
        "identity_rate": identical / texts,
        "first_differences": places,
        "conclusion": conclusion,
    }


def _sampled(plain, assisted, given, alpha, settings):
    if not 0 < alpha < 1:
        raise ValueError(f"`alpha` lies between 0 and 1, got {alpha}.")
    if (given[0] is None) != (given[1] is None):
        raise ValueError("Log-likelihoods come in pairs: of plain texts and of assisted ones.")
    tokens, scored = not isinstance(plain[0], str), given[0] is not None
    if not tokens and not scored:
        raise ValueError("Sampled texts differ in any case: pass log-likelihoods, or token ids to compare lengths.")
    if scored and not len(given[0]) == len(given[1]) == len(plain):
        raise ValueError(
            f"One log-likelihood for each of {len(plain)} texts: got {len(given[0])} and {len(given[1])}."
        )
    share = alpha / (tokens + scored)
    likelihood = likelihoods(given[1], given[0], alpha=share, **settings) if scored else None
    findings = [] if likelihood is None else [likelihood]
    if tokens:
        counts = ([[len(text)] for text in texts] for texts in (assisted, plain))
        findings.append(lengths(*counts, alpha=share, **settings))
    return {
        "texts": len(plain),
        "differs": any(finding.differs for finding in findings),
        "findings": [_told(finding) for finding in findings],
        "likelihood_difference": None if likelihood is None else asdict(likelihood.difference),
        "conclusion": conclude_sampled(findings),
    }


def _told(finding):
    told = asdict(finding)
    told.pop("difference", None)
    told["smallest"] = told["smallest"] if math.isfinite(told["smallest"]) else None
    told["alternative"] = told["alternative"].format("this size")
    return told
