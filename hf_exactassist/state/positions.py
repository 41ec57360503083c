"""Processed scores of the positions of a block, each with its own prefix.

Processors without history take the whole block at once. Others, and the stopping criteria with them, are asked place
by place, only about prefixes that are being published, and so get exactly the calls of a serial decode in its order
(contract 0x06D, 0x06F).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..records import Draft, Processed
from .processors import ProcessorPipeline
from .rows import Rows
from .stopping import StoppingRules


def process_block(processors: ProcessorPipeline, rows: Rows, draft: Draft, logits: torch.Tensor) -> Processed:
    """Applies processors without history to the whole block.

    Args:
        processors (`ProcessorPipeline`): the call's processors.
        rows (`Rows`): the rows.
        draft (`Draft`): the drafts of the active rows.
        logits (`torch.Tensor` of shape `(A, K + 1, V)`): float32, of every position of the block.

    Returns:
        `Processed`: nothing of it is judged.
    """
    count, width = logits.shape[:2]
    starts = rows.active_lengths()
    scores = logits
    if processors.processors:
        # one without history looks neither at rows nor at lengths
        nowhere = [0] * count * width
        scores = processors.process(logits.flatten(0, 1), nowhere, nowhere, rows.ids).view_as(logits)
    stops = tuple(rows.stops[row] for row in rows.active)
    limits = tuple(length + 1 for length in draft.lengths)
    return Processed(logits, scores, limits, None, tuple(starts), stops)


def process_in_order(
    processors: ProcessorPipeline,
    rules: StoppingRules,
    rows: Rows,
    draft: Draft,
    logits: torch.Tensor,
    keeps: Callable[[torch.Tensor, Draft, Sequence[int], int], list[bool]],
    record: Callable[[torch.Tensor, torch.Tensor, Sequence[int], Sequence[int]], None],
    criteria_scores: Callable[[int], tuple[torch.Tensor, ...] | None],
) -> Processed:
    """Goes through the block place by place, up to each row's first rejection or stop.

    Args:
        processors (`ProcessorPipeline`): the call's processors.
        rules (`StoppingRules`): asked about each accepted draft token before the next place is processed.
        rows (`Rows`): the rows; the drafts are laid into their scratch columns, whatever a drafter has left there.
        draft (`Draft`): the drafts of the active rows.
        logits (`torch.Tensor` of shape `(A, K + 1, V)`): float32, of every position of the block.
        keeps (`Callable`): `keeps(scores, draft, rows, place)` says which rows' draft tokens are accepted.
        record (`Callable`): `record(logits, scores, rows, places)` is told of what was processed.
        criteria_scores (`Callable`): the `scores` argument of criteria after so many new tokens.

    Returns:
        `Processed`: with what was accepted.
    """
    active, starts, drafts = rows.active, rows.active_lengths(), draft.tokens.tolist()
    rows.lay_out([row[:length] for row, length in zip(drafts, draft.lengths, strict=True)])
    scores = torch.zeros_like(logits)
    accepted, limits = [0] * len(starts), [0] * len(starts)
    asked, stops = list(starts), [rows.stops[row] for row in active]
    going = list(range(len(starts)))
    for place in range(draft.width + 1):
        columns = [starts[i] + place for i in going]
        processed = processors.process(logits[going, place], [active[i] for i in going], columns, rows.ids)
        scores[going, place] = processed
        record(logits, scores, going, [place] * len(going))
        for i in going:
            limits[i] = place + 1
        drafted = [n for n, i in enumerate(going) if place < draft.lengths[i]]
        judged = [going[n] for n in drafted]
        kept = keeps(processed[drafted], draft, judged, place) if judged else []
        on = [i for i, keep in zip(judged, kept, strict=True) if keep]
        for i in on:
            accepted[i] += 1
        if rows.in_step and len(on) < len(going):
            # the other rows' tokens of this column are not chosen yet
            break
        for column in sorted({starts[i] + place + 1 for i in on}):
            here = [i for i in on if starts[i] + place + 1 == column and stops[i] is None]
            last = [drafts[i][place] for i in here]
            answers = rules.stops_at(rows, [active[i] for i in here], last, column, criteria_scores) if here else []
            for i, stop in zip(here, answers, strict=True):
                stops[i] = column if stop else None
        for i in on:
            asked[i] = starts[i] + place + 1
        ended = [i for i in on if stops[i] is not None and rows.stop_alone]
        going = [i for i in on if i not in ended]
        if rows.in_step and ended:
            break
        if not going:
            break
    return Processed(logits, scores, tuple(limits), tuple(accepted), tuple(asked), tuple(stops))
