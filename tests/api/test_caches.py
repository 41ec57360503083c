"""The cache that goes in, comes out or fails in between is plain `generate`'s (user reports A66 to A70)."""

import contextlib
import copy

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.cache_utils import Cache, DynamicLayer

import hf_exactassist
from hf_exactassist.models.admission import admit
from tests.api.helpers import (
    CACHE,
    RecordingStreamer,
    assert_same_cache,
    assisted,
    cache_of,
    drafts_were_mixed,
    ends,
    pair,
    staggered_eos,
    states,
)
from tests.exactness.test_lone_rows import built
from tests.tiny import ARCHITECTURES, noisy, prompts


WINDOWED = ["llama", "mistral", "gemma3"]
STEPS = 12
GREEDY = {"do_sample": False, "max_new_tokens": STEPS, "pad_token_id": 0, "eos_token_id": None}
RETURN = {"return_dict_in_generate": True}


def decode(models, how, inputs, **settings):
    """One call, plain or with the assistant."""
    if how == "plain":
        return models[0].generate(**inputs, **settings)
    return assisted(models, inputs, num_assistant_tokens=4, **settings)


def further(output, inputs, new, only_new):
    """Inputs of a second turn: the sequences so far and `new` tokens of the user's, in full or only what is unread."""
    ids = torch.cat([output.sequences, new], dim=1)
    grown = ids.shape[1] - inputs["input_ids"].shape[1]
    mask = torch.cat([inputs["attention_mask"], ids.new_ones(len(ids), grown)], dim=1)
    full = {"input_ids": ids, "attention_mask": mask}
    unread = ids[:, output.sequences.shape[1] - 1 :]
    return full, {"input_ids": unread, "attention_mask": mask} if only_new else full


