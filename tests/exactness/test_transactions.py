"""Steps, failures, retries and cancellations in any order publish what a serial decode publishes (contract 0x06)."""

import contextlib
import functools
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import hf_exactassist
from hf_exactassist.errors import StaleRound
from hf_exactassist.records import Spent
from hf_exactassist.session import Session
from hf_exactassist.state import transaction
from hf_exactassist.state.rows import Rows
from tests.exactness.serial import serial
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


EOS, NEW = [7, 23], 16
MODES = {
    "greedy": {"do_sample": False},
    "maximal": {"do_sample": True, "top_k": 0},
    "shared_noise": {"do_sample": True, "top_k": 0, "coupling": "shared_noise"},
}


@functools.cache
def pair():
    target = tiny()
    return target, noisy(target, 2 * EVEN_NOISE["llama"])


def started(layout, mode, lengths, k, seed):
    target, assistant = pair()
    return hf_exactassist.start(
        target,
        **prompts(lengths, seed=seed),
        assistant_model=assistant,
        num_assistant_tokens=k,
        max_new_tokens=NEW,
        eos_token_id=EOS,
        pad_token_id=0,
        seed=seed,
        layout=layout,
        **MODES[mode],
    )


@functools.cache
def reference(mode, lengths, k, seed):
    """Each row decoded serially; with shared noise the tokens of plain `generate` are all there is to know."""
    inputs = prompts(lengths, seed=seed)
    if mode == "shared_noise":
        torch.manual_seed(seed)
        plain = {"max_new_tokens": NEW, "eos_token_id": EOS, "pad_token_id": 0, "do_sample": True, "top_k": 0}
        rows = pair()[0].generate(**inputs, **plain)[:, max(lengths) :].tolist()
        ends = [next((i + 1 for i, token in enumerate(row) if token in EOS), len(row)) for row in rows]
        return [row[:end] for row, end in zip(rows, ends, strict=True)]
    texts = [ids[mask == 1].tolist() for ids, mask in zip(*inputs.values(), strict=True)]
    seed = None if mode == "greedy" else seed
    return [serial(*pair(), text, k=k, new=NEW, eos=EOS, seed=seed, identity=i) for i, text in enumerate(texts)]


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("lengths", [(6,), (9, 4, 6)])
@pytest.mark.parametrize("mode", ["greedy", "maximal"])
@pytest.mark.parametrize("layout", ["replay", "retained"])
def test_every_round_is_the_serial_one(layout, mode, lengths, k):
    """0x04I, 0x06B, 0x06D: tokens, accepted lengths, kinds of end and used numbers, round by round and row by row."""
    kinds = set()
    for seed in (1, 2, 3, 28, 43):
        expected = reference(mode, lengths, k, seed)
        session, rounds = started(layout, mode, lengths, k, seed), [0] * len(lengths)
        while (commit := session.step()) is not None:
            for i, row in enumerate(commit.rows):
                theirs, number = expected[row], rounds[row]
                rounds[row] += 1
                start = theirs.ends[number - 1] if number else 0
                assert list(commit.tokens[i]) == theirs.tokens[start : theirs.ends[number]]
                assert (commit.drafted[i], commit.accepted[i]) == (theirs.drafted[number], theirs.accepted[number])
                assert commit.terminal[i] == theirs.terminal[number]
                assert commit.spent_after[i] == theirs.spent[number]
                kinds.add(commit.terminal[i])
                # target draws: the reached acceptance tests and one more, unless the draft itself ended the row
                used = Spent(*(a - b for a, b in zip(commit.spent_after[i], commit.spent_before[i], strict=True)))
                reached = min(commit.accepted[i] + 1, commit.drafted[i], len(commit.tokens[i]))
                if mode == "maximal":
                    assert used.accept == reached and used.draft == commit.drafted[i]
                    assert used.terminal + used.ordinary == (commit.terminal[i] != "stop")
                    assert used.ordinary == (commit.drafted[i] == 0)
                else:
                    assert used == Spent()
        assert rounds == [len(row.ends) for row in expected]
    assert {"recovered", "bonus"} <= kinds


class Injected(Exception):
    pass


# (owner, name): the verb fails before it begins
POINTS = {
    "propose": (Session, "propose"),
    "score": (Session, "score"),
    "process": (Session, "process"),
    "judge": (Session, "judge"),
    "stage": (Session, "stage"),
    "kv": (transaction, "check_block"),
    "publish": (Session, "publish"),
    "validate": (transaction, "validate"),
    "fence": (Rows, "_clear"),
}


