"""Row h: what a round takes beside forwards, by the length of the context."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.benchmark.variants import OURS, TRANSFORMERS, Variant
from hf_exactassist.models import compat

from .drafted import NUMBER, Budget
from .lines import Figure
from .pairs import without_end
from .runs import Task


CONTEXTS = (128, 1024, 4096, 8192)
VOCABULARY = 8192
_SHORT = 32
_SHAPE = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}


class ReadyModel(LlamaForCausalLM):
    """A model that, once it is ready, computes nothing: it returns logits that are there and writes to its cache.

    Args:
        config: of a small Llama.
        wrong_every: of so many forwards one favours another token than the rest; 0 for none.
    """

    def __init__(self, config: LlamaConfig, wrong_every: int = 0) -> None:
        super().__init__(config)
        self.ready = False
        self.wrong_every, self.calls = wrong_every, 0
        logits = 5 * torch.randn(1, 1, config.vocab_size, generator=torch.Generator().manual_seed(0))
        self.logits = logits, logits.roll(1, dims=-1)

    # with a Llama's signature, by which models are called
    @functools.wraps(LlamaForCausalLM.forward)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.ready:
            return super().forward(*args, **kwargs)
        (ids,) = args or (kwargs["input_ids"],)
        cache, width = kwargs[compat.CACHE_ARGUMENT], ids.shape[1]
        states = torch.zeros(1, self.config.num_key_value_heads, width, self.config.head_dim)
        for layer in range(self.config.num_hidden_layers):
            cache.update(states, states, layer)
        self.calls += 1
        wrong = bool(self.wrong_every) and self.calls % self.wrong_every == 0
        logits = self.logits[wrong].repeat(1, kwargs.get("logits_to_keep") or width, 1)
        return CausalLMOutputWithPast(logits=logits, **{compat.CACHE_FIELD: cache})


def ready_pair() -> Pair:
    """Two of them; every fourth draft token is wrong."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, max_position_embeddings=16384, **_SHAPE
    )
    target, assistant = (without_end(ReadyModel(config, every).eval()) for every in (0, 4))
    return Pair(target, None, assistant)


def growth(mode: str, budget: Budget, advance: Callable[[], None]) -> Figure:
    """The most a round takes beside forwards at a longer context, over what it takes at the shortest.

    Args:
        mode: greedy or sampled.
        budget: its tokens are those that a longer call has more than a shorter one; what is done once a call drops
            out of the difference.
        advance: called after every call.
    """
    pair = ready_pair()
    ways = [Variant(TRANSFORMERS, NUMBER), Variant(OURS, NUMBER)]
    for way in ways:
        # the library asks a new model what it can, which only computing tells
        Task(pair, [[[1] * 4]], mode, _SHORT).call(way, 0, seed=0)
    pair.target.ready = pair.assistant.ready = True
    seconds: dict[tuple[Variant, int], list[float]] = {(way, size): [] for way in ways for size in CONTEXTS}
    for _ in range(budget.repeats):
        for way, size in seconds:
            seconds[way, size].append(_round_seconds(Task(pair, [[[1] * size]], mode, budget.tokens), way))
            advance()
    told = {way: [statistics.median(seconds[way, size]) for size in CONTEXTS] for way in ways}
    theirs, ours = (", ".join(f"{1e3 * one:.2f}" for one in told[way]) for way in ways)
    sizes = ", ".join(map(str, CONTEXTS))
    note = f"ms at {sizes}: {ours}; Transformers, whose cache is copied at every step, {theirs}"
    return Figure(max(told[ways[1]][1:]) / told[ways[1]][0], note=note)


def _round_seconds(task: Task, way: Variant) -> float:
    """Seconds of a round, from two calls of different length."""
    pair = task.pair
    calls = []
    for tokens in (_SHORT, _SHORT + task.tokens):
        pair.target.calls = pair.assistant.calls = 0
        calls.append(task.call(way, 0, seed=0, tokens=tokens))
    rounds = [sum(call.drafts.values()) for call in calls]
    return (calls[1].seconds - calls[0].seconds) / (rounds[1] - rounds[0])
