"""From Transformers' arguments to a drafter and a schedule.

Every setting is looked up as keyword argument, then in the `generation_config` of the call, then in the target's, then
in the assistant's, then a default. The objects that are asked are never changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from .drafters.assistant_model import AssistantModelDrafter
from .drafters.base import Drafter
from .drafters.other_tokenizer import OtherTokenizerDrafter
from .drafters.prompt_lookup import PromptLookupDrafter
from .drafters.warpers import own_settings
from .errors import InvalidArgument, UnsupportedArgument
from .models import admission, compat, inputs, wrappers
from .models.effort import reading_estimate, round_estimate
from .schedules import AdaptiveSchedule, ConstantSchedule, DraftSchedule, Experience, HeuristicSchedule, RoundCosts
from .vocabulary.admission import pair_of, shared_tokens


# without `num_assistant_tokens_schedule`, and without `num_assistant_tokens`
DEFAULT_SCHEDULE = "adaptive"
DEFAULT_NUM_ASSISTANT_TOKENS = 5
# the longest draft of a schedule that chooses, where none is said
DEFAULT_LIMIT = 16


@dataclass(frozen=True)
class Settings:
    """Where a call's settings are looked up, strongest first.

    Attributes:
        kwargs (`dict[str, Any]`): keyword arguments of the call.
        configs (`tuple[GenerationConfig, ...]`): generation configs in falling precedence.
    """

    kwargs: dict[str, Any]
    configs: tuple[GenerationConfig, ...]

    def get(self, name: str, default: Any = None) -> Any:
        """The strongest value that is not `None`."""
        values = [self.kwargs.get(name), *(getattr(config, name, None) for config in self.configs)]
        return next((value for value in values if value is not None), default)


def call_settings(
    model: PreTrainedModel, generation_config: GenerationConfig | None, kwargs: dict[str, Any]
) -> Settings:
    """The settings of a call, the assistant's own left out."""
    configs = (generation_config, model.generation_config)
    return Settings(kwargs, tuple(config for config in configs if config is not None))


def wants_assistance(settings: Settings, assistant_model: Any) -> bool:
    """Whether this library decodes the call. Early exit and MTP draft inside the target and stay with Transformers."""
    if settings.get("assistant_early_exit") is not None or settings.get("use_mtp"):
        return False
    return assistant_model is not None or settings.get("prompt_lookup_num_tokens") is not None


