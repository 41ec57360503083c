"""How much of two models' probability can be drafted, and how often a first draft token would be accepted.

Counts of common tokens say little: a few frequent ones can hold most of the probability, or lack it. So both models
read one text, each in its own tokens, and their laws are compared where they stand at the same place of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import GenerationConfig, PreTrainedModel

from ..models import admission, compat, inputs, probes
from ..verification.distributions import probabilities
from .admission import TokenizerPair
from .mapping import VocabularyMap
from .transcript import common_length


@dataclass(frozen=True)
class Coverage:
    """What two models make of a text, at temperature 1 and without processors.

    Attributes:
        mapped_mass (`float`): the target's probability of tokens that can be drafted, on average.
        assistant_mass (`float`, *optional*): the assistant's probability of tokens that lead to one of these; `None`
            if it can read nothing of the text.
        assistant_exact_mass (`float`, *optional*): of tokens that stand for just the same.
        expected_acceptance (`float`, *optional*): the probability that a first draft token is accepted: the sum of
            `min(p, q)` over the target's tokens; `None` if there is no place to compare.
        positions (`int`): places at which the two laws were compared.
    """

    mapped_mass: float
    assistant_mass: float | None
    assistant_exact_mass: float | None
    expected_acceptance: float | None
    positions: int


def shared_map(shared: torch.Tensor, assistant_size: int) -> VocabularyMap:
    """The map of two models with one tokenizer.

    Args:
        shared (`torch.BoolTensor` of shape `(target_size,)`): tokens that mean the same to both.
        assistant_size (`int`): rows of the assistant's head.
    """
    tokens = shared.nonzero().flatten()
    leads_to = torch.full((assistant_size,), -1, dtype=torch.long, device="cpu")
    leads_to[tokens] = tokens
    return VocabularyMap(tokens, tokens, leads_to, len(shared), assistant_size, digest="")


def shared_readings(ids: Sequence[int], shared: torch.Tensor, unknown_token: int = 0) -> list[list[int] | None]:
    """What an assistant with the target's tokenizer reads of each beginning of a text; arguments as in its drafter."""
    known = [token if token < len(shared) and bool(shared[token]) else unknown_token for token in ids]
    return [known[: end + 1] for end in range(len(known))]


def readings(ids: Sequence[int], pair: TokenizerPair) -> list[list[int] | None]:
    """What an assistant with another tokenizer reads of each beginning of a text.

    Args:
        ids (`Sequence[int]`): the text in target tokens.
        pair (`TokenizerPair`): the two tokenizers.

    Returns:
        `list[list[int] | None]`: assistant tokens of `ids[: i + 1]`; `None` inside a character and before any text,
        where it drafts nothing.
    """
    transcript, found = pair.new_transcript(), []
    for token in ids:
        transcript.extend([token])
        found.append(list(transcript.tokens) if transcript.tokens and not transcript.pending else None)
    return found


@torch.no_grad()
def coverage(
    target: PreTrainedModel,
    assistant: PreTrainedModel,
    ids: Sequence[int],
    readings: Sequence[list[int] | None],
    vocabulary_map: VocabularyMap,
    most: int = 64,
) -> Coverage:
    """Lets both models read a text and compares their laws. What lies beyond a model's positions is left out.

    Args:
        target (`PreTrainedModel`): an admitted target.
        assistant (`PreTrainedModel`): an admitted assistant.
        ids (`Sequence[int]`): the text in target tokens, at least one.
        readings (`Sequence[list[int] | None]`): what the assistant reads of each `ids[: i + 1]`, from [`readings`] or
            [`shared_readings`].
        vocabulary_map (`VocabularyMap`): which tokens stand for the same.
        most (`int`): places at which the laws are compared, at most, evenly spread.

    Returns:
        `Coverage`: averages over the text.

    Raises:
        ValueError: the text is empty.
    """
    if not ids:
        raise ValueError("a text without tokens has no coverage")
    with probes.quiet(), inputs.undisturbed(target), inputs.undisturbed(assistant):
        return _compared(target, assistant, ids, readings, vocabulary_map, most)


def _compared(
    target: PreTrainedModel,
    assistant: PreTrainedModel,
    ids: Sequence[int],
    readings: Sequence[list[int] | None],
    vocabulary_map: VocabularyMap,
    most: int,
) -> Coverage:
    laws = _Reader(target).read(ids[: compat.position_limit(target)])
    mapped_mass = _mass(laws, vocabulary_map.target)
    limit = compat.position_limit(assistant) or len(ids) * vocabulary_map.assistant_size
    usable = [(p, text) for p, text in zip(laws, readings, strict=False) if text is not None and len(text) <= limit]
    if not usable:
        return Coverage(mapped_mass, None, None, None, 0)
    # the others differ from the longest in their last tokens at most
    whole, reader = usable[-1][1], _Reader(assistant)
    theirs = reader.read(whole)
    leading = (vocabulary_map.leads_to >= 0).nonzero().flatten()
    count = min(most, len(usable))
    accepted = []
    for p, text in (usable[(2 * i + 1) * len(usable) // (2 * count)] for i in range(count)):
        logits = theirs[len(text) - 1] if whole[: len(text)] == text else reader.read(text)[-1]
        q = probabilities(vocabulary_map.to_target(_exactly(logits)[None]))[0]
        accepted.append(torch.minimum(probabilities(_exactly(p))[: len(q)], q).sum().item())
    return Coverage(
        mapped_mass,
        _mass(theirs, leading),
        _mass(theirs, vocabulary_map.assistant),
        sum(accepted) / count,
        count,
    )


def _exactly(logits: torch.Tensor) -> torch.Tensor:
    return logits.to("cpu", torch.promote_types(logits.dtype, torch.float32))


def _mass(logits: torch.Tensor, tokens: torch.Tensor) -> float:
    """Probability of some tokens, on average over positions `(n, V)`; row by row, as vocabularies are large."""
    return sum(probabilities(_exactly(row))[tokens].sum().item() for row in logits) / len(logits)


class _Reader:
    """Lets a model read texts one after the other; what one has in common with the last is not read again."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._read = model, list[int]()
        self._runner = admission.runner_for(model, keeps_all=True)

    def read(self, text: Sequence[int]) -> torch.Tensor:
        """Logits `(n, V)` after each of the last `n` tokens, those that had to be read; at least after the last."""
        start, made = min(common_length(self._read, text), len(text) - 1), []
        ids = torch.tensor([text], device=compat.model_device(self._model, torch.device("cpu")))
        if not self._read:
            arguments = {"use_cache": True, "attention_mask": torch.ones_like(ids[:, :1])}
            if "position_ids" in compat.forward_parameters(self._model):
                arguments["position_ids"] = torch.zeros_like(ids[:, :1])
            made.append(self._runner.prefill(ids[:, :1], GenerationConfig(), arguments).logits[0, -1:])
            start = 1
        if start < len(text):
            made.append(self._runner.forward(ids[:, start:], [start]).logits[0])
        self._read = list(text)
        return torch.cat(made)
