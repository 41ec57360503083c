"""Judging a round's drafts with the call's random numbers, and counting which of them decided something."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from .errors import InvalidArgument, UnsupportedArgument
from .options import Options
from .randomness import (
    ACCEPT,
    ORDINARY,
    SHARED_NOISE_DEVICES,
    TERMINAL,
    Noise,
    SharedNoise,
    default_generator,
    draw_seed,
)
from .records import Draft, Spent, Uniforms, Verdict
from .state.rows import Rows
from .verification.coupling import keeps, verify_sampled
from .verification.greedy import keeps_greedy, near_ties, verify_greedy
from .verification.shared_noise import keeps_shared, verify_shared


class Judge:
    """Decides which drafts are accepted and chooses the token after them.

    Args:
        do_sample (`bool`): whether the call samples.
        options (`Options`): coupling, seed, generator and row identities.
        rows (`Rows`): the rows of the call.
        vocabulary (`int`): columns of the scores.
        dtype (`torch.dtype`): what the target computes in.

    Attributes:
        coupling (`str`): `"greedy"`, `"maximal"` or `"shared_noise"`.
        noise (`Noise`, *optional*): the call's numbers under maximal coupling.
        shared_noise (`SharedNoise`, *optional*): the call's numbers under shared noise.

    Raises:
        InvalidArgument: row identities or generator do not fit the batch.
        UnsupportedArgument: shared noise on a device whose way of sampling is not known.
    """

    def __init__(
        self, do_sample: bool, options: Options, rows: Rows, vocabulary: int, dtype: torch.dtype = torch.float32
    ) -> None:
        self.rows, self._dtype = rows, dtype
        self.coupling = options.coupling if do_sample else "greedy"
        self.identities = list(range(rows.batch) if options.row_ids is None else options.row_ids)
        if len(self.identities) != rows.batch:
            raise InvalidArgument(
                f"`row_ids` must hold one number per returned row, {rows.batch}, got {len(self.identities)}."
            )
        self.noise = self.shared_noise = None
        device, generator, self.seed = rows.ids.device, options.generator, options.seed
        if self.coupling == "shared_noise":
            if device.type not in SHARED_NOISE_DEVICES:
                raise UnsupportedArgument(
                    f'`coupling="shared_noise"` draws what plain sampling draws, which is known on '
                    f"{' and '.join(SHARED_NOISE_DEVICES)} and not on {device.type}: leave `coupling` out, for the "
                    "same law with other numbers, or put the input ids and the target on one of these."
                )
            generator = default_generator(device) if generator is None else generator
            if self.seed is not None:
                generator = torch.Generator(device).manual_seed(self.seed)
            if generator.device.type != device.type:
                raise InvalidArgument(
                    f"`generator` lives on {generator.device.type}, and plain sampling would draw where the input ids "
                    f'are: pass one of that device, `torch.Generator("{device}")`.'
                )
            self._generator_state = generator.get_state()
            self.shared_noise = SharedNoise(generator, (rows.batch, vocabulary), device)
        elif self.coupling == "maximal":
            self.seed = draw_seed(generator) if self.seed is None else self.seed
            self.noise = Noise(self.seed, self.identities)

    def describe(self) -> dict[str, Any]:
        """Coupling and streams, as the call's manifest holds them."""
        streams: dict[str, Any] = {}
        if self.noise is not None:
            streams = {"kind": "philox", "seed": self.seed, "rows": self.identities}
        elif self.shared_noise is not None:
            state = self._generator_state.cpu().numpy().tobytes()
            streams = {"kind": "torch", "state": hashlib.sha256(state).hexdigest()}
        return {"coupling": self.coupling, "streams": streams}

    def keeps(self, scores: torch.Tensor, draft: Draft, rows: Sequence[int], place: int) -> list[bool]:
        """Whether the target keeps one draft token of some rows, all of whose earlier ones it kept.

        Args:
            scores (`torch.Tensor` of shape `(len(rows), V)`): the target's processed scores at that place.
            draft (`Draft`): the draft of every active row.
            rows (`Sequence[int]`): places among the active rows.
            place (`int`): the token's place in the draft.

        Returns:
            `list[bool]`: the same as [`judge`] says of the whole block.
        """
        tokens = draft.tokens[list(rows), place]
        active = [self.rows.active[i] for i in rows]
        if self.shared_noise is not None:
            steps = [self.rows.steps()[i] + place for i in rows]
            kept = keeps_shared(scores, tokens, self.shared_noise.block(active, steps, 1)[:, 0])
        elif self.noise is None:
            kept = keeps_greedy(scores, tokens)
        else:
            numbers = self.noise.block(ACCEPT, active, [self.rows.positions()[i] + place for i in rows], 1)[:, 0]
            probs = None if draft.probs is None else draft.probs[list(rows), place]
            kept = keeps(scores, tokens, probs, numbers.to(scores.device))
        return kept.tolist()

    def judge(self, scores: torch.Tensor, draft: Draft, accepted: Sequence[int] | None = None) -> Verdict:
        """Accepts a prefix of each draft and chooses the token after it.

        Args:
            scores (`torch.Tensor` of shape `(A, K + 1, V)`): the target's processed scores.
            draft (`Draft`): the draft of every active row.
            accepted (`Sequence[int]`, *optional*): tokens kept of each row, where [`keeps`] has said so.

        Returns:
            `Verdict`: a function of scores, draft, seed and positions.
        """
        known = None if accepted is None else torch.tensor(accepted, device=scores.device)
        if self.shared_noise is not None:
            noise = self.shared_noise.block(self.rows.active, self.rows.steps(), draft.width + 1)
            return verify_shared(scores, draft, noise, known)
        if self.noise is None:
            return verify_greedy(scores, draft, known)
        uniforms = self.uniforms(draft)
        numbers = Uniforms(uniforms.accept.to(scores.device), uniforms.terminal.to(scores.device))
        return verify_sampled(scores, draft, numbers, known)

    def uniforms(self, draft: Draft) -> Uniforms:
        """The numbers a draft is judged with under maximal coupling; rows without a draft draw as plain decoding."""
        assert self.noise is not None
        active, positions, width = self.rows.active, self.rows.positions(), draft.width
        terminal = self.noise.block(TERMINAL, active, positions, width + 1)
        plain = [i for i, length in enumerate(draft.lengths) if length == 0]
        if plain:
            ordinary = self.noise.block(ORDINARY, [active[i] for i in plain], [positions[i] for i in plain], 1)
            terminal[plain, :1] = ordinary
        return Uniforms(self.noise.block(ACCEPT, active, positions, width), terminal)

    def near_ties(self, scores: torch.Tensor) -> torch.Tensor | None:
        """Where a token is chosen greedily by no more than rounding in half precision.

        Args:
            scores (`torch.Tensor` of shape `(A, K + 1, V)`): the target's processed scores.

        Returns:
            `torch.LongTensor` of shape `(A, K + 1)`: ones and zeros; `None` for wider dtypes and sampled calls.
        """
        if self.coupling != "greedy" or self._dtype not in (torch.float16, torch.bfloat16) or scores.shape[-1] < 2:
            return None
        return near_ties(scores, self._dtype).long()

    def spent(self, draft: Draft, accepted: Sequence[int], published: Sequence[int]) -> tuple[Spent, ...]:
        """How many numbers decided something in a round: those of what was reached before a row's stop.

        Args:
            draft (`Draft`): the judged draft.
            accepted (`Sequence[int]`): accepted draft tokens of each active row, before stopping.
            published (`Sequence[int]`): tokens each row publishes.

        Returns:
            `tuple[Spent, ...]`: counts of each active row in this round.
        """
        if self.shared_noise is not None:
            return tuple(Spent(ordinary=count) for count in published)
        if self.noise is None:
            return (Spent(),) * len(published)
        drawn = draft.probs is not None
        return tuple(_spent(*row, drawn=drawn) for row in zip(draft.lengths, accepted, published, strict=True))


def _spent(drafted: int, accepted: int, published: int, drawn: bool) -> Spent:
    if drafted == 0:
        return Spent(ordinary=1)
    draws = drafted if drawn else 0
    if published <= accepted:
        # stopped inside the draft: what lies behind was not reached
        return Spent(draft=draws, accept=published)
    return Spent(draft=draws, accept=accepted + (accepted < drafted), terminal=1)
