"""Storage of sliding layers that is used again: it holds a window and a block, however long the text grows."""

from __future__ import annotations

import torch


# tokens beyond the text that may be written before the ring has to grow
_BLOCK = 16


class Ring:
    """Places of slots: slot `s` stands at place `s % size` until slot `s + size` comes.

    A forward of at most `size - window` tokens after a text of `n` overwrites slots below `n - window`, be its drafts
    rejected or not, and no later query sees further back than slot `n - window + 1`.

    Args:
        window (`int`): sliding window in tokens, the query's own included.

    Attributes:
        size (`int`): places.
        held (`torch.LongTensor` of shape `(B, size)`): the slot at each place of each row, -1 where there is none.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.size = window + _BLOCK
        self.held = torch.zeros(0, self.size, dtype=torch.long, device="cpu")

    def begin(self, lengths: list[int], device: torch.device) -> None:
        """Holds the last slots of every row."""
        ends = torch.tensor(lengths, device=device)[:, None]
        slots = torch.arange(self.size, device=device) + (ends - self.size).clamp_min(0)
        # beyond a row's end there is none, which goes to a place that is cut off
        places = torch.where(slots < ends, slots % self.size, self.size)
        held = slots.new_full((len(lengths), self.size + 1), -1)
        self.held = held.scatter_(1, places, slots)[:, : self.size].contiguous()

    def write(self, slots: torch.Tensor) -> None:
        """Notes that slots `(B, W)` are written."""
        if len(self.held) != len(slots):
            self.begin([0] * len(slots), slots.device)
        self.held.scatter_(1, slots % self.size, slots)

    def grow(self, width: int) -> torch.Tensor:
        """Makes room for blocks of so many tokens.

        Returns:
            `torch.LongTensor` of shape `(B, new size)`: from where each place gets its states.
        """
        held, self.size = self.held, self.window + width
        # slots that no query sees any more, and places without any, go to a place that is cut off
        seen = held > held.amax(dim=1, keepdim=True) - self.size
        places = torch.where(seen & (held >= 0), held % self.size, self.size)
        sources = held.new_zeros((len(held), self.size + 1))
        sources.scatter_(1, places, torch.arange(held.shape[1], device=held.device).expand_as(places))
        self.held = (
            held.new_full((len(held), self.size + 1), -1).scatter_(1, places, held)[:, : self.size].contiguous()
        )
        return sources[:, : self.size]
