"""Static caches, by name or passed in: plain `generate`'s tokens, content and storage, in place."""

import copy
import functools

import pytest
import torch
from transformers import StaticCache

import hf_exactassist
from hf_exactassist.state.caller_cache import CopiedCache
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
)
from tests.api.test_caches import FAILURES, GREEDY, RETURN, STEPS, WINDOWED, break_in, decode, further
from tests.tiny import looping, noisy, prompts


STATIC = {"cache_implementation": "static"}
# with windows of 8, prompts shorter than, as long as and longer than the window, and a padded batch of all
LENGTHS = [(3,), (8,), (12,), (10, 3, 8)]


@functools.cache
def close(architecture):
    """The target of `pair`, and an assistant whose drafts are partly accepted whatever their length."""
    target = pair(architecture)[0]
    return target, noisy(target, 0.1)


def made(target, slots, batch=0):
    """A static cache, with storage from the start if `batch` is given."""
    cache = StaticCache(config=target.config, max_cache_len=slots)
    if batch:
        config = target.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        cache.early_initialization(batch, heads, size, torch.float32, torch.device("cpu"))
    return cache


def addresses(cache):
    return [
        tensor.data_ptr() for layer in cache.layers for tensor in (layer.keys, layer.values, layer.cumulative_length)
    ]


def content(cache):
    """All that a static cache holds, by value."""
    return [
        {name: part.clone() if isinstance(part, torch.Tensor) else part for name, part in vars(layer).items()}
        for layer in cache.layers
    ]


def same(before, after):
    return all(
        old.keys() == new.keys()
        and all(torch.equal(old[n], new[n]) if torch.is_tensor(old[n]) else old[n] == new[n] for n in old)
        for old, new in zip(before, after, strict=True)
    )


def assert_same_static(ours, plain):
    """Equal storage, whatever was never filled included, and equal counters."""
    assert_same_cache(ours, plain)
    for a, b in zip(ours.layers, plain.layers, strict=True):
        assert a.max_cache_len == b.max_cache_len and int(a.cumulative_length) == int(b.cumulative_length)


@pytest.mark.parametrize("k", [1, 4, 8])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("architecture", [*WINDOWED, "gpt2"])
def test_static_by_name(architecture, lengths, k):
    models, inputs = close(architecture), prompts(lengths)
    settings = {**GREEDY, **RETURN, **STATIC}
    if len(lengths) > 1:
        settings["eos_token_id"] = staggered_eos(models[0], inputs, STEPS)
    plain = models[0].generate(**inputs, **settings)
    ours = assisted(models, inputs, **settings, num_assistant_tokens=k)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    assert drafts_were_mixed(ours)
    if len(lengths) > 1:
        assert len(set(ends(plain.sequences, max(lengths), settings["eos_token_id"]))) == 3
    assert_same_static(cache_of(ours), cache_of(plain))


@pytest.mark.parametrize("max_new_tokens", [1, 2])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_static_in_short_calls(lengths, max_new_tokens):
    """Plain keeps one token more than a window sees, and writes the prompt's at once."""
    models, inputs = pair("gemma3"), prompts(lengths)
    settings = {**GREEDY, **RETURN, **STATIC, "max_new_tokens": max_new_tokens}
    plain, ours = (decode(models, how, inputs, **settings) for how in ("plain", "assisted"))
    assert_same_static(cache_of(ours), cache_of(plain))


def test_static_as_a_models_own_setting():
    """In its generation config, which cannot be left out; with a ceiling for later calls, and without an output."""
    target, assistant = pair("gemma3")
    target = copy.deepcopy(target)
    target.generation_config.update(**STATIC, max_cache_len=40)
    plain, ours = (
        cache_of(decode((target, assistant), how, prompts([5]), **GREEDY, **RETURN)) for how in ("plain", "assisted")
    )
    assert ours.get_max_length() == 40
    assert_same_static(ours, plain)
    output = decode((target, assistant), "assisted", prompts([5]), **GREEDY)
    assert output.tolist() == target.generate(**prompts([5]), **GREEDY).tolist()


