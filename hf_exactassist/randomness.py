"""Named, counter-based random streams (contract 0x06D).

A number is fixed by (seed, row identity, stream, position) alone, so what a row draws depends neither on the other
rows of its batch nor on how many numbers were drawn before. Philox (Salmon et al., 2011) is the counter-based
generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


DRAFT, ACCEPT, TERMINAL = "draft", "accept", "terminal"
_STREAM_KEYS = {DRAFT: 0, ACCEPT: 1, TERMINAL: 2}
# Philox yields four numbers per counter value; a page of several counters amortises making the generator
_COUNTERS_PER_PAGE = 16
_PAGE = 4 * _COUNTERS_PER_PAGE


class Noise:
    """Uniform numbers for the rows of one call.

    Args:
        seed (`int`): seed of the call, non-negative.
        identities (`Sequence[int]`): identity of each row, non-negative; rows of equal identity and seed draw the same
            numbers.
    """

    def __init__(self, seed: int, identities: Sequence[int]) -> None:
        self.seed = seed
        self.identities = list(identities)
        self._pages: dict[tuple[str, int], tuple[int, np.ndarray]] = {}

    def block(self, stream: str, rows: Sequence[int], starts: Sequence[int], width: int) -> torch.Tensor:
        """The numbers at positions `starts[i] ... starts[i] + width - 1` of each row.

        Args:
            stream (`str`): `"draft"`, `"accept"` or `"terminal"`.
            rows (`Sequence[int]`): row indices into the call's batch.
            starts (`Sequence[int]`): first logical token position of each row.
            width (`int`): numbers per row.

        Returns:
            `torch.Tensor` of shape `(len(rows), width)`: float64 on the CPU, in `[0, 1)`.
        """
        table = np.empty((len(rows), width))
        for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
            for j in range(width):
                table[i, j] = self._number(stream, row, start + j)
        return torch.from_numpy(table)

    def _number(self, stream: str, row: int, position: int) -> float:
        page, offset = divmod(position, _PAGE)
        held = self._pages.get((stream, row))
        if held is None or held[0] != page:
            key = np.random.SeedSequence([self.seed, self.identities[row], _STREAM_KEYS[stream]])
            bits = np.random.Philox(key=key.generate_state(2, np.uint64), counter=page * _COUNTERS_PER_PAGE)
            held = self._pages[stream, row] = (page, np.random.Generator(bits).random(_PAGE))
        return float(held[1][offset])


def draw_seed(generator: torch.Generator | None = None) -> int:
    """One seed for one call, taken from `generator` or from torch's global generator, which moves on by it.

    Args:
        generator (`torch.Generator`, *optional*): a generator of any device.

    Returns:
        `int`: a seed in `[0, 2**62)`.
    """
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device).item())
