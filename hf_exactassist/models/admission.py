"""Which models and calls are admitted. What is not is refused by name, before the first token."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
    QuantizedCache,
    StaticCache,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer
from transformers.generation import GenerationMode

from ..errors import UnsupportedArchitecture, UnsupportedArgument, UnsupportedCache, UnsupportedDecodingMode
from . import compat, inputs, probes, wrappers
from .encoder import EncoderInputs
from .lone_rows import LoneRows
from .runner import RowRunner


# layers whose states rows of different length can take over
_KINDS = {
    DynamicCache: {DynamicLayer, DynamicSlidingWindowLayer},
    StaticCache: {StaticLayer, StaticSlidingWindowLayer},
}
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
        layers (`dict[str, int]`): number of cache layers per kind.
        strategy (`str`): `"ragged rows"` of one batch over one cache; `"row by row"`, each over a cache of its own, or
            `"row by row, without a cache"`; `"serial"`, token by token, where drafts cannot help, or `"serial, without
            a cache"`.
        rows_mix (`bool`): whether a row's scores depend on the other rows of a batch; looked at where drafts cannot
            help.
    """

    admitted: bool
    reason: str
    attention: str
    layers: dict[str, int]
    strategy: str = ROWS
    rows_mix: bool = False


def check_decoding_mode(generation_config: GenerationConfig) -> None:
    """Refuses modes that are not one sampled or greedy sequence per row.

    Raises:
        UnsupportedDecodingMode: beams, contrastive search, DoLa, constraints or an ensemble weight.
    """
    if generation_config.assistant_ensemble_weight is not None:
        raise UnsupportedDecodingMode(
            "`assistant_ensemble_weight` trades the target's law for speed, which is never done here: leave it out."
        )
    mode = generation_config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise UnsupportedDecodingMode(
            f"Assistance is defined for greedy decoding and sampling, and this call asks for {mode.value}: set "
            "`num_beams=1` and leave out `penalty_alpha`, `dola_layers` and constraints, or drop `assistant_model` "
            "and `prompt_lookup_num_tokens`."
        )


