"""Row f: the defaults against the best fixed draft length, chosen afterwards."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from hf_exactassist.benchmark.measuring import GREEDY
from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.benchmark.prompts import built_in
from hf_exactassist.benchmark.variants import OURS, PLAIN, Variant

from .drafted import Budget
from .lines import Figure
from .runs import Task


LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12)
DEFAULT = Variant(OURS)
# longer drafts are not tried after two in a row that were this much slower than the best
_HOPELESS = 1.15


def fixed(length: int) -> Variant:
    """Drafts of so many tokens; without any it is plain decoding."""
    return Variant(OURS, length) if length else Variant(PLAIN)


def defaults_against_best(pair: Pair, kind: str, budget: Budget, advance: Callable[[], None]) -> Figure:
    """Tries all lengths once, with the defaults in between, and then the two best and the defaults again.

    Args:
        pair: the models.
        kind: of the text that is continued, greedily.
        budget: its repeats are those of the best.
        advance: called after every call.
    """
    rows = [pair.tokenizer(prompt.text)["input_ids"] for prompt in built_in([kind], 1)]
    task = Task(pair, [rows], GREEDY, budget.tokens)
    taken: dict[Variant, list[float]] = {}
    texts = {}

    def run(way: Variant) -> None:
        call = task.call(way, 0, seed=0)
        taken.setdefault(way, []).append(call.seconds)
        texts[way] = call.texts
        advance()

    # the first call of a pair asks the models what they can, and has no times to choose by
    task.call(DEFAULT, 0, seed=0, tokens=min(budget.tokens, 16))
    run(DEFAULT)
    for length in LENGTHS:
        run(fixed(length))
        if length == LENGTHS[len(LENGTHS) // 2]:
            run(DEFAULT)
        if is_hopeless([taken[fixed(n)][0] for n in LENGTHS if fixed(n) in taken]):
            break
    best = sorted((way for way in taken if way != DEFAULT), key=lambda way: taken[way][0])[:2]
    for _ in range(budget.repeats):
        for way in (DEFAULT, *best):
            run(way)
    times = {way: statistics.median(taken[way]) for way in (DEFAULT, *best)}
    found = min(best, key=lambda way: times[way])
    gain = statistics.median(taken[Variant(PLAIN)]) / times[found]
    note = f"best is K = {found.num_assistant_tokens or 0}, {gain:.2f} times as fast as plain"
    if texts[DEFAULT] != texts[found]:
        note += "; its text differs at a near tie"
    return Figure(times[found] / times[DEFAULT], note=note)


def is_hopeless(seconds: Sequence[float]) -> bool:
    """Whether the last two of the times, shortest drafts first, are far above the best."""
    return len(seconds) > 2 and min(seconds[-2:]) > _HOPELESS * min(seconds)