@pytest.mark.parametrize("lengths", [(4,), (10,), (10, 3, 6)], ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_returned_cache_is_plains(architecture, lengths):
    models, inputs = pair(architecture), prompts(lengths)
    settings = {**GREEDY, **RETURN}
    if len(lengths) > 1:
        settings["eos_token_id"] = staggered_eos(models[0], inputs, STEPS)
    plain = models[0].generate(**inputs, **settings)
    ours = decode(models, "assisted", inputs, **settings)
    assert drafts_were_mixed(ours)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    if len(lengths) > 1:
        assert len(set(ends(plain.sequences, max(lengths), settings["eos_token_id"]))) == 3
    assert_same_cache(cache_of(ours), cache_of(plain))
    assert cache_of(ours).get_seq_length() == ours.sequences.shape[1] - 1


@pytest.mark.parametrize("max_new_tokens", [1, 2])
def test_the_returned_cache_of_a_short_call(max_new_tokens):
    models, inputs = pair("gemma3"), prompts([10, 3])
    settings = {**GREEDY, **RETURN, "max_new_tokens": max_new_tokens}
    assert_same_cache(
        cache_of(decode(models, "assisted", inputs, **settings)), cache_of(models[0].generate(**inputs, **settings))
    )


@pytest.mark.parametrize("only_new", [False, True])
@pytest.mark.parametrize("lengths", [(3,), (10, 3, 6)], ids=str)
@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_conversation_continues(architecture, lengths, only_new):
    """Every mixture of plain and assisted turns, early finishers in the first one, against plain turns."""
    models, inputs = pair(architecture), prompts(lengths)
    first = {**GREEDY, **RETURN}
    if len(lengths) > 1:
        first["eos_token_id"] = staggered_eos(models[0], inputs, STEPS)
    said = prompts([3] * len(lengths), seed=7)["input_ids"]
    second = {**GREEDY, **RETURN, "max_new_tokens": 9}
    before = models[0].generate(**inputs, **first)
    plain_cache = cache_of(before)
    full, given = further(before, inputs, said, only_new)
    reference = models[0].generate(**given, **{CACHE: plain_cache}, **second)
    if architecture == "llama":
        # a sanity check of the reference: a cache changes nothing
        uncached = models[0].generate(**full, **second).sequences
        assert uncached[:, full["input_ids"].shape[1] :].tolist() == reference.sequences[:, -9:].tolist()
    for how in (("assisted", "plain"), ("plain", "assisted"), ("assisted", "assisted")):
        output = decode(models, how[0], inputs, **first)
        cache = cache_of(output)
        _, given = further(output, inputs, said, only_new)
        again = decode(models, how[1], given, **{CACHE: cache}, **second)
        assert again.sequences.tolist() == reference.sequences.tolist()
        assert cache_of(again) is cache
        assert_same_cache(cache, plain_cache)
        if how[1] == "assisted":
            assert again.assist_stats.drafted > again.assist_stats.accepted


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("with_config", [False, True])
@pytest.mark.parametrize("architecture", WINDOWED)
@pytest.mark.parametrize("returned", [False, True])
def test_a_passed_cache_grows_in_place(architecture, with_config, filled, returned):
    """To exactly the returned sequence, whether or not an output object is asked for."""
    models, inputs = pair(architecture), prompts([10, 4])
    target = models[0]
    second = {**GREEDY, "return_dict_in_generate": returned}

    def run(how):
        cache = DynamicCache(config=target.config) if with_config else DynamicCache()
        given = inputs
        if filled:
            output = target.generate(**inputs, **{CACHE: cache}, **{**GREEDY, **RETURN, "max_new_tokens": 5})
            given, _ = further(output, inputs, prompts([2, 2], seed=5)["input_ids"], False)
        output = decode(models, how, given, **{CACHE: cache}, **second)
        if returned:
            assert cache_of(output) is cache
            output = output.sequences
        return output, cache

    (plain, theirs), (ours, cache) = run("plain"), run("assisted")
    assert ours.tolist() == plain.tolist()
    assert cache.get_seq_length() == ours.shape[1] - 1
    assert_same_cache(cache, theirs)


class Stop(Exception):
    pass


def break_in(where, models, error, start):
    """Settings and hooks that make a call fail at a place inside it."""
    if where == "criterion in round 3":

        def criterion(ids, scores):
            # the third round's first new column; earlier rounds have published
            if ids.shape[1] > start + 7:
                raise error
            return torch.zeros(len(ids), dtype=torch.bool)

        return {"stopping_criteria": [criterion]}, []
    model, number = {"prefill": (models[0], 1), "scoring": (models[0], 3), "drafting": (models[1], 6)}[where]
    # the first layer has written its states when the second one fails
    layer, calls = model.model.layers[1], []

    def hook(*args):
        calls.append(1)
        if armed and len(calls) == number:
            raise error

    armed, handles = [], [layer.register_forward_pre_hook(hook)]
    admit(model)  # the probe's forwards do not count
    armed.append(calls.clear() is None)
    return {}, handles


FAILURES = [
    ("prefill", Stop),
    ("criterion in round 3", Stop),
    ("criterion in round 3", KeyboardInterrupt),
    ("scoring", Stop),
    ("drafting", KeyboardInterrupt),
]


@pytest.mark.parametrize("where,error", FAILURES)
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("architecture", WINDOWED)
@pytest.mark.parametrize("with_config", [False, True])
def test_after_an_error_the_cache_is_as_before(architecture, with_config, filled, where, error):
    models, inputs = pair(architecture), prompts([10, 4])
    target = models[0]
    cache, given = DynamicCache(config=target.config) if with_config else DynamicCache(), inputs
    if filled:
        output = target.generate(**inputs, **{CACHE: cache}, **{**GREEDY, **RETURN, "max_new_tokens": 5})
        given, _ = further(output, inputs, prompts([2, 2], seed=5)["input_ids"], False)
    before, untouched = states(cache), copy.deepcopy(cache)
    settings, handles = break_in(where, models, error, given["input_ids"].shape[1])
    streamer = RecordingStreamer()
    try:
        with pytest.raises(error):
            decode(models, "assisted", given, **{CACHE: cache}, **GREEDY, streamer=streamer, **settings)
    finally:
        for handle in handles:
            handle.remove()
    assert (len(streamer.puts) > 1) == (where != "prefill")
    after = states(cache)
    assert len(after) == len(before)
    for (length, *tensors), (old, *olds) in zip(after, before, strict=True):
        assert length == old
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(tensors, olds, strict=True))
    # and it can be used
    again = decode(models, "assisted", given, **{CACHE: cache}, **GREEDY)
    assert again.tolist() == target.generate(**given, **{CACHE: untouched}, **GREEDY).tolist()
    assert_same_cache(cache, untouched)


class QuantizedToyLayer(DynamicLayer):
    """Stands for the quantized layers, whose back ends are not installed here."""


def refused_caches(target):
    return {
        "foreign": ({CACHE: Cache(layers=[DynamicLayer(), DynamicLayer()])}, "got Cache"),
        "encoder-decoder": ({CACHE: EncoderDecoderCache(DynamicCache(), DynamicCache())}, "EncoderDecoderCache"),
        "quantized": ({CACHE: Cache(layers=[QuantizedToyLayer(), QuantizedToyLayer()])}, "got Cache"),
        "foreign layers": ({CACHE: _with_layers(QuantizedToyLayer)}, "QuantizedToyLayer"),
        "sub-class": ({CACHE: type("MyCache", (DynamicCache,), {})()}, "MyCache"),
        "static sub-class": ({CACHE: type("MyStatic", (StaticCache,), {})(target.config, 64)}, "MyStatic"),
    }


