"""Copies that go on by themselves, and memory put back into originals (contract 0x06D)."""

import functools
import threading
import types
from unittest import mock

import pytest
import torch
from transformers.cache_utils import DynamicCache

from hf_exactassist.state.forks import fork, put_back
from hf_exactassist.state.recall import Recall
from hf_exactassist.state.transactional import TransactionalLogitsProcessor
from tests.exactness.remembering import Counter, Saving
from tests.tiny import byte_tokenizer, tiny


class Steps:
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.calls


class Slotted:
    __slots__ = ("calls",)
    __init__, __call__ = Steps.__init__, Steps.__call__


def closure():
    calls = 0

    def step():
        nonlocal calls
        calls += 1
        return calls

    return step


def pushing():
    seen = []
    push = seen.append

    def step():
        push(1)
        return len(seen)

    return step


def nested():
    inner = [closure()]
    return lambda: inner[0]()


def defaulting(step=None):
    def call(seen=[]):  # noqa: B006
        seen.append(1)
        return len(seen)

    # a function of its own for every test
    return types.FunctionType(call.__code__, call.__globals__, "call", ([],))


class Matcher:
    """Copies itself; nobody else may."""

    def __init__(self, calls=0):
        self.calls = calls

    def fork(self):
        return Matcher(self.calls)

    def __deepcopy__(self, memo):
        raise TypeError

    def __call__(self):
        self.calls += 1
        return self.calls


class Holds:
    def __init__(self, part):
        self.part = part

    def __call__(self):
        return self.part()


class Deep(Matcher):
    fork = None

    def deep_copy(self):
        return Deep(self.calls)


class Drawing:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)

    def __call__(self):
        return int(torch.randint(10**6, (), generator=self.generator))


KINDS = {
    "object": Steps,
    "slots": Slotted,
    "closure": closure,
    "method in a closure": pushing,
    "closure in a list in a closure": nested,
    "default argument": defaulting,
    "bound method": lambda: Steps().__call__,
    "partial": lambda: functools.partial(lambda step: step(), Steps()),
    "partial of a closure": lambda: functools.partial(closure()),
    "fork": lambda: Holds(Matcher()),
    "deep_copy": lambda: Holds(Deep()),
    "itself": Matcher,
    "generator": Drawing,
}


@pytest.mark.parametrize("name", KINDS)
def test_copies_go_on_by_themselves(name):
    original, serial = KINDS[name](), KINDS[name]()
    expected = [serial() for _ in range(6)]
    assert [original(), original()] == expected[:2]
    copies = [fork(original) for _ in range(2)]
    assert [copies[0]() for _ in range(4)] == expected[2:]
    assert original() == expected[2]
    assert [copies[1]() for _ in range(4)] == expected[2:]
    assert original() == expected[3]


@pytest.mark.parametrize("name", KINDS)
def test_memory_is_put_back_into_the_original_as_often_as_wanted(name):
    original, serial = KINDS[name](), KINDS[name]()
    expected = [serial() for _ in range(5)]
    original()
    saved = fork((original,))
    for _ in range(2):
        assert [original() for _ in range(4)] == expected[1:]
        put_back([original], saved)
    assert original() == expected[1]


class Watching:
    """Refers to another object of the call."""

    def __init__(self, other):
        self.other, self.seen = other, []

    def __call__(self):
        self.seen.append(self.other.calls)
        return self.seen


def test_objects_that_refer_to_each_other_still_do():
    """A criterion that asks its processor how far it is: both are saved together and stay who they are."""
    processor = Steps()
    criterion = Watching(processor)
    processor.criterion = criterion
    processor(), criterion()
    saved = fork((processor, criterion))
    assert saved[1].other is saved[0] and saved[0].criterion is saved[1]
    processor(), criterion()
    put_back([processor, criterion], saved)
    assert criterion.other is processor and processor.criterion is criterion
    assert processor.calls == 1 and criterion() == [1, 1]


def test_models_tokenizers_and_modules_stay_shared():
    holder = Steps()
    holder.model, holder.tokenizer, holder.library = tiny(), byte_tokenizer(), functools
    theirs = fork(holder)
    assert theirs.model is holder.model and theirs.tokenizer is holder.tokenizer and theirs.library is functools


def bound_to(lock):
    """A class whose methods close over what cannot be copied, as those of compiled libraries do."""

    class Locked:
        def __init__(self):
            self.seen = []

        def __call__(self):
            with lock:
                self.seen.append(1)
            return len(self.seen)

    return Locked


def test_what_classes_hold_stays_shared():
    original = bound_to(threading.Lock())()
    original()
    theirs = fork(original)
    assert type(theirs) is type(original) and [theirs(), theirs(), original()] == [2, 3, 2]


def test_parts_that_copy_themselves_do_it_once_and_are_not_looked_into():
    inner = Matcher()
    part = Matcher()
    part.inner = inner
    with mock.patch.object(Matcher, "fork", autospec=True, side_effect=Matcher.fork) as forked:
        one, (other,) = fork((Holds(part), [part]))
    assert one.part is other is not part
    assert [call.args for call in forked.call_args_list] == [(part,)]


def test_growing_caches_share_what_is_never_written():
    cache = DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    theirs = fork(cache)
    assert theirs.layers[0].keys is cache.layers[0].keys
    cache.update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4), 0)
    assert theirs.get_seq_length() == 3 and cache.get_seq_length() == 4


def test_what_cannot_be_copied_says_so():
    holder = Steps()
    holder.iterator = iter([1, 2])
    holder.numbers = (i for i in range(3))
    with pytest.raises(TypeError):
        fork(holder)


def test_memories_of_objects_that_save_themselves_and_of_others():
    saving, counter = Saving(), Counter()
    assert isinstance(saving, TransactionalLogitsProcessor) and not isinstance(counter, TransactionalLogitsProcessor)
    recall, ids, scores = Recall([saving, counter], [counter]), torch.ones(1, 2).long(), torch.zeros(1, 4)
    first = recall.take(lambda: ["a"])
    recall.leave()
    saving(ids, scores), counter(ids, scores)
    second = recall.take(lambda: ["b"])
    assert first.digest != second.digest
    recall.settle(first)
    assert saving.calls == counter.calls == 0
    copies = recall.copies(second)
    # what cannot be copied is left out
    assert [part.calls for part in copies.values()] == [1] and id(counter) in copies
    recall.leave()
    recall.settle(second)
    assert saving.calls == counter.calls == 1


def test_nothing_to_remember_costs_nothing():
    recall = Recall([])
    memory = recall.take(lambda: pytest.fail("no text is hashed"))
    recall.leave()
    assert recall.take(lambda: pytest.fail("no text is hashed")) is memory and recall.copies(memory) == {}
