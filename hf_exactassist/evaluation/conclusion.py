"""What may be concluded, in one sentence, and what not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .bootstrap import MeanDifference
from .greedy import GreedySummary
from .power import unseen_share
from .sampled import Finding


_CONFIDENCE = 0.95
# what laws are compared by
_TESTED = ("likelihoods", "next tokens", "lengths")
PROOF = "the enumeration of the decoding loop in tests/exactness/test_law.py"


def conclude_greedy(summary: GreedySummary) -> str:
    """What greedy texts have shown."""
    parted, texts = len(summary.divergences), _plural(summary.texts, "greedy text")
    if summary.faults:
        return (
            f"{len(summary.faults)} of {texts} {_be(len(summary.faults))} not plain generate's, and rounding does not "
            "explain where they part: this is a fault."
        )
    if parted:
        return (
            f"{parted} of {texts} {_part(parted)} from plain generate's, {'all ' if parted > 1 else ''}at numerical "
            "ties, where rounding decides between tokens: that shows no fault, but a fault at such a place would look "
            "the same, and what follows it is not compared."
        )
    every = f"All {texts} are" if summary.texts > 1 else "The one greedy text is"
    return (
        f"{every} plain generate's, token for token; of prompts like these, up to "
        f"{_percent(unseen_share(summary.texts, _CONFIDENCE))} could still differ without one having done so here "
        f"({_percent(_CONFIDENCE)} confidence)."
    )


def conclude_shared_noise(summary: GreedySummary) -> str:
    """What texts drawn with plain decoding's own noise have shown."""
    parted, texts = len(summary.divergences), _plural(summary.texts, "text")
    if parted:
        faults = len(summary.faults)
        why = (
            "where scores and noise together leave two tokens nearly equal, so that rounding decides: that shows no "
            "fault, but what follows such a place is not compared."
        )
        if faults:
            why = (
                f"{faults} of them where rounding of scores does not explain it: a fault, unless probabilities of low "
                "precision were rounded further."
            )
        return f"{parted} of {texts} drawn with plain generate's noise {_part(parted)} from its own, {why}"
    every = f"All {texts}" if summary.texts > 1 else "The one text"
    return (
        f"{every} drawn with plain generate's noise {'are' if summary.texts > 1 else 'is'} its own, token for token; "
        f"of texts like these, up to {_percent(unseen_share(summary.texts, _CONFIDENCE))} could still differ without "
        f"one having done so here ({_percent(_CONFIDENCE)} confidence)."
    )


def conclude_sampled(findings: Sequence[Finding]) -> str:
    """What tests of equal laws have shown together.

    Args:
        findings (`Sequence[Finding]`): of different tests, at least one. The chance of a false alarm is at most the
            sum of their levels.

    Raises:
        ValueError: there are none.
    """
    if not findings:
        raise ValueError("Nothing was tested.")
    false_alarms = math.fsum(finding.alpha for finding in findings)
    differing = [finding for finding in findings if finding.differs]
    if differing:
        found = " and ".join(f"{finding.subject} (p = {finding.p_value:.2g})" for finding in differing)
        return (
            f"The law is not plain generate's, going by {found}; of evaluations with equal laws at most "
            f"{_percent(false_alarms)} say so by chance."
        )
    sentence = f"Nothing speaks against equal laws (smallest p = {min(finding.p_value for finding in findings):.2g})"
    seen = [finding for finding in findings if finding.smallest < math.inf]
    if seen:
        kinds = ", or ".join(finding.alternative.format(_rounded_up(finding.smallest)) for finding in seen)
        sentence += f"; {kinds} would have been found with probability {min(finding.power for finding in seen):g}"
    if len(seen) < len(findings):
        blind = " and ".join(finding.subject for finding in findings if finding not in seen)
        sentence += f"; nothing tried could have been found in {blind}"
    left_out = [subject for subject in _TESTED if subject not in {finding.subject for finding in findings}]
    if left_out:
        sentence += f"; {' and '.join(left_out)} were not compared"
    return f"{sentence}. This is no proof, and other differences may be missed: the proof is {PROOF}."


def conclude_metric(name: str, difference: MeanDifference) -> str:
    """What a task's own metric has shown.

    Args:
        name (`str`): of the metric, as the sentence should begin.
        difference (`MeanDifference`): as from [`~hf_exactassist.evaluation.mean_difference`].
    """
    level = _percent(difference.level)
    interval = f"{difference.low:+.2g} to {difference.high:+.2g}"
    if difference.equal == difference.prompts:
        return (
            f"{name} is the same for all {difference.prompts} prompts; of prompts like these, up to "
            f"{_percent(unseen_share(difference.prompts, difference.level))} could still differ ({level} confidence)."
        )
    if difference.low <= 0 <= difference.high:
        return (
            f"{name} shows no difference: {difference.mean:+.2g} on average over {difference.prompts} prompts "
            f"({level} interval {interval}); differences within the interval are not excluded."
        )
    return (
        f"{name} differs: {difference.mean:+.2g} on average over {difference.prompts} prompts ({level} interval "
        f"{interval}); of comparisons without a true difference about {_percent(1 - difference.level)} look like this."
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def _part(count: int) -> str:
    return "parts" if count == 1 else "part"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _rounded_up(value: float) -> str:
    """Three digits that promise no more than the value does."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.ceil(value / unit - 1e-9) * unit:.3g}"
