"""Do second tokens follow the target's exact law? The first that a judge has had a hand in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch

from .plan import SAMPLED, Plan
from .records import Call
from .rescoring import Rescorer
from .sampled import Finding, level, next_tokens


# whose laws are worked out, for each way of decoding
MOST_PREFIXES = 256
_HALF = (torch.float16, torch.bfloat16)

# a prompt's place and a first token
Prefix = tuple[int, int]


class SecondTokens:
    """Tests the sampled texts of each way of decoding.

    Args:
        rescorer (`Rescorer`): works laws out.
        plan (`Plan`): what was decoded.
        rows (`Sequence[Sequence[int]]`): token ids of all prompts.
    """

    def __init__(self, rescorer: Rescorer, plan: Plan, rows: Sequence[Sequence[int]]) -> None:
        self.rescorer, self.plan, self.rows = rescorer, plan, rows
        # prompts that are the same count as one
        known: dict[tuple[int, ...], int] = {}
        self.one_of = [known.setdefault(tuple(row), place) for place, row in enumerate(rows)]

    def judge(
        self, arm: str, calls: Sequence[Call], advance: Callable[[], None] = lambda: None
    ) -> tuple[list[Finding], list[str]]:
        """Tests one way of decoding.

        Args:
            arm (`str`): its name.
            calls (`Sequence[Call]`): all that was decoded.
            advance (`Callable`): called after every prompt whose laws are known.

        Returns:
            the finding, if there is one, and else a sentence that says why not.
        """
        models, arguments = self.rescorer.models, self.plan.arguments(SAMPLED)
        if models.rounds_like in _HALF and self.rescorer.truncates(self.rows[0], arguments):
            digits = str(models.rounds_like).removeprefix("torch.")
            return [], [
                "Next tokens were not tested: the sampling settings leave tokens out, and in "
                f"{digits} rounding decides which; use --dtype float32, or settings that leave none out."
            ]
        drawn = self._drawn(arm, calls)
        prefixes = _chosen(drawn)
        if not prefixes:
            return [], ["Next tokens were not tested: no text goes on behind its first token."]
        laws, tokens = [], []
        for prompt in dict.fromkeys(prompt for prompt, _ in prefixes):
            firsts = [first for place, first in prefixes if place == prompt]
            found = self.rescorer.laws(self.rows[prompt], firsts, arguments, self.plan.batch_size)
            for first, law in zip(firsts, found, strict=True):
                if law is not None:
                    laws.append(law.numpy())
                    tokens.append(drawn[prompt, first])
            advance()
        if not laws:
            return [], [
                "Next tokens were not tested: behind every prefix a digit decides which tokens the sampling settings "
                "leave out."
            ]
        return [next_tokens(np.stack(laws), tokens, level(len(self.plan.tested())))], []

    def _drawn(self, arm: str, calls: Sequence[Call]) -> dict[Prefix, list[int]]:
        """Second tokens behind each prefix."""
        drawn: dict[Prefix, list[int]] = defaultdict(list)
        for call in calls:
            if call.step.arm == arm and call.step.unit.mode == SAMPLED:
                for prompt, text in zip(call.prompts, call.texts, strict=True):
                    if len(text) > 1:
                        drawn[self.one_of[prompt], text[0]].append(text[1])
        return drawn


def _chosen(drawn: dict[Prefix, list[int]]) -> list[Prefix]:
    """Those that most texts begin with, whatever comes after: where there are many draws, more can be seen."""
    return sorted(sorted(drawn, key=lambda prefix: (-len(drawn[prefix]), prefix))[:MOST_PREFIXES])
