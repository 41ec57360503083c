"""Which models are admitted, and how they are run. What is not is refused by name, before the first token."""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, GenerationMixin, PreTrainedModel, QuantizedCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ..errors import UnsupportedArchitecture
from . import compat, inputs, probes, wrappers
from .compiled import CompiledRows
from .hooks import hooks_of
from .lone_rows import LoneRows
from .runner import RowRunner


# ways to run a model, best first
ROWS, LONE, LONE_UNCACHED = "ragged rows", "row by row", "row by row, without a cache"
SERIAL, SERIAL_UNCACHED = "serial", "serial, without a cache"
# weak keys: a probe's answer holds for one model object in one setting and dies with the model
_PROBED: weakref.WeakKeyDictionary[PreTrainedModel, dict[tuple[Any, ...], tuple[str, str, bool]]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True)
class Admission:
    """How a model is run, or why it is not.

    Attributes:
        admitted (`bool`): whether the model can be run.
        reason (`str`): why not, or why not in ragged rows; empty if it is run in the best way.
        attention (`str`): attention path.
        strategy (`str`): `"ragged rows"` of one batch over one cache; `"row by row"`, each over a cache of its own, or
            `"row by row, without a cache"`; `"serial"`, token by token, where drafts cannot help, or `"serial, without
            a cache"`.
        rows_mix (`bool`): whether a row's scores depend on the other rows of a batch; looked at where drafts cannot
            help.
    """

    admitted: bool
    reason: str
    attention: str
    strategy: str = ROWS
    rows_mix: bool = False


def needs_rows_alone(cache: Any) -> bool:
    """Whether what a cache does with one row depends on the others: quantizing takes all of a batch together."""
    return isinstance(cache, QuantizedCache)


def admit(model: PreTrainedModel, alone: bool = False) -> Admission:
    """Checks a model by its surface and by a short probe on itself; the answer is remembered with the model.

    The probe compares, on a few tokens, ragged block scoring over a row-addressed cache with independent full
    forwards. It runs in the model's own dtype and attention path and leaves random generators and the model as they
    were.

    Args:
        model (`PreTrainedModel`): target or assistant.
        alone (`bool`): whether every row must run over a cache of its own.

    Returns:
        `Admission`: the outcome.
    """
    attention = getattr(compat.text_config(model), "_attn_implementation", None) or "eager"
    strategy, reason, rows_mix = "", _refusal(model), False
    if not reason:
        known = _PROBED.setdefault(model, {})
        patched = compat.prepares_inputs_itself(model)
        # quantization and adapters put other layers into a model, which stays the same object
        modules = compat.all_modules(model)
        layers = tuple(map(type, modules))
        setting = (alone, attention, model.dtype, model.training, patched, hooks_of(model, modules), layers)
        if setting in known:
            strategy, reason, rows_mix = known[setting]
        else:
            with probes.quiet(), inputs.undisturbed(model):
                strategy, reason = _choose(model, attention, alone)
                if strategy in (SERIAL, SERIAL_UNCACHED):
                    rows_mix = compat.takes_outliers_apart(model) or probes.rows_mix(model)
            # a model that failed may be mended, so only success is remembered
            if strategy:
                known[setting] = strategy, reason, rows_mix
    return Admission(bool(strategy), reason, attention, strategy, rows_mix)


def cache_layers(model: PreTrainedModel, admitted: Admission) -> dict[str, int]:
    """Number of cache layers per kind; none are told of a model that is not run in ragged rows."""
    layers: dict[str, int] = {}
    for window in compat.layer_windows(model) if admitted.strategy == ROWS else ():
        kind = "full attention" if window is None else f"sliding attention ({window})"
        layers[kind] = layers.get(kind, 0) + 1
    return layers


def _choose(model: PreTrainedModel, attention: str, alone: bool) -> tuple[str, str]:
    """The best way to run a model, and why none better; no way and why not."""
    reason = "its cache is one of single rows." if alone else _surface(model, attention)
    reason = reason or probes.asked(probes.probe_ragged, model)
    if not reason:
        return ROWS, ""
    if getattr(model, "_is_stateful", False) and probes.keeps_state_in_modules(model):
        return "", (
            f"{reason} It keeps its state in its modules, where one call finds what another has left. Drop the "
            "assistant for this call."
        )
    failures: list[str] = []
    ways = [
        (LONE, probes.ROUNDS),
        (SERIAL, probes.STEPS),
        (LONE_UNCACHED, probes.ROUNDS),
        (SERIAL_UNCACHED, probes.STEPS),
    ]
    if compat.prepares_inputs_itself(model) or compat.takes_outliers_apart(model):
        # what it does at each step may depend on more than a probe sees
        ways = [way for way in ways if way[1] is probes.STEPS]
    for strategy, rounds in ways:
        probe = functools.partial(probes.probe_lone, cached=strategy in (LONE, SERIAL), rounds=rounds)
        failure = probes.asked(probe, model)
        if not failure:
            more = f" Rows alone cannot be scored in blocks: {failures[0]}" if failures else ""
            return strategy, reason + more
        failures.append(failure)
    return "", f"{reason} Nor can rows be run alone: {failures[0]} Drop the assistant for this call."


