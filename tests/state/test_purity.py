"""Which processors remember, which of them can be saved, and that others are refused by name (contract 0x06J)."""

import copy
import functools
import random
import re
import threading
import types
from unittest import mock

import numpy as np
import pytest
import torch
from transformers.generation import LogitsProcessor

import hf_exactassist
from hf_exactassist.models import admission
from hf_exactassist.models.admission import admit
from hf_exactassist.state.reach import fingerprint
from tests.tiny import VOCABULARY, byte_tokenizer, noisy, prompts, same_as_plain, tiny


@pytest.fixture(scope="module")
def pair():
    target = tiny()
    assistant = noisy(target, 0.05)
    # the probes of the models are not what is looked at here
    admission.require(target, "target")
    admission.require(assistant, "assistant")
    return target, assistant


# --- processors that remember ---


def biased(scores, count):
    """A bias that turns on late, so that a few calls alone do not show it."""
    return scores + (count > 50) * torch.linspace(0, 5, scores.shape[1])


class Counter(LogitsProcessor):
    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return biased(scores, self.calls)


class Automaton:
    """A49: the state follows the last token of each call."""

    def __init__(self):
        self.state = torch.tensor(0)

    def __call__(self, input_ids, scores):
        self.state = (self.state * 3 + input_ids[0, -1]) % 7
        return biased(scores, int(self.state) + 45)


class GrowingTensor:
    """State inside a tensor, changed in place."""

    def __init__(self):
        self.seen = torch.zeros(VOCABULARY)

    def __call__(self, input_ids, scores):
        self.seen[input_ids[:, -1]] += 1
        return scores - (self.seen > 50).float()


class LazyList:
    """A list that is not there before the first call."""

    def __call__(self, input_ids, scores):
        self.__dict__.setdefault("seen", []).append(int(input_ids[0, -1]))
        return biased(scores, len(self.seen))


class Slots:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return biased(scores, self.calls)


class SlotsBesideDict(LogitsProcessor):
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return biased(scores, self.calls)


class Parts:
    """State two objects deep, in the later of two equal parts."""

    def __init__(self):
        self.parts = [Counter(), Counter(), Counter()]

    def __call__(self, input_ids, scores):
        return self.parts[-1](input_ids, scores)


class OwnRandom:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, input_ids, scores):
        return scores + (torch.rand((), generator=self.generator) < 1e-9)


