"""What the options of `exactassist evaluate` mean together, and which contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import UsageError


if TYPE_CHECKING:
    from ..evaluation.data import PromptSet
    from ..evaluation.plan import Plan


# as in `evaluation`, which is imported late
GREEDY, SAMPLED = MODES = ("greedy", "sampled")
MAXIMAL, SHARED_NOISE = COUPLINGS = ("maximal", "shared_noise")
LAYOUTS = ("replay", "retained")
KINDS = ("prose", "code", "lists", "dialogue", "translation", "copying")
_TAKEN = ("plain", "prompt lookup")


@dataclass(frozen=True)
class Drafters:
    """Who takes part; see the options of the same names."""

    target: str | None
    assistants: tuple[str, ...]
    prompt_lookup: int | None

    def check(self) -> None:
        """Raises `UsageError` for models that make no sense together."""
        if self.target is None and self.assistants:
            raise UsageError("An --assistant needs a --target; without both, the embedded pair is evaluated.")
        if self.target is not None and not self.assistants and self.prompt_lookup is None:
            raise UsageError("Who drafts for this --target? Add --assistant MODEL, or --prompt-lookup N.")

    def names(self) -> dict[str, str | None]:
        """Assistants by short names; the embedded one has no path."""
        if self.target is None:
            return {"embedded": None}
        short = {path: Path(path).name for path in self.assistants}
        twice = {name for name in short.values() if [*short.values()].count(name) > 1 or name in _TAKEN or not name}
        return {path if name in twice else name: path for path, name in short.items()}


@dataclass(frozen=True)
class Data:
    """What is continued; see the options of the same names."""

    dataset: str | None
    config: str | None
    split: str | None
    column: str | None
    template: str | None
    chat: bool
    kind_column: str | None
    reference_column: str | None
    limit: int | None
    shuffle_seed: int | None
    kinds: tuple[str, ...]
    prompts_per_kind: int | None

    def check(self, metrics: Sequence[str]) -> None:
        """Raises `UsageError` for options that contradict each other."""
        check_names("--kind", self.kinds, KINDS)
        of_a_dataset = ("config", "split", "column", "template", "kind_column", "reference_column", "limit")
        given = [name for name in (*of_a_dataset, "shuffle_seed") if getattr(self, name) is not None]
        if self.dataset is None and given:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{named} has a meaning for a --dataset only: give one, or leave it out.")
        if self.dataset is not None and (self.kinds or self.prompts_per_kind is not None):
            raise UsageError("--dataset and the prompts that ship (--kind, --prompts-per-kind): choose one.")
        if self.column is not None and self.template is not None:
            raise UsageError("--column and --template both say what the prompts are: choose one.")
        if metrics and self.reference_column is None and not (self.dataset is not None and self.chat):
            raise UsageError("--metric compares with references: name a --dataset and its --reference-column.")

    def prompts(self, tokenizer: Any) -> PromptSet:
        """Reads the prompts."""
        from ..evaluation.data import Selection, dataset_prompts, shipped_prompts

        writer = tokenizer if self.chat else None
        if self.dataset is None:
            return shipped_prompts(self.kinds or KINDS, self.prompts_per_kind, writer)
        taken = {item.name: getattr(self, item.name) for item in fields(Selection)}
        return dataset_prompts(Selection(**taken), writer)


@dataclass(frozen=True)
class Sampling:
    """How texts are drawn; see the options of the same names."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None

    @property
    def of_sampled_calls(self) -> dict[str, Any]:
        """Settings that are given, but the one that greedy decoding heeds."""
        found = {item.name: getattr(self, item.name) for item in fields(self)[:-1]}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def of_all_calls(self) -> dict[str, Any]:
        """The one that greedy decoding heeds, if it is given."""
        return {} if self.repetition_penalty is None else {"repetition_penalty": self.repetition_penalty}


@dataclass(frozen=True)
class Decoding:
    """How prompts are continued; see the options of the same names."""

    modes: tuple[str, ...]
    numbers: tuple[int, ...] | None
    default: bool
    couplings: tuple[str, ...]
    layouts: tuple[str, ...]
    sampling: Sampling

    def check(self, drafters: Drafters) -> None:
        """Raises `UsageError` for options that contradict each other or make no sense."""
        check_names("--mode", self.modes, MODES)
        check_names("--coupling", self.couplings, COUPLINGS)
        check_names("--layout", self.layouts, LAYOUTS)
        if SAMPLED not in self.modes:
            given = [f"--{name.replace('_', '-')}" for name in self.sampling.of_sampled_calls]
            given += ["--coupling"] if self.couplings else []
            if given:
                raise UsageError(f"{', '.join(given)} has a meaning for sampling only: add --mode sampled.")
        elif GREEDY in self.modes and self.couplings == (SHARED_NOISE,):
            raise UsageError(
                "--coupling shared_noise is for sampling alone: add --coupling maximal for the greedy mode, or "
                "leave that out with --mode sampled."
            )
        for name in ("temperature", "repetition_penalty"):
            value = getattr(self.sampling, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"--{name.replace('_', '-')} must be a number above 0, got {value}.")
        if not drafters.names() and (self.numbers is not None or not self.default):
            raise UsageError("-k and --no-default are for an --assistant: --prompt-lookup N drafts N tokens.")

    def plan(
        self,
        assistants: Sequence[str],
        prompt_lookup: int | None,
        numbers: Sequence[int],
        max_new_tokens: int,
        batch_size: int,
        repeats: int,
        seed: int,
    ) -> Plan:
        """What is decoded."""
        from ..evaluation.plan import PROMPT_LOOKUP, Arm, Plan

        lengths: list[int | None] = [*(self.numbers or numbers), *([None] if self.default else [])]
        drafting: list[tuple[str, int | None]] = [(name, length) for name in assistants for length in lengths]
        drafting += [] if prompt_lookup is None else [(PROMPT_LOOKUP, prompt_lookup)]
        arms = [
            Arm(name, length, coupling, layout)
            for coupling in self.couplings or COUPLINGS[:1]
            for layout in self.layouts or LAYOUTS[:1]
            for name, length in drafting
        ]
        return Plan(
            tuple(arms),
            self.modes,
            batch_size,
            repeats,
            max_new_tokens,
            self.sampling.of_sampled_calls,
            seed,
            self.sampling.of_all_calls,
        )


def check_names(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raises `UsageError` for a name that is not known."""
    for name in given:
        if name not in known:
            raise UsageError(f"Unknown {option} {name!r}: choose one of {', '.join(known)}.")


def require_packages() -> None:
    """Raises `UsageError` where what writes the results is not installed."""
    missing = [name for name in ("datasets", "matplotlib") if find_spec(name) is None]
    if missing:
        raise UsageError(f"Evaluation needs {' and '.join(missing)}: pip install 'hf-exactassist[eval]'.")
