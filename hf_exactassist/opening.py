"""How a call's target is run and which cache it fills, decided before anything is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel
from transformers.utils import logging

from .models import admission, checks, compat, compiling
from .options import Options
from .scoring import Scorer
from .state.caller_cache import CallerCache, keeper
from .state.rows import Rows


logger = logging.get_logger(__name__)

# tokens of a block with as many drafts as are usual: what a compiled target is tried with
USUAL_BLOCK = 6


@dataclass(frozen=True)
class Opening:
    """An admitted target, ready to read the prompts.

    Attributes:
        scorer (`Scorer`): runs it.
        caller_cache (`CallerCache`): what becomes of the cache that the call was given.
        returns_cache (`bool`): whether a cache is handed back.
        serial (`str`, *optional*): why it is decoded token by token, if drafts cannot help it.
    """

    scorer: Scorer
    caller_cache: CallerCache
    returns_cache: bool
    serial: str | None


def open_target(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    rows: Rows,
    generation_config: GenerationConfig,
    model_kwargs: dict[str, Any],
    options: Options,
) -> Opening:
    """Checks target and cache of a call against each other.

    Args:
        model (`PreTrainedModel`): an admitted target.
        input_ids (`torch.LongTensor` of shape `(B, P)`): prompts.
        rows (`Rows`): the rows of the call.
        generation_config (`GenerationConfig`): as `generate` prepared it.
        model_kwargs (`dict[str, Any]`): as `generate` prepared them; gets a cache where there is none.
        options (`Options`): whether the caller's cache is kept, and the layout.

    Raises:
        ExactAssistError: the call cannot be kept exact.
    """
    cache = model_kwargs.get(compat.CACHE_ARGUMENT)
    compiled = options.compile == "both"
    if compiled:
        checks.check_compiled(cache, generation_config)
        compiling.require(model, "target", rows.batch, USUAL_BLOCK)
    alone = admission.needs_rows_alone(cache)
    admitted = admission.admit(model, alone)
    serial = admitted.reason if admitted.strategy in (admission.SERIAL, admission.SERIAL_UNCACHED) else None
    if serial:
        logger.warning_once(f"{type(model).__name__} is decoded token by token, without drafts: {serial}")
    lone = admitted.strategy != admission.ROWS
    if lone:
        checks.check_lone_rows(model, admitted.strategy, generation_config, model_kwargs, rows.batch)
        if options.keep_cache:
            checks.check_lone_cache(model, input_ids, generation_config, model_kwargs)
        # one that `generate` made is for the whole batch, and every row gets an empty copy
        cache = cache if options.keep_cache else None
        wanted = bool(generation_config.return_dict_in_generate or options.keep_cache)
        returns_cache = wanted and rows.batch == 1
    elif cache is None:
        # `use_cache=False`: block scoring needs one all the same, and nobody sees it
        checks.check_outputs_without_cache(generation_config)
        cache = model_kwargs[compat.CACHE_ARGUMENT] = DynamicCache(config=compat.text_config(model))
        returns_cache = False
    else:
        checks.check_outputs_with_cache(generation_config, cache)
        user_defined = getattr(cache, "_is_user_defined", False) or options.keep_cache
        returns_cache = bool(generation_config.return_dict_in_generate or user_defined)
    caller_cache = keeper(cache)
    # attentions are as wide as the text, and a caller's cache may be too
    keeps_all = bool(model_kwargs.get("output_attentions")) or (
        not lone and returns_cache and caller_cache.wants_all(compat.layer_windows(model))
    )
    scorer = Scorer(model, rows, options.layout, caller_cache, returns_cache, alone, keeps_all, compiled)
    return Opening(scorer, caller_cache, returns_cache, serial)