def check_model_arguments(model: PreTrainedModel, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> None:
    """Refuses forward arguments whose continuation over drafts is not defined here.

    Raises:
        UnsupportedArgument: an argument other than masks, positions, token types, embeddings, output flags and what is
            read with the prompt alone.
        UnsupportedCache: a cache whose states cannot be taken over.
    """
    foreign = inputs.shown(model, model_kwargs).keys()
    lasting = sorted(foreign & inputs.goes_on(model, input_ids, model_kwargs)) if foreign else []
    if lasting:
        raise UnsupportedArgument(
            f"Assisted decoding does not know how to continue the model argument(s) {', '.join(lasting)} over drafted "
            "tokens: leave them out, or drop the assistant for this call."
        )
    if foreign and compat.keeps_images_in_cache(model):
        raise UnsupportedArgument(
            f"{type(model).__name__} keeps {', '.join(sorted(foreign))} in its cache, in layers that do not grow with "
            "the text and cannot be rolled back with it: leave them out, or drop the assistant for this call."
        )
    check_shares(model, foreign, len(input_ids))
    positions = model_kwargs.get("position_ids")
    if positions is not None and positions.dim() != 2 and not inputs.has_position_axes(model):
        raise UnsupportedArgument(
            f"A token of {type(model).__name__} has one position: pass 2-D `position_ids` with an assistant."
        )
    cache = model_kwargs.get(compat.cache_argument(model))
    if cache is not None:
        for part in compat.cache_parts(cache) if compat.reads_encoder(model) else (cache,):
            check_cache(part, any_layers=admit(model, needs_rows_alone(cache)).strategy != ROWS)
        if model_kwargs.get("use_cache") is False:
            raise UnsupportedCache("A cache is passed together with `use_cache=False`: leave one of them out.")


def check_batch(model: PreTrainedModel, rows: int) -> None:
    """Refuses batches of models that compute a row otherwise beside other rows; rows end at different times.

    Raises:
        UnsupportedArchitecture: more than one row.
    """
    admission = admit(model)
    if rows > 1 and admission.rows_mix:
        raise UnsupportedArchitecture(
            f"{type(model).__name__} computes a row otherwise where other rows stand beside it: {admission.reason} "
            "Generate the rows one by one, or drop the assistant for this call."
        )


def check_shares(model: PreTrainedModel, names: Iterable[str], batch: int) -> None:
    """Refuses images and audio for several rows of a model whose rows run one by one.

    Raises:
        UnsupportedArgument: the model's way to run does not keep the rows together.
    """
    if batch > 1 and (what := ", ".join(sorted(names))) and admit(model).strategy != ROWS:
        raise UnsupportedArgument(
            f"The rows of a {type(model).__name__} run one by one, and images or audio ({what}) cannot be shared out "
            "among them: call it with one prompt at a time, or drop the assistant for this call."
        )


def check_padding(attention_mask: torch.Tensor | None) -> None:
    """Refuses prompts that end in padding.

    Raises:
        UnsupportedArgument: the last column of a 2-D mask hides a row.
    """
    if attention_mask is not None and attention_mask.dim() == 2 and not bool((attention_mask[:, -1:] != 0).all()):
        raise UnsupportedArgument(
            "A prompt ends in padding (its `attention_mask` ends in 0), so its text would go on behind a gap: pad on "
            'the left, `tokenizer.padding_side = "left"`.'
        )


def check_lone_rows(
    model: PreTrainedModel, strategy: str, generation_config: GenerationConfig, model_kwargs: dict[str, Any], rows: int
) -> None:
    """Refuses what is not defined where every row runs alone.

    Raises:
        UnsupportedArgument: prompt embeddings; attentions and hidden states without a cache; word timestamps of
            several rows.
    """
    if model_kwargs.get("inputs_embeds") is not None:
        raise UnsupportedArgument(
            "The rows of this model run one by one over caches of their own, where `inputs_embeds` are not supported "
            "with an assistant: pass `input_ids`."
        )
    uncached = strategy in (LONE_UNCACHED, SERIAL_UNCACHED) or not compat.carries_past(model)
    if uncached or model_kwargs.get("use_cache") is False:
        check_outputs_without_cache(generation_config)
    if rows > 1 and compat.has_whisper_generate(model) and model_kwargs.get("output_attentions"):
        # it takes the mean over all steps of the batch, and a row that has ended has none to show
        raise UnsupportedArgument(
            "Word timestamps (`return_token_timestamps`, attentions) come out of whole batches, whose rows end at "
            "different times with an assistant: transcribe one audio at a time."
        )


def check_lone_cache(
    model: PreTrainedModel, input_ids: torch.Tensor, generation_config: GenerationConfig, model_kwargs: dict[str, Any]
) -> None:
    """Refuses caches of the caller's where every row runs alone, but for one row whose whole text is passed.

    Raises:
        UnsupportedCache: several rows, a cache without attention layers, or a part of the text.
    """
    cache: Any = model_kwargs.get(compat.cache_argument(model))
    mask = model_kwargs.get("attention_mask")
    read = getattr(generation_config, "_mask_length", None) if mask is None else mask.shape[1]
    way_out = "or drop the assistant for this call."
    why = "The rows of this model run one by one over caches of their own"
    strategy = admit(model, needs_rows_alone(cache)).strategy
    if len(input_ids) > 1 or type(cache) not in (DynamicCache, QuantizedCache) or strategy not in (LONE, SERIAL):
        raise UnsupportedCache(f"{why}: leave out the cache that is passed in, {way_out}")
    if cache.layers and all(cache.is_linear):
        raise UnsupportedCache(f"A recurrent state does not say which tokens it has read: leave it out, {way_out}")
    if cache.layers and cache.get_seq_length() and read != input_ids.shape[1]:
        raise UnsupportedCache(f"{why}: pass the whole text with the cache, not only its new part, {way_out}")


def check_outputs_without_cache(generation_config: GenerationConfig) -> None:
    """Refuses per-step outputs that exist only where every step reads the whole sequence.

    Raises:
        UnsupportedArgument: attentions or hidden states are to be returned.
    """
    wanted = [name for name in inputs.OUTPUT_FLAGS if getattr(generation_config, name)]
    if wanted and generation_config.return_dict_in_generate:
        raise UnsupportedArgument(
            f"Without a cache, {' and '.join(wanted)} speak about the whole sequence at every step, which an "
            "assistant saves reading again: leave out `use_cache=False`, or these outputs."
        )


def check_outputs_with_cache(generation_config: GenerationConfig, cache: Any) -> None:
    """Refuses per-step outputs that depend on how a static or offloaded cache stores its states.

    Raises:
        UnsupportedArgument: attentions are to be returned over such a cache.
    """
    wanted = generation_config.output_attentions and generation_config.return_dict_in_generate
    if wanted and (type(cache) is StaticCache or cache.offloading):
        raise UnsupportedArgument(
            "Over a static or offloaded cache `output_attentions` would be as wide as its storage, which an assistant "
            'does not read: leave it out, or pass `cache_implementation="dynamic"`.'
        )


def check_cache(cache: Any, any_layers: bool = False) -> None:
    """Refuses caches whose states cannot be taken over.

    Args:
        cache (`Cache`): the cache.
        any_layers (`bool`): whether rows run alone, over whatever layers a dynamic cache has.

    Raises:
        UnsupportedCache: recurrent or foreign caches; static or offloaded ones where rows run alone.
    """
    if any_layers and type(cache) is QuantizedCache:
        return
    known = type(cache) is DynamicCache or (type(cache) is StaticCache and not any_layers)
    kinds = {type(layer) for layer in cache.layers} if known else {type(cache)}
    if not known or not (any_layers or kinds <= _KINDS[type(cache)]):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UnsupportedCache(
            f"Assisted decoding needs a `DynamicCache` of attention layers and got {names}: pass "
            '`cache_implementation="dynamic"`, or `DynamicCache(config=model.config)`.'
        )
    if any_layers and cache.offloading:
        raise UnsupportedCache(
            "The rows of this model run one by one over caches of their own, which are not offloaded: pass "
            '`cache_implementation="dynamic"`, or a cache without `offloading`.'
        )


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
        setting = (alone, attention, model.dtype, model.training, patched, _hooks(model), _layers(model))
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
    layers: dict[str, int] = {}
    for window in compat.layer_windows(model) if strategy == ROWS else ():
        kind = "full attention" if window is None else f"sliding attention ({window})"
        layers[kind] = layers.get(kind, 0) + 1
    return Admission(bool(strategy), reason, attention, layers, strategy, rows_mix)


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
    model: PreTrainedModel, position_limit: int | None = None, alone: bool = False, keeps_all: bool = False
) -> RowRunner | LoneRows:
    """What runs an admitted model.

    Args:
        model (`PreTrainedModel`): the model.
        position_limit (`int`, *optional*): see [`RowRunner`].
        alone (`bool`): whether every row must run over a cache of its own.
        keeps_all (`bool`): see [`RowRunner`].

    Returns:
        `RowRunner` or `LoneRows`: by the model's strategy.
    """
    strategy = admit(model, alone).strategy
    if strategy == ROWS:
        return RowRunner(model, position_limit, keeps_all)
    return LoneRows(model, strategy in (LONE, SERIAL), position_limit)


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