class Locked:
    """Cannot be copied."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, input_ids, scores):
        return scores


class OnTheClass:
    calls = 0

    def __call__(self, input_ids, scores):
        type(self).calls += 1
        return biased(scores, type(self).calls)


def closure_list():
    seen = []

    def processor(input_ids, scores):
        seen.append(1)
        return biased(scores, len(seen))

    return processor


def closure_push():
    seen = []
    push = seen.append

    def processor(input_ids, scores):
        push(1)
        return biased(scores, 0)

    return processor


def closure_nonlocal():
    calls = 0

    def processor(input_ids, scores):
        nonlocal calls
        calls += 1
        return biased(scores, calls)

    return processor


def default_list(input_ids, scores, seen=[]):  # noqa: B006
    seen.append(1)
    return biased(scores, len(seen))


def attribute(input_ids, scores):
    attribute.calls = getattr(attribute, "calls", 0) + 1
    return biased(scores, attribute.calls)


SEEN = []
CALLS = 0
COUNTER = Counter()
TABLE = torch.zeros(3)


def global_list(input_ids, scores):
    SEEN.append(1)
    return biased(scores, len(SEEN))


def global_integer(input_ids, scores):
    global CALLS
    CALLS += 1
    return biased(scores, CALLS)


def global_object(input_ids, scores):
    COUNTER.calls += 1
    return biased(scores, COUNTER.calls)


def global_tensor(input_ids, scores):
    TABLE.add_(1)
    return biased(scores, TABLE[0])


def comprehension(input_ids, scores):
    return biased(scores, sum(SEEN.append(1) or len(SEEN) for _ in range(2)))


def note():
    SEEN.append(1)


def through_a_helper(input_ids, scores):
    note()
    return biased(scores, len(SEEN))


class MethodOnGlobalList:
    def __call__(self, input_ids, scores):
        SEEN.append(1)
        return biased(scores, len(SEEN))


class MethodOnGlobalInteger:
    def __call__(self, input_ids, scores):
        return self.step(scores)

    def step(self, scores):
        global CALLS
        CALLS += 1
        return biased(scores, CALLS)


def global_random(input_ids, scores):
    return scores + torch.rand(scores.shape)


def rarely_random(input_ids, scores):
    return scores + (torch.rand(()) < 1e-9)


def rarely_random_python(input_ids, scores):
    return scores + (random.random() < 1e-9)


def rarely_random_numpy(input_ids, scores):
    return scores + (np.random.rand() < 1e-9)


def partial_counter(counter, input_ids, scores):
    return counter(input_ids, scores)


REMEMBER = {
    "counter": Counter,
    "automaton": Automaton,
    "tensor in place": GrowingTensor,
    "lazily growing list": LazyList,
    "slots": Slots,
    "slots beside a dict": SlotsBesideDict,
    "state in a part": Parts,
    "generator of its own": OwnRandom,
    "cannot be copied": Locked,
    "list in a closure": closure_list,
    "method in a closure": closure_push,
    "nonlocal": closure_nonlocal,
    "default argument": lambda: default_list,
    "attribute of the function": lambda: attribute,
    "global list": lambda: global_list,
    "global integer": lambda: global_integer,
    "global object": lambda: global_object,
    "global tensor": lambda: global_tensor,
    "global list in a comprehension": lambda: comprehension,
    "global list through a helper": lambda: through_a_helper,
    "bound method": lambda: Counter().__call__,
    "partial": lambda: functools.partial(partial_counter, Counter()),
    "partial with a list": lambda: functools.partial(default_list, seen=[]),
    "global generator": lambda: global_random,
    "global generator, rarely felt": lambda: rarely_random,
    "Python's generator, rarely felt": lambda: rarely_random_python,
    "NumPy's generator, rarely felt": lambda: rarely_random_numpy,
}
# what moves is shared by all objects of the class
MOVED = {
    "on the class": OnTheClass,
    "method on a global list": MethodOnGlobalList,
    "method on a global integer": MethodOnGlobalInteger,
}


# memory in a global, in a random generator that others use, or in something that cannot be copied
LOST = [
    "cannot be copied",
    "attribute of the function",
    "global list",
    "global integer",
    "global object",
    "global tensor",
    "global list in a comprehension",
    "global list through a helper",
    "global generator",
    "global generator, rarely felt",
    "Python's generator, rarely felt",
    "NumPy's generator, rarely felt",
]


@pytest.mark.parametrize("name", [name for name in REMEMBER if name not in LOST])
def test_processor_whose_memory_can_be_saved_is_exact(pair, name):
    """Row 9: long enough for the memory to tell; and it remembers in the end what plain `generate` leaves."""
    target, assistant = pair
    build = REMEMBER[name]
    settings = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 60}
    first, bare = fresh(build), target.generate(**prompts([5]), **settings)
    plain = target.generate(**prompts([5]), **settings, logits_processor=[first])
    remembered, second = state_of(first), fresh(build)
    ours = hf_exactassist.generate(
        target, **prompts([5]), **settings, assistant_model=assistant, logits_processor=[second]
    )
    assert ours.tolist() == plain.tolist()
    assert (plain.tolist() != bare.tolist()) == (name not in UNFELT)
    assert state_of(second) == remembered


# these remember, but their answers hardly change
UNFELT = ("generator of its own", "method in a closure", "tensor in place")


def fresh(build):
    """A new one; the function with a list among its defaults is the same for ever, and its list is emptied."""
    default_list.__defaults__[0].clear()
    return build()


@pytest.mark.parametrize("name", LOST)
def test_processor_with_memory_that_cannot_be_saved_is_refused_before_the_first_token(pair, name):
    """A46: the caller's object is not called, its memory is what it was, and nothing was streamed."""
    target, assistant = pair
    processor, streamer = REMEMBER[name](), mock.Mock()
    globals_before = (list(SEEN), CALLS, COUNTER.calls, TABLE.clone())
    drawn = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    before = None if name == "cannot be copied" else state_of(processor)
    forwards = mock.Mock(return_value=None)
    hook = target.register_forward_pre_hook(forwards)
    name_in_message = getattr(processor, "__qualname__", type(processor).__name__)
    admit(target)  # the probe's forwards do not count
    forwards.reset_mock()
    with hook, pytest.raises(hf_exactassist.StatefulProcessor, match=name_in_message):
        hf_exactassist.generate(
            target,
            **prompts([5, 3]),
            max_new_tokens=5,
            assistant_model=assistant,
            logits_processor=[processor],
            streamer=streamer,
        )
    assert before is None or state_of(processor) == before
    assert globals_before[:3] == (SEEN, CALLS, COUNTER.calls) and torch.equal(globals_before[3], TABLE)
    assert torch.equal(drawn[0], torch.get_rng_state()) and drawn[1] == random.getstate()
    assert drawn[2] == np.random.get_state()[1].tolist()
    forwards.assert_not_called()
    # the prompt, which Transformers streams itself
    assert streamer.put.call_count <= 1
    streamer.end.assert_called_once_with()