def runner_for(
    model: PreTrainedModel,
    position_limit: int | None = None,
    alone: bool = False,
    keeps_all: bool = False,
    compiled: bool = False,
) -> RowRunner | LoneRows:
    """What runs an admitted model.

    Args:
        model (`PreTrainedModel`): the model.
        position_limit (`int`, *optional*): see [`RowRunner`].
        alone (`bool`): whether every row must run over a cache of its own.
        keeps_all (`bool`): see [`RowRunner`].
        compiled (`bool`): whether blocks run compiled; for models that [`compiling.require`] has let pass.

    Returns:
        `RowRunner` or `LoneRows`: by the model's strategy.
    """
    strategy = admit(model, alone).strategy
    if compiled:
        return CompiledRows(model, position_limit)
    if strategy == ROWS:
        return RowRunner(model, position_limit, keeps_all)
    return LoneRows(model, strategy in (LONE, SERIAL), position_limit)


def reads_in_chunks(model: PreTrainedModel) -> bool:
    """Whether an admitted model's prompt may come in several blocks, each of which goes on from the one before.

    Transformers does so over a cache alone. A decoder that attends to an encoder has short prompts anyway.
    """
    over_cache = compat.CACHE_ARGUMENT in compat.forward_parameters(model) and compat.new_cache(model) is not None
    return over_cache and not compat.reads_encoder(model) and admit(model).strategy in (ROWS, LONE)


def require(model: PreTrainedModel, role: str) -> None:
    """Refuses a model that is not admitted.

    Args:
        model (`PreTrainedModel`): the model.
        role (`str`): `"target"` or `"assistant"`, for the message.

    Raises:
        UnsupportedArchitecture: the model can be run in no way; the message says why.
    """
    admission = admit(model)
    if not admission.admitted:
        raise UnsupportedArchitecture(f"The {role} {type(model).__name__} is not supported: {admission.reason}")


def _drops_out(model: PreTrainedModel) -> bool:
    """Whether training mode makes forwards random."""
    if not model.training:
        return False
    rates = [value for name, value in compat.text_config(model).to_dict().items() if "drop" in name]
    rates += [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _refusal(model: PreTrainedModel) -> str:
    """Why a model is not run at all; empty if it may be."""
    if _drops_out(model):
        return "it is in training mode, where dropout makes every forward different: call `model.eval()`."
    if wrappers.is_peft(getattr(model.prepare_inputs_for_generation, "__self__", None)):
        return "PEFT puts learned states before each prompt, outside the model. Drop the assistant for this call."
    if type(model).generate is not GenerationMixin.generate and not compat.has_whisper_generate(model):
        return (
            "its class has a `generate` of its own that prepares more than tokens. Drop the assistant for this call."
        )
    return ""


def _surface(model: PreTrainedModel, attention: str) -> str:
    """Why the model's class or configuration rules out ragged rows; empty if it does not."""
    if compat.prepares_inputs_itself(model):
        return "its class prepares the inputs of each step in its own way, which blocks of drafts could bypass."
    if compat.reads_encoder(model):
        return "its decoder attends to an encoder."
    if compat.takes_outliers_apart(model):
        return (
            "its 8-bit layers compute a column otherwise where any token of the forward has an outlier in it; loaded "
            "with `llm_int8_threshold=0.0` it can score drafts in blocks."
        )
    if getattr(model, "_is_stateful", False):
        return "its recurrent state cannot be rolled back row by row in one batch."
    if attention not in ("sdpa", "eager"):
        return f"the attention path {attention!r} does not take ready 4-D masks."
    if not {"position_ids", compat.CACHE_ARGUMENT} <= compat.forward_parameters(model):
        return "its forward takes no explicit `position_ids` or no cache, so rows cannot stand at different positions."
    layers = DynamicCache(config=compat.text_config(model)).layers
    foreign = {
        type(layer).__name__ for layer in layers if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer)
    }
    kinds = set(getattr(compat.text_config(model), "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
    }
    if getattr(compat.text_config(model), "attention_chunk_size", None) is not None:
        kinds.add("chunked_attention")
    if "local" in (getattr(compat.text_config(model), "attention_layers", None) or ()):
        # GPT-Neo; a probe would have to be longer than the window to notice
        kinds.add("local_attention")
    if foreign or kinds:
        names = ", ".join(sorted(foreign | kinds))
        return f"its layers of kind {names} cannot be rolled back row by row in one batch."
    if any(window is not None and window < 2 for window in compat.layer_windows(model)):
        return "a sliding window of less than two tokens leaves nothing to cache."
    return ""
