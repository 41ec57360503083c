"""Runs the rows of a batch one by one, each over a cache of Transformers' own, as `generate` runs a single row.

For models that cannot be scored in ragged blocks: recurrent and hybrid ones, those that compute masks or positions
themselves, decoders that attend to an encoder, those without a cache. A row goes back to the accepted tokens by
cropping its cache, or, where that is not possible, by putting an earlier state back; the tokens in between are then
read again together with the next ones.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.cache_utils import Cache, QuantizedCache

from ..state import snapshot
from ..state.cache import RowCache
from . import chunks, compat, inputs, step_outputs


# earlier states kept per row: the last one gone back to, and those after it where drafts are read token by token
_SNAPSHOTS = 8
# per-token arguments, which grow with the row; where there is an encoder, the mask without a prefix is that one's
_PER_TOKEN = ("attention_mask", "position_ids", *inputs.PER_TOKEN)
_PER_DECODED_TOKEN = ("decoder_attention_mask", "decoder_position_ids")


@dataclass
class _Row:
    """One row: how it is read, what carries its past, and how far it has been read."""

    pad: int
    arguments: dict[str, Any]
    per_token: dict[str, torch.Tensor]
    past: dict[str, Any]
    empty: dict[str, Any]
    length: int = 0
    snapshots: list[tuple[int, dict[str, Any]]] = field(default_factory=list)


class LoneRows:
    """A decoder and one past per row; slots, tokens and lengths as in [`RowRunner`].

    Args:
        model (`PreTrainedModel`): an admitted model.
        cached (`bool`): whether a past is carried at all; without, every forward reads the whole row.
        position_limit (`int`, *optional*): rows are not read beyond so many tokens; their logits are zeros then.

    Attributes:
        cache (`RowCache`): no layers, but `cache.tokens` names what each slot was made from.
        forwards (`int`): forward passes so far.
    """

    def __init__(self, model: PreTrainedModel, cached: bool = True, position_limit: int | None = None) -> None:
        self.model, self.cached, self.position_limit = model, cached, position_limit
        self.cache = RowCache(())
        self.forwards = 0
        self.rows: list[_Row] = []
        self._cache_argument = compat.cache_argument(model)
        encodes = compat.is_encoder_decoder(model)
        self._ids_argument = "decoder_input_ids" if encodes else "input_ids"
        self._per_token = _PER_DECODED_TOKEN if encodes else _PER_TOKEN
        # hidden states and attentions of the forward under way
        self._says_more = False
        self._said: list[dict[str, Any]] = []
        self._padding = getattr(compat.text_config(model), "pad_token_id", None)
        self._keeps_logits = "logits_to_keep" in compat.forward_parameters(model)

    def prefill(
        self, input_ids: torch.Tensor, generation_config: GenerationConfig, model_kwargs: dict[str, Any]
    ) -> Any:
        """Reads each prompt as plain `generate` reads it alone, without its padding.

        Args:
            input_ids (`torch.LongTensor` of shape `(B, P)`): prompts.
            generation_config (`GenerationConfig`): for chunked prefill.
            model_kwargs (`dict`): forward arguments as `generate` prepared them for the batch; not changed.

        Returns:
            outputs with `logits` of shape `(B, 1, V)`, and hidden states and attentions if the call asks for them.
        """
        self.rows = [self._row(i, input_ids, model_kwargs) for i in range(len(input_ids))]
        self._says_more = any(model_kwargs.get(name) for name in inputs.OUTPUT_FLAGS)
        last, more = [], []
        for i, row in enumerate(self.rows):
            ids = input_ids[i : i + 1, row.pad :][:, : self.position_limit]
            per_token = {name: part[..., : ids.shape[1]] for name, part in row.per_token.items()}
            count = chunks.forwards(ids, row.past.get(self._cache_argument), generation_config)
            outputs = self.model._prefill(ids, generation_config, {**row.arguments, **per_token, **row.past})
            self.forwards += count
            self._carry(row, outputs, ids.shape[1])
            last.append(outputs.logits[:, -1:])
            if self._says_more:
                more.append(step_outputs.of_tokens(outputs, ids.shape[1], row.pad + ids.shape[1]))
        self.cache.begin(input_ids, input_ids.shape[1])
        return SimpleNamespace(logits=torch.cat(last), **step_outputs.batched(more, input_ids.shape[1], right=True))

    @property
    def layers(self) -> list[Any]:
        """Layers of a row's cache, if it has one."""
        cache = self.rows[0].past.get(self._cache_argument)
        return snapshot.layers_of(cache) if isinstance(cache, Cache) else []

    def _row(self, i: int, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> _Row:
        kwargs = {name: value for name, value in model_kwargs.items() if value is not None}
        if self.cached:
            # `use_cache=False` or not: only a past makes blocks of new tokens enough, and nobody else sees it
            kwargs["use_cache"] = True
            if kwargs.get(self._cache_argument) is None and (made := compat.new_cache(self.model)) is not None:
                kwargs[self._cache_argument] = made
        mask = kwargs.get(self._per_token[0])
        # a single row is read as plain `generate` reads it, padding and all
        pad = 0 if mask is None or len(input_ids) == 1 else int((mask[i] != 0).long().argmax())
        grown = {name: kwargs.pop(name) for name in self._per_token if name in kwargs}
        # positions may have axes in front
        per_token = {
            name: part.expand(*part.shape[:-2], len(input_ids), -1)[..., i : i + 1, pad:]
            for name, part in grown.items()
        }
        cache = kwargs.pop(self._cache_argument, None)
        carries = self.cached and cache is not None
        past, empty = ({self._cache_argument: snapshot.copied(cache)} if carries else {} for _ in range(2))
        if not self.cached:
            kwargs["use_cache"] = False
        arguments = {name: compat.rows_of(value, [i], len(input_ids)) for name, value in kwargs.items()}
        return _Row(pad, arguments, per_token, past, empty)

    def _carry(self, row: _Row, outputs: Any, length: int) -> None:
        if self.cached:
            # what carries the past is called differently by different models
            carried = self.model._update_model_kwargs_for_generation(outputs, {"use_cache": True, **row.past})
            row.past = {name: value for name, value in carried.items() if name != "use_cache" and value is not None}
        row.length = length

    def _crops(self, row: _Row) -> bool:
        """Whether going back is no more than forgetting."""
        cache = row.past.get(self._cache_argument)
        return not self.cached or (isinstance(cache, Cache) and len(row.past) == 1 and snapshot.is_croppable(cache))

    def forward(
        self,
        tokens: torch.Tensor,
        starts: Sequence[int],
        counts: Sequence[int] | None = None,
        right: bool = False,
        keep: int | None = None,
    ) -> Any:
        """One forward per row over its tokens; arguments and result as in [`RowRunner.forward`].

        Rows with no token to read are left out, and their logits are zeros.
        """
        width = tokens.shape[1]
        counts = [width] * len(starts) if counts is None else counts
        # one transfer from the device for all rows, and none for single tokens, where it does not matter what they are
        known = tokens.tolist() if self._padding is not None and width > 1 else [[-1] * width] * len(tokens)
        blocks: list[torch.Tensor | None] = []
        more: list[dict[str, Any] | None] = []
        for i, (row, start, count) in enumerate(zip(self.rows, starts, counts, strict=True)):
            place = slice(width - count, width) if right else slice(0, count)
            self._said = []
            ids = known[i][place]
            blocks.append(self._read(i, start - row.pad, tokens[i, place], ids) if count > 0 else None)
            said = step_outputs.one_after_the_other(self._said) if self._said else None
            # tokens that had to be read again come first
            more.append(said if said is None else step_outputs.last(said, count))
        nothing = torch.zeros(0, compat.head_size(self.model), device=self.cache.tokens.device)
        like = next((block for block in blocks if block is not None), nothing)
        logits = like.new_zeros((len(blocks), width, like.shape[-1]))
        for i, block in enumerate(blocks):
            if block is not None:
                first_place = width - len(block) if right else 0
                logits[i, first_place : first_place + len(block)] = block
        rest = step_outputs.batched(more, width, right)
        return SimpleNamespace(logits=logits if keep is None else logits[:, -keep:], **rest)

    def _read(self, i: int, start: int, tokens: torch.Tensor, known: list[int]) -> torch.Tensor:
        """Logits `(n, V)` of `n` tokens, `known` on the host, that follow the row's first `start` ones."""
        if self.position_limit is not None and start + len(tokens) > self.position_limit:
            # there are no positions left, and nobody wants drafts of this row any more
            return torch.zeros(len(tokens), compat.head_size(self.model), device=self.cache.tokens.device)
        pending = self._go_back(i, start)
        before = self._known(pending)
        if len(pending) > len(tokens) + 2:
            # read for good, so that what is read again does not grow from round to round
            self._advance(i, pending, before)
            pending, before = pending[:0], []
        tokens = tokens.to(self.cache.tokens.device)
        return self._advance(i, torch.cat([pending, tokens]), before + known)[-len(tokens) :]

    def _known(self, tokens: torch.Tensor) -> list[int]:
        """Tokens that a row has read, on the host; anything where it does not matter what they are."""
        return tokens.tolist() if self._padding is not None and len(tokens) else [-1] * len(tokens)

    def _note(self, i: int, slot: int, tokens: torch.Tensor) -> None:
        missing = slot + len(tokens) - self.cache.tokens.shape[1]
        if missing > 0:
            more = self.cache.tokens.new_full((len(self.cache.tokens), max(missing, 64)), -1)
            self.cache.tokens = torch.cat([self.cache.tokens, more], dim=1)
        self.cache.tokens[i, slot : slot + len(tokens)] = tokens

    def _go_back(self, i: int, length: int) -> torch.Tensor:
        """Brings a row to its first `length` tokens, or to fewer; those it then lacks come back."""
        row = self.rows[i]
        if length != row.length:
            if self._crops(row):
                self._crop(row, length)
                row.length = length
            else:
                # nothing before the state gone back to will be asked for again: accepted tokens stay
                row.snapshots = [entry for entry in row.snapshots if entry[0] <= length][-1:]
                if row.snapshots:
                    at, held = row.snapshots[0]
                    self._put_back(row, held)
                    row.length = at
                else:
                    row.past, row.length = {name: snapshot.copied(part) for name, part in row.empty.items()}, 0
        first = row.pad + row.length
        return self.cache.tokens[i, first : row.pad + length]

    def _advance(self, i: int, tokens: torch.Tensor, known: list[int]) -> torch.Tensor:
        """Reads tokens, `known` on the host, after what a row has read; logits of all of them."""
        logits = []
        while len(tokens):
            size = self._readable(self.rows[i], known)
            logits.append(self._read_on(i, tokens[:size]))
            tokens, known = tokens[size:], known[size:]
        return torch.cat(logits)

    def _readable(self, row: _Row, tokens: list[int]) -> int:
        """How many tokens can be read in one block that gives what single steps give."""
        # some classes count positions without the padding token
        size = tokens.index(self._padding) + 1 if self._padding in tokens else len(tokens)
        cache = row.past.get(self._cache_argument)
        if isinstance(cache, QuantizedCache):
            size = min(size, snapshot.tokens_before_quantizing(cache))
        return size

    def _read_on(self, i: int, tokens: torch.Tensor) -> torch.Tensor:
        row, count = self.rows[i], len(tokens)
        self._remember(row)
        self._note(i, row.pad + row.length, tokens)
        text = self.cache.tokens[i : i + 1, row.pad : row.pad + row.length + count]
        per_token = {name: _extended(name, part, text.shape[1]) for name, part in row.per_token.items()}
        arguments = {**row.arguments, **per_token, **row.past}
        if self._keeps_logits:
            arguments["logits_to_keep"] = count
        inputs = self.model.prepare_inputs_for_generation(
            text, next_sequence_length=count if self.cached else None, is_first_iteration=False, **arguments
        )
        shown = inputs[self._ids_argument]
        if self.cached and shown.shape[1] < count:
            # some classes show their model the last token alone; others, without a past, the whole row
            inputs[self._ids_argument] = tokens[None].to(shown.device)
        if "logits_to_keep" in inputs:
            # some classes ask for the last one alone
            inputs["logits_to_keep"] = count
        self.forwards += 1
        read = row.length
        try:
            outputs = self.model(**inputs, return_dict=True)
            self._carry(row, outputs, text.shape[1])
        except BaseException:
            # some layers have moved on
            row.length = read
            if self._crops(row):
                self._crop(row, read)
            else:
                self._put_back(row, row.snapshots[-1][1])
            raise
        if self._says_more:
            self._said.append(step_outputs.of_tokens(outputs, count, row.pad + text.shape[1]))
        return outputs.logits[0, -count:]

    def _crop(self, row: _Row, length: int) -> None:
        if self.cached:
            snapshot.crop(row.past[self._cache_argument], length)

    def _remember(self, row: _Row) -> None:
        if not self._crops(row) and (not row.snapshots or row.snapshots[-1][0] != row.length):
            held = {
                name: snapshot.take(part) if isinstance(part, Cache) else copy.deepcopy(part)
                for name, part in row.past.items()
            }
            earlier = [*row.snapshots[:1], *row.snapshots[1:][2 - _SNAPSHOTS :]]
            row.snapshots = [*earlier, (row.length, held)]

    def _put_back(self, row: _Row, held: dict[str, Any]) -> None:
        for name, part in held.items():
            if isinstance(row.past.get(name), Cache):
                snapshot.put_back(row.past[name], part)
            else:
                row.past[name] = copy.deepcopy(part)

    def keep_rows(self, indices: Sequence[int]) -> None:
        """Drops all rows but the given ones. Interrupted, it can be called again in the same way."""
        if len(self.rows) == len(self.cache.lengths):
            self.rows = [self.rows[i] for i in indices]
        self.cache.keep_rows(indices)

    def past_of(self, i: int, slots: int) -> Any:
        """The cache of one row, holding its first `slots` slots."""
        row = self.rows[i]
        pending = self._go_back(i, slots - row.pad)
        if len(pending):
            self._advance(i, pending, self._known(pending))
        return row.past.get(self._cache_argument)


def _extended(name: str, part: torch.Tensor, length: int) -> torch.Tensor:
    """A per-token argument of the prompt, for `length` tokens, as `generate` would have grown it."""
    more = length - part.shape[-1]
    if more <= 0:
        return part[..., :length]
    if name.endswith("attention_mask"):
        tail = part.new_ones((1, more))
    elif name.endswith("position_ids"):
        tail = part[..., -1:] + torch.arange(1, more + 1, device=part.device, dtype=part.dtype)
    elif name != "token_type_ids":
        # new tokens are text
        tail = part.new_zeros((1, more))
    else:
        tail = part[:, -1:].expand(1, more)
    return torch.cat([part, tail], dim=-1)