def state_of(value):
    """What a processor remembers, read without the code under test."""
    if isinstance(value, functools.partial):
        return [state_of(part) for part in (*value.args, *value.keywords.values())]
    if hasattr(value, "__self__"):
        return state_of(value.__self__)
    if isinstance(value, list):
        return [state_of(part) for part in value]
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if callable(value) and hasattr(value, "__closure__"):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        cells = [cell.__self__ if isinstance(cell, types.BuiltinMethodType) else cell for cell in cells]
        return repr((cells, value.__defaults__, value.__dict__))
    slots = {name: getattr(value, name) for name in getattr(type(value), "__slots__", ())}
    if not hasattr(value, "__dict__"):
        return slots or value
    return {**slots, **{name: state_of(part) for name, part in vars(value).items()}}


def test_prefix_function_with_memory_in_a_global_is_refused(pair):
    """Row 9: also as `prefix_allowed_tokens_fn`."""

    def allowed(batch_id, prefix):
        SEEN.append(1)
        return [3, 4]

    target, assistant = pair
    with pytest.raises(hf_exactassist.StatefulProcessor, match="allowed"):
        hf_exactassist.generate(
            target, **prompts([5]), prefix_allowed_tokens_fn=allowed, assistant_model=assistant, max_new_tokens=3
        )
    assert not SEEN


def test_a_processor_may_say_that_it_remembers_nothing(pair):
    """It holds what cannot be copied, so nobody could find out by asking a copy."""
    target, assistant = pair
    processor = Locked()
    processor.stateless = True
    same_as_plain(
        target, prompts([5]), {"assistant_model": assistant}, processors=lambda: [processor], max_new_tokens=6
    )


# --- processors that do not ---


