"""Processors and criteria that remember, for tests: what they answer depends on every call they got."""

import torch
from transformers.generation import LogitsProcessor, StoppingCriteria


class Counter(LogitsProcessor):
    """Its bias depends on how often it was called, and it writes down what it was shown."""

    def __init__(self, strength=2.0):
        self.calls, self.strength, self.shown = 0, strength, []

    def __call__(self, input_ids, scores):
        self.calls += 1
        self.shown.append(input_ids.tolist())
        places = torch.arange(scores.shape[1]).roll(self.calls * 5)
        return scores + self.strength * torch.sin(places.double() * 1.7).to(scores.dtype)


class Automaton(LogitsProcessor):
    """Two states for each row: an odd token switches; in the second state tokens below `limit` are forbidden."""

    def __init__(self, limit):
        self.limit, self.states = limit, None

    def __call__(self, input_ids, scores):
        if self.states is None:
            self.states = [0] * len(input_ids)
        else:
            odd = [int(ids[-1]) % 2 for ids in input_ids]
            self.states = [state ^ switch for state, switch in zip(self.states, odd, strict=True)]
        scores = scores.clone()
        for row, state in zip(scores, self.states, strict=True):
            row[: self.limit * state] = -torch.inf
        return scores


class EndsOnce(LogitsProcessor):
    """Counts to its end, allows only `eos` there, and bears no call after it, nor a token skipped or repeated."""

    def __init__(self, steps, eos):
        self.steps, self.eos, self.length, self.over = steps, eos, None, False

    def __call__(self, input_ids, scores):
        assert not self.over, "called after its end"
        assert self.length is None or input_ids.shape[1] == self.length + 1, "a token skipped, repeated or taken back"
        self.length = input_ids.shape[1]
        self.steps -= 1
        scores = scores.clone()
        scores[:, self.eos] = -torch.inf
        if self.steps <= 0:
            self.over = True
            scores[:] = -torch.inf
            scores[:, self.eos] = 0
        return scores


class AfterTrigger(LogitsProcessor):
    """A52: forbids `banned` once it has been shown `trigger` as a new token of a row."""

    def __init__(self, trigger, banned):
        self.trigger, self.banned, self.on = trigger, banned, None

    def __call__(self, input_ids, scores):
        if self.on is None:
            self.on = [False] * len(input_ids)
        else:
            self.on = [on or int(ids[-1]) == self.trigger for on, ids in zip(self.on, input_ids, strict=True)]
        scores = scores.clone()
        scores[torch.tensor(self.on).nonzero(), self.banned] = -torch.inf
        return scores


class Saving(Counter):
    """As `Counter`, but it saves itself, and cannot be copied."""

    def snapshot(self):
        return self.calls, list(self.shown)

    def restore(self, snapshot):
        self.calls, self.shown = snapshot[0], list(snapshot[1])

    def __deepcopy__(self, memo):
        raise TypeError("not to be copied")


def prefix_function(vocabulary):
    """A `prefix_allowed_tokens_fn` whose closure counts the calls of each row."""
    calls = {}

    def allowed(batch_id, prefix):
        calls[batch_id] = calls.get(batch_id, 0) + 1
        return [token for token in range(vocabulary) if (token + calls[batch_id]) % 3]

    allowed.calls = calls
    return allowed


class Patience(StoppingCriteria):
    """Stops every row at a certain call, and writes down what it was shown."""

    def __init__(self, calls):
        self.left, self.shown = calls, []

    def __call__(self, input_ids, scores, **kwargs):
        self.left -= 1
        self.shown.append(input_ids.tolist())
        return torch.full((len(input_ids),), self.left <= 0)


class FirstOfAll(StoppingCriteria):
    """One answer for the whole batch: whether some row has just chosen `token`."""

    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return bool((input_ids[:, -1] == self.token).any())
