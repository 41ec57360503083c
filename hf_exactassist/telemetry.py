"""Counters of one call. Rates are derived from them late."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields, replace

from .records import Commit


@dataclass
class AssistStats:
    """What assistance did during one `generate` call.

    Attributes:
        rounds (`int`): target rounds, the prefill not counted.
        drafted (`int`): draft tokens that were judged, all rows.
        accepted (`int`): draft tokens that were accepted and published.
        published (`int`): tokens published, all rows.
        drafted_by_position (`list[int]`): how often draft position `i` was proposed.
        accepted_by_position (`list[int]`): how often draft position `i` was accepted and published.
        target_forwards (`int`): target forward passes, the prefill included; filling the cache for the caller is not.
        draft_forwards (`int`): assistant forward passes, its prefill included; 0 for drafters without a model.
        near_ties (`int`): greedily published tokens whose two best scores lie within two units in the last place of a
            half-precision target: there a block can round to another token than plain `generate`.
        text_realignments (`int`): how often an assistant with another tokenizer encoded a row's text, or what stands
            behind its last special token, from the beginning again; the first time of each row is not counted.
        lossy_alignments (`int`): how often its tokens did not stand for the text they were made of.
        serial (`str`, *optional*): why the target was decoded token by token, if drafts cannot help it.
        in_step (`str`, *optional*): what made all rows of the batch publish equally many tokens a round, if anything
            did: a processor or criterion with one memory for the whole batch.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    published: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    target_forwards: int = 0
    draft_forwards: int = 0
    near_ties: int = 0
    text_realignments: int = 0
    lossy_alignments: int = 0
    serial: str | None = None
    in_step: str | None = None

    @property
    def acceptance_rate(self) -> float:
        """Accepted per drafted token; 0.0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def __add__(self, other: AssistStats) -> AssistStats:
        """The counters of two calls together."""
        positions = ("drafted_by_position", "accepted_by_position")
        total = AssistStats(serial=self.serial or other.serial, in_step=self.in_step or other.in_step)
        for item in fields(self):
            ours, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name in positions:
                pairs = itertools.zip_longest(ours, theirs, fillvalue=0)
                setattr(total, item.name, [count + more for count, more in pairs])
            elif item.name not in ("serial", "in_step"):
                setattr(total, item.name, ours + theirs)
        return total

    def after(self, commit: Commit, is_round: bool = True) -> AssistStats:
        """The counters with what one round, or the prefill, published added; these here stay as they are."""
        more = replace(self, drafted_by_position=[*self.drafted_by_position])
        more.accepted_by_position = [*self.accepted_by_position]
        more.rounds += is_round
        more.near_ties += commit.near_ties
        for drafted, accepted, tokens in zip(commit.drafted, commit.accepted, commit.tokens, strict=True):
            kept = min(accepted, len(tokens))
            more.published += len(tokens)
            more.drafted += drafted
            more.accepted += kept
            missing = drafted - len(more.drafted_by_position)
            more.drafted_by_position += [0] * missing
            more.accepted_by_position += [0] * missing
            for i in range(drafted):
                more.drafted_by_position[i] += 1
            for i in range(kept):
                more.accepted_by_position[i] += 1
        return more
