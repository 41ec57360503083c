"""A smaller model with the same token map drafts token by token."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from ..errors import UnsupportedArgument
from ..memory import is_out_of_memory
from ..models import admission, checks, chunks, compiling, heads, inputs
from ..models.compat import forward_parameters, is_encoder_decoder, model_device, position_limit
from ..models.encoder import EncoderReading
from ..models.lone_rows import LoneRows
from ..models.runner import RowRunner
from ..randomness import DRAFT
from ..records import Commit, Draft
from ..state.manifest import settings_of
from ..state.processors import ProcessorPipeline
from ..verification.distributions import choose, inverse_cdf, likeliest, probabilities
from .base import Drafter, DraftingContext
from .placed import Placed
from .warpers import with_own_warpers


logger = logging.get_logger(__name__)


class AssistantModelDrafter(Drafter):
    """Drafts with an assistant model over its own row-addressed cache.

    Where the call samples, tokens are drawn from the assistant's processed distribution, which goes along as
    `Draft.probs`; greedy calls get the assistant's arg-max as point masses.

    Args:
        model (`PreTrainedModel`): an admitted model; it is not changed.
        shared_tokens (`torch.BoolTensor` of shape `(V,)`): target tokens that mean the same to the assistant; others
            are never drafted, and are read by the assistant as token `unknown_token`.
        unknown_token (`int`): any token of the assistant's vocabulary.
        warper_settings (`dict[str, Any]`, *optional*): sampling settings that replace the target's, by argument name.
        confidence_threshold (`float`): stop a draft after a token of lower probability; 0 never stops.
        shown (`dict[str, Any]`, *optional*): images or audio of the prompts, as arguments of the assistant's forward,
            which it reads once, as the call starts. By default those among the target's arguments that it can take.
        copies (`int`): rows that the call makes of each prompt, where `shown` is given.
    """

    # whether the assistant may be sent back by more than what was drafted
    goes_back = False
    # whether where a draft ends is looked up in the draft
    reads_drafts = False

    def __init__(
        self,
        model: PreTrainedModel,
        shared_tokens: torch.Tensor,
        unknown_token: int = 0,
        warper_settings: dict[str, Any] | None = None,
        confidence_threshold: float = 0.0,
        shown: dict[str, Any] | None = None,
        copies: int = 1,
    ) -> None:
        self.model: PreTrainedModel = model
        self._position_limit = position_limit(model)
        self._keeps_logits = "logits_to_keep" in forward_parameters(model)
        self._takes_positions = "position_ids" in forward_parameters(model)
        self.shared_tokens = shared_tokens
        self._shares_all = bool(shared_tokens.all())
        self._unshared = Placed(~shared_tokens)
        self.unknown_token = unknown_token
        self.warper_settings = warper_settings or {}
        self.confidence_threshold = confidence_threshold
        self._given = None if shown is None else (shown, copies)

    def start(self, context: DraftingContext) -> None:
        """See [`Drafter.start`]. The assistant reads the prompt with its first draft, one with images here and now."""
        super().start(context)
        if context.compiled:
            compiling.require(self.model, "assistant", context.rows.batch, 1, self._position_limit)
        self.forwards = 0
        self._eos = Placed(torch.tensor(sorted(context.eos_token_ids), device="cpu", dtype=torch.long))
        self._runner: RowRunner | LoneRows | None = None
        # rows in the assistant's cache, and of each the columns that are surely published tokens
        self._held = context.rows.active
        self._confirmed = dict.fromkeys(self._held, 0)
        self._encoder = EncoderReading(
            self.model, context.target, context.arguments, context.encoder_inputs, context.rows.batch
        )
        self._processors = context.processors
        samples = context.noise is not None or context.shared_noise is not None
        if self.warper_settings and samples:
            own = with_own_warpers(context.processors.processors, self.warper_settings)
            self._processors = context.processors.with_list(own)
        self.stops_early = bool(self.confidence_threshold) or self._processors.asks_caller
        # else drafts are as long as wanted, and what they hold need not be known before they are judged
        self._is_read = self.stops_early or self.reads_drafts
        shown, copies = self._given or (inputs.shown_to(self.model, context.arguments), 1)
        if shown:
            self._read_shown(shown, copies)

    def unread(self) -> list[int]:
        """See [`Drafter.unread`]. A prompt with images has been read already."""
        return super().unread() if self._runner is not None else list(self.context.rows.prompt_tokens)

    def describe(self) -> dict[str, Any]:
        """See [`Drafter.describe`]."""
        shared = self.shared_tokens.cpu()
        return {
            **settings_of(self),
            **({"compiled": True} if self.context.compiled else {}),
            "token_map": {"shared": hashlib.sha256(shared.numpy().tobytes()).hexdigest(), "size": len(shared)},
            "processors": self._processors.describe(),
        }

    @torch.no_grad()
    def propose(self, lengths: Sequence[int]) -> Draft:
        """See [`Drafter.propose`]."""
        rows = self.context.rows
        if not any(lengths):
            # as long as nothing is wanted; rows that end meanwhile leave the assistant's cache later
            return Draft.empty(len(lengths), rows.ids.device)
        lengths = [max(min(wanted, room), 0) for wanted, room in zip(lengths, self._room(), strict=True)]
        width = max(lengths, default=0)
        self._let_go()
        if width <= 0:
            return Draft.empty(len(lengths), rows.ids.device)
        columns, noise = rows.active_lengths(), self.context.noise
        uniforms = None if noise is None else noise.block(DRAFT, rows.active, rows.positions(), width)
        shared = self.context.shared_noise
        exponentials = None if shared is None else shared.block(rows.active, rows.steps(), width)
        processors = self.context.drafting(self._processors)
        logits = self._read_published()
        if self._runner is not None:
            # token by token, and perhaps all in vain
            self._runner.cache.make_room(width)
        ends = self._ends()
        tokens: list[torch.Tensor] = []
        laws: list[torch.Tensor] = []
        last: list[torch.Tensor] = []
        sure: list[torch.Tensor] = []
        # looking at a token costs nothing on a CPU alone
        on_cpu = rows.ids.device.type == "cpu" and not self.reads_drafts
        goes_on = self.context.goes_on if on_cpu else None
        going = list(range(len(lengths)))
        for i in range(width):
            try:
                scores = self._score(processors, logits, [column + i for column in columns], going)
            except Exception as error:
                if not processors.asks_caller or is_out_of_memory(error):
                    raise
                # a foreign processor need not bear every draft; if one is published, the target will ask about it
                logger.debug("A processor failed on a draft, which ends there: %r", error)
                break
            if exponentials is not None:
                token = choose(scores, exponentials[:, i].to(scores.device))
            elif uniforms is None:
                token = likeliest(scores)
            else:
                laws.append(probabilities(scores))
                token = inverse_cdf(laws[-1], uniforms[:, i].to(scores.device)).clamp_max(scores.shape[-1] - 1)
            if processors.has_history:
                # the prefix of the next token
                rows.write_scratch(i, token)
            tokens.append(token)
            if self._is_read:
                last.append(self._ends_draft(token, scores))
            if goes_on is not None:
                sure.append(probabilities(scores).gather(1, token[:, None]).squeeze(1))
                if not goes_on(rows.active, torch.stack(sure, dim=1).tolist()):
                    break
            if self.confidence_threshold and bool(torch.stack(last).any(dim=0).all()):
                break
            if processors.asks_caller:
                # it may fail on what follows an end, or a token it has forbidden
                over = (last[-1].to(scores.device) | (scores.amax(dim=-1) == -torch.inf)).tolist()
                going = [row for row in going if lengths[row] > i + 1 and not over[row]]
                if not going:
                    break
            if i + 1 < width:
                # rows that want fewer tokens come along as filler
                counts = [wanted - 1 - i for wanted in lengths]
                logits = self._feed(token, [end + i for end in ends], counts)
        if not tokens:
            self._fed = [0] * len(lengths)
            return Draft.empty(len(lengths), rows.ids.device)
        self._fed = [max(min(wanted, len(tokens)) - 1, 0) for wanted in lengths]
        probs = None if uniforms is None else torch.stack(laws, dim=1)
        ends = [min(wanted, len(tokens)) for wanted in lengths]
        if self._is_read:
            ends = self._lengths(torch.stack(last, dim=1), ends)
        return Draft(torch.stack(tokens, dim=1), tuple(ends), probs)

    def _score(
        self, processors: ProcessorPipeline, logits: torch.Tensor, lengths: Sequence[int], going: Sequence[int]
    ) -> torch.Tensor:
        """The assistant's processed scores over the target's event space; unshared tokens are out of reach.

        Rows that are not `going` on keep their unprocessed scores, which nobody uses.
        """
        rows = self.context.rows
        logits = logits[:, -1].to(rows.ids.device, torch.promote_types(logits.dtype, torch.float32))
        scores = self._within_reach(self._as_events(logits))
        if not processors.processors:
            return scores
        here, ends = [rows.active[i] for i in going], [lengths[i] for i in going]
        if len(going) == len(scores):
            scores = processors.process(scores, here, ends, rows.ids)
        else:
            scores = scores.clone()
            scores[list(going)] = processors.process(scores[list(going)], here, ends, rows.ids)
        # once more: a processor may raise what was out of reach
        return self._within_reach(scores)

    def _within_reach(self, scores: torch.Tensor) -> torch.Tensor:
        if self._shares_all:
            return scores
        return scores.masked_fill(self._unshared.on(scores.device), -torch.inf)

    def _as_events(self, logits: torch.Tensor) -> torch.Tensor:
        """The assistant's logits `(A, V)` over the target's tokens."""
        scores, vocabulary = logits[:, : self.context.vocabulary], self.context.vocabulary
        if scores.shape[1] < vocabulary:
            missing = scores.new_full((scores.shape[0], vocabulary - scores.shape[1]), -torch.inf)
            scores = torch.cat([scores, missing], dim=1)
        return scores

    def _room(self) -> list[int]:
        """Tokens that may be drafted for each active row: reading and drafting end with the assistant's positions."""
        if self._position_limit is None:
            return [self.context.rows.max_length] * len(self.context.rows.active)
        return [self._position_limit + 1 - position for position in self.context.rows.positions()]

    def _ends(self) -> list[int]:
        """Columns of each active row that the assistant has read, as it counts them."""
        return self.context.rows.active_lengths()

    def _ends_draft(self, token: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Rows that draft nothing after this token: it ends the row, or the assistant is unsure."""
        ends = torch.isin(token, self._eos.on(token.device))
        if self.confidence_threshold:
            ends |= probabilities(scores).gather(1, token[:, None]).squeeze(1) < self.confidence_threshold
        return ends

    def _lengths(self, last: torch.Tensor, wanted: Sequence[int]) -> list[int]:
        """Draft length of each row: what was wanted, up to the first ending token."""
        return [
            next((at + 1 for at, ends in enumerate(row[:most]) if ends), most)
            for row, most in zip(last.tolist(), wanted, strict=True)
        ]

    def _read_published(self) -> torch.Tensor:
        """Lets the assistant read every published token it has not read; logits `(B, 1, V)` after the last."""
        rows = self.context.rows
        ends = rows.active_lengths()
        if self._runner is None:
            if min(ends) == max(ends):
                return self._read_first(ends[0])
            # so that every row has a token left whose logits can be wanted
            self._read_first(min(ends) - 1)
        # the last token is read once more where a round was aborted after reading it: its logits are wanted
        starts = [min(self._confirmed[row], end - 1) for row, end in zip(rows.active, ends, strict=True)]
        counts = [end - start for end, start in zip(ends, starts, strict=True)]
        width = max(counts)
        block = torch.zeros(len(ends), width, dtype=torch.long, device=rows.ids.device)
        for i, (row, end, count) in enumerate(zip(rows.active, ends, counts, strict=True)):
            block[i, width - count :] = rows.ids[row, end - count : end]
        logits = self._forward(self._readable(block), starts, counts, right=True)
        self._confirmed = dict(zip(rows.active, ends, strict=True))
        return logits

    def _read_first(self, columns: int) -> torch.Tensor:
        """Starts the assistant's cache on the first `columns` columns."""
        rows = self.context.rows
        logits = self._start_cache(self._readable(rows.ids[rows.active, :columns]), self._mask(columns))
        self._confirmed = dict.fromkeys(rows.active, columns)
        return logits

    def _start_cache(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Reads prompts `(A, P)` of assistant tokens, padded on the left; logits `(A, 1, V)` after the last."""
        kwargs: dict[str, Any] = {"use_cache": True}
        if self._keeps_logits:
            kwargs["logits_to_keep"] = heads.last_positions(self.model, 1, ids.shape[1])
        kwargs["decoder_attention_mask" if is_encoder_decoder(self.model) else "attention_mask"] = mask
        kwargs |= self._encoder.of_rows(self.context.rows.active)
        if self._takes_positions:
            # always said, as `generate` does: some classes count from elsewhere by themselves
            last = None if self._position_limit is None else self._position_limit - 1
            kwargs["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(0, last)
        # the assistant may stand elsewhere, and not every class of Transformers moves what it is shown
        device = model_device(self.model, ids.device)
        kwargs = {name: part.to(device) if isinstance(part, torch.Tensor) else part for name, part in kwargs.items()}
        runner = admission.runner_for(
            self.model, self._position_limit, keeps_all=self.goes_back, compiled=self.context.compiled
        )
        chunk = self.context.prefill_chunk_size if admission.reads_in_chunks(self.model) else None
        config = GenerationConfig(prefill_chunk_size=chunk)
        count = chunks.forwards(ids, None, config)
        logits = runner.prefill(ids.to(device), config, kwargs).logits[:, -1:]
        # only now: a failed reading leaves nothing behind
        self.forwards += count
        self._runner = runner
        return logits

    def _mask(self, columns: int) -> torch.Tensor:
        """Which of the first columns of the active rows hold text."""
        rows = self.context.rows
        mask = torch.ones_like(rows.ids[rows.active, :columns])
        if rows.prompt_mask is not None and rows.prompt_mask.shape[1] == rows.prompt_length:
            mask[:, : rows.prompt_length] = rows.prompt_mask[rows.active]
        return mask

    @torch.no_grad()
    def _read_shown(self, shown: dict[str, Any], copies: int) -> None:
        """Starts the assistant's cache on the prompts with their images, prepared as in a call of its own.

        Before any row can have left: an image does not say to which row it belongs.
        """
        rows = self.context.rows
        checks.check_shares(self.model, shown, rows.batch)
        ids = self._readable(rows.ids[:, : rows.prompt_length])
        mask = self._mask(rows.prompt_length)
        runner = admission.runner_for(self.model, self._position_limit, compiled=self.context.compiled)
        try:
            arguments = {**shown, "attention_mask": mask[::copies]}
            prompts, prepared = inputs.prepared(self.model, ids[::copies], copies, arguments)
            runner.prefill(prompts, GenerationConfig(), prepared)
        except Exception as error:  # whatever a model says of images that are not its own
            if is_out_of_memory(error):
                raise
            raise UnsupportedArgument(
                f"The assistant {type(self.model).__name__} cannot read the {', '.join(sorted(shown))} of this call "
                f"({error}): use an assistant of the target's own kind, or one that reads text alone."
            ) from error
        self.forwards += 1
        self._confirmed = dict.fromkeys(rows.active, rows.prompt_length)
        self._runner = runner

    def _feed(self, token: torch.Tensor, starts: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
        """Lets the assistant read one more target token `(A,)` of each row."""
        return self._forward(self._readable(token[:, None]), starts, counts)

    def _forward(
        self, tokens: torch.Tensor, starts: Sequence[int], counts: Sequence[int], right: bool = False
    ) -> torch.Tensor:
        assert self._runner is not None  # reading comes first
        self.forwards += 1
        return self._runner.forward(tokens, starts, counts, right=right, keep=1).logits

    def _readable(self, ids: torch.Tensor) -> torch.Tensor:
        """Tokens as the assistant may read them: unshared ones become `unknown_token`."""
        if self._shares_all:
            return ids
        unshared = self._unshared.on(ids.device)
        unknown = (ids >= len(unshared)) | unshared[ids.clamp_max(len(unshared) - 1)]
        return ids.masked_fill(unknown, self.unknown_token)

    def observe(self, commit: Commit) -> None:
        """See [`Drafter.observe`]. Accepted drafts the assistant has read need no second reading."""
        if self._runner is None or not any(commit.drafted):
            return
        outcomes = zip(commit.rows, commit.accepted, self._fed, commit.tokens, strict=True)
        read = {row: self._confirmed[row] + min(accepted, fed, len(tokens)) for row, accepted, fed, tokens in outcomes}
        self._confirmed = read

    def _let_go(self) -> None:
        """Takes rows that have ended out of the assistant's cache."""
        active = self.context.rows.active
        if self._held != active:
            if self._runner is not None:
                self._runner.cache.lengths = [self._confirmed[row] for row in self._held]
                self._runner.keep_rows([self._held.index(row) for row in active])
            self._held = active
