"""Output objects: plain `generate`'s structure and values, one entry per published token (report A63)."""

import pytest
import torch
from transformers import DynamicCache
from transformers.generation import GenerateDecoderOnlyOutput

import hf_exactassist
from hf_exactassist.schedules import ConstantSchedule
from hf_exactassist.verification.distributions import probabilities
from tests.api.helpers import CACHE, assisted, cache_of, drafts_were_mixed, ends, pair, staggered_eos
from tests.tiny import ScriptedDrafter, prompts


EVERYTHING = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_hidden_states": True,
    "output_attentions": True,
}
STEPS = 14


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def assert_same_steps(ours, theirs, published):
    """Same nesting, types and shapes; rows agree while they publish and hold zeros after."""
    assert type(ours) is type(theirs) is tuple and len(ours) == len(theirs) == max(published)
    for step, (mine, plain) in enumerate(zip(ours, theirs, strict=True)):
        if plain is None or isinstance(plain, torch.Tensor):
            mine, plain = (mine,), (plain,)
        assert type(mine) is type(plain) is tuple and len(mine) == len(plain)
        for one, other in zip(mine, plain, strict=True):
            if other is None:
                assert one is None
                continue
            assert one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
            for row, count in enumerate(published):
                close(one[row], other[row] if step < count else torch.zeros_like(other[row]))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3"])
def test_everything_as_plain_generate(architecture, attention, batch):
    """Prompts shorter and longer than the window of 8, rows that end at different steps."""
    target = pair(architecture, attention)[0]
    inputs = prompts([11, 4, 6] if batch == 3 else [11])
    eos = staggered_eos(target, inputs, STEPS) if batch == 3 else None
    settings = {"do_sample": False, "max_new_tokens": STEPS, "eos_token_id": eos, "pad_token_id": 0, **EVERYTHING}
    # a processor, so that scores and logits are different things
    settings["repetition_penalty"] = 1.01
    plain = target.generate(**inputs, **settings)
    ours = assisted(pair(architecture, attention), inputs, num_assistant_tokens=4, **settings)
    assert drafts_were_mixed(ours)
    assert isinstance(ours, GenerateDecoderOnlyOutput)
    assert ours.sequences.dtype == plain.sequences.dtype and ours.sequences.tolist() == plain.sequences.tolist()
    published = ends(plain.sequences, 11, eos or [])
    assert len(set(published)) == batch
    assert [key for key in ours if key != "assist_stats"] == list(plain)
    assert ours.sequences.shape[1] - 11 == len(ours.scores) == len(ours.logits)
    for name in ("scores", "logits", "hidden_states", "attentions"):
        assert_same_steps(getattr(ours, name), getattr(plain, name), published)
    assert (plain.attentions[1] == () or plain.attentions[1][0] is None) == (attention == "sdpa")
    assert not torch.equal(ours.scores[0], ours.logits[0])


@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("architecture", ["mistral", "gemma3"])
def test_attentions_over_a_cache_that_keeps_everything(architecture, filled):
    """A `DynamicCache()` without a config does not know of windows, so attention has entries beyond them, all zero."""
    models, inputs = pair(architecture, "eager"), prompts([11, 4])

    def run(decode):
        given, cache = inputs, DynamicCache()
        if filled:
            ids = models[0].generate(**inputs, **{CACHE: cache}, max_new_tokens=5, eos_token_id=None)
            given = {
                "input_ids": ids,
                "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (0, 5), value=1),
            }
        return decode(**given, **{CACHE: cache}, **EVERYTHING, max_new_tokens=9, eos_token_id=None, do_sample=False)

    plain = run(models[0].generate)
    ours = run(lambda **given: hf_exactassist.generate(models[0], **given, assistant_model=models[1]))
    assert plain.attentions[-1][0].shape[-1] > 8
    for name in ("scores", "logits", "hidden_states", "attentions"):
        assert_same_steps(getattr(ours, name), getattr(plain, name), [9, 9])


@pytest.mark.parametrize("right", range(6))
def test_what_a_stop_takes_back_is_nowhere_in_the_output(right):
    """An EOS inside a block: row 0 holds zeros from then on, wherever in a block its stop falls."""
    target, inputs = pair()[0], prompts([6, 6])
    eos = staggered_eos(target, inputs, STEPS)
    settings = {"do_sample": False, "max_new_tokens": STEPS, "pad_token_id": 0, **EVERYTHING}
    free = target.generate(**inputs, **settings, eos_token_id=None).sequences
    plain = target.generate(**inputs, **settings, eos_token_id=eos)
    # drafts go past the stop, since the drafter does not look for it
    drafter = ScriptedDrafter(free, lambda row, round: right if round == 0 else 5)
    decoding = hf_exactassist.AssistedDecoding(drafter, ConstantSchedule(5))
    ours = target.generate(**inputs, **settings, eos_token_id=eos, custom_generate=decoding)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    published = ends(plain.sequences, 6, eos)
    for name in ("scores", "logits", "hidden_states"):
        assert_same_steps(getattr(ours, name), getattr(plain, name), published)


