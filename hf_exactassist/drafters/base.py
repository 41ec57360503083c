"""What every drafter promises."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation import CandidateGenerator

from ..errors import StatefulProcessor
from ..randomness import Noise, SharedNoise, draw_seed
from ..records import Commit, Draft
from ..state.manifest import settings_of
from ..state.processors import ProcessorPipeline
from ..state.recall import Recall
from ..state.rows import Rows


@dataclass(frozen=True)
class DraftingContext:
    """What a drafter may know about a call.

    Attributes:
        rows (`Rows`): the published tokens; the scratch columns are free to write to.
        processors (`ProcessorPipeline`): the target's processors; those that remember are asked through [`drafting`].
        vocabulary (`int`): the target's event space is `range(vocabulary)`.
        eos_token_ids (`frozenset[int]`): drafting goes no further than one of these.
        noise (`Noise`, *optional*): random numbers if the call samples by maximal coupling.
        shared_noise (`SharedNoise`, *optional*): the target's own noise if the call samples with it; both are `None`
            for greedy decoding.
        target (`PreTrainedModel`, *optional*): the model that verifies.
        arguments (`dict[str, Any]`): its forward arguments as `generate` prepared them; not to be changed.
        encoder_inputs (`dict[str, Any]`, *optional*): what its encoder was given, if it has one and this is known.
        goes_on (`Callable`, *optional*): `goes_on(rows, confidences)` says whether one more token is worth drafting,
            given the drafter's own probabilities of those so far; to be asked where it costs no waiting for a device.
        recall (`Recall`, *optional*): makes copies of what the target's processors remember.
        compiled (`bool`): whether a model that drafts is to run compiled.
        prefill_chunk_size (`int`, *optional*): tokens of a prompt to read at once; all of them by default.
    """

    rows: Rows
    processors: ProcessorPipeline
    vocabulary: int
    eos_token_ids: frozenset[int]
    noise: Noise | None
    shared_noise: SharedNoise | None = None
    target: PreTrainedModel | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    encoder_inputs: dict[str, Any] | None = None
    recall: Recall | None = None
    compiled: bool = False
    prefill_chunk_size: int | None = None
    goes_on: Callable[[Sequence[int], Sequence[Sequence[float]]], bool] | None = None

    def drafting(self, processors: ProcessorPipeline) -> ProcessorPipeline:
        """The processors as a drafter may ask them about one draft: what remembers, as copies."""
        recall = self.recall
        return processors if recall is None else processors.drafting(lambda: recall.copies(self.rows.state.memory))


class Drafter(CandidateGenerator):
    """Proposes draft tokens for every active row of a batch.

    With `Draft.probs` a drafter promises that its tokens were drawn from them; without, anything goes. It may stop
    early, but never takes a drawn token back. It is a [`~transformers.generation.CandidateGenerator`] too, so that the
    same object serves Transformers' own assisted loop, which knows one row.
    """

    forwards: int = 0
    # what it computes with, if that is a model: a call refuses to go on when it changes
    model: PreTrainedModel | None = None
    # whether how much work a drawn draft takes depends on what is drawn
    stops_early: bool = False

    @property
    def text_realignments(self) -> int:
        """How often a row's text had to be encoded again from its beginning; 0 for drafters that read tokens."""
        return 0

    @property
    def lossy_alignments(self) -> int:
        """How often an encoding did not stand for its text; 0 for drafters that read tokens."""
        return 0

    def start(self, context: DraftingContext) -> None:
        """Prepares for a new call; whatever an earlier call left is forgotten."""
        self.context = context

    def unread(self) -> list[int]:
        """Tokens of each row that are to be read before its first draft, once started; none by default."""
        return [0] * self.context.rows.batch

    def describe(self) -> dict[str, Any]:
        """What the call's manifest says about the drafter: by default its class and public plain attributes."""
        return settings_of(self)

    @abstractmethod
    def propose(self, lengths: Sequence[int]) -> Draft:
        """Drafts for the active rows.

        Args:
            lengths (`Sequence[int]`): tokens wanted for each active row, at least 0; a drafter may return fewer.

        Returns:
            `Draft`: over the target's event space, on any device.
        """

    def observe(self, commit: Commit) -> None:
        """Learns how the last draft ended; never told of an aborted round, nor twice of one.

        Which rows are left is written in `context.rows.active`.
        """

    # --- inside Transformers' own loop, one row at a time ---

    def standalone(self, vocabulary: int, num_tokens: int, do_sample: bool, processors: Sequence = ()) -> Drafter:
        """Makes the drafter usable through [`get_candidates`] in Transformers' own assisted loop.

        Args:
            vocabulary (`int`): the target's vocabulary size.
            num_tokens (`int`): tokens per draft.
            do_sample (`bool`): whether the loop samples; drafts then come with the logits they were drawn from.
            processors (`Sequence`): logits processors of the target.

        Returns:
            the drafter itself.
        """
        self._standalone = (vocabulary, num_tokens, do_sample, list(processors))
        self._judged: tuple[torch.Tensor, Draft] | None = None
        return self

    def get_candidates(self, input_ids: torch.Tensor, **kwargs: object) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One draft for Transformers' loop.

        Args:
            input_ids (`torch.LongTensor` of shape `(1, L)`): all tokens so far.
            **kwargs: what Transformers' loop gives to other generators; not used.

        Returns:
            the candidates of shape `(1, L + K)` and logits of shape `(1, K, V)` whose softmax the tokens were drawn
            from, or `None` for point-mass drafts.

        Raises:
            RuntimeError: [`standalone`] was not called.
            ValueError: more than one row.
        """
        if not hasattr(self, "_standalone"):
            raise RuntimeError("Call `standalone(...)` on the drafter before using it in Transformers' own loop.")
        if input_ids.shape[0] != 1:
            raise ValueError("Transformers' assisted loop is for one row; use `hf_exactassist.generate` for batches.")
        vocabulary, num_tokens, do_sample, processors = self._standalone
        if self._judged is None:
            # room to grow: Transformers' loop does not tell a generator where it will end
            rows = Rows(input_ids, None, input_ids.shape[1] + 2**20, 0, stop_alone=True)
            pipeline = ProcessorPipeline(processors, input_ids, vocabulary)
            if pipeline.remembering:
                raise StatefulProcessor(
                    "Transformers' own loop calls the processors itself, and a drafter does not learn what they "
                    "remember: leave stateful processors out of `standalone(...)`, or use `hf_exactassist.generate`."
                )
            noise = Noise(draw_seed(), [0]) if do_sample else None
            self.start(DraftingContext(rows, pipeline, vocabulary, frozenset(), noise))
        else:
            self._follow(*self._judged, input_ids)
        draft = _with_laws(self.propose([num_tokens]))
        self._judged = (input_ids, draft)
        tokens = draft.tokens[:, : draft.lengths[0]].to(input_ids.device)
        logits = None if draft.probs is None else draft.probs[:, : draft.lengths[0]].log()
        return torch.cat([input_ids, tokens], dim=1), logits if draft.lengths[0] else None

    def _follow(self, before: torch.Tensor, draft: Draft, input_ids: torch.Tensor) -> None:
        """Learns from the next `input_ids` how Transformers' loop judged the last draft."""
        new = input_ids[0, before.shape[1] :].tolist()
        drafted = draft.tokens[0, : draft.lengths[0]].tolist()
        accepted = next(
            (i for i, (a, b) in enumerate(zip(new, drafted, strict=False)) if a != b), min(len(new), len(drafted))
        )
        commit = Commit((0,), draft.lengths, (accepted,), (tuple(new),), (None,))
        self.context.rows.lay_out(commit.tokens)
        self.context.rows.publish(commit)
        self.observe(commit)


def _with_laws(draft: Draft) -> Draft:
    """A draft of one row up to the first place where processors left nothing to draw: Transformers expects a law."""
    if draft.probs is None:
        return draft
    drawn = draft.probs[0].gather(1, draft.tokens[0, : draft.probs.shape[1], None]).squeeze(1)[: draft.lengths[0]]
    return replace(draft, lengths=(int((drawn > 0).long().cumprod(dim=0).sum()),))
