"""One prefix for several calls: a copy for each, or one object cropped and continued, as in the recipes."""

import copy

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.api.helpers import CACHE, assert_same_cache, pair
from tests.api.test_caches import GREEDY, RETURN, WINDOWED, decode
from tests.tiny import prompts


KINDS = {
    "lazy": lambda config: DynamicCache(),
    "with config": lambda config: DynamicCache(config=config),
    "static": lambda config: StaticCache(config=config, max_cache_len=60),
}


def filled(kind, model, ids):
    """A cache that holds a prefix, read by a forward of the caller's."""
    cache = KINDS[kind](model.config)
    with torch.no_grad():
        model(ids, **{CACHE: cache}, use_cache=True)
    return cache


def inputs_of(ids):
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def crop(cache, count):
    """Forgets tokens; storage that earlier releases cannot crop is left as it is."""
    if not isinstance(cache, StaticCache):
        cache.crop(-count)
        return
    for layer in cache.layers:
        layer.cumulative_length.sub_(count)


@pytest.mark.parametrize("length", [5, 12])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_copy_for_every_call(architecture, kind, length):
    """The prefix stays as it is, and every copy holds what plain `generate` leaves in its own."""
    models, prefix = pair(architecture), prompts([length])["input_ids"]
    prompt_cache = filled(kind, models[0], prefix)
    before = copy.deepcopy(prompt_cache)
    for seed in range(3):
        given = inputs_of(torch.cat([prefix, prompts([3 + seed], seed=seed + 20)["input_ids"]], dim=1))
        expected = models[0].generate(**given, **GREEDY)
        mine, theirs = copy.deepcopy(prompt_cache), copy.deepcopy(prompt_cache)
        ours = decode(models, "assisted", given, **{CACHE: mine}, **GREEDY, **RETURN)
        assert ours.sequences.tolist() == decode(models, "plain", given, **{CACHE: theirs}, **GREEDY).tolist()
        assert ours.sequences.tolist() == expected.tolist() and ours.assist_stats.drafted > 0
        assert_same_cache(mine, theirs)
        assert_same_cache(prompt_cache, before, atol=0)


@pytest.mark.parametrize("kind", ["lazy", "with config", "static"])
def test_one_object_cropped_to_the_prefix(kind):
    models, prefix = pair(), prompts([9])["input_ids"]
    mine, theirs = (filled(kind, models[0], prefix) for _ in range(2))
    for seed in range(3):
        given = inputs_of(torch.cat([prefix, prompts([3 + seed], seed=seed + 20)["input_ids"]], dim=1))
        ours = decode(models, "assisted", given, **{CACHE: mine}, **GREEDY)
        assert ours.tolist() == decode(models, "plain", given, **{CACHE: theirs}, **GREEDY).tolist()
        assert ours.tolist() == models[0].generate(**given, **GREEDY).tolist()
        for cache in (mine, theirs):
            crop(cache, int(cache.get_seq_length()) - 9)
        for a, b in zip(mine.layers, theirs.layers, strict=True):
            torch.testing.assert_close(a.keys[:, :, :9], b.keys[:, :, :9])


@pytest.mark.skipif(CACHE == "past_key_values", reason="plain `generate` of early releases fails over such layers")
@pytest.mark.parametrize("length", [5, 12])
@pytest.mark.parametrize("architecture", ["mistral", "gemma3"])
def test_windows_that_record_their_past_can_be_cropped(architecture, length):
    """Such layers keep all that comes, until the caller crops them."""
    models, prefix = pair(architecture), prompts([length])["input_ids"]
    mine, theirs = (filled("with config", models[0], prefix) for _ in range(2))
    for seed in range(3):
        given = inputs_of(torch.cat([prefix, prompts([3 + seed], seed=seed + 20)["input_ids"]], dim=1))
        for cache in (mine, theirs):
            cache.activate_past_recording()
        ours = decode(models, "assisted", given, **{CACHE: mine}, **GREEDY)
        assert ours.tolist() == decode(models, "plain", given, **{CACHE: theirs}, **GREEDY).tolist()
        assert ours.tolist() == models[0].generate(**given, **GREEDY).tolist()
        assert_same_cache(mine, theirs)
        for cache in (mine, theirs):
            cache.crop(length - cache.get_seq_length())
        assert_same_cache(mine, theirs)


@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_prefix_repeated_for_a_batch(architecture):
    models, prefix = pair(architecture), prompts([12])["input_ids"]
    prompt_cache = filled("with config", models[0], prefix)
    prompt_cache.batch_repeat_interleave(3)
    more = prompts([4, 4, 4], seed=9)["input_ids"]
    given = inputs_of(torch.cat([prefix.expand(3, -1), more], dim=1))
    mine, theirs = copy.deepcopy(prompt_cache), prompt_cache
    ours = decode(models, "assisted", given, **{CACHE: mine}, **GREEDY)
    assert ours.tolist() == decode(models, "plain", given, **{CACHE: theirs}, **GREEDY).tolist()
    assert_same_cache(mine, theirs)