class Pure(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores - torch.nn.functional.one_hot(input_ids[:, -1], scores.shape[1]) * 3.0


class WithTensors(Pure):
    banned = [4, 5]

    def __init__(self):
        self.bias = torch.linspace(-1, 1, VOCABULARY)
        self.table = np.arange(VOCABULARY) % 3
        self.names = {"a": (1, 2), "b": {3, 4}}

    def __call__(self, input_ids, scores):
        scores = super().__call__(input_ids, scores + self.bias)
        scores[:, self.banned] -= self.names["a"][1]
        return scores - torch.tensor(self.table)


class WithPattern:
    def __init__(self):
        self.pattern = re.compile("[aeiou]")
        self.tokenizer = byte_tokenizer()
        self.vowels = [i for i in range(3, VOCABULARY) if self.pattern.search(self.tokenizer.decode([i]))]

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for row, ids in zip(scores, input_ids, strict=True):
            row[self.vowels] -= bool(self.pattern.search(self.tokenizer.decode(ids[-1:]))) * 4
        return scores


BANNED = [7, 8]


def helper(scores):
    scores = scores.clone()
    scores[:, BANNED] = -torch.inf
    return scores


def with_global_and_helper(input_ids, scores):
    return torch.log_softmax(helper(scores), dim=-1)


def closure_over_everything():
    bias, tokenizer, words = torch.linspace(-2, 0, VOCABULARY), byte_tokenizer(), ["a", "e"]

    def processor(input_ids, scores):
        ends = [tokenizer.decode(ids[-1:]) in words for ids in input_ids]
        return scores + bias * torch.tensor(ends)[:, None]

    return processor


def recursive():
    def depth(number):
        return 0 if number == 0 else 1 + depth(number - 1)

    def by_row(input_ids, scores):
        return torch.stack([row * (1 + depth(int(ids[-1]) % 4)) for ids, row in zip(input_ids, scores, strict=True)])

    return by_row


REMEMBER_NOTHING = {
    "class": Pure,
    "class with tensors": WithTensors,
    "pattern and tokenizer": WithPattern,
    "global list and helper": lambda: with_global_and_helper,
    "closure": closure_over_everything,
    "recursive closure": recursive,
    "partial": lambda: functools.partial(lambda bias, input_ids, scores: scores * bias, 2.0),
    "bound method": lambda: WithTensors().__call__,
    "function of a library": lambda: lambda input_ids, scores: torch.nn.functional.log_softmax(scores, dim=-1),
}


@pytest.mark.parametrize("name", REMEMBER_NOTHING)
def test_processor_without_memory_is_taken_and_exact(pair, name):
    """Pure replay (0x06J): its answer is a function of the prefix."""
    target, assistant = pair
    processor = REMEMBER_NOTHING[name]()
    state = torch.get_rng_state()
    ours = same_as_plain(
        target, prompts([5, 3]), {"assistant_model": assistant}, processors=lambda: [processor], max_new_tokens=8
    )
    assert ours.assist_stats.drafted
    assert torch.equal(state, torch.get_rng_state())


class WithModel(LogitsProcessor):
    """Scores with a model of its own; holds it directly, or two objects deep."""

    def __init__(self, model, deep):
        self.holder = {"models": [model]} if deep else model

    def __call__(self, input_ids, scores):
        model = self.holder["models"][0] if isinstance(self.holder, dict) else self.holder
        return scores + 0.3 * model(input_ids=input_ids).logits[:, -1]


@pytest.mark.parametrize("kind", ["attribute", "deep", "closure", "global"])
def test_models_in_a_processor_are_never_copied(pair, kind):
    """They may fill a device; whatever the probe's answer, it must not need a second one."""
    target, assistant = pair
    model = tiny(seed=9)
    processor = WithModel(model, kind == "deep")
    if kind == "closure":
        inner = WithModel(model, True)

        def processor(input_ids, scores):
            return inner(input_ids, scores)

    if kind == "global":
        MODELS["it"], processor = model, with_global_model
    with mock.patch.object(
        torch.nn.Module, "__deepcopy__", side_effect=AssertionError("copied"), create=True
    ) as copied:
        same_as_plain(
            target, prompts([5]), {"assistant_model": assistant}, processors=lambda: [processor], max_new_tokens=6
        )
        copied.assert_not_called()
        with pytest.raises(AssertionError, match="copied"):
            copy.deepcopy(model)


MODELS = {}


def with_global_model(input_ids, scores):
    return scores + 0.3 * MODELS["it"](input_ids=input_ids).logits[:, -1]


def test_fingerprint_tells_states_apart():
    """Two parts in a row, of which the second changes: no part may be taken for one that was read before."""
    holder = Parts()
    prints = set()
    for part in holder.parts:
        prints.add(fingerprint(holder))
        part.calls += 1
    prints.add(fingerprint(holder))
    assert len(prints) == 4
    assert fingerprint(holder) == fingerprint(copy.deepcopy(holder))
