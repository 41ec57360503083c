"""What is said, word for word."""

import math

import pytest

from hf_exactassist.evaluation import (
    Divergence,
    Finding,
    MeanDifference,
    conclude_greedy,
    conclude_metric,
    conclude_sampled,
    summarise,
)


TIE, FAULT = Divergence(3, 1, 2, 0.0, True), Divergence(5, 1, 2, 4.0, False)


def finding(p_value=0.3, smallest=0.12341, subject="likelihoods", alternative="a difference of {} nats per token"):
    return Finding(subject, 1.0, p_value, 0.05 / 3, smallest, 0.9, alternative)


LENGTHS = {"subject": "lengths", "alternative": "a share of {} of the texts broken off"}


def test_greedy():
    # 0.05 ** (1 / 24) = 0.883
    assert conclude_greedy(summarise([None] * 24)) == (
        "All 24 greedy texts are plain generate's, token for token; of prompts like these, up to 11.7 % could still "
        "differ without one having done so here (95 % confidence)."
    )
    assert conclude_greedy(summarise([None])).startswith("The one greedy text is plain generate's")
    tied = conclude_greedy(summarise([TIE, None, TIE]))
    assert tied.startswith("2 of 3 greedy texts part from plain generate's, all at numerical ties")
    assert "a fault at such a place would look the same" in tied
    assert conclude_greedy(summarise([TIE])).startswith("1 of 1 greedy text parts from plain generate's, at numerical")
    # one fault is a fault, however many ties stand beside it
    assert conclude_greedy(summarise([TIE, FAULT, None])) == (
        "1 of 3 greedy texts is not plain generate's, and rounding does not explain where they part: this is a fault."
    )


def test_equal_laws():
    assert conclude_sampled([finding(), finding(0.0456, 0.25, **LENGTHS)]) == (
        "Nothing speaks against equal laws (smallest p = 0.046); a difference of 0.124 nats per token, or a share of "
        "0.25 of the texts broken off would have been found with probability 0.9; next tokens were not compared. This "
        "is no proof, and other differences may be missed: the proof is the enumeration of the decoding loop in "
        "tests/exactness/test_law.py."
    )
    blind = conclude_sampled([finding(), finding(1.0, math.inf, **LENGTHS)])
    assert "; nothing tried could have been found in lengths; next tokens" in blind and "inf" not in blind
    assert "would have been found" not in conclude_sampled([finding(smallest=math.inf)])


def test_other_laws():
    assert conclude_sampled([finding(0.0005), finding(0.05, **LENGTHS)]) == (
        "The law is not plain generate's, going by likelihoods (p = 0.0005); of evaluations with equal laws at most "
        "3.33 % say so by chance."
    )
    with pytest.raises(ValueError, match="Nothing was tested"):
        conclude_sampled([])


@pytest.mark.parametrize(
    ("value", "said"), [(0.12301, "0.124"), (0.12, "0.12"), (3.0, "3"), (0.9991, "1"), (1.012, "1.02")]
)
def test_what_was_found_is_not_rounded_down(value, said):
    assert f"a difference of {said} nats" in conclude_sampled([finding(smallest=value)])


def test_metrics():
    assert conclude_metric("Accuracy", MeanDifference(0.01, -0.02, 0.04, 0.95, 50, 40)) == (
        "Accuracy shows no difference: +0.01 on average over 50 prompts (95 % interval -0.02 to +0.04); differences "
        "within the interval are not excluded."
    )
    assert conclude_metric("Accuracy", MeanDifference(-0.1, -0.2, -0.05, 0.95, 50, 20)) == (
        "Accuracy differs: -0.1 on average over 50 prompts (95 % interval -0.2 to -0.05); of comparisons without a "
        "true difference about 5 % look like this."
    )
    # an interval of no width would promise too much
    assert conclude_metric("Accuracy", MeanDifference(0.0, 0.0, 0.0, 0.95, 50, 50)) == (
        "Accuracy is the same for all 50 prompts; of prompts like these, up to 5.82 % could still differ (95 % "
        "confidence)."
    )