def test_without_eos_rows_go_on_as_in_plain_generate():
    """Without an EOS id nothing is padding, and no entry is zero."""
    target, inputs = pair()[0], prompts([6, 3])

    def stop(ids, scores):
        return torch.tensor([ids.shape[1] >= 10, ids.shape[1] >= 17])

    settings = {"do_sample": False, "max_new_tokens": 20, "eos_token_id": None, "pad_token_id": 0, **EVERYTHING}
    plain = target.generate(**inputs, **settings, stopping_criteria=[stop])
    ours = assisted(pair(), inputs, **settings, stopping_criteria=[stop])
    assert ours.sequences.tolist() == plain.sequences.tolist() and ours.sequences.shape[1] == 17
    for name in ("scores", "logits", "hidden_states"):
        assert_same_steps(getattr(ours, name), getattr(plain, name), [11, 11])


@pytest.mark.parametrize("wanted", [(), ("output_scores",), ("output_logits", "output_hidden_states")])
def test_only_what_was_asked_for(wanted):
    flags = {name: True for name in wanted}
    target, inputs = pair()[0], prompts([5])
    plain = target.generate(**inputs, max_new_tokens=6, return_dict_in_generate=True, **flags)
    ours = assisted(pair(), inputs, max_new_tokens=6, return_dict_in_generate=True, **flags)
    assert [key for key in ours if key != "assist_stats"] == list(plain)
    # flags alone give a tensor, as there
    assert type(assisted(pair(), inputs, max_new_tokens=6, **flags)) is type(
        target.generate(**inputs, max_new_tokens=6, **flags)
    )


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("batch", [1, 3])
def test_sampled_logits_and_scores_are_the_targets(architecture, batch):
    """Against one teacher-forced forward over what was sampled; nothing impossible was drawn."""
    models, inputs = pair(architecture), prompts([7, 4, 5][:batch])
    warpers = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    output = assisted(
        models,
        inputs,
        do_sample=True,
        seed=5,
        max_new_tokens=12,
        eos_token_id=None,
        pad_token_id=0,
        **warpers,
        **EVERYTHING,
    )
    assert drafts_were_mixed(output) and len(output.scores) == len(output.logits) == 12
    ids, width = output.sequences, inputs["input_ids"].shape[1]
    mask = torch.cat([inputs["attention_mask"], ids.new_ones(batch, 12)], dim=1)
    with torch.no_grad():
        logits = models[0](ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp_min(0)).logits
    processors = models[0]._get_logits_processor(
        _prepared(models[0], {"do_sample": True, **warpers}), input_ids_seq_length=width, device="cpu"
    )
    assert len(processors) == 3
    for step in range(12):
        prefix = ids[:, : width + step]
        close(output.logits[step], logits[:, width + step - 1])
        close(output.scores[step], processors(prefix, output.logits[step].clone()))
        drawn = probabilities(output.scores[step]).gather(1, ids[:, width + step, None])
        assert (drawn > 0).all()


def _prepared(model, settings):
    config, _ = model._prepare_generation_config(None, **settings)
    return config


@pytest.mark.parametrize("normalize", [False, True])
def test_compute_transition_scores(normalize):
    target, inputs = pair()[0], prompts([6, 4, 5])
    eos = staggered_eos(target, inputs, STEPS)
    settings = {"do_sample": False, "max_new_tokens": STEPS, "eos_token_id": eos, "pad_token_id": 0}
    settings |= {"return_dict_in_generate": True, "output_scores": True}
    plain = target.generate(**inputs, **settings)
    ours = assisted(pair(), inputs, **settings)
    mine, theirs = (
        target.compute_transition_scores(out.sequences, out.scores, normalize_logits=normalize)
        for out in (ours, plain)
    )
    assert mine.shape == theirs.shape
    for row, count in enumerate(ends(plain.sequences, 6, eos)):
        close(mine[row, :count], theirs[row, :count])


def test_assist_stats_count_the_call():
    target, inputs = pair()[0], prompts([6, 4, 5])
    eos = staggered_eos(target, inputs, STEPS)
    output = assisted(
        pair(),
        inputs,
        do_sample=False,
        max_new_tokens=STEPS,
        eos_token_id=eos,
        num_assistant_tokens=3,
        return_dict_in_generate=True,
    )
    stats = output["assist_stats"]
    assert stats is output.assist_stats and isinstance(stats, hf_exactassist.AssistStats)
    assert stats.published == sum(ends(output.sequences, 6, eos))
    assert 0 < stats.accepted < stats.drafted and stats.draft_forwards > 0
    assert sum(stats.drafted_by_position) == stats.drafted and sum(stats.accepted_by_position) == stats.accepted
    assert len(stats.drafted_by_position) <= 3
    # the prefill is a round without drafts; the cache that goes back needs at most one forward more
    assert stats.rounds <= stats.target_forwards <= stats.rounds + 1
    assert cache_of(output) is not None
