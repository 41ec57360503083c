"""Memory that no probe can find, as it begins when a certain token comes (contract 0x06D, 0x06J)."""

import heapq
import random

import numpy as np
import pytest
import torch
from transformers.generation import LogitsProcessor, StoppingCriteria

import hf_exactassist
from tests.tiny import noisy, prompts, tiny


NEW = 30
SEEN, COUNTS = [], {"calls": 0}


def count_up(table):
    table["calls"] += 1


class Late(LogitsProcessor):
    """Remembers from the eighth new token on, at every third token; `begin` and `count` say how."""

    def begin(self):
        """Nothing, at first."""

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] > 6 + 8 and int(input_ids[0, -1]) % 3 == 2:
            self.note()
        places = torch.arange(scores.shape[1], dtype=scores.dtype)
        return scores + 2 * torch.sin(places * 1.7 + float(self.count()))


class InItself(Late):
    calls = 0

    def note(self):
        self.calls += 1

    def count(self):
        return self.calls


class Heap(Late):
    def __init__(self):
        self.heap = []

    def note(self):
        heapq.heappush(self.heap, 1)

    def count(self):
        return len(self.heap)


class Helped(Late):
    def __init__(self):
        self.table = {"calls": 0}

    def note(self):
        count_up(self.table)

    def count(self):
        return self.table["calls"]


class Array(Late):
    def __init__(self):
        self.array = np.zeros(1)

    def note(self):
        np.add.at(self.array, 0, 1)

    def count(self):
        return self.array[0]


class OnTheClass(Late):
    calls = 0

    def note(self):
        type(self).calls += 1

    def count(self):
        return type(self).calls


class ClassList(Late):
    seen: list = []

    def note(self):
        self.seen.append(1)

    def count(self):
        return len(self.seen)


class GlobalList(Late):
    def note(self):
        SEEN.append(1)

    def count(self):
        return len(SEEN)


class GlobalTable(Late):
    def note(self):
        count_up(COUNTS)

    def count(self):
        return COUNTS["calls"]


class Drawn(Late):
    """From a generator that belongs to nobody."""

    value = 0.0

    def note(self):
        self.value = float(torch.rand(())) + random.random() + float(np.random.rand())

    def count(self):
        return self.value


KINDS = [InItself, Heap, Helped, Array, OnTheClass, ClassList, GlobalList, GlobalTable, Drawn]


def fresh(kind):
    OnTheClass.calls, COUNTS["calls"] = 0, 0
    ClassList.seen.clear(), SEEN.clear()
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    return kind()


@pytest.fixture(scope="module")
def pair():
    target = tiny()
    return target, noisy(target, 0.008)


@pytest.mark.parametrize("lengths", [[6], [6, 4, 5]])
@pytest.mark.parametrize("kind", KINDS)
def test_text_is_plain_generates(pair, kind, lengths):
    """Drafts ask copies, and what copies share with the original is put back after each call of one."""
    target, assistant = pair
    settings = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None}
    first = fresh(kind)
    plain = target.generate(**prompts(lengths), **settings, logits_processor=[first])
    counted, without = first.count(), target.generate(**prompts(lengths), **settings)
    second = fresh(kind)
    output = hf_exactassist.generate(
        target,
        **prompts(lengths),
        **settings,
        assistant_model=assistant,
        num_assistant_tokens=4,
        logits_processor=[second],
        return_dict_in_generate=True,
    )
    assert counted and plain.tolist() != without.tolist()
    assert output.sequences.tolist() == plain.tolist() and second.count() == counted
    assert output.assist_stats.drafted


class Everywhere(StoppingCriteria):
    """Counts on the class and in a global."""

    calls = 0

    def __call__(self, input_ids, scores, **kwargs):
        type(self).calls += 1
        SEEN.append(1)
        return torch.full((len(input_ids),), self.calls + len(SEEN) >= 24)


@pytest.mark.parametrize("lengths", [[6], [6, 4, 5]])
def test_criteria_are_not_called_beforehand(pair, lengths):
    target, assistant = pair
    settings = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None}
    texts = []
    for help_ in ({}, {"assistant_model": assistant}):
        Everywhere.calls = 0
        SEEN.clear()
        # without an assistant this is plain `generate`
        given = {**prompts(lengths), **settings, "stopping_criteria": [Everywhere()]}
        texts.append(hf_exactassist.generate(target, **given, **help_).tolist())
        assert Everywhere.calls == len(SEEN) == 12
    assert texts[0] == texts[1]


class AtOnce(OnTheClass):
    """Refused, as it shows at the first call."""

    def __call__(self, input_ids, scores):
        self.note()
        ClassList.seen.append(1)
        SEEN.append(1)
        return scores.roll(self.count())


def test_a_refusal_leaves_nothing_behind(pair):
    target, assistant = pair
    fresh(AtOnce)
    with pytest.raises(hf_exactassist.StatefulProcessor, match="AtOnce"):
        hf_exactassist.generate(
            target, **prompts([6]), max_new_tokens=4, assistant_model=assistant, logits_processor=[AtOnce()]
        )
    assert AtOnce.calls == 0 and not SEEN and not ClassList.seen


@pytest.mark.parametrize("lengths", [[6], [6, 4]])
def test_a_processor_that_is_broken_says_so_itself(pair, lengths):
    target, assistant = pair
    with pytest.raises(ZeroDivisionError):
        hf_exactassist.generate(
            target,
            **prompts(lengths),
            max_new_tokens=4,
            assistant_model=assistant,
            logits_processor=[lambda input_ids, scores: 1 / 0],
        )


class Careless(LogitsProcessor):
    """Its snapshot is the list it goes on with."""

    def __init__(self):
        self.seen = []

    def __call__(self, input_ids, scores):
        self.seen.append(1)
        return scores.roll(len(self.seen))

    def snapshot(self):
        return self.seen

    def restore(self, snapshot):
        self.seen = snapshot


def test_a_snapshot_that_goes_on_changing_does_not_reach_the_target(pair):
    target, assistant = pair
    settings = {"do_sample": False, "max_new_tokens": NEW}
    plain = target.generate(**prompts([6]), **settings, logits_processor=[Careless()])
    ours = hf_exactassist.generate(
        target, **prompts([6]), **settings, assistant_model=assistant, logits_processor=[Careless()]
    )
    assert ours.tolist() == plain.tolist()
