"""The protocol of a processor that can save what it remembers."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class TransactionalLogitsProcessor(Protocol):
    """A logits processor that writes down what it remembers, and takes it back.

    Any object with these methods is one; there is nothing to inherit. It is called once for every published token of
    the batch, in order, with what plain `generate` would give it. Between calls [`snapshot`] may be asked for at any
    time; [`restore`] comes when a round is not published.
    """

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Processed scores, as for every processor.

        Args:
            input_ids (`torch.LongTensor` of shape `(B, L)`): tokens so far.
            scores (`torch.FloatTensor` of shape `(B, V)`): scores of the next token.
        """

    def snapshot(self) -> Any:
        """What it remembers now, as something that later calls do not change."""

    def restore(self, snapshot: Any) -> None:
        """Remembers again what a snapshot says; the same snapshot may come several times."""
