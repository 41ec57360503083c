"""The target of a call: reads the prompts, keeps its cache as the layout wants it, scores drafts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from .models import admission, compat
from .models.lone_rows import LoneRows
from .models.runner import RowRunner
from .records import Draft
from .state.cache import RowStates
from .state.caller_cache import CallerCache
from .state.layout import REPLAY, RETAINED, block_inputs, cached_length, scored_rows
from .state.rows import Rows


class Scorer:
    """Runs the target over the active rows. Valid cache lengths follow from what is published, never the reverse.

    Args:
        model (`PreTrainedModel`): an admitted target.
        rows (`Rows`): the rows of the call.
        layout (`str`): `"replay"` or `"retained"`.
        caller_cache (`CallerCache`): the cache to take the prompt's states from, and to hand all of them back to.
        keeps_ended (`bool`): whether states of finished rows are kept, because the caller gets a cache.
        alone (`bool`): whether every row must run over a cache of its own.
        keeps_all (`bool`): whether layers with a window keep what nobody sees any more.
        compiled (`bool`): whether the target's blocks run compiled.

    Attributes:
        target (`RowRunner` or `LoneRows`): the model with its row-addressed cache.
        held (`list[int]`): rows in that cache; finished ones leave it when the next round begins.
        shift (`int`): slots before the first column: those of prompts that came as embeddings.
        first (`ModelOutput`, *optional*): the prefill's outputs until the first token is published.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        rows: Rows,
        layout: str,
        caller_cache: CallerCache,
        keeps_ended: bool,
        alone: bool = False,
        keeps_all: bool = False,
        compiled: bool = False,
    ) -> None:
        self.rows, self.layout, self.caller_cache, self.keeps_ended = rows, layout, caller_cache, keeps_ended
        self.held = rows.active
        self._storage = {"alone": alone, "keeps_all": keeps_all, "compiled": compiled}
        self.target = admission.runner_for(model, **self._storage)
        self.shift = 0
        self.first: Any = None
        # outputs after the frontier, and the generation whose frontier that was
        self._retained: tuple[int, Any] | None = None
        self._ended: dict[int, RowStates] = {}
        # whether the cache to be handed over holds all that the result holds
        self._whole = False

    def prefill(self, generation_config: GenerationConfig, model_kwargs: dict[str, Any]) -> None:
        """Reads the prompts as plain `generate` does; a failed reading leaves nothing behind."""
        if self.first is not None:
            return
        prompts = self.rows.ids[:, : self.rows.prompt_length]
        try:
            lent = self.caller_cache.lend()
            arguments = model_kwargs if lent is None else {**model_kwargs, compat.CACHE_ARGUMENT: lent}
            outputs = self.target.prefill(prompts, generation_config, dict(arguments))
            outputs.logits = outputs.logits[:, -1:]
            self.shift = self.target.cache.lengths[0] - self.rows.prompt_length
            # the last token is not read
            self.caller_cache.take_back(self.target.cache, self.rows.max_length - 1 + self.shift)
            self.first = outputs
        except BaseException:
            # half-read prompts are no state to go on from
            self.target = admission.runner_for(self.target.model, **self._storage)
            self.first = None
            self.caller_cache.restore()
            raise

    @property
    def cached(self) -> list[int]:
        """Columns of each active row with keys and values in the target's cache."""
        if self.rows.state.generation == 0:
            return self.rows.active_lengths()
        layout = self.layout if self.completed else REPLAY
        return [cached_length(layout, length) for length in self.rows.active_lengths()]

    @property
    def completed(self) -> bool:
        """Whether the frontier has been read beforehand, so that the cache holds all that is published."""
        return self._retained is not None and self._retained[0] == self.rows.state.generation

    def make_ready(self) -> None:
        """Brings the cache into the state a round of the layout begins with.

        Finished rows leave it. Under the retained layout the frontier is read, so that the cache is complete and the
        first row of scores known. Nothing that is published changes, and what has been done once is not done again.
        """
        self.first = None
        self._let_go()
        if self.layout == RETAINED and not self.completed:
            outputs = self.target.forward(self._frontier()[:, None], [column + self.shift for column in self.cached])
            self._retained = (self.rows.state.generation, outputs)

    def forget_frontier(self) -> None:
        """Has the frontier read again."""
        self._retained = None

    def _let_go(self) -> None:
        active = self.rows.active
        if self.held == active:
            return
        self._count()
        self._keep_ended()
        self.target.keep_rows([self.held.index(row) for row in active])
        self.held = active

    def _count(self) -> None:
        """Every published token but the last has keys and values."""
        self.target.cache.lengths = [self.rows.lengths[row] - 1 + self.shift for row in self.held]

    def _keep_ended(self) -> None:
        for i, row in enumerate(self.held):
            if self.keeps_ended and row not in self.rows.active and row not in self._ended:
                self._ended[row] = self.target.cache.take_row(i)

    def score(self, draft: Draft, wanted: int) -> tuple[Any, tuple[int, ...], torch.Tensor, torch.Tensor]:
        """Scores the drafts of every active row in one forward.

        Drawn drafts are filled up to what was wanted, so that the memory it takes does not depend on what was drawn.

        Args:
            draft (`Draft`): the drafts.
            wanted (`int`): the longest draft that was asked for.

        Returns:
            outputs whose row `j` belongs to the `j`-th token after the frontier; the first column that each row read;
            the tokens `(A, W)` whose keys and values it wrote from there on, as the cache knows them; and those `(A,)`
            whose keys and values stand at the place of the frontier.
        """
        cached = self.cached
        filler = 0 if draft.probs is None else wanted - draft.width
        tokens = torch.nn.functional.pad(draft.tokens, (0, filler)) if filler else draft.tokens
        block = block_inputs(self.layout, self._frontier(), tokens)
        width = block.shape[1] - filler
        first = self._retained[1] if self.layout == RETAINED and self._retained is not None else None
        outputs = None
        if block.shape[1]:
            counts = [length + width - draft.width for length in draft.lengths]
            outputs = self.target.forward(block, [column + self.shift for column in cached], counts)
        logits = None if outputs is None else outputs.logits[:, :width]
        whole = _joined(first, outputs)
        whole.logits = scored_rows(self.layout, None if first is None else first.logits, logits, draft.width)
        # the frontier is the first token read, or the one before it
        before = int(self.layout == RETAINED)
        known = self._read([column - before for column in cached], width + before)
        return whole, tuple(cached), known[:, before:], known[:, 0]

    def frontier_read(self) -> torch.Tensor:
        """The tokens `(A,)` whose keys and values stand at the last published place of each active row."""
        return self._read([length - 1 for length in self.rows.active_lengths()], 1)[:, 0]

    def _read(self, cached: Sequence[int], width: int) -> torch.Tensor:
        tokens = self.target.cache.tokens
        if min(cached) == max(cached):
            start = cached[0] + self.shift
            return tokens[:, start : start + width].clone()
        columns = torch.tensor(cached, device=tokens.device)[:, None] + self.shift
        return tokens.gather(1, columns + torch.arange(width, device=tokens.device))

    def _frontier(self) -> torch.Tensor:
        return torch.tensor(self.rows.frontiers(), device=self.rows.ids.device)

    def hand_over(self) -> Any:
        """The caller's cache, holding all of the result but the last column.

        Plain `generate` reads padding for finished rows; so that the caches agree, what is missing is read here.
        """
        end = self.rows.complete_columns() - 1
        if isinstance(self.target, LoneRows):
            return self.caller_cache.adopt(self.target.past_of(0, end))
        if not self._whole:
            self._make_whole(self.target, end)
            self._whole = True
        return self.caller_cache.fill(self.target.cache, end + self.shift)

    def _make_whole(self, target: RowRunner, end: int) -> None:
        """Reads what rows lack of the first `end` columns, all rows together again."""
        rows, cache = self.rows, target.cache
        self._count()
        if self._ended:
            # a batch whose rows all end at once is still whole
            self._keep_ended()
            target.regroup([self._ended[row] for row in range(rows.batch)])
        starts = [min(length - self.shift, end) for length in cache.lengths]
        width = end - min(starts)
        if width > 0:
            block = rows.ids.new_full((rows.batch, width), rows.pad_token_id)
            for row, start in enumerate(starts):
                block[row, : end - start] = rows.ids[row, start:end]
            target.forward(block, [start + self.shift for start in starts], [end - start for start in starts], keep=1)


def _joined(first: Any, rest: Any) -> Any:
    """Outputs of the frontier's forward and of the drafts' as if they had been one."""
    if first is None:
        return rest
    # the frontier's outputs serve again if the round fails
    whole = copy.copy(first)
    if rest is not None:
        for name in ("hidden_states", "attentions"):
            ours, theirs = getattr(first, name, None), getattr(rest, name, None)
            # `sdpa` returns no attention at all
            if ours and theirs and ours[0] is not None:
                setattr(whole, name, tuple(map(_stacked, ours, theirs)))
    return whole


def _stacked(first: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    """Hidden states `(A, W, D)`, or attentions `(A, H, W, N)` of which the first could not see the later keys."""
    if first.dim() == 4:
        first = torch.nn.functional.pad(first, (0, rest.shape[-1] - first.shape[-1]))
    return torch.cat([first, rest], dim=-2)
