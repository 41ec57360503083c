"""The round loop: propose, score, judge, commit; one round a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, PreTrainedModel

from .drafters.base import Drafter, DraftingContext
from .errors import InvalidArgument
from .models import admission, compat
from .models.runner import RowRunner
from .output import AssistedDecoderOnlyOutput, StepRecorder
from .randomness import ACCEPT, TERMINAL, Noise, SharedNoise, default_generator, draw_seed
from .records import Commit, Draft, Uniforms, Verdict
from .schedules import DraftSchedule
from .state.cache import RowStates
from .state.caller_cache import CallerCache
from .state.processors import ProcessorPipeline
from .state.rows import Rows
from .state.stopping import StoppingRules
from .telemetry import AssistStats
from .verification.coupling import verify_sampled
from .verification.greedy import verify_greedy
from .verification.shared_noise import verify_shared


class Session:
    """One call, round by round: its state, and the verbs of the loop.

    Nothing a caller can see changes before a round is published. A round that fails (a callback that raises, Ctrl-C,
    no memory) leaves tokens, lengths, random numbers and counters as they were, and the next [`step`] makes it again
    with the same numbers. [`~hf_exactassist.generate`] is a session run to its end.

    Args:
        model (`PreTrainedModel`): an admitted target.
        input_ids (`torch.LongTensor` of shape `(B, P)`): prompts.
        logits_processor (`LogitsProcessorList`): as `generate` prepared them.
        stopping_criteria (`StoppingCriteriaList`): as `generate` prepared them.
        generation_config (`GenerationConfig`): as `generate` prepared it.
        model_kwargs (`dict[str, Any]`): as `generate` prepared them.
        drafter (`Drafter`): proposes tokens.
        schedule (`DraftSchedule`): how many.
        streamer (`BaseStreamer`, *optional*): gets every published token once.
        seed (`int`, *optional*): see [`~hf_exactassist.AssistedDecoding`], as for what follows.
        generator (`torch.Generator`, *optional*): the source of numbers.
        row_ids (`Sequence[int]`, *optional*): identities of the rows.
        keep_cache (`bool`): fill the caller's cache even if no output object is returned.
        coupling (`str`): `"maximal"` or `"shared_noise"`.

    Raises:
        ExactAssistError: the call cannot be kept exact.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        *,
        drafter: Drafter,
        schedule: DraftSchedule,
        streamer: Any = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        row_ids: Any = None,
        keep_cache: bool = False,
        coupling: str = "maximal",
    ) -> None:
        self.generation_config, self.model_kwargs = generation_config, model_kwargs
        self.drafter, self.schedule, self.streamer = drafter, schedule, streamer
        self.rules = StoppingRules(stopping_criteria)
        pad = generation_config._pad_token_tensor
        self.rows = Rows(
            input_ids,
            model_kwargs.get("attention_mask"),
            self.rules.max_length,
            0 if pad is None else int(pad),
            stop_alone=self.rules.pads_finished_rows,
        )
        positions = model_kwargs.get("position_ids")
        read = [*self.rows.prompt_tokens] if positions is None else (positions[:, -1] + 1).tolist()
        admission.check_length(model, min(read), max(read) + self.rules.max_length - self.rows.prompt_length)
        cache = model_kwargs.get(compat.CACHE_ARGUMENT)
        if cache is None:
            # `use_cache=False`: block scoring needs one all the same, and nobody sees it
            admission.check_outputs_without_cache(generation_config)
            cache = model_kwargs[compat.CACHE_ARGUMENT] = DynamicCache(config=compat.text_config(model))
            self.returns_cache = False
        else:
            user_defined = getattr(cache, "_is_user_defined", False) or keep_cache
            self.returns_cache = bool(generation_config.return_dict_in_generate or user_defined)
        self.caller_cache = CallerCache(cache)
        self.target = RowRunner(model)
        self.recorder = StepRecorder(generation_config, self.rows)
        example = None if self.recorder.scores is None else (torch.zeros(self.rows.batch, compat.head_size(model)),)
        self.rules.check_batch(input_ids, example)
        self.processors = ProcessorPipeline(logits_processor, input_ids, compat.head_size(model))
        self.noise = None
        identities = range(self.rows.batch) if row_ids is None else row_ids
        if len(identities) != self.rows.batch:
            count = len(identities)
            raise InvalidArgument(f"`row_ids` must hold one number per returned row, {self.rows.batch}, got {count}.")
        self.shared_noise = None
        if generation_config.do_sample and coupling == "shared_noise":
            generator = default_generator(input_ids.device) if generator is None else generator
            if seed is not None:
                generator = torch.Generator(input_ids.device).manual_seed(seed)
            if generator.device.type != input_ids.device.type:
                raise InvalidArgument(f"`generator` must live where the input ids do, on {input_ids.device.type}.")
            shape = (self.rows.batch, compat.head_size(model))
            self.shared_noise = SharedNoise(generator, shape, input_ids.device)
        elif generation_config.do_sample:
            self.noise = Noise(draw_seed(generator) if seed is None else seed, identities)
        self.schedule.start()
        self.drafter.start(
            DraftingContext(
                self.rows,
                self.processors,
                compat.head_size(model),
                self.rules.eos_token_ids,
                self.noise,
                self.shared_noise,
            )
        )
        self.stats = AssistStats()
        self.ended: dict[int, RowStates] = {}
        self.streamed = self.rows.prompt_length
        # of each row, the columns that iteration has handed out
        self._delivered = list(self.rows.lengths)
        # the prefill's outputs until the first token is published
        self._first: Any = None
        self._begun = False
        self._result: Any = None
        self.ends_streamer = False

    @property
    def finished(self) -> bool:
        """Whether every row has ended."""
        return not self.rows.active

    @torch.no_grad()
    def step(self) -> Commit | None:
        """Makes and publishes one round; the first one reads the prompts and publishes one token a row.

        Without memory for the round, it is made again with drafts of half the length, down to none. Not so where
        drafts were drawn by a drafter that stops early: how long they got, and so whether memory sufficed, hung on
        numbers not yet reached, and choosing by them would bend the law.

        Returns:
            `Commit`: what was published, or `None` if every row has ended.

        Raises:
            BaseException: whatever the round raised; nothing was published, and the session can be stepped again. Only
                a streamer is called after publication: what it raises comes with the tokens already published.
                Where there is no memory in the end, the error carries the published tokens as `published`.
        """
        if self.finished:
            return None
        if not self._begun:
            if self._first is None:
                self._first = self.prefill()
            return self.decide(self._first, Draft.empty(self.rows.batch, self.rows.ids.device))
        share = 1.0
        while True:
            wanted = self.wanted(share)
            try:
                draft = self.propose(wanted)
                return self.decide(self.score(draft, max(wanted)), draft)
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                if share == 0.0 or (self.noise is not None and self.drafter.stops_early):
                    error.published = self.sequences_so_far()  # type: ignore[attr-defined]
                    raise
                share = 0.0 if max(wanted) <= 1 else share / 2

    def decide(self, outputs: Any, draft: Draft) -> Commit:
        """From a forward's outputs to the published round."""
        logits, scores = self.process(outputs, draft)
        verdict = self.judge(scores, draft)
        commit = self.stage(draft, verdict, logits, scores, outputs)
        self.publish(commit)
        return commit

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Published tokens as `(row, token)`, stepping as needed; each is handed out once, by whichever iteration."""
        while True:
            for row in range(self.rows.batch):
                while self._delivered[row] < self.rows.certain_length(row):
                    self._delivered[row] += 1
                    yield row, int(self.rows.ids[row, self._delivered[row] - 1])
            if self.step() is None:
                return

    def sequences_so_far(self) -> list[list[int]]:
        """The new tokens published for each row."""
        rows = self.rows
        ends = [rows.certain_length(row) for row in range(rows.batch)]
        return [rows.ids[row, rows.prompt_length : end].tolist() for row, end in enumerate(ends)]

    def drop_rows(self, rows: Sequence[int]) -> None:
        """Ends rows where they stand; the others go on.

        Args:
            rows (`Sequence[int]`): indices into the batch.

        Raises:
            InvalidArgument: there is no such row, or nothing has been published yet.
        """
        if not self._begun or not all(row in range(self.rows.batch) for row in rows):
            raise InvalidArgument(
                f"Rows 0 to {self.rows.batch - 1} can be dropped after the first step, got {list(rows)}."
            )
        ended = tuple(row for row in self.rows.active if row in rows)
        going = [i for i, row in enumerate(self.rows.active) if row not in rows]
        before = tuple(self.rows.active)
        self.rows.end(ended)
        if len(going) < len(before) and (going or self.ended):
            self.retire(before, going)
        self.stream()

    @torch.no_grad()
    def result(self) -> AssistedDecoderOnlyOutput | torch.Tensor:
        """What `generate` returns; runs to the end first."""
        while self.step() is not None:
            pass
        if self._result is None:
            self._result = self.finish()
            if self.ends_streamer and self.streamer is not None:
                self.streamer.end()
        return self._result

    def abandon(self) -> None:
        """Gives the caller's cache back as it was before the call."""
        self.caller_cache.restore()

    def prefill(self) -> Any:
        """Reads the prompts as plain `generate` does."""
        prompts = self.rows.ids[:, : self.rows.prompt_length]
        try:
            outputs = self.target.prefill(prompts, self.generation_config, dict(self.model_kwargs))
        except BaseException:
            # half-read prompts are no state to go on from
            self.target = RowRunner(self.target.model)
            self.caller_cache.restore()
            raise
        self.slots = self.target.cache.lengths[0]
        # a cache of the caller's may keep more than the model's windows, and attention is returned over what it keeps
        layers = self.caller_cache.cache.layers
        self.recorder.start(self.slots, [layer.sliding_window if layer.is_sliding else None for layer in layers])
        outputs.logits = outputs.logits[:, -1:]
        return outputs

    def wanted(self, share: float) -> list[int]:
        """Draft length of each row: a share of what the schedule wants, with room left for the terminal token."""
        return [
            max(min(int(self.schedule.length(row) * share), budget - 1), 0)
            for row, budget in zip(self.rows.active, self.rows.budgets(), strict=True)
        ]

    def propose(self, wanted: Sequence[int]) -> Draft:
        """Drafts for every active row."""
        draft = self.drafter.propose(wanted)
        width = draft.width
        tokens, probs = draft.tokens[:, :width].to(self.rows.ids.device), draft.probs
        if min(draft.lengths) < width:
            # what lies behind a short draft need not be a token, and the target reads it as filler
            ends = torch.tensor(draft.lengths, device=tokens.device)[:, None]
            tokens = tokens.masked_fill(torch.arange(width, device=tokens.device) >= ends, 0)
        return Draft(tokens, draft.lengths, None if probs is None else probs[:, :width].to(tokens.device))

    def score(self, draft: Draft, wanted: int) -> Any:
        """One target forward over the frontier token and the drafts of every row.

        Drawn drafts are filled up to what was wanted, so that the memory it takes does not depend on what was drawn.
        """
        rows = self.rows
        frontier = rows.ids[rows.active, [length - 1 for length in rows.active_lengths()]]
        filler = draft.tokens.new_zeros(len(rows.active), 0 if draft.probs is None else wanted - draft.width)
        block = torch.cat([frontier[:, None], draft.tokens, filler], dim=1)
        counts = [length + 1 for length in draft.lengths]
        outputs = self.target.forward(block, self.target.cache.lengths, counts)
        outputs.logits = outputs.logits[:, : draft.width + 1]
        return outputs

    def process(self, outputs: Any, draft: Draft) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and processed scores, `(A, K + 1, V)`, of every position that has a prefix.

        Code of the caller's is asked column by column and never about a prefix that cannot be published.
        """
        rows, starts, drafted = self.rows, self.rows.active_lengths(), list(draft.lengths)
        logits = outputs.logits.to(rows.ids.device, torch.float32)
        scores = torch.zeros_like(logits)
        columns = range(min(starts), max(start + count for start, count in zip(starts, drafted, strict=True)) + 1)
        for block in [[column] for column in columns] if self.processors.asks_caller else [columns]:
            places = [(i, column - start) for i, start in enumerate(starts) for column in block]
            places = [(i, j) for i, j in places if 0 <= j <= drafted[i]]
            at = ([i for i, _ in places], [j for _, j in places])
            lengths = [starts[i] + j for i, j in places]
            scores[at] = self.processors.process(logits[at], [rows.active[i] for i in at[0]], lengths, rows.ids)
            for i, j in places if self.processors.asks_caller else ():
                if j < drafted[i] and self.ends_here(int(draft.tokens[i, j]), scores[i, j]):
                    drafted[i] = j
        return logits, scores

    def ends_here(self, token: int, scores: torch.Tensor) -> bool:
        """Whether nothing can be published after a draft token: it ends the row, or can only be rejected."""
        return token in self.rules.eos_token_ids or bool(scores[token] == -torch.inf and scores.amax() > -torch.inf)

    def judge(self, scores: torch.Tensor, draft: Draft) -> Verdict:
        """Accepts a prefix of each draft and chooses the token after it."""
        active, positions, width = self.rows.active, self.rows.positions(), draft.width
        if self.shared_noise is not None:
            return verify_shared(scores, draft, self.shared_noise.block(active, self.rows.steps(), width + 1))
        if self.noise is None:
            return verify_greedy(scores, draft)
        accept = self.noise.block(ACCEPT, active, positions, width)
        terminal = self.noise.block(TERMINAL, active, positions, width + 1)
        return verify_sampled(scores, draft, Uniforms(accept.to(scores.device), terminal.to(scores.device)))

    def stage(
        self, draft: Draft, verdict: Verdict, logits: torch.Tensor, scores: torch.Tensor, outputs: Any
    ) -> Commit:
        """The round as it will be published: cut at the first stop of each row, before anything is visible."""
        table = torch.cat([draft.tokens, verdict.terminal[:, None], verdict.accepted[:, None]], dim=1).tolist()
        accepted = tuple(row[-1] for row in table)
        tokens = [[*row[:count], row[-2]] for row, count in zip(table, accepted, strict=True)]
        if max(row[-1] for row in tokens) >= scores.shape[-1]:
            raise RuntimeError(
                "The target's processed scores hold NaN or leave no token to choose. Check the model's weights and "
                "dtype and the logits processors; plain `generate` fails on them too."
            )
        self.rows.lay_out(tokens)
        self.recorder.record(logits, scores, outputs, [len(row) for row in tokens])
        kept, stops = self.rules.cut(self.rows, tokens, self.recorder.criteria_scores)
        return Commit(tuple(self.rows.active), draft.lengths, accepted, kept, stops)

    def publish(self, commit: Commit) -> None:
        """Makes the round visible and lets drafter, schedule, counters and streamer learn of it."""
        rows = self.rows
        going = rows.publish(commit)
        # every published token but the last has a K/V row now
        self.target.cache.lengths = [self.slots + rows.lengths[row] - rows.prompt_length - 1 for row in commit.rows]
        self.drafter.observe(commit)
        for row, drafted, accepted in zip(commit.rows, commit.drafted, commit.accepted, strict=True):
            self.schedule.observe(row, drafted, accepted)
        self.stats.rounds += self._begun
        self._begun, self._first = True, None
        self.stats.record(commit)
        if len(going) < len(commit.rows) and (going or self.ended):
            self.retire(commit.rows, going)
        self.stream()

    def retire(self, rows: Sequence[int], going: Sequence[int]) -> None:
        """Takes finished rows out of the batch; their states are kept if the caller gets a cache."""
        if self.returns_cache:
            for i, row in enumerate(rows):
                if i not in going:
                    self.ended[row] = self.target.cache.take_row(i)
        if going:
            self.target.keep_rows(going)
            self.drafter.keep_rows(going)

    def stream(self) -> None:
        """Gives the streamer the columns that are complete, one token per row at a time as plain `generate` does."""
        end = self.rows.complete_columns()
        if self.streamer is not None:
            for column in range(self.streamed, end):
                # counted first: a token a streamer failed on is not given to it again
                self.streamed = column + 1
                self.streamer.put(self.rows.ids[:, column].cpu())
        self.streamed = end

    def finish(self) -> AssistedDecoderOnlyOutput | torch.Tensor:
        """The result, with the caller's cache holding all of it but the last column."""
        if self.shared_noise is not None:
            self.shared_noise.leave(self.rows.complete_columns() - self.rows.prompt_length)
        self.stats.target_forwards, self.stats.draft_forwards = self.target.forwards, self.drafter.forwards
        cache = self.hand_over_cache() if self.returns_cache else None
        if self.generation_config.return_dict_in_generate:
            return self.recorder.finish(cache, self.stats)
        return self.rows.sequences()

    def hand_over_cache(self) -> DynamicCache:
        """Plain `generate` reads padding for finished rows; so that the caches agree, what is missing is read here."""
        rows, cache = self.rows, self.target.cache
        if self.ended:
            self.target.regroup([self.ended[row] for row in range(rows.batch)])
        shift = self.slots - rows.prompt_length
        end = rows.complete_columns() - 1
        starts = [min(length - shift, end) for length in cache.lengths]
        width = end - min(starts)
        if width > 0:
            block = rows.ids.new_full((rows.batch, width), rows.pad_token_id)
            for row, start in enumerate(starts):
                block[row, : end - start] = rows.ids[row, start:end]
            self.target.forward(block, [start + shift for start in starts], [end - start for start in starts], keep=1)
        return self.caller_cache.fill(cache, end + shift)


def _out_of_memory(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text
