"""The round loop: propose, score, judge, stage, publish; one round a step."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from .acceptance_log import AcceptanceLog
from .drafters.base import Drafter, DraftingContext
from .errors import (
    BrokenRound,
    ExactAssistError,
    InvalidArgument,
    InvalidCommit,
    SessionEnded,
    UnsupportedArgument,
)
from .judging import Judge
from .listeners import Listeners
from .memory import is_out_of_memory
from .models import checks, compat, compiled, identity, inputs
from .models.lone_rows import LoneRows
from .opening import open_target
from .options import Options
from .output import AssistedOutput, StepRecorder
from .records import Coordinate, Draft, Processed, Proposal, RoundCommit, Verdict, Verification
from .schedules import DraftSchedule
from .standing import Standing
from .state import manifest, transaction
from .state.positions import process_block, process_in_order
from .state.processors import ProcessorPipeline
from .state.recall import Memory, Recall
from .state.rows import Rows, fed
from .state.stopping import StoppingRules
from .telemetry import AssistStats


class Session:
    """One call, round by round: its state, and the verbs of the loop.

    A round is made aside and published by one assignment. One that fails (a callback that raises, Ctrl-C, no memory)
    leaves tokens, lengths, random numbers and counters as they were, and the next [`step`] makes it again with the
    same numbers. What is bound to an earlier state is refused by name. [`~hf_exactassist.generate`] is a session run
    to its end.

    Args:
        model (`PreTrainedModel`): an admitted target.
        input_ids (`torch.LongTensor` of shape `(B, P)`): prompts.
        logits_processor (`LogitsProcessorList`): as `generate` prepared them.
        stopping_criteria (`StoppingCriteriaList`): as `generate` prepared them.
        generation_config (`GenerationConfig`): as `generate` prepared it.
        model_kwargs (`dict[str, Any]`): as `generate` prepared them.
        drafter (`Drafter`): proposes tokens.
        schedule (`DraftSchedule`): how many.
        options (`Options`): this library's own arguments.
        encoder_inputs (`dict[str, Any]`, *optional*): what the target's encoder was given, if it has one.

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
        drafter: Drafter,
        schedule: DraftSchedule,
        options: Options,
        encoder_inputs: dict[str, Any] | None = None,
    ) -> None:
        self.generation_config, self.model_kwargs, self.options = generation_config, model_kwargs, options
        self.drafter, self.schedule, self.streamer = drafter, schedule, options.streamer
        self.rules = StoppingRules(stopping_criteria)
        pad = generation_config._pad_token_tensor
        mask = model_kwargs.get("decoder_attention_mask" if compat.is_encoder_decoder(model) else "attention_mask")
        self.rows = Rows(
            input_ids,
            mask,
            self.rules.max_length,
            0 if pad is None else int(pad),
            stop_alone=self.rules.pads_finished_rows,
        )
        checks.check_padding(mask)
        positions = model_kwargs.get("position_ids")
        read = [*self.rows.prompt_tokens] if positions is None else (positions[..., -1].flatten() + 1).tolist()
        checks.check_length(model, min(read), max(read) + self.rules.max_length - self.rows.prompt_length)
        opening = open_target(model, input_ids, self.rows, generation_config, model_kwargs, options)
        self.scorer, self.caller_cache = opening.scorer, opening.caller_cache
        self.returns_cache, self.serial = opening.returns_cache, opening.serial
        encoded = model_kwargs.get("encoder_outputs")
        self.recorder = StepRecorder(generation_config, self.rows, encoded)
        vocabulary = compat.head_size(model)
        self.rules.prepare(self.rows.batch)
        self.processors = ProcessorPipeline(logits_processor, input_ids, vocabulary)
        self._in_step = ", ".join([*self.processors.in_step, *self.rules.in_step]) or None
        self.rows.in_step = self._in_step is not None
        self.recall = Recall([*self.processors.remembering, *self.rules.remembering], self.processors.read)
        self.rows.state = dataclasses.replace(self.rows.state, memory=self._remembered([]))
        # of each staged commit, what processors and criteria would remember after it
        self._memories: dict[RoundCommit, Memory] = {}
        self.log = None if options.telemetry is None else AcceptanceLog(options.telemetry)
        # last of all that may refuse, as it may draw a seed
        self.judging = Judge(bool(generation_config.do_sample), options, self.rows, vocabulary, model.dtype)
        self.schedule.start()
        # under maximal coupling, equal seeds give equal text only if draft lengths are the same again
        self._clocked = self.judging.noise is None
        if self._clocked:
            self.schedule.follow_clock()
        self._start_drafter(
            DraftingContext(
                self.rows,
                self.processors.sealed(),
                vocabulary,
                self.rules.eos_token_ids,
                self.judging.noise,
                self.judging.shared_noise,
                model,
                model_kwargs,
                encoder_inputs,
                self.recall,
                options.compile is not None,
                generation_config.prefill_chunk_size,
                self.schedule.goes_on if self._clocked and self.schedule.watches else None,
            )
        )
        self.schedule.expect(drafter.unread(), self.rules.max_length - self.rows.prompt_length)
        self.request_id = uuid.uuid4().hex
        self.standing = Standing(
            self.scorer,
            options.layout,
            {"target": model, "drafter": drafter.model},
            {
                "libraries": identity.libraries(),
                "target": {"compiled": True} if options.compile == "both" else {},
                "drafter": drafter.describe(),
                "schedule": schedule.describe(),
                "token_map": {"vocabulary": vocabulary},
                "processors": self.processors.describe(),
                "stopping": {**self.rules.describe(), "pad": self.rows.pad_token_id},
                "prompt": identity.describe_prompt(model, model_kwargs),
                **self.judging.describe(),
            },
        )
        self.listeners = Listeners(self.rows, drafter, schedule, self.log, options.streamer)
        # of each row, the columns that iteration has handed out
        self._delivered = list(self.rows.lengths)
        self._result: Any = None
        self._seconds = 0.0
        self._abandoned, self._stepping = False, threading.Lock()

    def _start_drafter(self, context: DraftingContext) -> None:
        """Lets the drafter read what it must before the first token."""
        refusal = None
        try:
            self.drafter.start(context)
        except UnsupportedArgument as error:
            refusal = error
        if refusal is not None:
            if context.target is not None and inputs.shown(context.target, self.model_kwargs):
                # images that the target cannot read either are no fault of the assistant's: it says so itself
                self.scorer.prefill(self.generation_config, self.model_kwargs)
            raise refusal

    @property
    def stats(self) -> AssistStats:
        """Counters of what has been published, and of forwards so far."""
        return dataclasses.replace(
            self.rows.state.stats,
            target_forwards=self.scorer.target.forwards,
            draft_forwards=self.drafter.forwards,
            seconds=self._seconds,
            steps=max(max(self.rows.lengths) - self.rows.prompt_length - 1, 0),
            costs=self._costs(),
            timed=self.schedule.costs is not None and self.schedule.costs.knows(0),
            text_realignments=self.drafter.text_realignments,
            lossy_alignments=self.drafter.lossy_alignments,
            serial=self.serial,
            in_step=self._in_step,
        )

    def _costs(self) -> list[float]:
        longest = len(self.rows.state.stats.drafted_by_position)
        return [] if self.schedule.costs is None else self.schedule.costs.table(self.rows.batch, max(longest, 1))

    @property
    def finished(self) -> bool:
        """Whether every row has ended."""
        return not self.rows.active

    @torch.no_grad()
    def step(self) -> RoundCommit | None:
        """Makes and publishes one round; the first one reads the prompts and publishes one token a row.

        Without memory for the round, it is made again with drafts of half the length, down to none. Not so where
        drafts were drawn by a drafter that stops early: how long they got, and so whether memory sufficed, hung on
        numbers not yet reached, and choosing by them would bend the law.

        Returns:
            `RoundCommit`: what was published, or `None` if every row has ended.

        Raises:
            StaleRound: a model was changed since the call began.
            BaseException: whatever the round raised; nothing was published, and the session can be stepped again. Only
                those who are told of a published round (streamer, telemetry, a drafter's or schedule's `observe`) are
                called after publication: what they raise comes with the tokens already published, and they are not
                told again. Where there is no memory in the end, the error carries the published tokens as `published`.
        """
        with self._alone():
            self.standing.require_unchanged()
            return self._step()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps a second thread, and a callback inside a round, from stepping too; nothing goes on after an end."""
        if self._abandoned:
            raise SessionEnded("This session was abandoned: open a new one with `start(...)`.")
        if not self._stepping.acquire(blocking=False):
            raise SessionEnded(
                "This session is in the middle of a step: step it from one thread, and not from within."
            )
        try:
            yield
        finally:
            self._stepping.release()

    def _step(self) -> RoundCommit | None:
        self.listeners.settle()
        if self.finished:
            return None
        share = 1.0
        while True:
            wanted, began, made = self.wanted(share), time.perf_counter(), compiled.made
            try:
                commit = self.round(wanted)
                took = time.perf_counter() - began
                break
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if share == 0.0 or (self.judging.noise is not None and self.drafter.stops_early):
                    error.published = self.sequences_so_far()  # type: ignore[attr-defined]
                    raise
                share = 0.0 if max(wanted) <= 1 else share / 2
        is_round = self.rows.state.generation > 0
        self.publish(commit)
        self._seconds += took if is_round else 0.0
        if self._clocked and is_round and made == compiled.made:
            self.schedule.timed(len(commit.rows), max(commit.drafted), took)
        return commit

    @torch.no_grad()
    def round(self, wanted: Sequence[int]) -> RoundCommit:
        """Makes one round with drafts of the wanted lengths, and publishes nothing (contract 0x06A)."""
        lap = self.log.lap if self.log is not None else _nothing
        if self.log is not None:
            self.log.begin()
        if self.rows.state.generation == 0:
            verification = self.prefill()
        else:
            self.scorer.make_ready()
            lap("make_ready")
            proposal = self.propose(wanted)
            lap("propose")
            verification = self.score(proposal, wanted)
        lap("score")
        processed = self.process(verification)
        lap("process")
        verdict = self.judge(processed, verification.draft)
        lap("judge")
        try:
            return self.stage(verification, processed, verdict)
        except BrokenRound:
            # perhaps the frontier itself was read wrongly
            self.scorer.forget_frontier()
            raise

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
        if not isinstance(rows, Iterable) or not all(row in range(self.rows.batch) for row in rows):
            raise InvalidArgument(f"Rows to drop are a list out of 0 to {self.rows.batch - 1}, got {rows!r}.")
        if self.rows.state.generation == 0:
            raise InvalidArgument("Rows can be dropped after the first step: call `step()` before.")
        self.listeners.settle()
        self.rows.end([row for row in self.rows.active if row in rows])
        self.listeners.settle()

    @torch.no_grad()
    def result(self) -> AssistedOutput | torch.Tensor:
        """What `generate` returns; runs to the end first."""
        with self._alone():
            # between these rounds no code of the caller's runs but what it asked to be called back
            self.standing.require_unchanged()
            while self._step() is not None:
                pass
            if self._result is None:
                try:
                    self._result = self.finish()
                except RuntimeError as error:
                    if is_out_of_memory(error):
                        error.published = self.sequences_so_far()  # type: ignore[attr-defined]
                    raise
            return self._result

    def abandon(self) -> None:
        """Ends the session: the caller's cache is as it was before the call, and the acceptance log is closed.

        Processors and criteria remember what has been published, as after a `generate` that stopped there.
        """
        if self._abandoned:
            return
        self._abandoned = True
        if self._result is None:
            self._hand_back()
        self.caller_cache.restore()
        self.listeners.close()

    def coordinate(self) -> Coordinate:
        """The present state, to which proposals, verifications and commits are bound (contract 0x01A)."""
        return self.standing.coordinate()

    def manifest(self) -> dict[str, Any]:
        """Everything that gives the next round its meaning, with a digest; ready for JSON.

        Returns:
            `dict[str, Any]`: `"call"` (libraries, models, drafter, processors, coupling, streams, stopping), `"round"`
            (generation, layout, and for each active row its prefix, lengths, position and used numbers), `"digest"`.
        """
        return manifest.manifest(self.coordinate())

    # --- the verbs of a round ---

    def prefill(self) -> Verification:
        """Reads the prompts as plain `generate` does: a round without drafts."""
        self.scorer.prefill(self.generation_config, self.model_kwargs)
        # a cache of the caller's may keep more than the model's windows, and attention is returned over what it keeps
        target = self.scorer.target
        layers = target.layers if isinstance(target, LoneRows) else self.caller_cache.layers
        slots = self.rows.prompt_length + self.scorer.shift
        windows = [getattr(layer, "sliding_window", None) for layer in layers]
        self.recorder.start(slots, windows)
        draft = Draft.empty(self.rows.batch, self.rows.ids.device)
        starts, frontier = tuple(self.scorer.cached), self.scorer.frontier_read()
        return Verification(self.coordinate(), draft, self.scorer.first, starts, draft.tokens[:, :0], frontier)

    def wanted(self, share: float) -> list[int]:
        """Draft length of each row: a share of what the schedule wants, with room left for the terminal token."""
        if self.rows.state.generation == 0 or self.serial:
            return [0] * len(self.rows.active)
        wanted = [
            max(min(int(length * share), budget - 1), 0)
            for length, budget in zip(self.schedule.lengths(self.rows.active), self.rows.budgets(), strict=True)
        ]
        return [min(wanted)] * len(wanted) if self.rows.in_step else wanted

    def propose(self, wanted: Sequence[int]) -> Proposal:
        """Drafts for every active row."""
        coordinate = self.coordinate()
        draft = self.drafter.propose(wanted)
        width = draft.width
        if not width and draft.probs is None:
            return Proposal(coordinate, Draft.empty(len(draft.lengths), self.rows.ids.device))
        tokens, probs = draft.tokens[:, :width].to(self.rows.ids.device), draft.probs
        if min(draft.lengths) < width:
            # what lies behind a short draft need not be a token, and the target reads it as filler
            ends = torch.tensor(draft.lengths, device=tokens.device)[:, None]
            tokens = tokens.masked_fill(torch.arange(width, device=tokens.device) >= ends, 0)
        probs = None if probs is None else probs[:, :width].to(tokens.device)
        return Proposal(coordinate, Draft(tokens, draft.lengths, probs))

    def score(self, proposal: Proposal, wanted: Sequence[int]) -> Verification:
        """One target forward over the drafts of every row.

        Raises:
            StaleRound: the proposal was made in another state.
        """
        self.standing.require(proposal.coordinate, "This proposal")
        outputs, starts, read, frontier = self.scorer.score(proposal.draft, max(wanted))
        return Verification(proposal.coordinate, proposal.draft, outputs, starts, read, frontier)

    def process(self, verification: Verification) -> Processed:
        """Processed scores; where they depend on the tokens before them, as far as the draft is kept."""
        logits, draft = verification.outputs.logits.to(self.rows.ids.device, torch.float32), verification.draft
        self.recall.settle(self.rows.state.memory)
        self.recall.leave()
        if not self.processors.has_history:
            processed = process_block(self.processors, self.rows, draft, logits)
            if self.recorder.records_scores:
                places = [(i, place) for i, limit in enumerate(processed.limits) for place in range(limit)]
                self.recorder.record_scores(logits, processed.scores, *zip(*places, strict=True))
            return processed
        return process_in_order(
            self.processors,
            self.rules,
            self.rows,
            draft,
            logits,
            self.judging.keeps,
            self.recorder.record_scores,
            self.recorder.criteria_scores,
        )

    def judge(self, processed: Processed, draft: Draft) -> Verdict:
        """Accepts a prefix of each draft and chooses the token after it."""
        return self.judging.judge(processed.scores, draft, processed.accepted)

    def stage(self, verification: Verification, processed: Processed, verdict: Verdict) -> RoundCommit:
        """The round as it will be published: cut at the first stop of each row, before anything is visible.

        Raises:
            StaleRound: the verification was made in another state.
            BrokenRound: the target call's rows do not fit its tokens.
            RuntimeError: the scores leave no token to choose.
        """
        self.standing.require(verification.coordinate, "This verification")
        draft, scores = verification.draft, processed.scores
        known = [part.to(self.rows.ids.device) for part in (verification.frontier[:, None], verification.read)]
        # one transfer from the device for all that is decided
        columns = [draft.tokens, verdict.terminal[:, None], verdict.accepted[:, None], *known]
        near = self.judging.near_ties(scores)
        table = torch.cat(columns if near is None else [*columns, near], dim=1).tolist()
        width = draft.tokens.shape[1]
        ties = width + 3 + verification.read.shape[1]
        # drafters need not look at what they draft, and what stands behind an end was not wanted
        drafted = [self.rules.up_to_end(row[:length]) for row, length in zip(table, draft.lengths, strict=True)]
        accepted = tuple(min(row[width + 1], len(tokens)) for row, tokens in zip(table, drafted, strict=True))
        lengths = tuple(map(len, drafted))
        unread = draft.width - max(lengths)
        if lengths != draft.lengths:
            draft = dataclasses.replace(draft, lengths=lengths)
        tokens = [
            [*row[:count], row[width]][:limit]
            for row, count, limit in zip(table, accepted, processed.limits, strict=True)
        ]
        if max(row[-1] for row in tokens) >= scores.shape[-1]:
            raise RuntimeError(
                "The target's processed scores hold NaN or leave no token to choose. Check the model's weights and "
                "dtype and the logits processors; plain `generate` fails on them too."
            )
        self.rows.lay_out(tokens)
        self.recorder.record_layers(verification.outputs, [len(row) for row in tokens])
        kept, stops = self.rules.cut(
            self.rows, tokens, self.recorder.criteria_scores, processed.asked, processed.stops
        )
        memory = self._remembered(kept)
        commit = transaction.stage(
            self.request_id,
            verification.coordinate,
            self.rows.frontiers(),
            draft,
            drafted,
            verification.starts,
            [row[width + 2] for row in table],
            [row[width + 3 : ties - unread] for row in table],
            accepted,
            kept,
            stops,
            self.judging.spent(draft, accepted, [len(row) for row in kept]),
            (self.rows.state.memory.digest, memory.digest),
            sum(sum(row[ties : ties + len(new)]) for row, new in zip(table, kept, strict=True)),
        )
        self.listeners.staged[commit] = self._deliveries(commit, draft, scores)
        self._memories[commit] = memory
        return commit

    def publish(self, commit: RoundCommit) -> bool:
        """Makes a staged round visible in one assignment, then tells drafter, schedule, telemetry and streamer.

        Args:
            commit (`RoundCommit`): from [`stage`].

        Returns:
            `bool`: `True` if it was published now; `False` if it is the round published last, which adds nothing.

        Raises:
            StaleRound: another round was published since; what differs is named.
            BrokenRound: the commit contradicts itself or the state.
        """
        if not isinstance(commit, RoundCommit):
            raise InvalidArgument(f"`publish` takes a commit that `stage` or `round` returned, got {commit!r}.")
        if commit == self.rows.state.last:
            self.listeners.settle()
            return False
        self.standing.require(commit.coordinate, f"Round {commit.round_id}")
        try:
            transaction.validate(commit, self.rows, self.request_id, self.rows.state.memory.digest)
            staged = commit in self.listeners.staged
        except (TypeError, AttributeError, ValueError) as error:
            if isinstance(error, ExactAssistError):
                raise
            raise InvalidCommit(f"Round {commit.round_id} is malformed: publish what `stage` returned.") from error
        if not staged:
            # what contradicts nothing can still be made up
            raise InvalidCommit(
                f"Round {commit.round_id} was not staged by this session: publish what `stage` returned."
            )
        if next(reversed(self.listeners.staged)) is not commit:
            # another attempt lies in the scratch columns
            self.rows.lay_out(commit.tokens)
        self.rows.publish(commit, commit.spent_after, self._memories[commit])
        self._memories = {}
        self.listeners.settle()
        return True

    def _remembered(self, kept: Sequence[Sequence[int]]) -> Memory:
        """What processors and criteria remember now, when active rows are about to publish tokens."""

        def texts() -> list[str]:
            digests = [digest.copy() for digest in self.rows.state.hashes]
            for row, tokens in zip(self.rows.active, kept, strict=False):
                fed(digests[row], tokens)
            return [digest.hexdigest() for digest in digests]

        return self.recall.take(texts)

    def _deliveries(self, commit: RoundCommit, draft: Draft, scores: torch.Tensor) -> list[Callable[[], None]]:
        if self.log is None:
            return []
        uniforms = None if self.judging.noise is None else self.judging.uniforms(draft).accept
        return self.log.deliveries(self.log.records(commit, draft, scores, uniforms, self.judging.coupling))

    def _hand_back(self) -> None:
        """Leaves the caller's processors and criteria as plain `generate` would, had it stopped here."""
        self.recall.settle(self.rows.state.memory)
        self.recall.leave()
        self.processors.hand_back(self.rows.sequences(), self.rows.lengths)

    def finish(self) -> AssistedOutput | torch.Tensor:
        """The result, with the caller's cache holding all of it but the last column."""
        if self.judging.shared_noise is not None:
            self.judging.shared_noise.leave(self.rows.complete_columns() - self.rows.prompt_length)
        # filling the caller's cache is no forward of the call
        stats = self.stats
        self._hand_back()
        cache = self.scorer.hand_over() if self.returns_cache else None
        if self.generation_config.return_dict_in_generate:
            return self.recorder.finish(cache, stats)
        return self.rows.sequences()


def _nothing(stage: str) -> None:
    """Where nobody measures."""
