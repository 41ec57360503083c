"""Which assistant token stands for which target token.

Mapped tokens stand for the same bytes in every context, so a law over them is a law over target tokens: the
assistant's law, restricted to mapped tokens and renormalised, is the `q` that its drafts are drawn from. Nothing is
said about tokens that are not mapped; the target reaches them by its own draws (contract 0x01A, 0x06J, 0x06K).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from ..errors import DifferentVocabularies
from .pieces import Pieces


@dataclass(frozen=True, eq=False)
class VocabularyMap:
    """A one-to-one map between tokens of two vocabularies.

    Attributes:
        target (`torch.LongTensor` of shape `(M,)`): mapped target tokens, ascending.
        assistant (`torch.LongTensor` of shape `(M,)`): the assistant token of each.
        target_size (`int`): rows of the target's head.
        assistant_size (`int`): rows of the assistant's head.
        digest (`str`): SHA-256 of the map and of both vocabularies.
    """

    target: torch.Tensor
    assistant: torch.Tensor
    target_size: int
    assistant_size: int
    digest: str

    @property
    def is_identity(self) -> bool:
        """Whether mapped tokens have the same ids."""
        return bool((self.target == self.assistant).all())

    def to_target(self, logits: torch.Tensor) -> torch.Tensor:
        """The assistant's logits over the target's event space: `-inf` where nothing is mapped.

        Args:
            logits (`torch.Tensor` of shape `(..., assistant_size)`): the assistant's.

        Returns:
            `torch.Tensor` of shape `(..., target_size)`.
        """
        scores = logits.new_full((*logits.shape[:-1], self.target_size), -torch.inf)
        scores[..., self.target.to(logits.device)] = logits[..., self.assistant.to(logits.device)]
        return scores

    def to_assistant(self, tokens: torch.Tensor) -> torch.Tensor:
        """Assistant tokens of mapped target tokens; -1 for others."""
        table = torch.full((self.target_size,), -1, dtype=torch.long, device=tokens.device)
        table[self.target.to(tokens.device)] = self.assistant.to(tokens.device)
        return table[tokens]


def build_map(target: Pieces, assistant: Pieces, target_size: int, assistant_size: int) -> VocabularyMap:
    """Maps ordinary tokens of equal bytes and special tokens of equal role.

    Where several tokens stand for the same bytes, the one with the lowest id is mapped.

    Args:
        target (`Pieces`): the target's vocabulary.
        assistant (`Pieces`): the assistant's.
        target_size (`int`): rows of the target's head; tokens beyond it cannot be emitted.
        assistant_size (`int`): rows of the assistant's head.

    Raises:
        DifferentVocabularies: no token is mapped.
    """
    theirs: dict[bytes, int] = {}
    for token in sorted(assistant.text, reverse=True):
        if token < assistant_size:
            theirs[assistant.text[token]] = token
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for token in sorted(target.text):
        same = theirs.get(target.text[token])
        if token < target_size and same is not None and same not in taken:
            pairs[token] = same
            taken.add(same)
    for role, token in target.drafted_roles.items():
        same = assistant.drafted_roles.get(role)
        if same is not None and token < target_size and same < assistant_size and same not in taken:
            pairs[token] = same
            taken.add(same)
    if not pairs:
        ours, other = (next(iter(pieces.text.values()), b"") for pieces in (target, assistant))
        raise DifferentVocabularies(
            f"Target and assistant have no token in common (the target has {ours!r}, the assistant {other!r}): use an "
            "assistant whose tokenizer splits text in a similar way."
        )
    tokens = sorted(pairs)
    said = f"{target.digest} {assistant.digest} {target_size} {assistant_size} {sorted(pairs.items())}"
    return VocabularyMap(
        torch.tensor(tokens, device="cpu"),
        torch.tensor([pairs[token] for token in tokens], device="cpu"),
        target_size,
        assistant_size,
        hashlib.sha256(said.encode()).hexdigest(),
    )
