"""Where a call stands: the coordinate its rounds are bound to, and whether its models are still the same."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from .errors import ModelChanged
from .models import identity
from .records import Coordinate, RowCoordinate
from .scoring import Scorer
from .state import manifest


class Standing:
    """Makes the coordinate of the present state (contract 0x01A, 0x01D).

    What holds for the whole call is described once; what changes from round to round, once a state.

    Args:
        scorer (`Scorer`): knows the rows and what the target's cache holds.
        layout (`str`): `"replay"` or `"retained"`.
        models (`dict[str, PreTrainedModel | None]`): `"target"` and `"drafter"`, which must stay what they are.
        call (`dict[str, Any]`): the call's manifest but for these models.
    """

    def __init__(
        self,
        scorer: Scorer,
        layout: str,
        models: dict[str, PreTrainedModel | None],
        call: dict[str, Any],
    ) -> None:
        self.scorer, self.layout = scorer, layout
        self._models = {role: model for role, model in models.items() if model is not None}
        self._looks = [identity.watch(model) for model in self._models.values()]
        self._seen = [look() for look in self._looks]
        self._described = self._describe(self._seen)
        self.call = manifest.identify(
            {**call, **{role: {**call[role], **part} for role, part in self._described.items()}}
        )
        # the last one that was made, and what it was made for
        self._known: Coordinate | None = None
        self._stands = (-1, False)

    def _describe(self, looks: list[tuple[Any, ...]]) -> dict[str, Any]:
        models = zip(self._models.items(), looks, strict=True)
        parts = {role: identity.describe(model, look) for (role, model), look in models}
        return {role: part if role == "target" else {"model": part} for role, part in parts.items()}

    def coordinate(self) -> Coordinate:
        """The present state's coordinate."""
        rows, state = self.scorer.rows, self.scorer.rows.state
        stands = (state.generation, self.scorer.completed)
        if self._known is None or self._stands != stands:
            places = zip(state.active, rows.active_lengths(), self.scorer.cached, rows.positions(), strict=True)
            self._known = Coordinate(
                self.call,
                state.generation,
                self.layout,
                tuple(
                    RowCoordinate(row, state.hashes[row].hexdigest(), length, kept, position, state.spent[row])
                    for row, length, kept, position in places
                ),
                tuple((row, state.hashes[row].hexdigest()) for row in range(rows.batch) if row not in state.active),
            )
            self._stands = stands
        return self._known

    def require(self, bound: Coordinate, what: str) -> None:
        """Refuses what was made in another state.

        Args:
            bound (`Coordinate`): the state it was made in.
            what (`str`): begins the message.

        Raises:
            StaleRound: the subclass that names what differs.
        """
        current = self.coordinate()
        if bound is not current:
            manifest.require_current(bound, current, what)

    def require_unchanged(self) -> None:
        """Refuses to go on with a model that is not the one the call began with.

        Raises:
            StaleRound: the subclass that names what changed.
        """
        now = [look() for look in self._looks]
        if now != self._seen:
            manifest.require_same({"call": self._described}, {"call": self._describe(now)}, "This call")
            # weights are described by a sketch
            raise ModelChanged(
                "Weights or layers of the call's models were changed or replaced since it began: start a new call. "
                "(What was changed in place is not taken for unchanged when it is put back.)"
            )
