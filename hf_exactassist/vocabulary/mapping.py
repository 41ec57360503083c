"""Which assistant token stands for which target token.

Mapped tokens stand for the same bytes in every context. What the assistant would say with a token of its own that is
not mapped begins with one that is: its probability goes there. So every assistant token leads to at most one target
token, and the assistant's law, summed over what leads to each and renormalised, is a law over target tokens: the `q`
that drafts are drawn from (contract 0x01A, 0x06J, 0x06K). Where nothing leads, the target goes by its own draws.
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
        leads_to (`torch.LongTensor` of shape `(assistant_size,)`): the target token that an assistant token is or
            begins with; -1 for none.
        target_size (`int`): rows of the target's head.
        assistant_size (`int`): rows of the assistant's head.
        digest (`str`): SHA-256 of the map and of both vocabularies.
    """

    target: torch.Tensor
    assistant: torch.Tensor
    leads_to: torch.Tensor
    target_size: int
    assistant_size: int
    digest: str

    def to_target(self, logits: torch.Tensor) -> torch.Tensor:
        """The assistant's law over the target's event space, as logits: `-inf` where nothing leads.

        Args:
            logits (`torch.Tensor` of shape `(A, assistant_size)`): the assistant's.

        Returns:
            `torch.Tensor` of shape `(A, target_size)`.
        """
        leads_to = self.leads_to.to(logits.device)
        leading = leads_to >= 0
        top = logits.amax(dim=-1, keepdim=True)
        masses = torch.exp(logits[:, : len(leads_to)] - top)[:, leading]
        sums = logits.new_zeros((len(logits), self.target_size)).index_add_(1, leads_to[leading], masses)
        return sums.log() + top

    def to_assistant(self, tokens: torch.Tensor) -> torch.Tensor:
        """Assistant tokens of mapped target tokens; -1 for others."""
        table = torch.full((self.target_size,), -1, dtype=torch.long, device=tokens.device)
        table[self.target.to(tokens.device)] = self.assistant.to(tokens.device)
        return table[tokens]


def build_map(target: Pieces, assistant: Pieces, target_size: int, assistant_size: int) -> VocabularyMap:
    """Maps ordinary tokens of equal bytes and special tokens of equal role.

    Where several tokens stand for the same bytes, the one with the lowest id is mapped. Other ordinary tokens lead to
    the mapped token that is the longest beginning of their bytes.

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
    leads_to = torch.full((assistant_size,), -1, dtype=torch.long, device="cpu")
    mapped = {target.text[token]: token for token in pairs if token in target.text}
    longest = max(map(len, mapped), default=0)
    for token, piece in assistant.text.items():
        beginnings = (piece[:size] for size in range(min(len(piece), longest), 0, -1))
        if token < assistant_size:
            leads_to[token] = next((mapped[part] for part in beginnings if part in mapped), -1)
    for token, same in pairs.items():
        leads_to[same] = token
    tokens = sorted(pairs)
    said = f"{target.digest} {assistant.digest} {target_size} {assistant_size} {sorted(pairs.items())}"
    return VocabularyMap(
        torch.tensor(tokens, device="cpu"),
        torch.tensor([pairs[token] for token in tokens], device="cpu"),
        leads_to,
        target_size,
        assistant_size,
        hashlib.sha256(said.encode()).hexdigest(),
    )
