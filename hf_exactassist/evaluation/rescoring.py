"""What the target alone thinks of texts: nothing of this library decodes or judges here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from ..models import compat
from ..randomness import SharedNoise
from .decoding import seeded
from .models import Models


# scores that are held at once: 256 MiB of them in float32
_MOST_SCORES = 2**26
# processors that leave tokens out which others may decide to keep, because of a digit
_TRUNCATING = ("TopH", "TopK", "TopP", "MinP", "Typical", "Epsilon", "Eta")
# laws of a prefix with scores moved by up to so much, several times what rounding in float32 moves them
_TRIES, _MOVED = 16, 1e-3


class Rescorer:
    """Reads texts with the target, as plain `generate` does.

    Args:
        models (`Models`): of which the target is asked.
    """

    def __init__(self, models: Models) -> None:
        self.models, self.target = models, models.target

    @torch.no_grad()
    def likelihood(self, prompt: Sequence[int], text: Sequence[int]) -> float:
        """Mean log-likelihood per token in nats, sampling settings left out.

        Args:
            prompt (`Sequence[int]`): token ids.
            text (`Sequence[int]`): how it goes on, at least one token.
        """
        ids = torch.tensor([[*prompt, *text]], device=self.models.device)
        named = "logits_to_keep" in compat.forward_parameters(self.target)
        # each token is scored one place before it; the scores of all may be more than memory holds
        places = torch.arange(len(prompt) - 1, ids.shape[1] - 1, device=ids.device)
        total = 0.0
        for part in places.split(max(1, _MOST_SCORES // compat.head_size(self.target))):
            more = {"logits_to_keep": part} if named else {}
            logits = self.target(ids, attention_mask=torch.ones_like(ids), use_cache=False, **more).logits[0]
            law = (logits if named else logits[part]).float().log_softmax(dim=-1)
            total += float(law.gather(1, ids[0, part + 1].to(law.device)[:, None]).double().sum())
        return total / len(text)

    def scores(
        self,
        rows: Sequence[Sequence[int]],
        texts: Sequence[Sequence[int]],
        row: int,
        position: int,
        arguments: dict[str, Any],
        seed: int | None = None,
    ) -> torch.Tensor:
        """What plain `generate` chose the token at a position by: processed scores behind `texts[row][:position]`.

        The call is made again with all its rows, so that it rounds as it did, and is led along `texts`. A sampled one
        chooses by scores and noise together, which is what is returned for it.

        Args:
            rows (`Sequence[Sequence[int]]`): token ids of the prompts.
            texts (`Sequence[Sequence[int]]`): what plain `generate` made of each.
            row (`int`): the row that is asked for.
            position (`int`): of the token, from 0.
            arguments (`dict[str, Any]`): of `generate`.
            seed (`int`, *optional*): of a sampled call.

        Returns:
            `torch.Tensor` of shape `(V,)`: float64; the largest is chosen.
        """
        noise = None if seed is None else self._noise(len(rows), row, position, seed)
        # the scores of every step stay until the end
        if (position + 1) * len(rows) * compat.head_size(self.target) > _MOST_SCORES:
            rows, texts, row = [rows[row]], [texts[row]], 0
        output = self._led(rows, [text[:position] for text in texts], position + 1, arguments)
        scores: torch.Tensor = output.scores[position][row].double()
        return scores if noise is None else scores - noise.double().log()

    def _noise(self, rows: int, row: int, position: int, seed: int) -> torch.Tensor:
        device = self.models.device
        shape = rows, compat.head_size(self.target)
        return SharedNoise(torch.Generator(device).manual_seed(seed), shape, device).step(position)[row]

    def laws(
        self, prompt: Sequence[int], firsts: Sequence[int], arguments: dict[str, Any], batch_size: int = 1
    ) -> list[torch.Tensor | None]:
        """The law of the second token behind a prompt and each of some first tokens, sampling settings applied.

        Args:
            prompt (`Sequence[int]`): token ids.
            firsts (`Sequence[int]`): first tokens of texts, none of which ends one.
            arguments (`dict[str, Any]`): of `generate`, for a sampled call.
            batch_size (`int`): rows that are read at once.

        Returns:
            `list[torch.Tensor | None]`: of shape `(V,)` in float64, on the CPU. `None` where a digit decides which
            tokens are left out: another forward may leave out others.
        """
        processors = self._processors(prompt, arguments)
        laws: list[torch.Tensor | None] = []
        for start in range(0, len(firsts), batch_size):
            part = firsts[start : start + batch_size]
            output = self._led([prompt] * len(part), [[token] for token in part], 2, arguments)
            for i, token in enumerate(part):
                ids = torch.tensor([[*prompt, token]], device=self.models.device)
                unsure = truncates(processors) and _on_the_border(output.logits[1][i], ids, processors)
                laws.append(None if unsure else output.scores[1][i].double().softmax(dim=-1).cpu())
        return laws

    def truncates(self, prompt: Sequence[int], arguments: dict[str, Any]) -> bool:
        """Whether sampling settings leave tokens out by their probability."""
        return truncates(self._processors(prompt, arguments))

    def _led(
        self, rows: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], tokens: int, arguments: dict[str, Any]
    ) -> Any:
        """Plain `generate` that takes given tokens as long as there are any, and its scores."""
        inputs = self.models.inputs(rows)
        width = inputs["input_ids"].shape[1]
        # it draws, though there is nothing to choose
        with seeded(0, self.models.device):
            return self.target.generate(
                **inputs,
                **arguments,
                pad_token_id=self.models.pad,
                logits_processor=LogitsProcessorList([_Leads(texts, width)]),
                stopping_criteria=StoppingCriteriaList([_Enough(width + tokens)]),
                return_dict_in_generate=True,
                output_scores=True,
                output_logits=True,
            )

    def _processors(self, prompt: Sequence[int], arguments: dict[str, Any]) -> LogitsProcessorList:
        """Those of plain `generate` for a prompt, as it prepares them."""
        caught = []

        def catch(model: Any, input_ids: Any, logits_processor: Any, **others: Any) -> Any:
            caught.append(logits_processor)
            return input_ids

        inputs = self.models.inputs([prompt])
        self.target.generate(**inputs, **arguments, pad_token_id=self.models.pad, custom_generate=catch)
        return caught[0]


def truncates(processors: Sequence[Any]) -> bool:
    """Whether some leave tokens out by their probability."""
    return any(type(one).__name__.startswith(_TRUNCATING) for one in processors)


def _on_the_border(logits: torch.Tensor, ids: torch.Tensor, processors: LogitsProcessorList) -> bool:
    """Whether scores moved a little leave other tokens out. Decided by the law alone, not by what was drawn."""
    generator = torch.Generator(logits.device).manual_seed(0)
    noise = torch.rand((_TRIES, len(logits)), generator=generator, device=logits.device)
    left = []
    for moved in [torch.zeros_like(logits), *((noise * 2 - 1) * _MOVED)]:
        left.append(processors(ids, (logits + moved)[None])[0].isfinite())
    return any(not one.equal(left[0]) for one in left[1:])


class _Leads(LogitsProcessor):
    """Leaves nothing but the next token of each row's text, where there is one."""

    def __init__(self, texts: Sequence[Sequence[int]], width: int) -> None:
        self.texts, self.width = texts, width

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = input_ids.shape[1] - self.width
        led = [row for row, text in enumerate(self.texts) if at < len(text)]
        if not led:
            return scores
        tokens = torch.tensor([self.texts[row][at] for row in led], device=scores.device)
        scores = scores.clone()
        scores[led] = -torch.inf
        scores[led, tokens] = 0.0
        return scores


class _Enough(StoppingCriteria):
    """Stops at a length; a limit by settings would change what processors do."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids.new_full((len(input_ids),), input_ids.shape[1] >= self.length, dtype=torch.bool)