def check_length(model: PreTrainedModel, shortest: int, longest: int) -> None:
    """Refuses texts across a length at which the model computes earlier positions anew.

    Args:
        model (`PreTrainedModel`): the target.
        shortest (`int`): tokens of the shortest prompt.
        longest (`int`): tokens that the longest row may reach.

    Raises:
        UnsupportedArchitecture: the call may cross such a length.
    """
    for length, alike_beyond in compat.turning_points(model):
        if longest > length and not (alike_beyond and shortest > length):
            raise UnsupportedArchitecture(
                f"Beyond {length} tokens {type(model).__name__} computes earlier positions anew (its RoPE scaling or "
                f"key selection depends on the length), so drafts cannot be scored in blocks there, and this call may "
                f"reach {longest}: lower `max_new_tokens`, or drop the assistant for this call."
            )


def _hooks(model: PreTrainedModel) -> tuple[int, ...]:
    """What changes a model's forward without changing its class."""
    found = []
    for module in model.modules():
        hooks = {**module._forward_hooks, **module._forward_pre_hooks}
        # a call's own look at what the encoder reads changes nothing
        found += [key for key, hook in hooks.items() if getattr(hook, "__func__", None) is not EncoderInputs.note]
        if "forward" in module.__dict__:
            found.append(id(module.__dict__["forward"]))
    return tuple(found)


def _layers(model: PreTrainedModel) -> tuple[type, ...]:
    """Quantization and adapters put other layers into a model, which stays the same object."""
    return tuple(type(module) for module in model.modules())


def _drops_out(model: PreTrainedModel) -> bool:
    """Whether training mode makes forwards random."""
    rates = [value for name, value in compat.text_config(model).to_dict().items() if "drop" in name]
    rates += [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    return model.training and any(isinstance(rate, float) and rate > 0 for rate in rates)


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
