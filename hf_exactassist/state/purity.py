"""Whether a processor of unknown class remembers its calls: asked on copies, before the first token.

A processor is taken as stateless only if a copy of it can be made, calls leave the copy as it was, equal prefixes get
equal answers whatever was asked in between, and its code stores nothing that later calls can see: one that waits for a
certain token shows nothing else. In doubt it counts as stateful. What a stateful one remembers can be
saved only if copies of it go on by themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .forks import fork
from .mutation import may_begin_to_remember
from .reach import fingerprint


# `call(copy, input_ids, row)` asks a copy about prefixes `(B, L)` and returns its answers `(B, ...)`; given a row, the
# other rows come with other scores than without
Call = Callable[[Any, torch.Tensor, int | None], torch.Tensor]


def is_stateless(processor: Callable[..., Any], call: Call, prompt: torch.Tensor) -> bool:
    """Probes a copy of `processor`; the original is not called.

    Args:
        processor (`Callable`): a processor, a `prefix_allowed_tokens_fn` or a stopping criterion.
        call (`Call`): how to ask it.
        prompt (`torch.LongTensor` of shape `(B, P)`): the prefixes of the first real call.

    Returns:
        `bool`: `True` only if nothing speaks for hidden state.
    """
    if getattr(processor, "stateless", False) is True:
        return True

    def ask(subject: Any) -> bool:
        before = fingerprint((subject, _generators(prompt.device)))
        first = call(subject, prompt, None)
        longer = torch.cat([prompt, first.reshape(len(prompt), -1).argmax(dim=-1, keepdim=True).to(prompt)], dim=1)
        call(subject, longer, None)
        again = call(subject, prompt, None)
        return torch.equal(first, again) and fingerprint((subject, _generators(prompt.device))) == before

    return _without_doubt(processor, ask, prompt.device) and not may_begin_to_remember(processor)


def treats_rows_alone(processor: Callable[..., Any], call: Call, prompt: torch.Tensor) -> bool:
    """Whether a stateless processor's answer about a row stays the same whatever the other rows of the batch show.

    Args:
        processor (`Callable`): a stateless processor or criterion; a copy of it is asked.
        call (`Call`): how to ask it.
        prompt (`torch.LongTensor` of shape `(B, P)`): the prefixes of the first real call.

    Returns:
        `bool`: `True` only if no row's answer moved, and it did not fail on other rows' tokens.
    """

    def ask(subject: Any) -> bool:
        first = call(subject, prompt, None)
        for row in range(len(prompt)):
            others = prompt.roll(1, dims=1)
            others[row] = prompt[row]
            if not torch.equal(call(subject, others, row)[row], first[row]):
                return False
        return True

    return _without_doubt(processor, ask, prompt.device)


def can_be_saved(processor: Callable[..., Any], call: Call, prompt: torch.Tensor) -> bool:
    """Whether copies of a stateful processor answer alike and leave it, and each other, as they were.

    Args:
        processor (`Callable`): a processor, a `prefix_allowed_tokens_fn` or a stopping criterion; it is not called.
        call (`Call`): how to ask it.
        prompt (`torch.LongTensor` of shape `(B, P)`): the prefixes of the first real call.

    Returns:
        `bool`: `False` for one that cannot be copied, or whose memory lies in a class, a global or a random generator
            that others use too.
    """

    def ask(subject: Any) -> bool:
        def untouched() -> str:
            return fingerprint((processor, subject, _generators(prompt.device)), strict=False)

        one, other, before = fork(subject), fork(subject), untouched()
        first = call(one, prompt, None)
        longer = torch.cat([prompt, first.reshape(len(prompt), -1).argmax(dim=-1, keepdim=True).to(prompt)], dim=1)
        half_way = fork(one)
        answers = [_outcome(call, one, longer), _outcome(call, half_way, longer)]
        again = call(other, prompt, None)
        answers.append(_outcome(call, other, longer))
        same = all(answer == answers[0] for answer in answers)
        return torch.equal(first, again) and same and untouched() == before

    return _without_doubt(processor, ask, prompt.device)


def scores_alone(processor: Callable[..., Any], call: Call, prompt: torch.Tensor) -> bool:
    """Whether a stateful processor's answer about a row stays the same whatever scores the other rows have.

    Args:
        processor (`Callable`): one that [`can_be_saved`]; copies of it are asked.
        call (`Call`): how to ask it.
        prompt (`torch.LongTensor` of shape `(B, P)`): the prefixes of the first real call.
    """

    def ask(subject: Any) -> bool:
        first = call(fork(subject), prompt, None)
        return all(torch.equal(call(fork(subject), prompt, row)[row], first[row]) for row in range(len(prompt)))

    return _without_doubt(processor, ask, prompt.device)


def _outcome(call: Call, subject: Any, prefix: torch.Tensor) -> Any:
    """An answer that can be compared: foreign objects may fail on tokens that are not meant for them."""
    try:
        return call(subject, prefix, None).tolist()
    except Exception as error:  # whatever a foreign object raises
        return repr(error)


def _without_doubt(processor: Callable[..., Any], ask: Callable[[Any], bool], device: torch.device) -> bool:
    """The answer about a copy; random generators are put back, and a failure counts as a no."""
    drawn = (random.getstate(), np.random.get_state())
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            return ask(fork(processor, isolated=True))
        except Exception:  # whatever a foreign object raises here, it leaves us in doubt
            return False
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])


def _generators(device: torch.device) -> tuple[Any, ...]:
    """The states of the random generators that belong to nobody."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()
