"""Whether what a processor of unknown class remembers can be saved: asked of copies, before the first token.

No probe can tell that a processor remembers nothing: one that waits for a certain token shows nothing until it comes.
So one that does not say `stateless = True` is taken as one that remembers. It can be saved only if copies of it go on
by themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .forks import fork
from .reach import fingerprint
from .surroundings import undisturbed


# `call(copy, input_ids, row)` asks a copy about prefixes `(B, L)` and returns its answers `(B, ...)`; given a row, the
# other rows come with other scores than without
Call = Callable[[Any, torch.Tensor, int | None], torch.Tensor]


def is_declared_stateless(processor: Any) -> bool:
    """Whether an object says of itself that it remembers nothing."""
    return getattr(processor, "stateless", False) is True


def can_be_saved(processor: Callable[..., Any], call: Call, prompt: torch.Tensor) -> bool:
    """Whether copies of a stateful processor answer alike and leave it, and each other, as they were.

    Args:
        processor (`Callable`): a processor or a `prefix_allowed_tokens_fn`; it is not called.
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
        first = _outcome(call, one, prompt)
        next_tokens = prompt[:, -1:]
        if not isinstance(first, str):
            # the likeliest ones are allowed ones
            scores = torch.tensor(first, device=prompt.device).reshape(len(prompt), -1)
            next_tokens = scores.argmax(dim=-1, keepdim=True).to(prompt)
        longer = torch.cat([prompt, next_tokens], dim=1)
        half_way = fork(one)
        answers = [_outcome(call, one, longer), _outcome(call, half_way, longer)]
        again = _outcome(call, other, prompt)
        answers.append(_outcome(call, other, longer))
        same = all(answer == answers[0] for answer in answers)
        # one that fails here may fail in the call itself, which says best why
        return first == again and same and untouched() == before

    return _without_doubt(processor, ask)


def scores_alone(processor: Callable[..., Any], call: Call, prompt: torch.Tensor) -> bool:
    """Whether a stateful processor's answer about a row stays the same whatever scores the other rows have.

    Args:
        processor (`Callable`): one that [`can_be_saved`]; copies of it are asked.
        call (`Call`): how to ask it.
        prompt (`torch.LongTensor` of shape `(B, P)`): the prefixes of the first real call.
    """

    def ask(subject: Any) -> bool:
        first = _outcome(call, fork(subject), prompt)
        if isinstance(first, str):
            # one that fails here says in the call itself why
            return True
        return all(call(fork(subject), prompt, row)[row].tolist() == first[row] for row in range(len(prompt)))

    return _without_doubt(processor, ask)


def _outcome(call: Call, subject: Any, prefix: torch.Tensor) -> Any:
    """An answer that can be compared: foreign objects may fail on tokens that are not meant for them."""
    try:
        return call(subject, prefix, None).tolist()
    except Exception as error:  # whatever a foreign object raises
        return repr(error)


def _without_doubt(processor: Callable[..., Any], ask: Callable[[Any], bool]) -> bool:
    """The answer about a copy; a failure counts as a no."""
    try:
        with undisturbed(processor):
            return ask(fork(processor, isolated=True))
    except Exception:  # whatever a foreign object raises here, it leaves us in doubt
        return False


def _generators(device: torch.device) -> tuple[Any, ...]:
    """The states of the random generators that belong to nobody."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), cuda, random.getstate(), np.random.get_state()