def test_static_in_chunks_and_sampled():
    models, inputs = pair("gemma3"), prompts([10, 4])
    plain = models[0].generate(**inputs, **GREEDY, **STATIC, prefill_chunk_size=3)
    assert decode(models, "assisted", inputs, **GREEDY, **STATIC, prefill_chunk_size=3).tolist() == plain.tolist()
    sampled = {**GREEDY, "do_sample": True, "seed": 3}
    drawn = [decode(models, "assisted", inputs, **sampled, **more) for more in ({}, STATIC)]
    assert torch.equal(*drawn)


@pytest.mark.parametrize("tokens", [2, 5])
def test_static_with_prompt_lookup(tokens):
    """Transformers' own prompt lookup writes drafts behind the end of the storage."""
    model, inputs = looping()
    settings = {**GREEDY, **STATIC}
    ours = hf_exactassist.generate(model, **inputs, **settings, **RETURN, prompt_lookup_num_tokens=tokens)
    assert ours.sequences.tolist() == model.generate(**inputs, **settings).tolist()
    assert ours.assist_stats.accepted > 0


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("only_new", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("architecture", WINDOWED)
def test_a_conversation_over_a_passed_static_cache(architecture, lengths, only_new, early):
    """Three turns, plain and assisted in every order, to the very end of the storage, which stays where it is."""
    models, inputs = pair(architecture), prompts(lengths)
    slots = max(lengths) + STEPS + 3 + 9 + 2 + 4 - 1
    turns = [(3, 9), (2, 4)]

    def run(hows):
        cache = made(models[0], slots, len(lengths) if early else 0)
        places = early and addresses(cache)
        output, given, texts = decode(models, hows[0], inputs, **{CACHE: cache}, **GREEDY, **RETURN), inputs, []
        for how, (said, new) in zip(hows[1:], turns, strict=True):
            places = places or addresses(cache)
            spoken = prompts([said] * len(lengths), seed=said)["input_ids"]
            whole, given = further(output, given, spoken, only_new)
            output = decode(models, how, given, **{CACHE: cache}, **{**GREEDY, **RETURN, "max_new_tokens": new})
            assert cache_of(output) is cache
            texts.append(output.sequences[:, -new:].tolist())
            # only what is unread was passed, and the next turn wants all of it
            given = whole
            output.sequences = torch.cat([whole["input_ids"], output.sequences[:, -new:]], dim=1)
        assert places == addresses(cache)
        return texts, cache

    expected, plain = run(("plain",) * 3)
    assert int(plain.get_seq_length()) == slots
    for hows in (("plain", "assisted", "assisted"), ("assisted", "plain", "assisted"), ("assisted",) * 3):
        texts, cache = run(hows)
        assert texts == expected
        assert_same_static(cache, plain)


@pytest.mark.parametrize("architecture", WINDOWED)
def test_static_storage_that_is_used_again(architecture):
    """`reset` leaves old states lying there; they are no part of the text."""
    models = pair(architecture)
    ours, plain = (made(models[0], 40) for _ in range(2))
    for lengths in ((9, 4), (12, 6)):
        for how, cache in (("plain", plain), ("assisted", ours)):
            cache.reset()
            decode(models, how, prompts(lengths, seed=3), **{CACHE: cache}, **GREEDY)
        assert_same_static(ours, plain)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_too_small_is_refused_before_the_first_token(architecture):
    models, inputs = pair(architecture), prompts([6, 4])
    fits, short = (made(models[0], slots) for slots in (6 + STEPS - 1, 6 + STEPS - 2))
    expected = models[0].generate(**inputs, **GREEDY)
    assert decode(models, "assisted", inputs, **{CACHE: fits}, **GREEDY).tolist() == expected.tolist()
    with pytest.raises(IndexError):
        decode(models, "plain", inputs, **{CACHE: made(models[0], 6 + STEPS - 2)}, **GREEDY)
    streamer, before = RecordingStreamer(), content(short)
    with pytest.raises(hf_exactassist.UnsupportedCache, match=f"max_cache_len={6 + STEPS - 1}.*or lower"):
        decode(models, "assisted", inputs, **{CACHE: short}, **GREEDY, streamer=streamer)
    assert len(streamer.puts) <= 1 and same(before, content(short))
    decode(models, "assisted", inputs, **{CACHE: short}, **{**GREEDY, "max_new_tokens": STEPS - 1})


def test_storage_of_one_window_is_enough_for_windows():
    """Where all layers slide, any length fits; storage below the window would be a window of its own."""
    models, inputs = pair("mistral"), prompts([12, 5])
    plain = models[0].generate(**inputs, **{CACHE: made(models[0], 8)}, **GREEDY)
    assert decode(models, "assisted", inputs, **{CACHE: made(models[0], 8)}, **GREEDY).tolist() == plain.tolist()
    with pytest.raises(hf_exactassist.UnsupportedCache, match="holds 7 tokens"):
        decode(models, "assisted", inputs, **{CACHE: made(models[0], 7)}, **GREEDY)


@pytest.mark.parametrize("other", ["batch", "layers"])
def test_storage_of_other_rows_is_refused(other):
    models = pair()
    cache = made(models[0], 40, batch=3 if other == "batch" else 2)
    if other == "layers":
        del cache.layers[1]
    with pytest.raises(hf_exactassist.UnsupportedCache, match="another batch size, model"):
        decode(models, "assisted", prompts([5, 4]), **{CACHE: cache}, **GREEDY)


def test_attentions_over_a_static_cache_are_refused():
    models, wanted = pair(attention="eager"), {"output_attentions": True, **STATIC}
    with pytest.raises(hf_exactassist.UnsupportedArgument, match="output_attentions.*leave it out"):
        decode(models, "assisted", prompts([5]), **GREEDY, **RETURN, **wanted)
    plain = decode(models, "plain", prompts([5]), **GREEDY, **wanted)
    assert decode(models, "assisted", prompts([5]), **GREEDY, **wanted).tolist() == plain.tolist()


@pytest.mark.parametrize("where,error", [*FAILURES, ("writing", KeyboardInterrupt)])
@pytest.mark.parametrize("past", [None, 4, 9])
@pytest.mark.parametrize("architecture", WINDOWED)
def test_after_an_error_a_static_cache_is_as_before(monkeypatch, architecture, past, where, error):
    models, inputs = pair(architecture), prompts([5, 4])
    cache, given = made(models[0], 50), inputs
    if past is not None:
        output = decode(models, "plain", inputs, **{CACHE: cache}, **{**GREEDY, **RETURN, "max_new_tokens": past})
        given, _ = further(output, inputs, prompts([2, 2], seed=5)["input_ids"], False)
    before, untouched, settings, handles = content(cache), copy.deepcopy(cache), {}, []
    with monkeypatch.context() as patch:
        if where == "writing":
            # the last layer fails when the others have been written
            write = CopiedCache._write

            def interrupted(self, number, layer, length):
                if number == 1:
                    raise error
                write(self, number, layer, length)

            patch.setattr(CopiedCache, "_write", interrupted)
        else:
            settings, handles = break_in(where, models, error, given["input_ids"].shape[1])
        try:
            with pytest.raises(error):
                decode(models, "assisted", given, **{CACHE: cache}, **GREEDY, **settings)
        finally:
            for handle in handles:
                handle.remove()
    after = content(cache)
    if past is not None:
        # new states behind the end may lie there, as in storage that is used again
        for layer in (*before, *after):
            end = 50 if "cumulative_length_int" in layer else int(layer["cumulative_length"])
            end = layer.get("cumulative_length_int", end)
            layer["keys"], layer["values"] = layer["keys"][:, :, :end], layer["values"][:, :, :end]
    assert same(before, after)
    again = decode(models, "assisted", given, **{CACHE: cache}, **GREEDY)
    assert again.tolist() == models[0].generate(**given, **{CACHE: untouched}, **GREEDY).tolist()
    assert_same_static(cache, untouched)


def test_a_session_writes_when_its_result_is_there():
    models, cache = pair("gemma3"), made(pair("gemma3")[0], 40, batch=1)
    before = content(cache)
    session = hf_exactassist.start(
        models[0], **prompts([9]), **GREEDY, **{CACHE: cache}, assistant_model=models[1], num_assistant_tokens=4
    )
    for _ in range(3):
        session.step()
    assert same(before, content(cache))
    length = session.result().shape[1]
    assert int(cache.get_seq_length()) == length - 1
    session.abandon()
    assert int(cache.get_seq_length()) == 0
