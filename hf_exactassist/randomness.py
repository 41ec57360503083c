"""Named, counter-based random streams (contract 0x06D).

A number is fixed by (seed, row identity, stream, position) alone, so what a row draws depends neither on the other
rows of its batch nor on how many numbers were drawn before, and a round made again draws the same. Philox (Salmon et
al., 2011) is the counter-based generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


DRAFT, ACCEPT, TERMINAL, ORDINARY = "draft", "accept", "terminal", "ordinary"
_STREAM_KEYS = {DRAFT: 0, ACCEPT: 1, TERMINAL: 2, ORDINARY: 3}
# Philox yields four numbers per counter value; a page of several counters amortises making the generator
_COUNTERS_PER_PAGE = 16
_PAGE = 4 * _COUNTERS_PER_PAGE
# steps of shared noise held at a time: more than a draft is long, few enough to forget about
_STEPS_KEPT = 16
# where `torch.multinomial` has been seen to choose as [`SharedNoise`] says, with the device's own generator
SHARED_NOISE_DEVICES = ("cpu", "cuda")


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
            stream (`str`): `"draft"`, `"accept"`, `"terminal"` (recovered and bonus tokens) or `"ordinary"` (tokens
                of rows without a draft).
            rows (`Sequence[int]`): row indices into the call's batch.
            starts (`Sequence[int]`): first logical token position of each row.
            width (`int`): numbers per row.

        Returns:
            `torch.Tensor` of shape `(len(rows), width)`: float64 on the CPU, in `[0, 1)`.
        """
        table = np.empty((len(rows), width))
        for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
            at = start
            while at < start + width:
                number, offset = divmod(at, _PAGE)
                part = self._page(stream, row, number)[offset : offset + start + width - at]
                table[i, at - start : at - start + len(part)] = part
                at += len(part)
        return torch.from_numpy(table)

    def _page(self, stream: str, row: int, number: int) -> np.ndarray:
        held = self._pages.get((stream, row))
        if held is None or held[0] != number:
            key = np.random.SeedSequence([self.seed, self.identities[row], _STREAM_KEYS[stream]])
            bits = np.random.Philox(key=key.generate_state(2, np.uint64), counter=number * _COUNTERS_PER_PAGE)
            held = self._pages[stream, row] = (number, np.random.Generator(bits).random(_PAGE))
        return held[1]


class SharedNoise:
    """The exponential numbers plain sampling would draw, step by step, shared by target and drafter.

    `torch.multinomial(probs, 1)` chooses `argmax(probs / e)` with standard exponential `e` of the same shape. Drawn
    ahead in the same order and shape, these numbers fix each token given its prefix, whatever was drafted. Only the
    generator's state is kept for every step; numbers are made again for rows that come later, so memory does not grow
    with the distance between rows.

    Args:
        generator (`torch.Generator`): the generator plain sampling would use, in the state it would find.
        shape (`tuple[int, int]`): rows and vocabulary of the call's scores.
        device (`torch.device`): where the scores live.
    """

    def __init__(self, generator: torch.Generator, shape: tuple[int, int], device: torch.device) -> None:
        self.generator, self.shape, self.device = generator, shape, device
        self._maker = torch.Generator(generator.device)
        # the generator's state before each step
        self._states = [generator.get_state()]
        self._recent: dict[int, torch.Tensor] = {}

    def step(self, step: int) -> torch.Tensor:
        """The numbers of one step.

        Args:
            step (`int`): index of the new token, from 0.

        Returns:
            `torch.Tensor` of shape `(rows, vocabulary)`: float32.
        """
        if step not in self._recent:
            for known in range(min(step, len(self._states) - 1), step + 1):
                self._maker.set_state(self._states[known])
                numbers = torch.empty(self.shape, device=self.device).exponential_(1, generator=self._maker)
                if known + 1 == len(self._states):
                    self._states.append(self._maker.get_state())
                self._keep(known, numbers)
        return self._recent[step]

    def _keep(self, step: int, numbers: torch.Tensor) -> None:
        self._recent.pop(step, None)
        if len(self._recent) >= _STEPS_KEPT:
            del self._recent[next(iter(self._recent))]
        self._recent[step] = numbers

    def block(self, rows: Sequence[int], starts: Sequence[int], width: int) -> torch.Tensor:
        """The numbers of `width` steps from each row's start.

        Args:
            rows (`Sequence[int]`): row indices into the call's batch.
            starts (`Sequence[int]`): first step of each row.
            width (`int`): steps per row.

        Returns:
            `torch.Tensor` of shape `(len(rows), width, vocabulary)`.
        """
        table = torch.empty(len(rows), width, self.shape[1], device=self.device)
        for step in range(min(starts), max(starts) + width):
            for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
                if start <= step < start + width:
                    table[i, step - start] = self.step(step)[row]
        return table

    def leave(self, steps: int) -> None:
        """Leaves the generator in the state plain sampling has after so many steps."""
        if steps:
            self.step(steps - 1)
        self.generator.set_state(self._states[steps])


def default_generator(device: torch.device) -> torch.Generator:
    """Torch's global generator of a device."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def draw_seed(generator: torch.Generator | None = None) -> int:
    """One seed for one call, taken from `generator` or from torch's global generator, which moves on by it.

    Args:
        generator (`torch.Generator`, *optional*): a generator of any device.

    Returns:
        `int`: a seed in `[0, 2**62)`.
    """
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device).item())
