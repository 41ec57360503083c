"""Walks every random choice of the real decoding loop and adds up the joint law of what it returns.

The loop takes its randomness from a `Noise` as numbers keyed by (stream, row, position). Here such a number is not a
value but an interval of what it may be, `[0, 1)` at first. Whenever the loop compares it with something (an acceptance
test, a draw by inverse CDF), the interval splits into the parts that decide differently, and the walk follows each
part with its share of the mass. A number that is used again, after a rejection before its position, stays in the part
it was found
in: so choices that depend on numbers not yet reached show up as a wrong law, as they would in reality.
"""

import contextlib
import functools
import itertools
from unittest import mock

import torch
from transformers import DynamicCache

from hf_exactassist.drafters import assistant_model
from hf_exactassist.models.compat import CACHE_ARGUMENT
from hf_exactassist.randomness import Noise
from hf_exactassist.verification import coupling


class _WalkedNoise(Noise):
    """Hands out names instead of numbers: 1 + the number's index, recognisable in the functions that consume it.

    Rows that are not walked get ordinary numbers.
    """

    def __init__(self, walk, walked_rows, identities):
        super().__init__(0, identities)
        self.walk, self.walked_rows = walk, walked_rows

    def block(self, stream, rows, starts, width):
        table = super().block(stream, rows, starts, width)
        for i, (row, start) in enumerate(zip(rows, starts, strict=True)):
            if self.walked_rows is None or row in self.walked_rows:
                for j in range(width):
                    table[i, j] = self.walk.name((stream, row, start + j))
        return table


class Walk:
    """One path through all choices; replays a prefix of decisions and takes the first branch afterwards."""

    def __init__(self, decisions):
        self.decisions, self.taken, self.mass = list(decisions), [], 1.0
        self.open = []
        self.names, self.intervals = {}, []

    def name(self, key):
        if key not in self.names:
            self.names[key] = len(self.intervals)
            self.intervals.append((0.0, 1.0))
        return 1.0 + self.names[key]

    def number(self, name, cuts):
        """A value of the named number, after choosing between the parts that `cuts` make of its interval."""
        if name < 1.0:
            return name
        index = int(name) - 1
        low, high = self.intervals[index]
        edges = [low, *(cut for cut in sorted(set(cuts)) if low < cut < high), high]
        parts = [(a, b) for a, b in itertools.pairwise(edges) if b > a]
        step = len(self.taken)
        choice = self.decisions[step] if step < len(self.decisions) else 0
        if step >= len(self.decisions) and len(parts) > 1:
            self.open.append((step, len(parts)))
        self.taken.append(choice)
        a, b = self.intervals[index] = parts[choice]
        self.mass *= (b - a) / (high - low)
        return (a + b) / 2

    def accepts(self, p, q, names):
        cuts = (p.double() / q.double()).clamp(0, 1)
        numbers = torch.zeros_like(names)
        for place in torch.cartesian_prod(*(torch.arange(n) for n in names.shape)).reshape(-1, names.dim()).tolist():
            place = tuple(place)
            if torch.isfinite(cuts[place]):
                numbers[place] = self.number(names[place].item(), [cuts[place].item()])
        return _ACCEPTS(p, q, numbers)

    def inverse_cdf(self, weights, names):
        cdf = weights.double().cumsum(-1)
        cdf = cdf / cdf[:, -1:]
        numbers = [self.number(name, row.tolist()) for name, row in zip(names.tolist(), cdf, strict=True)]
        return _INVERSE_CDF(weights, torch.tensor(numbers, dtype=torch.float64))

    def multinomial(self, probs, num_samples):
        """Plain `generate`'s draw, every outcome of which is followed."""
        return self.inverse_cdf(probs, torch.tensor([self.name((len(self.names), i)) for i in range(len(probs))]))[
            :, None
        ]


_ACCEPTS, _INVERSE_CDF = coupling.accepts, coupling.inverse_cdf


def prepare(model, inputs, **settings):
    """Everything `generate` prepares for a decoding loop, once; the walk then runs the loop alone many times.

    Returns:
        a function that runs a loop (`AssistedDecoding`, or `GenerationMixin._sample` for plain decoding) from the
            start.
    """
    captured = {}

    def capture(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        captured["positional"] = model, input_ids, logits_processor, stopping_criteria, generation_config
        captured["model_kwargs"] = model_kwargs
        return input_ids

    model.generate(**inputs, **settings, custom_generate=capture)
    kwargs = captured["model_kwargs"]

    def run(loop):
        fresh = {name: value for name, value in kwargs.items() if name != CACHE_ARGUMENT}
        if kwargs.get(CACHE_ARGUMENT) is not None:
            fresh[CACHE_ARGUMENT] = DynamicCache(config=model.config)
        return loop(*captured["positional"], **fresh)

    return run


def law(decode, walked_rows=None, max_paths=100_000):
    """The joint law of what a decode returns, with this library's loop or with plain `generate` inside.

    Args:
        decode: runs a real call once and returns something hashable.
        walked_rows: rows whose numbers are walked; all by default. Other rows draw ordinary numbers of a fixed seed.
        max_paths: more are a mistake in the test's sizes.

    Returns:
        dict from results to masses, which sum to 1.
    """
    result, stack, paths = {}, [[]], 0
    while stack:
        walk = Walk(stack.pop())
        with contextlib.ExitStack() as patches:
            noise = functools.partial(_walked_noise, walk, walked_rows)
            patches.enter_context(mock.patch("hf_exactassist.judging.Noise", noise))
            patches.enter_context(mock.patch.object(coupling, "accepts", walk.accepts))
            patches.enter_context(mock.patch.object(coupling, "inverse_cdf", walk.inverse_cdf))
            patches.enter_context(mock.patch.object(assistant_model, "inverse_cdf", walk.inverse_cdf))
            patches.enter_context(mock.patch("torch.multinomial", walk.multinomial))
            outcome = decode()
        result[outcome] = result.get(outcome, 0.0) + walk.mass
        for step, parts in walk.open:
            stack.extend([*walk.taken[:step], branch] for branch in range(1, parts))
        paths += 1
        assert paths < max_paths, "too many paths: take a smaller vocabulary or fewer tokens"
    assert abs(sum(result.values()) - 1) < 1e-9
    return result


def _walked_noise(walk, walked_rows, seed, identities):
    return _WalkedNoise(walk, walked_rows, identities)
