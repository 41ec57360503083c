"""Prompts that are read in chunks, where `prefill_chunk_size` of a generation config says so."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig
from transformers.cache_utils import Cache


def forwards(input_ids: torch.Tensor, cache: Any, generation_config: GenerationConfig) -> int:
    """How many forwards read a prompt.

    Args:
        input_ids (`torch.LongTensor` of shape `(B, P)`): the prompt, what the cache holds of it included.
        cache (`Cache`, *optional*): as it is before them.
        generation_config (`GenerationConfig`): of the call.
    """
    size = generation_config.prefill_chunk_size
    if size is None:
        return 1
    # a state that is no cache of tokens is always read into from its beginning
    counts = isinstance(cache, Cache) and not all(cache.is_linear)
    past = cache.get_seq_length() if counts else 0
    # a prompt that comes as embeddings has no ids, and is read at once
    return max(-(-(input_ids.shape[1] - past) // size), 1)
