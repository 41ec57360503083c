"""Rows a to e and g: calls of a pair in several ways, in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hf_exactassist.benchmark.arithmetic import Quartiles
from hf_exactassist.benchmark.forwards import time_forwards
from hf_exactassist.benchmark.inside import watching
from hf_exactassist.benchmark.measuring import GREEDY
from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.benchmark.prompts import built_in
from hf_exactassist.benchmark.variants import OURS, PLAIN, TRANSFORMERS, Variant

from . import pairs
from .lines import KINDS, Figure
from .runs import Row, Runs, Task, take_turns


NUMBER = 5
PROMPT = 16  # tokens of a tiny pair's prompts
_PLAIN, _THEIRS, _OURS, _DEFAULT = Variant(PLAIN), Variant(TRANSFORMERS, NUMBER), Variant(OURS, NUMBER), Variant(OURS)


@dataclass(frozen=True)
class Budget:
    """How much is measured.

    Args:
        repeats: of every call.
        tokens: of each row.
        prompts: calls of a repeat; of the large pair one for each kind of text at most.
    """

    repeats: int
    tokens: int
    prompts: int = 1


def rows_for(pair: Pair, number: int) -> list[Row]:
    """Prompts: random tokens for a tiny pair, texts of all kinds for one that reads them."""
    if pair.tokenizer is None:
        generator = torch.Generator().manual_seed(1)
        size = pair.target.config.vocab_size
        return torch.randint(size, (number, PROMPT), generator=generator).tolist()
    each = built_in(KINDS, -(-number // len(KINDS)))
    texts = [prompt.text for place in range(len(each)) for prompt in each[place :: len(each) // len(KINDS)]]
    return [pair.tokenizer(text)["input_ids"] for text in texts[:number]]


def beside_transformers(
    pair: Pair, mode: str, budget: Budget, advance: Callable[[], None], watched: bool
) -> dict[str, Figure]:
    """Speed of fixed drafts against Transformers', and where the time goes.

    Args:
        pair: the models.
        mode: greedy or sampled.
        budget: how much is measured.
        advance: called after every call.
        watched: whether the share of forwards is told instead of the efficiency: hooks cost time, which only large
            models do not notice.
    """
    task = Task(pair, [[row] for row in rows_for(pair, budget.prompts)], mode, budget.tokens)
    ways = [_THEIRS, _OURS]
    if watched:
        with watching(pair) as watch:
            runs = take_turns(task, ways, budget.repeats, advance, watch=watch)
        figures = {"share": _figure(runs.share(_OURS), f"Transformers here {runs.share(_THEIRS).median:.3f}")}
    else:
        runs = take_turns(task, ways, budget.repeats, advance, widths=(1, NUMBER + 1))
        figures = {"efficiency": _figure(runs.efficiency(_OURS), _efficiency_note(runs))}
    rounds = [runs.tokens_per_round(way) for way in (_OURS, _THEIRS)]
    note = f"tokens a round {rounds[0]:.2f}, Transformers {rounds[1]:.2f}"
    if mode == GREEDY and runs.differing(_OURS, _THEIRS):
        note += f"; {runs.differing(_OURS, _THEIRS)} texts differ"
    figures["speed"] = _speedup(runs, _OURS, _THEIRS, note)
    return figures


def never_right(pair: Pair, mode: str, budget: Budget, advance: Callable[[], None]) -> Figure:
    """The defaults with a drafter that is always wrong, against plain decoding."""
    wrong = pairs.never_right(pair)
    task = Task(wrong, [[row] for row in rows_for(pair, budget.prompts)], mode, budget.tokens)
    runs = take_turns(task, [_PLAIN, _DEFAULT], budget.repeats, advance)
    return _speedup(runs, _DEFAULT, _PLAIN, f"{budget.tokens} tokens")


def batches(pair: Pair, size: int, budget: Budget, advance: Callable[[], None]) -> dict[str, Figure]:
    """A greedy batch with the defaults, against plain in a batch and Transformers' assisted one by one."""
    rows = rows_for(pair, size)
    runs = take_turns(Task(pair, [rows], GREEDY, budget.tokens), [_PLAIN, _THEIRS, _DEFAULT], budget.repeats, advance)
    texts = runs.calls[_PLAIN][0][0].texts
    note = f"a step of {size} rows takes {_rows_cost(pair, rows, texts):.2f} steps of one"
    if runs.differing(_DEFAULT, _PLAIN):
        note += "; texts differ from plain"
    return {
        "batch": _speedup(runs, _DEFAULT, _PLAIN, note),
        "single": _speedup(runs, _DEFAULT, _THEIRS, ""),
    }


def _rows_cost(pair: Pair, rows: Sequence[Row], texts: Sequence[Row]) -> float:
    """A plain step of the batch over one of a single row: near 1 where reading the weights is what takes time."""
    many, one = (time_forwards(pair, rows[:n], texts[:n], (1,)).target[1] for n in (len(rows), 1))
    return statistics.median(taken.cpu for taken in many) / statistics.median(taken.cpu for taken in one)


def _efficiency_note(runs: Runs) -> str:
    step, target = runs.costs()
    width = NUMBER + 1
    return (
        f"Transformers here {runs.efficiency(_THEIRS).median:.2f}; forwards alone, ms: target {1e3 * target[1]:.1f}, "
        f"over {width} tokens {1e3 * target[width]:.1f}, draft {1e3 * step:.1f}"
    )


def _speedup(runs: Runs, way: Variant, over: Variant, note: str) -> Figure:
    spread = runs.speedups(way, over)
    return Figure(runs.speedup(way, over), spread.lower, spread.upper, note)


def _figure(found: Quartiles, note: str) -> Figure:
    return Figure(found.median, found.lower, found.upper, note)
