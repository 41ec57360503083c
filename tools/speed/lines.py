"""The lines of the table: what is measured, what Transformers 5.24 was seen to reach, and the target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A line.

    Args:
        name: unique; begins with its row.
        work: what is measured.
        theirs: Transformers 5.24, as the targets were set.
        target: the bound.
        at_least: whether more is better.
    """

    name: str
    work: str
    theirs: str
    target: float
    at_least: bool = True

    @property
    def row(self) -> str:
        """The letter of its row."""
        return self.name.partition("-")[0]

    def is_met(self, value: float) -> bool:
        """Whether a value, as the table shows it, reaches the target."""
        shown = float(self.shown(value))
        return shown >= self.target if self.at_least else shown <= self.target

    def shown(self, value: float) -> str:
        """A value with the target's digits, two at least."""
        digits = max(2, len(f"{self.target:g}".partition(".")[2]))
        return f"{value:.{digits}f}"

    def bound(self) -> str:
        """The target with its sense."""
        return f"{'>=' if self.at_least else '<='} {self.shown(self.target)}"


@dataclass(frozen=True)
class Figure:
    """What was measured for a line.

    Args:
        value: the figure.
        lower: a quarter of the repeats lies below, where there are repeats.
        upper: three quarters do.
        note: what else to say in the table.
    """

    value: float
    lower: float | None = None
    upper: float | None = None
    note: str = ""


VOCABULARIES = {"8k": 8192, "49k": 49152}
MODES = ("greedy", "sampled")
KINDS = ("prose", "code", "lists")
DRAFTS = ("85", "70", "50")
BATCHES = (4, 8)

_EFFICIENCY = "efficiency of a tiny pair (17 M, vocabulary 49 k), {}, K = 5"
_SHARE = "share of forwards in the wall time of a large pair, {}, K = 5"
_SPEED = "tokens per second against Transformers' assisted, {} pair, {}, K = 5"
_WRONG = "a drafter that is never right, defaults, against plain: {} pair, {}"
_CHOICE = "defaults against the best fixed K: {}, {} of 100 drafts accepted"
_BATCH = "batch of {}, {} pair, against {}"
_OVERHEAD = "time of a round beside forwards, {}: its growth from 128 to 8192 tokens of context"
_MEMORY = "keys and values of {} layers over what is allowed: {}"

LINES = tuple(
    [
        Line("a", _EFFICIENCY.format("sampled"), "0.73", 0.96),
        Line("b", _EFFICIENCY.format("greedy"), "0.80 to 0.87", 1.0),
        Line("c-greedy", _SHARE.format("greedy"), "0.992", 0.992),
        Line("c-sampled", _SHARE.format("sampled"), "0.98", 0.99),
        Line("d-8k-greedy", _SPEED.format("tiny 8 k", "greedy"), "1", 1.15),
        Line("d-8k-sampled", _SPEED.format("tiny 8 k", "sampled"), "1", 1.25),
        Line("d-49k-greedy", _SPEED.format("tiny 49 k", "greedy"), "1", 1.08),
        Line("d-49k-sampled", _SPEED.format("tiny 49 k", "sampled"), "1", 1.18),
        Line("d-large-greedy", _SPEED.format("large", "greedy"), "1", 1.02),
        Line("d-large-sampled", _SPEED.format("large", "sampled"), "1", 1.02),
    ]
    + [
        Line(f"e-{size}-{mode}", _WRONG.format(f"tiny {size[:-1]} k", mode), "0.18 to 0.38 (K = 5)", 0.97)
        for size in VOCABULARIES
        for mode in MODES
    ]
    + [Line("e-large-greedy", _WRONG.format("large", "greedy"), "0.18 to 0.38 (K = 5)", 0.97)]
    + [
        Line(f"f-{draft}-{kind}", _CHOICE.format(kind, draft), "0.5 to 0.6", 0.95)
        for draft in DRAFTS
        for kind in KINDS
    ]
    + [
        line
        for name, pair in (("49k", "tiny 49 k"), ("large", "large"))
        for size in BATCHES
        for line in (
            Line(f"g-{name}-{size}-batch", _BATCH.format(size, pair, "plain batched"), "refused", 1.2),
            Line(f"g-{name}-{size}-single", _BATCH.format(size, pair, "Transformers' assisted one by one"), "1", 3.0),
        )
    ]
    + [Line(f"h-{mode}", _OVERHEAD.format(mode), "grows", 1.1, at_least=False) for mode in MODES]
    + [
        Line("i-full", _MEMORY.format("full", "plain's and 5 %, and K slots"), "-", 1.0, at_least=False),
        Line("i-sliding", _MEMORY.format("sliding", "window + K slots"), "-", 1.0, at_least=False),
    ]
)
ROWS = tuple(dict.fromkeys(line.row for line in LINES))
