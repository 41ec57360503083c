"""What records say of quality, and what they are too few for."""

import math
from dataclasses import replace

import pytest

from hf_exactassist.evaluation import Finding, conclude_shared_noise, findings, likelihoods, summarise
from hf_exactassist.evaluation.greedy import Divergence
from tests.evaluation.made import ARM, call, compare, plain, tie


FAULT = Divergence(0, 1, 2, 3.0, False)


def decode(tokens):
    return " ".join(map(str, tokens))


# --- texts


def test_greedy_texts_count_once_however_often_they_are_repeated():
    comparisons = [
        compare({ARM.name: [tie(), None], "other": [FAULT, None]}),
        compare({ARM.name: [None]}, batch=2),
        compare({ARM.name: [None, None]}, repeat=1),
        compare({ARM.name: [tie()]}, batch=2, repeat=1),
    ]
    compared = findings.texts_compared(comparisons, ARM.name, "greedy")
    summary, conclusion = findings.conclude_texts(compared, "greedy")
    assert (summary.texts, summary.identical) == (3, 1) and summary.identity_rate == 1 / 3
    assert conclusion.startswith("2 of 3 greedy texts part")
    # sampled ones are others each time
    summary, conclusion = findings.conclude_texts(findings.texts_compared(comparisons, ARM.name, "sampled"), "sampled")
    assert (summary.texts, summary.identical) == (6, 4)
    assert "drawn with plain generate's noise" in conclusion


def test_texts_of_no_way():
    compared = findings.texts_compared([compare({"other": [None]})], ARM.name, "greedy")
    assert findings.conclude_texts(compared, "greedy") == (None, "Nothing is shown: no texts were compared.")


def test_partings_are_told_with_what_follows():
    ended = Divergence(2, None, 8, None, False)
    comparisons = [compare({ARM.name: [tie(1, 5, 6), ended]}, batch=3), compare({ARM.name: [FAULT]}, batch=7)]
    texts = {plain: [[1, 5, 5], [7, 7]], call: [[1, 6, *range(20)], [7, 7, 8]]}
    calls = {make: [make(texts=[[0]]), make(batch=3, texts=found)] for make, found in texts.items()}
    compared = findings.texts_compared(comparisons, ARM.name, "greedy")
    told = findings.partings_told(compared, calls[call], calls[plain], decode)
    assert told[0] == {
        "prompt": 3,
        "position": 1,
        "plain": 5,
        "plain_text": "5 5",
        "assisted": 6,
        "assisted_text": "6 0 1 2 3 4 5 6",
        "margin": 1e-6,
        "kind": "numerical tie",
    }
    assert (told[1]["plain_text"], told[1]["assisted_text"], told[1]["kind"]) == ("", "8", "fault")
    # without the calls the tokens are all there is
    assert (told[2]["plain_text"], told[2]["assisted_text"]) == ("1", "2")


@pytest.mark.parametrize(
    ("compared", "said"),
    [
        ([None], "The one text drawn with plain generate's noise is its own, token for token; .* up to 95 %"),
        ([None] * 59, "All 59 texts drawn .* are its own, token for token; of texts like these, up to 4.95 %"),
        ([None, tie()], "1 of 2 texts drawn .* parts .* rounding decides: that shows no fault"),
        ([FAULT, tie(), None], "2 of 3 texts drawn .* part .* 1 of them .* does not explain it: a fault"),
    ],
)
def test_sentences_on_shared_noise(compared, said):
    import re

    assert re.match(said, conclude_shared_noise(summarise(compared)))


# --- laws


def sampled(make, likelihood, texts, repeats=2):
    """Calls on one prompt each, with its likelihoods by repeat."""
    return [
        make(batch=prompt, repeat=repeat, mode="sampled", texts=[texts[prompt][repeat]], likelihoods=[value])
        for prompt, values in enumerate(likelihood)
        for repeat, value in enumerate(values[:repeats])
    ]


SHORT = [[[1], [1, 2]], [[1, 2, 3], [1]], [[1], [1]]]
LIKELIHOODS = [[-1.0, -2.0], [-3.0, -5.0], [-2.0, -2.0]]
OTHERS = [[-1.0, -1.0], [-3.0, -4.0], [-2.5, -2.5]]


def test_likelihoods_are_means_over_repeats():
    """-1.5, -4 and -2 against -1, -3.5 and -2.5: -0.5, -0.5 and 0.5."""
    found = findings.tests(sampled(call, LIKELIHOODS, SHORT), sampled(plain, OTHERS, SHORT), (), ())
    told = {finding.subject: finding for finding in found.findings}
    assert told["likelihoods"] == likelihoods([-1.5, -4.0, -2.0], [-1.0, -3.5, -2.5])
    assert found.likelihood.mean == pytest.approx(-0.5 / 3)
    assert told["lengths"].p_value == 1.0
    assert found.not_tested == ["Next tokens were not tested: no prefix was judged against its exact law."]
    assert found.conclusion().startswith("Nothing speaks against equal laws")


def test_units_of_one_side_and_repeats_that_some_prompts_lack():
    ours, theirs = sampled(call, LIKELIHOODS, SHORT), sampled(plain, OTHERS, SHORT)
    found = findings.tests(ours[:-1], theirs, (), ())
    # the last prompt has one repeat, which is enough for its mean but not for the table of lengths
    assert found.likelihood.prompts == 3
    assert "lengths" in [finding.subject for finding in found.findings]
    apart = findings._lengths(findings.paired(ours[:-1], theirs))
    assert apart == ([[1, 2], [3, 1]], [[1, 2], [3, 1]])


@pytest.mark.parametrize("count", [0, 1])
def test_too_little_is_told_and_no_error(count):
    ours, theirs = sampled(call, LIKELIHOODS[:count], SHORT), sampled(plain, OTHERS[:count], SHORT)
    found = findings.tests(ours, theirs, (), ("Next tokens were not tested: why.",))
    assert found.findings == [] and found.likelihood is None
    assert [sentence.split(":")[0] for sentence in found.not_tested] == [
        "Next tokens were not tested",
        "Likelihoods were not tested",
        "Lengths were not tested",
    ]
    assert found.conclusion().startswith("Nothing is shown. Next tokens were not tested: why.")


def test_a_likelihood_that_is_none():
    ours = sampled(call, [[-math.inf, -2.0], *LIKELIHOODS[1:]], SHORT)
    found = findings.tests(ours, sampled(plain, OTHERS, SHORT), (), ())
    assert any("is not finite" in sentence for sentence in found.not_tested) and found.likelihood is None
    silent = [replace(one, likelihoods=None) for one in ours]
    assert findings.tests(silent, sampled(plain, OTHERS, SHORT), (), ()).likelihood is None


def test_what_was_judged_with_the_models_counts_along():
    alarm = Finding("next tokens", math.inf, 0.0, 0.05 / 3, math.inf, 0.9, "laws of {}")
    found = findings.tests(sampled(call, LIKELIHOODS, SHORT), sampled(plain, OTHERS, SHORT), [alarm], ())
    assert found.not_tested == [] and "The law is not plain generate's, going by next tokens" in found.conclusion()
    told = [findings.finding_told(finding) for finding in found.findings]
    assert [one["differs"] for one in told] == [True, False, False]
    assert all("difference" not in one for one in told)
