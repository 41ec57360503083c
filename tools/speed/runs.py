"""Calls of several ways of decoding in turn, and what follows from their times."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from hf_exactassist.benchmark.arithmetic import Quartiles, mean_round_seconds, quartiles
from hf_exactassist.benchmark.clocks import timed
from hf_exactassist.benchmark.forwards import Forwards, time_forwards
from hf_exactassist.benchmark.inside import Watch
from hf_exactassist.benchmark.measuring import Plan
from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.benchmark.variants import TRANSFORMERS, Variant, decode


Row = Sequence[int]


@dataclass(frozen=True)
class Call:
    """A timed call.

    Args:
        seconds: CPU time.
        tokens: of all rows.
        drafts: how many drafts had which length.
        share: of the wall time inside of forwards, where it was watched.
        texts: new tokens of each row.
    """

    seconds: float
    tokens: int
    drafts: dict[int, int]
    share: float | None
    texts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Task:
    """What all ways decode.

    Args:
        pair: the models.
        batches: prompts of each call.
        mode: greedy or sampled.
        tokens: new tokens of each row.
    """

    pair: Pair
    batches: Sequence[Sequence[Row]]
    mode: str
    tokens: int

    def call(self, way: Variant, batch: int, seed: int, tokens: int | None = None, watch: Watch | None = None) -> Call:
        """Decodes a batch in one of the ways."""
        settings = Plan((), max_new_tokens=tokens or self.tokens).settings(self.mode)
        for seconds in (watch.target, watch.draft) if watch else ():
            seconds.clear()
        torch.manual_seed(seed)
        decoded, taken = timed(lambda: decode(self.pair, way, self.batches[batch], settings), self.pair.device)
        share = (sum(watch.target) + sum(watch.draft)) / taken.wall if watch else None
        return Call(taken.cpu, decoded.new_tokens, decoded.drafts, share, decoded.texts)


@dataclass
class Runs:
    """What was measured of a task.

    Args:
        calls: those of each way; a list of its batches for each repeat.
        forwards: single forwards, timed between the turns, by batch.
    """

    calls: dict[Variant, list[list[Call]]] = field(default_factory=dict)
    forwards: list[tuple[int, Forwards]] = field(default_factory=list)

    def per_token(self, way: Variant) -> list[float]:
        """Seconds per token of each repeat, prompts included."""
        return [sum(c.seconds for c in turn) / sum(c.tokens for c in turn) for turn in self.calls[way]]

    def speedup(self, way: Variant, over: Variant) -> float:
        """Tokens per second of a way over those of another: a ratio of medians."""
        return statistics.median(self.per_token(over)) / statistics.median(self.per_token(way))

    def speedups(self, way: Variant, over: Variant) -> Quartiles:
        """The same for each repeat alone."""
        return quartiles([old / new for old, new in zip(self.per_token(over), self.per_token(way), strict=True)])

    def share(self, way: Variant) -> Quartiles:
        """Share of the wall time inside of forwards, of each repeat."""
        turns = self.calls[way]
        return quartiles([statistics.mean(c.share for c in turn if c.share is not None) for turn in turns])

    def tokens_per_round(self, way: Variant) -> float:
        """Of a row, over all calls."""
        turns = self.calls[way]
        calls = [call for turn in turns for call in turn]
        # Transformers reads the prompt in its first round; elsewhere the first token comes before it
        early = 0 if way.kind == TRANSFORMERS else 1
        return sum(c.tokens - early * len(c.texts) for c in calls) / sum(sum(c.drafts.values()) for c in calls)

    def costs(self) -> tuple[float, dict[int, float]]:
        """Median seconds of a draft step, and of the target's forwards by width."""
        widths = self.forwards[0][1].target
        by_width = {w: statistics.median(t.cpu for _, one in self.forwards for t in one.target[w]) for w in widths}
        return statistics.median(t.cpu for _, one in self.forwards for t in one.draft_steps), by_width

    def efficiency(self, way: Variant) -> Quartiles:
        """The forwards of all rounds, as each takes alone, over what the calls take behind their prompts."""
        prompts = sum(
            statistics.median(one.target_prefill.cpu + one.draft_prefill.cpu for at, one in self.forwards if at == b)
            for b in {batch for batch, _ in self.forwards}
        )
        step, costs = self.costs()
        found = []
        for turn in self.calls[way]:
            drafts: Counter[int] = sum((Counter(call.drafts) for call in turn), Counter())
            ready = sum(drafts.values()) * mean_round_seconds(drafts, step, costs)
            if way.kind == TRANSFORMERS:
                # its first block is read in one forward with the prompt
                ready -= len(turn) * costs[max(costs)]
            found.append(ready / (sum(call.seconds for call in turn) - prompts))
        return quartiles(found)

    def differing(self, way: Variant, reference: Variant) -> int:
        """How many calls gave another text than the reference's."""
        pairs = zip(self.calls[way], self.calls[reference], strict=True)
        return sum(
            ours.texts != theirs.texts for turn, other in pairs for ours, theirs in zip(turn, other, strict=True)
        )


def take_turns(
    task: Task,
    ways: Sequence[Variant],
    repeats: int,
    advance: Callable[[], None],
    widths: Sequence[int] = (),
    watch: Watch | None = None,
) -> Runs:
    """Times every way on every batch, each time beginning with another one, after a short call of each to warm up.

    Args:
        task: what is decoded.
        ways: how; each once.
        repeats: how often.
        advance: called after every call.
        widths: of the target's forwards that are timed by themselves between the turns.
        watch: hooks, where the share of forwards is wanted.
    """
    runs = Runs({way: [] for way in ways})
    for way in ways:
        task.call(way, 0, seed=0, tokens=min(task.tokens, 12))
        advance()
    for repeat in range(repeats):
        for way in ways:
            runs.calls[way].append([])
        for batch, rows in enumerate(task.batches):
            first = (repeat + batch) % len(ways)
            for way in [*ways[first:], *ways[:first]]:
                call = task.call(way, batch, seed=repeat * len(task.batches) + batch, watch=watch)
                runs.calls[way][-1].append(call)
                advance()
            if widths:
                runs.forwards.append((batch, time_forwards(task.pair, rows, call.texts, widths)))
    return runs
