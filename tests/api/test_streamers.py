"""Streamers get plain `generate`'s calls (user reports A55, A103; upstream row 28)."""

import threading

import pytest
import torch
from transformers import TextIteratorStreamer

import hf_exactassist
from hf_exactassist.models.admission import admit
from hf_exactassist.schedules import ConstantSchedule
from tests.api.helpers import RecordingStreamer, assisted, drafts_were_mixed, pair, staggered_eos, toy_tokenizer
from tests.tiny import ScriptedDrafter, prompts


def streamed(decode):
    """The streamer after a call, and the call's result."""
    streamer = RecordingStreamer()
    output = decode(streamer)
    assert streamer.ended == 1
    return streamer.calls(), output


@pytest.mark.parametrize("drafting", ["assistant", "lookup"])
@pytest.mark.parametrize("sample", [False, True])
def test_one_row_token_by_token(drafting, sample):
    target, assistant = pair()
    inputs = prompts([5])
    settings = {"max_new_tokens": 16, "do_sample": sample, "eos_token_id": None, "pad_token_id": 0}
    drafts = {"assistant_model": assistant} if drafting == "assistant" else {"prompt_lookup_num_tokens": 3}
    calls, output = streamed(
        lambda streamer: hf_exactassist.generate(
            target, **inputs, **settings, **drafts, seed=3, streamer=streamer, return_dict_in_generate=True
        )
    )
    stats = output.assist_stats
    assert stats.drafted and stats.accepted < stats.drafted
    assert calls[0] == ((1, 5), inputs["input_ids"].tolist())
    assert calls[1:] == [((1,), [token]) for token in output.sequences[0, 5:].tolist()]
    if not sample:
        plain, _ = streamed(lambda streamer: target.generate(**inputs, **settings, streamer=streamer))
        assert calls == plain


@pytest.mark.parametrize("right", range(6))
def test_nothing_after_a_stop(right):
    """The seventh greedy token is declared to be the EOS; blocks reach past it at every offset."""
    target, inputs = pair()[0], prompts([5])
    free = target.generate(**inputs, max_new_tokens=20, eos_token_id=None, do_sample=False)
    eos = free[0, 11].item()
    assert eos not in free[0, 5:11].tolist()
    settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": eos, "pad_token_id": 0}
    plain, _ = streamed(lambda streamer: target.generate(**inputs, **settings, streamer=streamer))
    assert len(plain) == 8
    drafter = ScriptedDrafter(free, lambda row, round: right if round == 0 else 20)
    ours = RecordingStreamer()
    decoding = hf_exactassist.AssistedDecoding(drafter, ConstantSchedule(20), streamer=ours)
    target.generate(**inputs, **settings, custom_generate=decoding)
    # the loop alone gets no prompt for its streamer: that is `generate`'s part
    assert ours.calls() == plain[1:] and ours.ended == 1
    # the stop took accepted tokens back, unless it fell on the token after them
    assert any(len(commit.tokens[0]) <= commit.accepted[0] for commit in drafter.observed) == (right != 5)


def test_a_batch_gets_plains_columns():
    """Padding of finished rows included; a row that is ahead waits for the others."""
    target, inputs = pair()[0], prompts([6, 4, 5])
    eos = staggered_eos(target, inputs, 14)
    settings = {"max_new_tokens": 14, "do_sample": False, "eos_token_id": eos, "pad_token_id": 0}
    plain, _ = streamed(lambda streamer: target.generate(**inputs, **settings, streamer=streamer))
    ours, output = streamed(
        lambda streamer: assisted(pair(), inputs, **settings, streamer=streamer, return_dict_in_generate=True)
    )
    assert drafts_were_mixed(output)
    assert ours == plain and {shape for shape, _ in ours[1:]} == {(3,)}


def test_a_text_streamer_refuses_a_batch_as_it_does_there():
    streamer = TextIteratorStreamer(toy_tokenizer(), timeout=20)
    with pytest.raises(ValueError, match="batch size 1"):
        assisted(pair(), prompts([4, 4]), max_new_tokens=3, streamer=streamer)
    assert list(streamer) == [""]


@pytest.mark.parametrize("how", ["before", "inside the checks", "criterion", "assistant", "interrupt"])
def test_end_is_called_once_whatever_happens(how):
    """Whoever reads from the streamer must not wait for ever."""
    models, settings, error = pair(), {}, ZeroDivisionError

    def fail(ids, scores):
        if ids.shape[1] < 9:
            return torch.zeros(ids.shape[0], dtype=torch.bool)
        if how == "interrupt":
            raise KeyboardInterrupt
        raise ZeroDivisionError

    if how == "before":
        settings, error = {"seed": -1, "do_sample": True}, hf_exactassist.InvalidArgument
    elif how == "inside the checks":
        settings, error = {"num_beams": 2}, hf_exactassist.UnsupportedDecodingMode
    elif how == "assistant":
        calls = []

        def hook(module, args, kwargs):
            calls.append(module)
            return fail(torch.zeros(1, 20), None) if armed and len(calls) == 9 else None

        armed, handle = [], models[1].register_forward_pre_hook(hook, with_kwargs=True)
        admit(models[1])  # the probe's forwards do not count
        calls.clear()
        armed.append(True)
    else:
        settings, error = {"stopping_criteria": [fail]}, KeyboardInterrupt if how == "interrupt" else ZeroDivisionError
    streamer = RecordingStreamer()
    try:
        with pytest.raises(error):
            assisted(models, prompts([5]), max_new_tokens=20, eos_token_id=None, streamer=streamer, **settings)
    finally:
        if how == "assistant":
            handle.remove()
    assert streamer.ended == 1
    published = len(streamer.puts) - 1
    if how in ("before", "inside the checks"):
        assert published <= 0
    else:
        assert published > 0
    if how in ("criterion", "interrupt"):
        # the prefix at which the criterion failed was not published: 5 + 3 columns were
        assert published <= 3


def test_transformers_own_errors_end_the_streamer_too():
    for settings in ({"no_such_argument": 1}, {"do_sample": True, "temperature": -1.0}):
        streamer = RecordingStreamer()
        with pytest.raises(ValueError):
            assisted(pair(), prompts([5]), max_new_tokens=3, streamer=streamer, **settings)
        assert streamer.ended == 1


def test_text_iterator_streamer_in_a_thread():
    target, assistant = pair()
    tokenizer, inputs = toy_tokenizer(), prompts([5])
    settings = {"max_new_tokens": 16, "do_sample": False}

    def text(decode):
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
        thread = threading.Thread(target=decode, kwargs={**inputs, **settings, "streamer": streamer})
        thread.start()
        pieces = list(streamer)
        thread.join()
        return pieces

    plain = text(target.generate)
    assert len(plain) > 8
    assert text(lambda **kwargs: hf_exactassist.generate(target, assistant_model=assistant, **kwargs)) == plain


def test_a_streamer_that_fails_ends_the_call():
    class Failing(RecordingStreamer):
        def put(self, value):
            super().put(value)
            if len(self.puts) == 4:
                raise BrokenPipeError

    streamer = Failing()
    with pytest.raises(BrokenPipeError):
        assisted(pair(), prompts([5]), max_new_tokens=12, streamer=streamer)
    assert streamer.ended == 1 and len(streamer.puts) == 4
