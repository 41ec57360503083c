"""Processors that begin to remember when some token comes up: nothing shows in a probe, only their code tells."""

import dataclasses

import pytest
import torch
from transformers.generation import (
    LogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from hf_exactassist.state.mutation import may_begin_to_remember
from hf_exactassist.state.purity import is_stateless
from tests.state.test_purity import MOVED, REMEMBER, REMEMBER_NOTHING
from tests.tiny import VOCABULARY, noisy, prompts, same_as_plain, tiny


# no token of the prompt that is probed
TRIGGERS = (23, 31, 43, 67)


def told(input_ids):
    return [int(ids[-1]) in TRIGGERS for ids in input_ids]


def biased(scores, strengths):
    strengths = torch.tensor([float(strength) for strength in strengths])
    return scores + strengths[:, None] * torch.linspace(3, -3, scores.shape[1])


class Flag(LogitsProcessor):
    """One flag for all rows."""

    def __init__(self):
        self.on = False

    def __call__(self, input_ids, scores):
        if any(told(input_ids)):
            self.on = True
        return biased(scores, [self.on] * len(scores))


class Flags:
    """A list, by index."""

    def __init__(self):
        self.on = [False] * 9

    def __call__(self, input_ids, scores):
        for row, hit in enumerate(told(input_ids)):
            if hit:
                self.on[row] = not self.on[row]
        return biased(scores, self.on[: len(scores)])


class Told(Flags):
    """A list under a name of its own, written by another method."""

    def __call__(self, input_ids, scores):
        self.note(told(input_ids))
        return biased(scores, self.on[: len(scores)])

    def note(self, hits):
        on = self.on
        for row, hit in enumerate(hits):
            if hit:
                on[row] += 1


class Rows:
    """A set for each row, in a loop."""

    def __init__(self):
        self.rows = [set() for _ in range(9)]

    def __call__(self, input_ids, scores):
        for seen, ids, hit in zip(self.rows, input_ids, told(input_ids), strict=False):
            if hit:
                seen.add(int(ids[-1]))
        return biased(scores, [len(seen) for seen in self.rows[: len(scores)]])


class InPlace:
    """A tensor, changed by its own method."""

    def __init__(self):
        self.on = torch.zeros(9)

    def __call__(self, input_ids, scores):
        if any(told(input_ids)):
            self.on[: len(scores)].add_(torch.tensor(told(input_ids)))
        return biased(scores, self.on[: len(scores)].tolist())


class Written:
    """A tensor, as the place for a result."""

    def __init__(self):
        self.on = torch.zeros(9)

    def __call__(self, input_ids, scores):
        if any(told(input_ids)):
            torch.add(self.on, 1, out=self.on)
        return biased(scores, self.on[: len(scores)].tolist())


class ByName(Flag):
    """An attribute, by its name."""

    def __call__(self, input_ids, scores):
        if any(told(input_ids)):
            setattr(self, "on", not self.on)  # noqa: B010
        return biased(scores, [self.on] * len(scores))


class Inside:
    """Another processor, from a trigger on."""

    def __init__(self):
        self.inner = Flag()

    def __call__(self, input_ids, scores):
        return self.inner(input_ids, scores) if any(told(input_ids)) else biased(scores, [self.inner.on] * len(scores))


def closure():
    state = {}

    def processor(input_ids, scores):
        if any(told(input_ids)):
            state["on"] = state.get("on", 0) + 1
        return biased(scores, [state.get("on", 0)] * len(scores))

    return processor


def nonlocal_flag():
    on = False

    def processor(input_ids, scores):
        nonlocal on
        if any(told(input_ids)):
            on = not on
        return biased(scores, [on] * len(scores))

    return processor


def push():
    calls = []
    note = calls.append

    def processor(input_ids, scores):
        if any(told(input_ids)):
            note(1)
        return biased(scores, [len(calls)] * len(scores))

    return processor


def late_method():
    calls = []

    def processor(input_ids, scores):
        note = calls.append
        if any(told(input_ids)):
            note(1)
        return biased(scores, [len(calls)] * len(scores))

    return processor


LATE = {
    "flag": Flag,
    "list": Flags,
    "another name and method": Told,
    "sets in a loop": Rows,
    "tensor": InPlace,
    "place for a result": Written,
    "attribute by name": ByName,
    "another processor": Inside,
    "closure": closure,
    "nonlocal": nonlocal_flag,
    "method of a list": push,
    "method of a list, taken in the call": late_method,
}


@pytest.fixture(scope="module")
def pair():
    target = tiny()
    return target, noisy(target, 0.008)


@pytest.mark.parametrize("name", LATE)
def test_late_memory_is_seen_and_exact(pair, name):
    """A52: a trigger token inside a block, accepted or rejected."""
    target, assistant = pair
    processor, ids = LATE[name](), prompts([5])["input_ids"].clamp_max(19)

    def call(subject, prefix, row):
        return subject(prefix, torch.zeros(len(prefix), VOCABULARY))

    assert not is_stateless(processor, call, ids)
    for lengths in ([6], [6, 4, 5]):
        given = prompts(lengths)
        plain = target.generate(**given, do_sample=False, max_new_tokens=24, eos_token_id=None)
        assert any(token in TRIGGERS for row in plain[:, 6:].tolist() for token in row), "nothing to see"
        ours = same_as_plain(
            target,
            given,
            {"assistant_model": assistant},
            processors=lambda: [LATE[name]()],
            max_new_tokens=24,
            eos_token_id=None,
        )
        assert (ours.assist_stats.in_step is None) == (len(lengths) == 1)


@pytest.mark.parametrize("name", [name for name in [*REMEMBER, *MOVED] if "generator" not in name])
def test_memory_shows_in_the_code(name):
    """What draws from a generator of its own is told by the generator."""
    made = {**REMEMBER, **MOVED}[name]()
    assert may_begin_to_remember(made) == (name != "cannot be copied")


def test_parts_that_remember_show_whatever_their_code():
    class Holder:
        def __init__(self, part):
            self.part = part

        def __call__(self, input_ids, scores):
            return self.part(input_ids, scores) if bool(input_ids[0, -1] == 7) else scores

    guidance = UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, tiny())
    watermark = SynthIDTextWatermarkLogitsProcessor(3, [1, 2], 64, 0, 9, torch.device("cpu"))
    assert all(may_begin_to_remember(Holder(part)) for part in (guidance, watermark, torch.Generator()))
    assert not may_begin_to_remember(Holder(lambda input_ids, scores: scores * 2))


