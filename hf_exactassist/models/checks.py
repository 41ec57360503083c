"""Which calls of an admitted model are defined. What is not is refused by name, before the first token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel, QuantizedCache, StaticCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, StaticLayer, StaticSlidingWindowLayer
from transformers.generation import GenerationMode

from ..errors import (
    InvalidArgument,
    UnsupportedArchitecture,
    UnsupportedArgument,
    UnsupportedCache,
    UnsupportedDecodingMode,
)
from . import admission, compat, inputs


# layers whose states rows of different length can take over
_KINDS = {
    DynamicCache: {DynamicLayer, DynamicSlidingWindowLayer},
    StaticCache: {StaticLayer, StaticSlidingWindowLayer},
}


def check_decoding_mode(generation_config: GenerationConfig) -> None:
    """Refuses modes that are not one sampled or greedy sequence per row.

    Raises:
        UnsupportedDecodingMode: beams, contrastive search, DoLa, constraints or an ensemble weight.
        InvalidArgument: chunks of no length.
    """
    chunk = generation_config.prefill_chunk_size
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise InvalidArgument(f"`prefill_chunk_size` must be a whole number of at least 1, got {chunk!r}.")
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
            check_cache(
                part, any_layers=admission.admit(model, admission.needs_rows_alone(cache)).strategy != admission.ROWS
            )
        if model_kwargs.get("use_cache") is False:
            raise UnsupportedCache("A cache is passed together with `use_cache=False`: leave one of them out.")


def check_batch(model: PreTrainedModel, rows: int) -> None:
    """Refuses batches of models that compute a row otherwise beside other rows; rows end at different times.

    Raises:
        UnsupportedArchitecture: more than one row.
    """
    if rows == 1:
        return
    admitted = admission.admit(model)
    if admitted.rows_mix:
        raise UnsupportedArchitecture(
            f"{type(model).__name__} computes a row otherwise where other rows stand beside it: {admitted.reason} "
            "Generate the rows one by one, or drop the assistant for this call."
        )


def check_shares(model: PreTrainedModel, names: Iterable[str], batch: int) -> None:
    """Refuses images and audio for several rows of a model whose rows run one by one.

    Raises:
        UnsupportedArgument: the model's way to run does not keep the rows together.
    """
    if batch > 1 and (what := ", ".join(sorted(names))) and admission.admit(model).strategy != admission.ROWS:
        raise UnsupportedArgument(
            f"The rows of a {type(model).__name__} run one by one, and images or audio ({what}) cannot be shared out "
            "among them: call it with one prompt at a time, or drop the assistant for this call."
        )


def check_prompts(prompts: Any) -> None:
    """Refuses prompts in which there is nothing to read; plain `generate` fails on them somewhere in the model.

    Args:
        prompts (`torch.Tensor` of shape `(B, P)` or `(B, P, D)`): token ids or embeddings, as the call was given them.

    Raises:
        InvalidArgument: there is no row, or no token in the rows.
    """
    if isinstance(prompts, torch.Tensor) and 0 in prompts.shape[:2]:
        raise InvalidArgument(
            f"The prompts are empty (of shape {tuple(prompts.shape)}), so there is nothing to go on from: pass at "
            "least one row of at least one token, such as the BOS token, or no inputs at all to start at BOS."
        )


def check_padding(attention_mask: torch.Tensor | None) -> None:
    """Refuses prompts that end in padding.

    Raises:
        UnsupportedArgument: the last column of a 2-D mask hides a row.
    """
    if attention_mask is not None and attention_mask.dim() == 2 and not bool((attention_mask[:, -1:] != 0).all()):
        if empty := (~(attention_mask != 0).any(dim=1)).nonzero()[:, 0].tolist():
            raise UnsupportedArgument(
                f"Rows {empty} have no token to read: their `attention_mask` is 0 throughout, or they are padding "
                "alone. Leave these rows out, or give each a token, such as the BOS token."
            )
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
    uncached = strategy in (admission.LONE_UNCACHED, admission.SERIAL_UNCACHED) or not compat.carries_past(model)
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
    strategy = admission.admit(model, admission.needs_rows_alone(cache)).strategy
    if (
        len(input_ids) > 1
        or type(cache) not in (DynamicCache, QuantizedCache)
        or strategy not in (admission.LONE, admission.SERIAL)
    ):
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


def check_compiled(cache: Any, generation_config: GenerationConfig) -> None:
    """Refuses calls whose target cannot run compiled, whatever the model.

    Args:
        cache (`Cache`, *optional*): the caller's.
        generation_config (`GenerationConfig`): as `generate` prepared it.

    Raises:
        UnsupportedArgument: the cache is quantized or offloaded, or hidden states or attentions are to be returned.
    """
    wanted = [name for name in inputs.OUTPUT_FLAGS if getattr(generation_config, name)]
    reason = ""
    if admission.needs_rows_alone(cache) or getattr(cache, "offloading", False):
        reason = "it fills a quantized or offloaded cache, whose storage changes place"
    elif wanted and generation_config.return_dict_in_generate:
        reason = f"compiled forwards return logits alone, and {' and '.join(wanted)} are asked for"
    if reason:
        raise UnsupportedArgument(
            f'`compile="both"` is not defined for this call: {reason}. Pass `compile="draft"`, or leave that out.'
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
    if any_layers and type(cache) is StaticCache:
        raise UnsupportedCache(
            "The rows of this model run one by one over caches of their own, which are not static: pass "
            '`cache_implementation="dynamic"`, or leave the cache out.'
        )
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
