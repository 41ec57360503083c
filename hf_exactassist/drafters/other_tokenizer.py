"""A model with another tokenizer drafts: over the tokens that both have, or in text of its own that is respelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import UnsupportedArgument
from ..models.compat import module_of
from ..records import Commit, Draft
from ..state.processors import ProcessorPipeline
from ..verification.distributions import likeliest, probabilities
from ..vocabulary.admission import TokenizerPair
from ..vocabulary.respelling import text_of
from ..vocabulary.transcript import Transcript, common_length
from .assistant_model import AssistantModelDrafter
from .base import DraftingContext
from .placed import Placed
from .ways import Ways


# what one token costs the assistant is the same either way
TOKENS, TEXT = "tokens", "text"
# of shorter texts, nothing is left but what is held back
_SHORTEST_TEXT = 3


class OtherTokenizerDrafter(AssistantModelDrafter):
    """Drafts with an assistant model whose tokens are other pieces of the same text.

    What it reads is the published text in its own tokens. Only its logits are taken; the model is not changed. A row
    drafts in one of two ways, the one whose drafts were accepted further of late:

    * `"tokens"`: the assistant's law becomes a law over tokens that both have, from which drafts are drawn; a token of
      its own that the target lacks counts for the one it begins with (contract 0x06J, 0x06K).
    * `"text"`: the assistant goes on with its likeliest tokens, and what they say is drafted in the target's tokens,
      as point masses. Not where processors remember, which cannot be asked about tokens known only at the end.

    Args:
        model (`PreTrainedModel`): an admitted model.
        pair (`TokenizerPair`): the two tokenizers.
        warper_settings (`dict[str, Any]`, *optional*): see [`AssistantModelDrafter`].
        confidence_threshold (`float`): see [`AssistantModelDrafter`].
        ways (`Sequence[str]`): the ways to choose from.
    """

    goes_back = True

    reads_drafts = True

    def __init__(
        self,
        model: PreTrainedModel,
        pair: TokenizerPair,
        warper_settings: dict[str, Any] | None = None,
        confidence_threshold: float = 0.0,
        ways: Sequence[str] = (TOKENS, TEXT),
    ) -> None:
        self.vocabulary_map = pair.vocabulary_map
        mapped = torch.zeros(self.vocabulary_map.target_size, dtype=torch.bool, device="cpu")
        mapped[self.vocabulary_map.target] = True
        super().__init__(model, mapped, warper_settings=warper_settings, confidence_threshold=confidence_threshold)
        self.ways = tuple(ways)
        self._pair = pair
        embedding = getattr(module_of(model, "get_input_embeddings"), "weight", None)
        self._known = self.vocabulary_map.assistant_size if embedding is None else len(embedding)
        self._ordinary = torch.zeros(self.vocabulary_map.assistant_size, dtype=torch.bool, device="cpu")
        self._ordinary[[token for token in pair.assistant.text if token < len(self._ordinary)]] = True
        self._special = Placed(~self._ordinary)
        self._transcripts: list[Transcript] = []

    @property
    def text_realignments(self) -> int:
        """See [`Drafter.text_realignments`]. A row's first encoding is always a whole one."""
        return sum(max(transcript.whole_encodings - 1, 0) for transcript in self._transcripts)

    @property
    def lossy_alignments(self) -> int:
        """See [`Drafter.lossy_alignments`]."""
        return sum(transcript.lossy for transcript in self._transcripts)

    def start(self, context: DraftingContext) -> None:
        """See [`Drafter.start`]."""
        super().start(context)
        rows = context.rows
        self._transcripts = [self._pair.new_transcript() for _ in range(rows.batch)]
        # columns of each row that its transcript has
        self._told = [0] * rows.batch
        # of each row, the assistant tokens in its cache, and the padding before them
        self._written: dict[int, list[int]] = {}
        self._pads: dict[int, int] = {}
        draws = context.noise is not None or context.shared_noise is not None
        # text is as likely as the likeliest tokens are: begun with where these are what is wanted
        ways = sorted(self.ways, key=[TOKENS, TEXT].index, reverse=not draws)
        self._ways = Ways([TOKENS] if self._processors.asks_caller else ways)
        # rows that have a choice in this round, and of these, those that go on in text
        self._asked: list[int] = []
        self._saying: list[int] = []

    def describe(self) -> dict[str, Any]:
        """See [`Drafter.describe`]."""
        return {**super().describe(), "vocabulary_map": self.vocabulary_map.digest}

    @torch.no_grad()
    def propose(self, lengths: Sequence[int]) -> Draft:
        """See [`Drafter.propose`]. Rows in the middle of a character get no draft."""
        active = self.context.rows.active
        for row in active:
            self._tell(row)
        ready = [wanted if self._is_readable(row) else 0 for row, wanted in zip(active, lengths, strict=True)]
        self._asked = [row for row, wanted in zip(active, ready, strict=True) if wanted >= _SHORTEST_TEXT]
        self._saying = [row for row in self._asked if self._ways.choose(row) == TEXT]
        # the assistant's own likeliest tokens, and whether a row's text ends with them
        self._said: list[torch.Tensor] = []
        self._said_last: list[torch.Tensor] = []
        draft = super().propose(ready)
        return self._with_text(draft, ready) if self._saying and self._said else draft

    def observe(self, commit: Commit) -> None:
        """See [`Drafter.observe`]. What was fed is compared with the text when it is read on."""
        for row, accepted in zip(commit.rows, commit.accepted, strict=True):
            if row in self._asked:
                self._ways.observe(row, accepted)
        self._asked = []

    def _with_text(self, draft: Draft, wanted: Sequence[int]) -> Draft:
        """The draft with the rows that went on in text replaced by what they said."""
        rows, device = self.context.rows, draft.tokens.device
        said, last = torch.stack(self._said, dim=1).tolist(), torch.stack(self._said_last, dim=1).tolist()
        drafts = [tokens[:count] for tokens, count in zip(draft.tokens.tolist(), draft.lengths, strict=True)]
        steps = [min(count, room, len(self._said)) for count, room in zip(wanted, self._room(), strict=True)]
        for i, row in enumerate(rows.active):
            if row in self._saying:
                ends = next((at + 1 for at in range(steps[i]) if last[i][at]), steps[i])
                drafts[i] = self._respelled(row, said[i][:ends])[: wanted[i]]
        lengths = tuple(map(len, drafts))
        width = max(lengths)
        tokens = torch.tensor([new + [0] * (width - len(new)) for new in drafts], device=device, dtype=torch.long)
        if draft.probs is None:
            return Draft(tokens, lengths)
        probs = draft.probs.new_zeros(len(drafts), width, draft.probs.shape[-1])
        shared = min(width, draft.probs.shape[1])
        probs[:, :shared] = draft.probs[:, :shared]
        here = [i for i, row in enumerate(rows.active) if row in self._saying]
        # taken as they are: point masses
        probs[here] = torch.nn.functional.one_hot(tokens[here], probs.shape[-1]).to(probs.dtype)
        return Draft(tokens, lengths, probs)

    def _respelled(self, row: int, said: list[int]) -> list[int]:
        """The target's tokens for what the assistant says after a row's text; a special token may be the last."""
        ended = bool(said) and not self._ordinary[said[-1]]
        text, words = self._transcripts[row].text, said[: len(said) - ended]
        new = self._pair.respelling.tokens(text, text_of(self._pair.assistant, words, first=not text), ended)
        if ended:
            new.append(int(self.vocabulary_map.leads_to[said[-1]]))
        # a tokenizer may know more tokens than the model has
        return new[: next((i for i, token in enumerate(new) if not 0 <= token < self.context.vocabulary), len(new))]

    def _score(
        self, processors: ProcessorPipeline, logits: torch.Tensor, lengths: Sequence[int], going: Sequence[int]
    ) -> torch.Tensor:
        if self._saying:
            own = logits[:, -1, : self.vocabulary_map.assistant_size].to(self.context.rows.ids.device)
            self._said.append(likeliest(own))
            ends = self._special.on(own.device)[self._said[-1]]
            if self.confidence_threshold:
                ends |= probabilities(own).amax(dim=-1) < self.confidence_threshold
            self._said_last.append(ends)
        return super()._score(processors, logits, lengths, going)

    def _ends_draft(self, token: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ends = super()._ends_draft(token, scores)
        return torch.where(self._are_saying(ends.device), self._said_last[-1], ends) if self._saying else ends

    def _are_saying(self, device: torch.device) -> torch.Tensor:
        """Of the active rows, those that go on in text."""
        return torch.tensor([row in self._saying for row in self.context.rows.active], device=device)

    def _tell(self, row: int) -> None:
        """Adds what has been published to a row's transcript."""
        rows, start = self.context.rows, self._told[row]
        tokens = rows.ids[row, start : rows.lengths[row]].tolist()
        if start < rows.prompt_length and rows.prompt_mask is not None:
            kept = rows.prompt_mask[row].tolist()[-rows.prompt_length :] if rows.prompt_length else []
            tokens = [token for token, keep in zip(tokens, kept, strict=False) if keep] + tokens[len(kept) :]
        self._transcripts[row].extend(tokens)
        self._told[row] = rows.lengths[row]

    def _text(self, row: int) -> list[int]:
        """A row's text in tokens that the assistant has; a tokenizer may know more than its model."""
        return [token if token < self._known else self.unknown_token for token in self._transcripts[row].tokens]

    def _is_readable(self, row: int) -> bool:
        transcript = self._transcripts[row]
        return bool(transcript.tokens) and not transcript.pending

    def _room(self) -> list[int]:
        rows = self.context.rows
        if self._position_limit is None:
            return [rows.max_length] * len(rows.active)
        return [self._position_limit + 1 - len(self._transcripts[row].tokens) for row in rows.active]

    def _ends(self) -> list[int]:
        return [self._pads[row] + len(self._transcripts[row].tokens) for row in self.context.rows.active]

    def _as_events(self, logits: torch.Tensor) -> torch.Tensor:
        return self.vocabulary_map.to_target(logits)

    def _read_published(self) -> torch.Tensor:
        active = self.context.rows.active
        # a row without any text is read as if it were unknown text, and not drafted for
        texts = [self._text(row) or [self.unknown_token] for row in active]
        if self._runner is None:
            width = max(map(len, texts))
            ids = torch.tensor([[self.unknown_token] * (width - len(text)) + text for text in texts], device="cpu")
            mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts], device="cpu")
            device = self.context.rows.ids.device
            logits = self._start_cache(ids.to(device), mask.to(device))
            self._pads = {row: width - len(text) for row, text in zip(active, texts, strict=True)}
            self._note(active, texts)
            return logits
        common = [common_length(self._written[row], text) for row, text in zip(active, texts, strict=True)]
        starts = [min(kept, len(text) - 1) for kept, text in zip(common, texts, strict=True)]
        counts = [len(text) - start for text, start in zip(texts, starts, strict=True)]
        width = max(counts)
        lines = [[0] * (width - count) + text[-count:] for text, count in zip(texts, counts, strict=True)]
        block = torch.tensor(lines, device="cpu")
        # until it is done, only what is before counts
        self._note(active, [text[:start] for text, start in zip(texts, starts, strict=True)])
        places = [self._pads[row] + start for row, start in zip(active, starts, strict=True)]
        logits = self._forward(block.to(self.context.rows.ids.device), places, counts, right=True)
        self._note(active, texts)
        return logits

    def _feed(self, token: torch.Tensor, starts: Sequence[int], counts: Sequence[int]) -> torch.Tensor:
        active = self.context.rows.active
        tokens = self.vocabulary_map.to_assistant(token).clamp_min(0)
        if self._saying:
            tokens = torch.where(self._are_saying(tokens.device), self._said[-1], tokens)
        texts = [self._written[row] for row in active]
        logits = self._forward(tokens[:, None], starts, counts)
        fed = zip(texts, tokens.tolist(), counts, strict=True)
        self._note(active, [[*text, new] if count > 0 else text for text, new, count in fed])
        return logits

    def _note(self, rows: Sequence[int], texts: Sequence[list[int]]) -> None:
        """The assistant's cache holds these tokens now."""
        self._written.update(zip(rows, map(list, texts), strict=True))
        self._confirmed = {row: self._pads[row] + len(self._written[row]) for row in self._written}

    def _read_shown(self, shown: dict[str, Any], copies: int) -> None:
        raise UnsupportedArgument(
            f"An assistant with another tokenizer reads text alone, and {type(self.model).__name__} would read the "
            f"{', '.join(sorted(shown))} of this call: use one with the target's tokenizer, or one of text alone."
        )
