"""A model with another tokenizer drafts: over the tokens that both have, reading the text in its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import UnsupportedArgument
from ..records import Commit, Draft
from ..vocabulary.mapping import VocabularyMap
from ..vocabulary.transcript import Transcript, common_length
from .assistant_model import AssistantModelDrafter
from .base import DraftingContext


class OtherTokenizerDrafter(AssistantModelDrafter):
    """Drafts with an assistant model whose tokens are other pieces of the same text.

    Its law becomes a law over tokens that both have, from which drafts are drawn: a token of its own that the target
    lacks counts for the one it begins with (contract 0x06J, 0x06K). What it reads is the published text in its own
    tokens. Only its logits are taken; the model is not changed.

    Args:
        model (`PreTrainedModel`): an admitted model.
        vocabulary_map (`VocabularyMap`): which tokens stand for the same.
        new_transcript (`Callable[[], Transcript]`): makes an empty transcript for a row.
        warper_settings (`dict[str, Any]`, *optional*): see [`AssistantModelDrafter`].
        confidence_threshold (`float`): see [`AssistantModelDrafter`].
    """

    goes_back = True

    def __init__(
        self,
        model: PreTrainedModel,
        vocabulary_map: VocabularyMap,
        new_transcript: Callable[[], Transcript],
        warper_settings: dict[str, Any] | None = None,
        confidence_threshold: float = 0.0,
    ) -> None:
        mapped = torch.zeros(vocabulary_map.target_size, dtype=torch.bool, device="cpu")
        mapped[vocabulary_map.target] = True
        super().__init__(model, mapped, warper_settings=warper_settings, confidence_threshold=confidence_threshold)
        self.vocabulary_map = vocabulary_map
        self._new_transcript = new_transcript
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
        self._transcripts = [self._new_transcript() for _ in range(rows.batch)]
        # columns of each row that its transcript has
        self._told = [0] * rows.batch
        # of each row, the assistant tokens in its cache, and the padding before them
        self._written: dict[int, list[int]] = {}
        self._pads: dict[int, int] = {}

    def describe(self) -> dict[str, Any]:
        """See [`Drafter.describe`]."""
        return {**super().describe(), "vocabulary_map": self.vocabulary_map.digest}

    @torch.no_grad()
    def propose(self, lengths: Sequence[int]) -> Draft:
        """See [`Drafter.propose`]. Rows in the middle of a character get no draft."""
        rows = self.context.rows
        for row in rows.active:
            self._tell(row)
        ready = [wanted if self._is_readable(row) else 0 for row, wanted in zip(rows.active, lengths, strict=True)]
        return super().propose(ready)

    def observe(self, commit: Commit) -> None:
        """See [`Drafter.observe`]. What was fed is compared with the text when it is read on."""

    def _tell(self, row: int) -> None:
        """Adds what has been published to a row's transcript."""
        rows, start = self.context.rows, self._told[row]
        tokens = rows.ids[row, start : rows.lengths[row]].tolist()
        if start < rows.prompt_length and rows.prompt_mask is not None:
            kept = rows.prompt_mask[row].tolist()[-rows.prompt_length :] if rows.prompt_length else []
            tokens = [token for token, keep in zip(tokens, kept, strict=False) if keep] + tokens[len(kept) :]
        self._transcripts[row].extend(tokens)
        self._told[row] = rows.lengths[row]

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
        texts = [self._transcripts[row].tokens or [self.unknown_token] for row in active]
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