class Rounds(RuleBasedStateMachine):
    """One session under everything that may happen to it."""

    @initialize(
        layout=st.sampled_from(["replay", "retained"]),
        mode=st.sampled_from(sorted(MODES)),
        lengths=st.sampled_from([(6,), (9, 4, 6)]),
        k=st.sampled_from([1, 3]),
        seed=st.sampled_from([1, 28]),
    )
    def start(self, layout, mode, lengths, k, seed):
        self.mode, self.session, self.commits, self.heard = mode, started(layout, mode, lengths, k, seed), [], {}
        self.expected = reference(mode, lengths, k, seed)
        self.staged = None

    def tokens(self, row):
        return self.expected[row] if self.mode == "shared_noise" else self.expected[row].tokens

    def accept(self, commit):
        if commit is not None:
            self.commits.append(commit)

    @rule()
    def step(self):
        self.accept(self.session.step())

    @precondition(lambda self: not self.session.finished)
    @rule(point=st.sampled_from(sorted(POINTS)), error=st.sampled_from([Injected, KeyboardInterrupt, MemoryError]))
    def fail(self, point, error):
        owner, name = POINTS[point]
        state, stats = self.session.rows.state, vars(self.session.rows.state.stats).copy()
        with mock.patch.object(owner, name, side_effect=error), contextlib.suppress(error):
            self.accept(self.session.step())
            # the prompts' round drafts nothing and scores nothing more
            assert state.generation == 0 and point in ("propose", "score")
            return
        assert self.session.rows.state is state and vars(state.stats) == stats

    @precondition(lambda self: not self.session.finished and self.session.rows.state.generation)
    @rule(share=st.sampled_from([0.0, 0.5, 1.0]))
    def stage(self, share):
        """An attempt that nobody publishes yet."""
        with torch.no_grad():
            self.staged = self.session.round(self.session.wanted(share)), self.session.rows.state, share

    @precondition(lambda self: self.staged is not None)
    @rule()
    def publish_what_was_staged(self):
        commit, state, share = self.staged
        if state is not self.session.rows.state:
            if commit != self.session.rows.state.last:
                with pytest.raises(StaleRound):
                    self.session.publish(commit)
        elif share == 1.0:
            assert self.session.publish(commit) is True
            self.accept(commit)

    @precondition(lambda self: self.commits)
    @rule(place=st.integers(0, 100))
    def publish_again(self, place):
        commit, state = self.commits[place % len(self.commits)], self.session.rows.state
        if commit is state.last:
            assert self.session.publish(commit) is False
        else:
            with pytest.raises(StaleRound):
                self.session.publish(commit)
        assert self.session.rows.state is state

    @rule(count=st.integers(0, 9))
    def listen(self, count):
        """An iteration that is cancelled."""
        for _, (row, token) in zip(range(count), self.session, strict=False):
            self.heard.setdefault(row, []).append(token)
        if self.session.rows.state.last is not None and (
            not self.commits or self.commits[-1] is not self.session.rows.state.last
        ):
            # rounds that the iteration has made
            self.commits.append(self.session.rows.state.last)

    @invariant()
    def published_is_the_serial_text(self):
        if not hasattr(self, "session"):
            return
        state, scorer = self.session.rows.state, self.session.scorer
        for row, text in enumerate(self.session.sequences_so_far()):
            assert text == self.tokens(row)[: len(text)]
            if self.mode == "shared_noise":
                assert state.spent[row] == Spent(ordinary=len(text))
            elif text:
                number = self.expected[row].ends.index(len(text))
                assert state.spent[row] == self.expected[row].spent[number]
        for i, row in enumerate(scorer.held if state.generation else ()):
            # cached tokens by identity: the text without its last token (0x04J)
            kept = scorer.target.cache.tokens[i, : state.lengths[row] - 1]
            assert torch.equal(kept, self.session.rows.ids[row, : state.lengths[row] - 1])
        for row, heard in self.heard.items():
            assert heard == self.tokens(row)[: len(heard)]

    def teardown(self):
        if hasattr(self, "session"):
            result = self.session.result()
            width = self.session.rows.prompt_length
            for row in range(len(result)):
                new = result[row, width:].tolist()
                assert new[: len(self.tokens(row))] == self.tokens(row) and not any(new[len(self.tokens(row)) :])


TestRounds = Rounds.TestCase
TestRounds.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