def _with_layers(kind):
    cache = DynamicCache()
    cache.layers = [kind(), kind()]
    return cache


@pytest.mark.parametrize("name", refused_caches(pair()[0]))
def test_other_caches_are_refused_by_name(name):
    target, streamer = pair()[0], RecordingStreamer()
    settings, text = refused_caches(target)[name]
    with pytest.raises(hf_exactassist.UnsupportedCache, match=text) as error:
        assisted(pair(), prompts([5]), **GREEDY, **settings, streamer=streamer)
    assert 'pass `cache_implementation="dynamic"`' in str(error.value)
    assert len(streamer.puts) <= 1 and streamer.ended == 1


@pytest.mark.parametrize("implementation", ["static", "offloaded", "offloaded_static"])
def test_the_way_out_of_a_models_own_setting(implementation):
    """Some repositories ask for a cache in their generation config, where it cannot be left out."""
    target = built("bloom")
    plain = target.generate(**prompts([5]), **GREEDY)
    target.generation_config.cache_implementation = implementation
    models = target, noisy(target, 0.03)
    with pytest.raises(hf_exactassist.UnsupportedCache, match='pass `cache_implementation="dynamic"`'):
        assisted(models, prompts([5]), **GREEDY)
    output = assisted(models, prompts([5]), **GREEDY, cache_implementation="dynamic")
    assert output.tolist() == plain.tolist()


def test_the_default_cache_by_name():
    models, inputs = pair("gemma3"), prompts([10, 4])
    settings = {**GREEDY, **RETURN, "cache_implementation": "dynamic"}
    plain, ours = (decode(models, how, inputs, **settings) for how in ("plain", "assisted"))
    assert ours.sequences.tolist() == plain.sequences.tolist()
    assert_same_cache(cache_of(ours), cache_of(plain))


@pytest.mark.parametrize("place", ["argument", "generation config"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_use_cache_false(architecture, place):
    """Scored over a cache nobody sees; the result is plain `generate`'s (upstream row 20)."""
    target, assistant = pair(architecture)
    settings, inputs = {**GREEDY, **RETURN}, prompts([10, 4])
    if place == "argument":
        settings["use_cache"] = False
    else:
        target = copy.deepcopy(target)
        target.generation_config.use_cache = False
    plain = target.generate(**inputs, **settings)
    ours = decode((target, assistant), "assisted", inputs, **settings)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    assert cache_of(ours) is None and cache_of(plain) is None
    assert drafts_were_mixed(ours)


@pytest.mark.parametrize("config", ["generation_config", "config"])
def test_assistants_that_say_use_cache_false(config):
    """How the target is asked is the call's matter; an assistant reads over a cache that nobody sees (case A87)."""
    target, assistant = copy.deepcopy(pair())
    getattr(assistant, config).use_cache = False
    inputs = prompts([10, 4, 7])
    plain = target.generate(**inputs, **GREEDY, **RETURN)
    ours = decode((target, assistant), "assisted", inputs, **GREEDY, **RETURN)
    assert ours.sequences.tolist() == plain.sequences.tolist() and drafts_were_mixed(ours)
    getattr(target, config).use_cache = False
    plain = target.generate(**inputs, **GREEDY)
    assert decode((target, assistant), "assisted", inputs, **GREEDY).tolist() == plain.tolist()


def test_no_cache_and_a_cache():
    """Plain `generate` reads everything into the cache again at each step, and its tokens are nonsense."""
    with pytest.raises(hf_exactassist.UnsupportedCache, match="use_cache=False.*leave one"):
        assisted(pair(), prompts([5]), **GREEDY, use_cache=False, **{CACHE: DynamicCache()})


@pytest.mark.parametrize("name", ["output_attentions", "output_hidden_states"])
def test_outputs_of_the_whole_sequence(name):
    """Without a cache plain `generate` returns them for every position at every step."""
    settings = {**GREEDY, "use_cache": False, name: True}
    plain = pair()[0].generate(**prompts([5]), **settings)
    assert assisted(pair(), prompts([5]), **settings).tolist() == plain.tolist()
    with pytest.raises(hf_exactassist.UnsupportedArgument, match=f"{name}.*leave out"):
        assisted(pair(), prompts([5]), **settings, **RETURN)


def test_the_old_name_of_the_cache():
    """`past_key_values` until Transformers removes it."""
    models, inputs, cache = pair(), prompts([5]), DynamicCache()
    renamed = pytest.warns(FutureWarning, match="past_key_values") if CACHE == "cache" else contextlib.nullcontext()
    with renamed:
        output = decode(models, "assisted", inputs, past_key_values=cache, **GREEDY)
    assert output.tolist() == models[0].generate(**inputs, **GREEDY).tolist()
    assert cache.get_seq_length() == output.shape[1] - 1