@dataclasses.dataclass(frozen=True)
class Data:
    """Methods without a source: those that `dataclass` writes."""

    bias: float

    def __call__(self, input_ids, scores):
        fresh = torch.zeros_like(scores).fill_(self.bias)
        fresh[:, [2, 3]] += 1
        masked = self.table.clone().clamp_(0)
        return torch.add(scores + fresh, masked).clamp_max_(9)

    @property
    def table(self):
        return torch.ones(VOCABULARY)


class Tree:
    """Methods that write are there, and nobody calls them."""

    def __init__(self, sequences):
        self.children = {}
        for sequence in sequences:
            self.insert_sequence(sequence)

    def insert_sequence(self, sequence):
        here = self.children
        for token in sequence:
            here = here.setdefault(token, {})

    def after(self, prefix):
        found, here = [], self.children
        for token in prefix:
            here = here.get(token, {})
        for token in here:
            found.append(token)
        return found or [2]


def allowed_by_tree():
    tree = Tree([(3, 4), (3, 5, 6)])
    return lambda row, prefix: tree.after(prefix.tolist())


@pytest.mark.parametrize("made", [*REMEMBER_NOTHING.values(), lambda: Data(0.5), allowed_by_tree])
def test_no_memory_is_seen_where_there_is_none(made):
    assert not may_begin_to_remember(made())


def test_code_without_a_source_is_in_doubt():
    names = {}
    exec("def processor(input_ids, scores):\n    return scores", names)
    assert may_begin_to_remember(names["processor"])
