"""What the records say of quality: texts compared, laws tested, and what there was too little of to test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .bootstrap import MeanDifference
from .conclusion import conclude_greedy, conclude_sampled, conclude_shared_noise
from .greedy import Divergence, GreedySummary, summarise
from .plan import GREEDY
from .records import Call, Comparison
from .sampled import ALPHA, Finding, LikelihoodFinding, lengths, likelihoods
from .speed import paired


# tokens of each text that are shown where two part
_SHOWN = 8


@dataclass
class Tested:
    """Tests of equal laws.

    Attributes:
        findings (`list[Finding]`): of those that could be made.
        not_tested (`list[str]`): of each that could not, why.
        likelihood (`MeanDifference`, *optional*): nats per token, assisted less plain.
    """

    findings: list[Finding] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)
    likelihood: MeanDifference | None = None

    def conclusion(self) -> str:
        """What the tests have shown together."""
        return conclude_sampled(self.findings) if self.findings else f"Nothing is shown. {' '.join(self.not_tested)}"


@dataclass(frozen=True)
class Parting:
    """Where a text parts from plain decoding's.

    Attributes:
        comparison (`Comparison`): the record.
        row (`int`): the text's row in it.
        divergence (`Divergence`): the place.
    """

    comparison: Comparison
    row: int
    divergence: Divergence


def texts_compared(comparisons: Sequence[Comparison], arm: str, mode: str) -> list[Parting | None]:
    """Texts of one way of decoding beside plain ones.

    Args:
        comparisons (`Sequence[Comparison]`): of one mode, in the order of the plan.
        arm (`str`): name of the way of decoding.
        mode (`str`): greedy texts of one prompt are the same in each repeat and count once, as parted if one is.

    Returns:
        `list[Parting | None]`: one for each text; `None` where it is plain decoding's.
    """
    found: dict[tuple[int, int], Parting | None] = {}
    for comparison in comparisons:
        for row, told in enumerate(comparison.divergences.get(arm, ())):
            key = comparison.prompts[row], 0 if mode == GREEDY else comparison.step.unit.repeat
            parting = None if told is None else Parting(comparison, row, Divergence(**told))
            found[key] = found.get(key) or parting
    return list(found.values())


def conclude_texts(compared: Sequence[Parting | None], mode: str) -> tuple[GreedySummary | None, str]:
    """What comparing texts has shown; `None` and why, if nothing was compared."""
    if not compared:
        return None, "Nothing is shown: no texts were compared."
    summary = summarise([None if one is None else one.divergence for one in compared])
    return summary, conclude_greedy(summary) if mode == GREEDY else conclude_shared_noise(summary)


def partings_told(
    compared: Sequence[Parting | None],
    assisted: Sequence[Call],
    plain: Sequence[Call],
    decode: Callable[[list[int]], str],
) -> list[dict[str, Any]]:
    """Where texts part, with what each goes on with.

    Args:
        compared (`Sequence[Parting | None]`): from [`texts_compared`].
        assisted (`Sequence[Call]`): calls with the texts.
        plain (`Sequence[Call]`): those of plain decoding.
        decode (`Callable[[list[int]], str]`): text of tokens.
    """
    told = []
    for parting in compared:
        if parting is None:
            continue
        place, unit = parting.divergence, parting.comparison.step.unit
        shown: dict[str, Any] = {}
        for name, calls, token in (("plain", plain, place.plain), ("assisted", assisted, place.assisted)):
            texts = [call.texts[parting.row] for call in calls if call.step.unit == unit]
            rest = texts[0][place.position : place.position + _SHOWN] if texts else [token]
            shown |= {name: token, f"{name}_text": decode([one for one in rest if one is not None])}
        told.append(
            {
                "prompt": parting.comparison.prompts[parting.row],
                "position": place.position,
                **shown,
                "margin": place.margin,
                "kind": place.kind,
            }
        )
    return told


def tests(
    assisted: Sequence[Call],
    plain: Sequence[Call],
    judged: Sequence[Finding],
    untested: Sequence[str],
    alpha: float = ALPHA,
) -> Tested:
    """Tests of equal laws of sampled texts.

    Args:
        assisted (`Sequence[Call]`): calls with texts of one way of decoding, with noise of its own.
        plain (`Sequence[Call]`): those of plain decoding. Units that only one of them has are left out.
        judged (`Sequence[Finding]`): outcomes of tests that needed the models.
        untested (`Sequence[str]`): why some of these are missing.
        alpha (`float`): level of each test.

    Returns:
        `Tested`: likelihoods, lengths, and what was judged.
    """
    found = Tested([*judged], [*untested])
    pairs = paired(assisted, plain)
    if not judged and not untested:
        found.not_tested.append("Next tokens were not tested: no prefix was judged against its exact law.")
    try:
        likelihood = likelihoods(*_mean_likelihoods(pairs), alpha)
        found.likelihood = likelihood.difference
        found.findings.append(likelihood)
    except ValueError as error:
        found.not_tested.append(f"Likelihoods were not tested: {_reason(error)}")
    try:
        ours, theirs = _lengths(pairs)
        if len(ours) < 2:
            raise ValueError(f"Two prompts or more are needed: got {len(ours)}.")
        found.findings.append(lengths(ours, theirs, alpha))
    except ValueError as error:
        found.not_tested.append(f"Lengths were not tested: {_reason(error)}")
    return found


def finding_told(finding: Finding) -> dict[str, Any]:
    """A finding as a dictionary, with the interval of likelihoods left to its own place."""
    told = asdict(finding) | {"differs": finding.differs}
    if isinstance(finding, LikelihoodFinding):
        del told["difference"]
    return told


def _mean_likelihoods(pairs: Sequence[tuple[Call, Call]]) -> tuple[list[float], list[float]]:
    """Of each prompt, the mean over repeats, assisted and plain."""
    sides: tuple[dict[int, list[float]], dict[int, list[float]]] = {}, {}
    for pair in pairs:
        told = [call.likelihoods for call in pair]
        if None in told:
            continue
        for found, values, call in zip(sides, told, pair, strict=True):
            for prompt, value in zip(call.prompts, values or (), strict=True):
                found.setdefault(prompt, []).append(value)
    ours, theirs = ([sum(values) / len(values) for values in found.values()] for found in sides)
    return ours, theirs


def _lengths(pairs: Sequence[tuple[Call, Call]]) -> tuple[list[list[int]], list[list[int]]]:
    """Of each prompt with as many repeats as any has, tokens of its texts, assisted and plain."""
    sides: tuple[dict[int, list[int]], dict[int, list[int]]] = {}, {}
    for pair in pairs:
        for found, call in zip(sides, pair, strict=True):
            for prompt, text in zip(call.prompts, call.texts, strict=True):
                found.setdefault(prompt, []).append(len(text))
    most = max(map(len, sides[0].values()), default=0)
    ours, theirs = ([counts for counts in found.values() if len(counts) == most] for found in sides)
    return ours, theirs


def _reason(error: ValueError) -> str:
    said = str(error)
    return said[0].lower() + said[1:]