def resolve_drafter(
    model: PreTrainedModel,
    settings: Settings,
    assistant_model: PreTrainedModel | None,
    tokenizer: Any = None,
    assistant_tokenizer: Any = None,
    compiled: str | None = None,
) -> tuple[Drafter, DraftSchedule]:
    """Makes the drafter and the schedule a call asks for.

    Args:
        model (`PreTrainedModel`): the target.
        settings (`Settings`): from [`call_settings`].
        assistant_model (`PreTrainedModel`, *optional*): the assistant; prompt lookup without.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): the target's.
        assistant_tokenizer (`PreTrainedTokenizerBase`, *optional*): the assistant's.
        compiled (`str`, *optional*): whose forwards are compiled.

    Returns:
        the drafter and the schedule.

    Raises:
        ExactAssistError: arguments that contradict each other, make no sense or are not supported.
    """
    if settings.get("speculation_type") is not None:
        raise UnsupportedArgument(
            "`speculation_type` is not supported: leave it out to draft with `assistant_model` alone."
        )
    lookup = settings.get("prompt_lookup_num_tokens")
    if assistant_model is None:
        size = _at_least_one("max_matching_ngram_size", settings.get("max_matching_ngram_size", 2))
        lookup = _at_least_one("prompt_lookup_num_tokens", lookup)
        name = settings.get("num_assistant_tokens_schedule", "constant")
        return PromptLookupDrafter(lookup, size), _schedule(name, lookup, _known(model, None))
    if lookup is not None:
        raise InvalidArgument("Both `assistant_model` and `prompt_lookup_num_tokens` are set: choose one drafter.")
    own = wrappers.uncompiled(assistant_model)
    assistant_model = wrappers.unwrapped(own, "assistant")
    wrappers.require_same(own, "assistant")
    admission.require(assistant_model, "assistant")
    settings = Settings(settings.kwargs, (*settings.configs, own.generation_config))
    sizes = compat.head_size(model), compat.head_size(assistant_model)
    declared = compat.declared_tokens(model), compat.declared_tokens(assistant_model)
    shared = shared_tokens(*sizes, tokenizer, assistant_tokenizer, *declared)
    threshold = settings.get("assistant_confidence_threshold", 0.0)
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 <= threshold <= 1:
        raise InvalidArgument(f"`assistant_confidence_threshold` must lie between 0 and 1, got {threshold!r}.")
    number = settings.get("num_assistant_tokens")
    number = None if number is None else _at_least_one("num_assistant_tokens", number)
    # before `generate` turns images into features of the target's
    arguments = {name: settings.kwargs[name] for name in compat.forward_parameters(model) & settings.kwargs.keys()}
    name = settings.get("num_assistant_tokens_schedule", DEFAULT_SCHEDULE if number is None else "constant")
    schedule = _schedule(name, number, _known(model, assistant_model, compiled))
    warpers = own_settings(own.generation_config)
    if shared is None:
        pair = pair_of(*sizes, tokenizer, assistant_tokenizer)
        return OtherTokenizerDrafter(assistant_model, pair, warpers, float(threshold)), schedule
    drafter = AssistantModelDrafter(
        assistant_model,
        shared,
        warper_settings=warpers,
        confidence_threshold=float(threshold),
        shown=inputs.shown_to(assistant_model, arguments),
        copies=settings.get("num_return_sequences", 1),
    )
    return drafter, schedule


@dataclass(frozen=True)
class _Known:
    """What calls of a pair have found out, and for which dtypes and devices."""

    state: Any
    costs: RoundCosts
    experience: Experience


# by target, drafting model and who is compiled
_KNOWN: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, dict[str | None, _Known]]] = (
    weakref.WeakKeyDictionary()
)


def _known(target: PreTrainedModel, assistant: PreTrainedModel | None, compiled: str | None = None) -> _Known:
    drafting = PromptLookupDrafter if assistant is None else assistant
    known = _KNOWN.setdefault(target, weakref.WeakKeyDictionary()).setdefault(drafting, {})
    state = [(model.dtype, model.device) for model in (target, assistant) if model is not None]
    if compiled not in known or known[compiled].state != state:
        costs = RoundCosts(round_estimate(target, assistant), reading_estimate(assistant))
        known[compiled] = _Known(state, costs, Experience())
    return known[compiled]


def _schedule(name: str, number: int | None, known: _Known) -> DraftSchedule:
    fixed = DEFAULT_NUM_ASSISTANT_TOKENS if number is None else number
    kinds: dict[str, Callable[[], DraftSchedule]] = {
        "adaptive": lambda: AdaptiveSchedule(known.costs, number or DEFAULT_LIMIT, known.experience),
        "constant": lambda: ConstantSchedule(fixed),
        "heuristic": lambda: HeuristicSchedule(fixed),
        "heuristic_transient": lambda: HeuristicSchedule(fixed),
    }
    if not isinstance(name, str) or name not in kinds:
        raise InvalidArgument(f"`num_assistant_tokens_schedule` must be one of {', '.join(kinds)}, got {name!r}.")
    schedule = kinds[name]()
    schedule.costs = known.costs
    return schedule


def _at_least_one(name: str, value: Any) -> int:
    # Transformers' own heuristic leaves floats such as 7.0 in generation configs
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not float(value).is_integer() or value < 1:
        raise InvalidArgument(f"`{name}` must be a whole number of at least 1, got {value!r}.")
    return int(value)
