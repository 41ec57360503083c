"""A task's own metric, prompt by prompt, through the `evaluate` library."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument, UnusableData
from .bootstrap import FEWEST, mean_difference
from .conclusion import conclude_metric
from .data import PromptSet
from .records import Call
from .speed import paired


_NOT_COMPARED = " was not compared: "
_LONGEST_SHOWN = 40


@dataclass(frozen=True)
class Metric:
    """A number for one text and what it should have been.

    Attributes:
        name (`str`): what reports call it.
        measure (`Callable[[str, str], float]`): of a text and its reference.
    """

    name: str
    measure: Callable[[str, str], float]

    def __call__(self, text: str, reference: str) -> float:
        """The number.

        Raises:
            UnusableData: the metric fails, or gives no finite number.
        """
        try:
            value = self.measure(text, reference)
        except Exception as error:
            raise UnusableData(f"The metric {self.name} cannot be computed ({_reason(error)}).") from error
        if not math.isfinite(value):
            raise UnusableData(f"The metric {self.name} is {value}.")
        return value


def load_metric(name: str) -> Metric:
    """A metric of the `evaluate` library, computed for one text at a time.

    Args:
        name (`str`): a Hub id, or the path of a metric's folder or script; `"name:key"` takes the number of that key
            where there are several, otherwise the first is taken.

    Raises:
        InvalidArgument: `evaluate` is not installed; the metric has no such key, or cannot be computed for one text
            and one reference.
        UnusableData: it is not there, or cannot be loaded.
    """
    try:
        import evaluate
    except ImportError as error:
        raise InvalidArgument("Metrics need a package: pip install 'hf-exactassist[eval]'.") from error
    source, key = _parted(name)
    try:
        module = evaluate.load(source)
    except ImportError as error:
        raise InvalidArgument(f"The metric {source} needs another package: {_reason(error)}") from error
    except Exception as error:
        raise UnusableData(
            f"The metric {source!r} cannot be loaded ({_reason(error)}): give the path of its folder, or the id of "
            "one on the Hub and go online (HF_HUB_OFFLINE must not be set)."
        ) from error

    def measure(text: str, reference: str) -> float:
        return _number(module.compute(predictions=[text], references=[reference]), key, name)

    try:
        usable = math.isfinite(measure("One text.", "One text."))
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(_refusal(name, _reason(error))) from error
    if not usable:
        raise InvalidArgument(_refusal(name, "it is no finite number"))
    return Metric(name if not Path(source).exists() else name.replace(source, Path(source).stem, 1), measure)


def metric_told(
    metric: Metric,
    assisted: Sequence[Call],
    plain: Sequence[Call],
    prompts: PromptSet,
    decode: Callable[[list[int]], str],
) -> dict[str, Any] | str:
    """A metric of one way of decoding beside plain decoding, paired by prompt.

    Args:
        metric (`Metric`): what is measured.
        assisted (`Sequence[Call]`): calls with the texts. Repeats of a prompt are averaged.
        plain (`Sequence[Call]`): those of plain decoding. Units that only one of them has are left out.
        prompts (`PromptSet`): with references; prompts without one are left out.
        decode (`Callable[[list[int]], str]`): text of tokens.

    Returns:
        `dict[str, Any]` of `name`, `plain`, `assisted`, the difference's `mean`, `low`, `high` and `level`, `prompts`
        and `sentence`; a sentence alone where fewer than five prompts can be compared, or some text has no number.
        That is found out when all is decoded, which must not be in vain.
    """
    sides: tuple[dict[int, list[float]], dict[int, list[float]]] = {}, {}
    for pair in paired(assisted, plain):
        for side, found, call in zip(("assisted", "plain"), sides, pair, strict=True):
            for place, tokens in zip(call.prompts, call.texts, strict=True):
                prompt, text = prompts.prompts[place], decode(tokens)
                if prompt.reference is None:
                    continue
                try:
                    found.setdefault(place, []).append(metric(text, prompt.reference))
                except UnusableData as error:
                    return (
                        f"{metric.name}{_NOT_COMPARED}row {prompt.index} (counted from 0) has the {side} text "
                        f"{_begun(text)} and the reference {_begun(prompt.reference)}. {error} The same command "
                        "with a metric that has a number for every text decodes nothing again."
                    )
    if len(sides[0]) < FEWEST:
        return f"{metric.name}{_NOT_COMPARED}{FEWEST} prompts with a reference are needed, got {len(sides[0])}."
    ours, theirs = ([sum(values) / len(values) for values in found.values()] for found in sides)
    difference = mean_difference(ours, theirs)
    told = asdict(difference)
    del told["equal"]
    return {
        "name": metric.name,
        "plain": sum(theirs) / len(theirs),
        "assisted": sum(ours) / len(ours),
        **told,
        "sentence": conclude_metric(metric.name, difference),
    }


def not_compared(report: Mapping[str, Any]) -> list[str]:
    """What a report says of metrics that were not compared, each sentence once."""
    ways = [way for mode in report["modes"] for way in mode["arms"]]
    sentences = [one for way in ways if way["quality"] is not None for one in way["quality"]["not_tested"]]
    return list(dict.fromkeys(one for one in sentences if _NOT_COMPARED in one))


def _begun(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "...")


def _parted(name: str) -> tuple[str, str | None]:
    source, colon, key = name.rpartition(":")
    if not colon or not source or Path(os.path.expanduser(name)).exists() or "/" in key or os.sep in key:
        return name, None
    return source, key


def _number(result: Mapping[str, Any] | None, key: str | None, name: str) -> float:
    numbers = {
        other: float(value)
        for other, value in (result or {}).items()
        if isinstance(value, Real) or getattr(value, "shape", None) == ()
    }
    if key is not None and key not in numbers:
        raise InvalidArgument(f"The metric {name} has no number of that key: it has {', '.join(numbers) or 'none'}.")
    if not numbers:
        raise InvalidArgument(_refusal(name, "its result holds no number"))
    return numbers[key] if key is not None else next(iter(numbers.values()))


def _refusal(name: str, reason: str) -> str:
    return (
        f"The metric {name} cannot be computed for one text and its reference ({reason}), which comparing prompt by "
        "prompt needs: choose another, such as one that compares two texts."
    )


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
