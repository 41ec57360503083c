"""Counters of one call. Rates are derived from them late."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, fields

from .ledger import best_length, break_even_acceptance, counted_survival, progress_by_length
from .records import Commit


@dataclass
class AssistStats:
    """What assistance did during one `generate` call.

    Attributes:
        rounds (`int`): target rounds, the prefill not counted.
        row_rounds (`int`): the same, counted for each row that took part.
        steps (`int`): steps that plain `generate` would have made after the prompt: new tokens of the longest row,
            less the one that comes with the prompt.
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
        seconds (`float`): wall time of the rounds.
        costs (`list[float]`): what a round costs by draft length, by the sizes of the models and, where these are
            taken, by times of rounds; only ratios mean something. Empty where nothing is known.
        timed (`bool`): whether rounds without drafts have been timed, so that `costs` compares what was measured.
        in_step (`str`, *optional*): what made all rows of the batch publish equally many tokens a round, if anything
            did: a processor or criterion with one memory for the whole batch.
    """

    rounds: int = 0
    row_rounds: int = 0
    steps: int = 0
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
    seconds: float = field(default=0.0, compare=False)
    costs: list[float] = field(default_factory=list, compare=False)
    timed: bool = field(default=False, compare=False)
    serial: str | None = None
    in_step: str | None = None

    @property
    def acceptance_rate(self) -> float:
        """Accepted per drafted token; 0.0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Tokens a row publishes in a round: accepted drafts and the one after them."""
        return 1 + self.accepted / max(self.row_rounds, 1)

    @property
    def expected_speedup(self) -> float | None:
        """How many times as fast as plain steps the rounds were, by `costs`; prompts left out.

        A batch is as slow as its slowest row, with drafts and without. `None` where costs are not known.
        """
        cost = self._round_cost()
        if cost is None or not self.steps:
            return None
        return self.steps * self.costs[0] / (self.rounds * cost)

    @property
    def break_even_acceptance(self) -> float | None:
        """How often each draft token must be accepted for drafts of the usual length to pay, by `costs`.

        `None` where costs are not known, nothing was drafted, or even perfect drafts do not pay.
        """
        drafts = {length: count for length, count in self._draft_lengths().items() if length}
        if self._round_cost() is None or not drafts:
            return None
        usual = max(drafts, key=lambda length: drafts[length])
        return break_even_acceptance(usual, self.costs[usual], self.costs[0])

    @property
    def advice(self) -> str:
        """Whether drafting pays for this pair and text, in a sentence or two; empty where nothing can be said."""
        if self.serial is not None:
            return f"Drafts cannot help this target: {self.serial}"
        expected = self.expected_speedup
        if expected is None:
            return ""
        if not self.drafted:
            return "Nothing was drafted: no draft was expected to pay on the tokens there were."
        surviving = counted_survival(self.drafted_by_position, self.accepted_by_position)
        best = best_length(progress_by_length(surviving), self.costs[: len(surviving) + 1])
        by = "by times of rounds" if self.timed else "by the sizes of the models; `exactassist bench` measures"
        if expected > 1:
            return (
                f"Drafting pays: about {expected:.2f} times the speed of plain steps, at {self.tokens_per_round:.2f} "
                f"tokens a round ({by})."
            )
        if best:
            return (
                f"Drafts of {best} token{'s' * (best > 1)} would pay, those made did not ({by}): pass "
                '`num_assistant_tokens_schedule="adaptive"`.'
            )
        price = self.costs[1] / self.costs[0] - 1
        way_out = "Drop prompt lookup"
        if self.draft_forwards:
            way_out = "Drop the assistant, or take a smaller or better one"
        return (
            f"Drafting does not pay here: a draft token costs {price:.2f} of a plain step ({by}), and "
            f"{surviving[0]:.2f} of first draft tokens are accepted. {way_out}."
        )

    def _draft_lengths(self) -> dict[int, int]:
        """How many drafts of single rows had which length."""
        ends = [*self.drafted_by_position, 0]
        lengths = {length: ends[length - 1] - ends[length] for length in range(1, len(ends))}
        return {0: self.row_rounds - ends[0], **lengths}

    def _round_cost(self) -> float | None:
        """What a round cost on average."""
        lengths = self._draft_lengths()
        if not self.row_rounds or len(self.costs) < len(lengths):
            return None
        return sum(count * self.costs[length] for length, count in lengths.items()) / self.row_rounds

    def __add__(self, other: AssistStats) -> AssistStats:
        """The counters of two calls together."""
        positions = ("drafted_by_position", "accepted_by_position")
        total = AssistStats(serial=self.serial or other.serial, in_step=self.in_step or other.in_step)
        for item in fields(self):
            ours, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name in positions:
                pairs = itertools.zip_longest(ours, theirs, fillvalue=0)
                setattr(total, item.name, [count + more for count, more in pairs])
            elif item.name == "timed":
                total.timed = ours and theirs
            elif item.name == "costs":
                # they grow more certain, and longer
                total.costs = max(ours, theirs, key=len)
            elif item.name not in ("serial", "in_step"):
                setattr(total, item.name, ours + theirs)
        return total

    def __radd__(self, other: int) -> AssistStats:
        """For `sum`, which begins with 0."""
        return self if other == 0 else NotImplemented

    def after(self, commit: Commit, is_round: bool = True) -> AssistStats:
        """The counters with what one round, or the prefill, published added; these here stay as they are."""
        more = AssistStats(**vars(self))
        more.drafted_by_position, more.accepted_by_position = self.drafted_by_position[:], self.accepted_by_position[:]
        more.rounds += is_round
        more.row_rounds += is_round * len(commit.rows)
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
