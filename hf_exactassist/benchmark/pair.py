"""The models of a benchmark, and what every call of them shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Target:
    """A target and its tokens.

    Attributes:
        target (`PreTrainedModel`): a causal language model.
        tokenizer (`PreTrainedTokenizerBase`): the target's.
    """

    target: PreTrainedModel
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """Where the target is."""
        return self.target.device

    @cached_property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text."""
        ends = self.target.generation_config.eos_token_id
        return frozenset(ends if isinstance(ends, list) else {ends} - {None})

    @cached_property
    def pad(self) -> int:
        """The token that fills prompts up on the left."""
        known = (
            self.target.generation_config.pad_token_id,
            getattr(self.tokenizer, "pad_token_id", None),
            *sorted(self.ends),
            0,
        )
        return next(token for token in known if token is not None)

    def inputs(self, rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Ids and mask of prompts, each of shape `(B, P)`."""
        width = max(map(len, rows))
        ids = [[self.pad] * (width - len(row)) + list(row) for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return {
            "input_ids": torch.tensor(ids, device=self.device),
            "attention_mask": torch.tensor(mask, device=self.device),
        }

    def text(self, row: Sequence[int]) -> tuple[int, ...]:
        """The tokens of a row up to its end, what fills it up left out."""
        end = next((place for place, token in enumerate(row, start=1) if token in self.ends), None)
        return tuple(row[:end])


@dataclass(frozen=True)
class Pair(Target):
    """A target and its assistant.

    Attributes:
        assistant (`PreTrainedModel`): a smaller one.
        assistant_tokenizer (`PreTrainedTokenizerBase`, *optional*): the assistant's; the target's by default.
    """

    assistant: PreTrainedModel
    assistant_tokenizer: Any = None

    @property
    def one_tokenizer(self) -> bool:
        """Whether both models read the same tokens, as far as their tokenizers tell."""
        other = self.assistant_tokenizer
        return other is None or other.get_vocab() == self.tokenizer.get_vocab()
