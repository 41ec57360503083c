"""Offloaded caches: tokens and content as without offloading; where states live, `tests/state/test_offloaded.py`.

Plain `generate` offloads to CUDA devices' streams and fails on other machines, where nothing is to be saved.
"""

import copy

import pytest
import torch
from transformers import DynamicCache, StaticCache

import hf_exactassist
from tests.api.helpers import CACHE, assert_same_cache, cache_of, drafts_were_mixed, pair, staggered_eos, states
from tests.api.test_caches import GREEDY, RETURN, STEPS, WINDOWED, Stop, break_in, decode, further
from tests.tiny import prompts


NAMES = {"offloaded": "dynamic", "offloaded_static": "static"}


def made(kind, target, offloading=True):
    if kind == "lazy":
        return DynamicCache(offloading=offloading)
    if kind == "static":
        return StaticCache(config=target.config, max_cache_len=60, offloading=offloading)
    return DynamicCache(config=target.config, offloading=offloading)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lengths", [(4,), (10, 3, 6)], ids=str)
@pytest.mark.parametrize("architecture", WINDOWED)
def test_offloaded_by_name(architecture, lengths, name):
    models, inputs = pair(architecture), prompts(lengths)
    settings = {**GREEDY, **RETURN}
    if len(lengths) > 1:
        settings["eos_token_id"] = staggered_eos(models[0], inputs, STEPS)
    plain = decode(models, "plain", inputs, **settings, cache_implementation=NAMES[name])
    ours = decode(models, "assisted", inputs, **settings, cache_implementation=name)
    assert drafts_were_mixed(ours) and cache_of(ours).offloading
    assert ours.sequences.tolist() == plain.sequences.tolist()
    assert_same_cache(cache_of(ours), cache_of(plain))
    without = decode(models, "assisted", inputs, **GREEDY, cache_implementation=name)
    assert without.tolist() == decode(models, "plain", inputs, **GREEDY).tolist()


@pytest.mark.parametrize("kind", ["lazy", "dynamic", "static"])
@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_conversation_over_a_passed_offloaded_cache(architecture, kind):
    models, inputs = pair(architecture), prompts([10, 3])

    def run(how, offloading):
        cache = made(kind, models[0], offloading)
        output = decode(models, how, inputs, **{CACHE: cache}, **GREEDY, **RETURN)
        _, given = further(output, inputs, prompts([3, 3], seed=7)["input_ids"], False)
        return decode(models, how, given, **{CACHE: cache}, **GREEDY), cache

    (plain, theirs), (ours, cache) = run("plain", False), run("assisted", True)
    assert ours.tolist() == plain.tolist()
    assert_same_cache(cache, theirs)


@pytest.mark.parametrize("where", ["prefill", "scoring"])
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("kind", ["lazy", "dynamic", "static"])
def test_after_an_error_an_offloaded_cache_is_as_before(kind, filled, where):
    models, inputs = pair("gemma3"), prompts([10, 4])
    cache, given = made(kind, models[0]), inputs
    if filled:
        output = decode(models, "assisted", inputs, **{CACHE: cache}, **GREEDY, **RETURN)
        given, _ = further(output, inputs, prompts([2, 2], seed=5)["input_ids"], False)
    before = states(cache)
    settings, handles = break_in(where, models, Stop, given["input_ids"].shape[1])
    try:
        with pytest.raises(Stop):
            decode(models, "assisted", given, **{CACHE: cache}, **GREEDY, **settings)
    finally:
        for handle in handles:
            handle.remove()
    assert len(cache.layers) == len(before)
    for (length, *tensors), (old, *olds) in zip(states(cache), before, strict=True):
        assert length == old and all(a is b is None or torch.equal(a, b) for a, b in zip(tensors, olds, strict=True))
    expected = models[0].generate(**given, **GREEDY)
    assert decode(models, "assisted", given, **{CACHE: cache}, **GREEDY).tolist() == expected.tolist()


def test_attentions_over_an_offloaded_cache_are_refused():
    wanted = {"output_attentions": True, "cache_implementation": "offloaded"}
    with pytest.raises(hf_exactassist.UnsupportedArgument, match="output_attentions.*leave it out"):
        decode(pair(attention="eager"), "assisted", prompts([5]), **GREEDY, **RETURN, **wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_offloaded_on_a_gpu(architecture, name):
    """Plain and assisted turns over one object in every order; the target's states are in main memory meanwhile."""
    models = tuple(copy.deepcopy(model).cuda() for model in pair(architecture))
    inputs = {key: part.cuda() for key, part in prompts([10, 3]).items()}
    said = prompts([3, 3], seed=7)["input_ids"].cuda()
    kind = NAMES[name]

    def run(*hows):
        cache = made(kind, models[0])
        output = decode(models, hows[0], inputs, **{CACHE: cache}, **GREEDY, **RETURN, disable_compile=True)
        _, given = further(output, inputs, said, False)
        return decode(models, hows[1], given, **{CACHE: cache}, **GREEDY, disable_compile=True), cache

    expected, theirs = run("plain", "plain")
    for hows in (("assisted", "plain"), ("plain", "assisted"), ("assisted", "assisted")):
        text, cache = run(*hows)
        assert text.tolist() == expected.tolist()
        assert [layer.keys.device for layer in cache.layers] == [layer.keys.device for layer in theirs.layers]
        assert_same_cache(cache, theirs)
    session = hf_exactassist.start(
        models[0], **inputs, **GREEDY, cache_implementation=name, assistant_model=models[1], num_assistant_tokens=4
    )
    for _ in range(3):
        session.step()
        assert {layer.keys.device.type for layer in session.scorer.target.cache.layers} == {"cpu"}
    assert session.result().tolist() == decode(models, "plain", inputs, **GREEDY).tolist()
