"""The acceptance log: one record per reached decision and one per round (contract 0x06F).

Where acceptance is low, it says which tokens were rejected, with what probabilities: a poor drafter, shifted positions
and different sampling settings look different here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import time
from collections.abc import Callable
from io import TextIOWrapper
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from .diagnosis import divergence, expected_acceptance, same_top
from .errors import InvalidArgument
from .records import Draft, RoundCommit
from .state.manifest import coordinate_digest
from .verification.coupling import residual
from .verification.distributions import probabilities


class AcceptanceLog:
    """Writes records to a file of JSON lines, or hands them to a function.

    Args:
        target (`str`, `PathLike` or `Callable[[dict], None]`): a file is added to, and made if it is not there.

    Raises:
        InvalidArgument: the file cannot be written.
    """

    def __init__(self, target: str | PathLike[str] | Callable[[dict[str, Any]], None]) -> None:
        self._file: TextIOWrapper | None = None
        self._seconds: dict[str, float] = {}
        self._since = time.perf_counter()
        if callable(target):
            self._tell = target
            return
        try:
            self.path = str(Path(target))
            self._file = Path(target).open("a", encoding="utf-8")
        # a name with a null character is a ValueError
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"`telemetry` cannot be written: {error}. Give a path in a folder that exists."
            ) from error

    def begin(self) -> None:
        """A round begins; what a failed one took is forgotten."""
        self._seconds, self._since = {}, time.perf_counter()

    def lap(self, stage: str) -> None:
        """The named stage of the round has ended."""
        now = time.perf_counter()
        self._seconds[stage], self._since = now - self._since, now

    def records(
        self,
        commit: RoundCommit,
        draft: Draft,
        scores: torch.Tensor,
        uniforms: torch.Tensor | None,
        coupling: str,
    ) -> list[dict[str, Any]]:
        """What is to be told of a round once it is published.

        Args:
            commit (`RoundCommit`): the round.
            draft (`Draft`): its draft.
            scores (`torch.Tensor` of shape `(A, K + 1, V)`): the target's processed scores.
            uniforms (`torch.Tensor` of shape `(A, K)`, *optional*): numbers of the acceptance tests.
            coupling (`str`): how drafts were judged.

        Returns:
            `list[dict]`: decisions in the order of rows and positions, then the round.
        """
        told = [
            self._decision(commit, draft, scores, uniforms, coupling, i, j)
            for i, accepted in enumerate(commit.accepted)
            # the first rejection is reached, what a stop cut off is not
            for j in range(min(accepted + 1, commit.drafted[i], len(commit.tokens[i])))
        ]
        rows = [
            {
                "row": row,
                "drafted": commit.drafted[i],
                "accepted": min(commit.accepted[i], len(commit.tokens[i])),
                "published": list(commit.tokens[i]),
                "terminal": commit.terminal[i],
                "stopped": commit.stops[i] is not None,
                "spent": commit.spent_after[i]._asdict(),
            }
            for i, row in enumerate(commit.rows)
        ]
        whole = {
            "event": "round",
            "round": commit.round_id,
            "generation": commit.expected_generation,
            "layout": commit.layout,
            "coupling": coupling,
            "coordinate": coordinate_digest(commit.coordinate),
            "rows": rows,
            "seconds": dict(self._seconds),
        }
        return [*told, whole]

    def _decision(
        self,
        commit: RoundCommit,
        draft: Draft,
        scores: torch.Tensor,
        uniforms: torch.Tensor | None,
        coupling: str,
        i: int,
        j: int,
    ) -> dict[str, Any]:
        token = int(draft.tokens[i, j])
        p_row = probabilities(scores[i, j])
        accepted = j < commit.accepted[i]
        p, q, ratio, identity = float(p_row[token]), None, None, None
        laws: dict[str, Any] = dict.fromkeys(("overlap", "divergence", "same_top"))
        if coupling == "maximal":
            if draft.probs is None:
                q, q_row = 1.0, torch.zeros_like(p_row).index_fill_(0, torch.tensor(token, device=p_row.device), 1.0)
            else:
                q_row = draft.probs[i, j].to(p_row.device)
                q = float(q_row[token])
            ratio = min(1.0, p / q) if q > 0 else 0.0
            if not accepted:
                left = residual(p_row[None], q_row[None]).float().cpu().numpy().tobytes()
                identity = hashlib.sha256(left).hexdigest()[:16]
            laws |= _compared(p_row, q_row)
        return {
            "event": "decision",
            "round": commit.round_id,
            "row": commit.rows[i],
            "position": commit.coordinate.rows[i].position + j,
            "token": token,
            "q": q,
            "p": p,
            "ratio": ratio,
            "uniform": None if uniforms is None else float(uniforms[i, j]),
            "accepted": accepted,
            "residual": identity,
            "published": len(commit.tokens[i]),
            **laws,
        }

    def deliveries(self, records: list[dict[str, Any]]) -> list[Callable[[], None]]:
        """How a published round is told: to a function record by record, to a file at once."""
        if self._file is None:
            return [functools.partial(self._tell, record) for record in records]
        return [functools.partial(self._append, records)]

    def _append(self, records: list[dict[str, Any]]) -> None:
        assert self._file is not None
        try:
            # one write for a whole round, so that an interruption leaves no half of a line behind
            self._file.write("".join(json.dumps(record) + "\n" for record in records))
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, f"the acceptance log cannot be written: {error.strerror}", self.path) from error

    def close(self) -> None:
        """Closes the file; it is closed too when the log is forgotten, as after a call that failed."""
        if self._file is not None:
            # what could not be written has been told of
            with contextlib.suppress(OSError):
                self._file.close()

    def __del__(self) -> None:
        """See [`close`]."""
        if getattr(self, "_file", None) is not None:
            self.close()


def _compared(p: torch.Tensor, q: torch.Tensor) -> dict[str, Any]:
    """How two laws `(V,)` differ; nothing where the drafter has none."""
    try:
        far = float(divergence(p, q))
    except ValueError:
        # as where processors leave it nothing to draw from; such a token is never kept
        return {}
    return {
        "overlap": float(expected_acceptance(p, q)),
        "divergence": far if math.isfinite(far) else None,
        "same_top": bool(same_top(p, q)),
    }
