"""Arguments that change the shape of a call: as in plain `generate`, or refused by name before the first token."""

import copy

import pytest
import torch
from transformers import (
    GenerationConfig,
    T5Config,
    T5ForConditionalGeneration,
)

import hf_exactassist
from tests.api.helpers import RecordingStreamer, assisted, drafts_were_mixed, pair
from tests.tiny import ARCHITECTURES, VOCABULARY, noisy, prompts, tiny


GREEDY = {"max_new_tokens": 12, "do_sample": False}
DRAFTS = ("assistant", "lookup")


def ours(models, drafting="assistant", **settings):
    target, assistant = models
    drafts = {"assistant_model": assistant} if drafting == "assistant" else {"prompt_lookup_num_tokens": 3}
    return hf_exactassist.generate(target, **settings, **drafts)


def assert_as_plain(models, drafting="assistant", **settings):
    settings = {**GREEDY, **settings}
    plain = models[0].generate(**settings)
    assert ours(models, drafting, **settings).tolist() == plain.tolist()
    return plain


# --- prompts ---


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("drafting", DRAFTS)
def test_prompts_of_one_token(architecture, drafting):
    assert_as_plain(pair(architecture), drafting, **prompts([1]))
    assert_as_plain(pair(architecture), drafting, **prompts([1, 1]))
    assert_as_plain(pair(architecture), drafting, **prompts([1, 6]))


@pytest.mark.parametrize("drafting", DRAFTS)
def test_no_prompt_starts_at_bos(drafting):
    plain = assert_as_plain(pair(), drafting)
    assert plain[0, 0] == 1 and plain.shape[1] > 2


def test_prompts_without_a_mask():
    """Padding is then guessed from the pad token, as Transformers does."""
    assert_as_plain(pair(), input_ids=prompts([6, 3])["input_ids"])
    assert_as_plain(pair(), inputs=prompts([6, 3])["input_ids"], attention_mask=None)


EMPTY = {
    "no token": {"inputs": torch.zeros(1, 0, dtype=torch.long)},
    "no token, by name": {"input_ids": torch.zeros(1, 0, dtype=torch.long)},
    "no token in two rows": {"inputs": torch.zeros(2, 0, dtype=torch.long)},
    "no token, no kind": {"inputs": torch.zeros(1, 0)},
    "no row": {"inputs": torch.zeros(0, 4, dtype=torch.long)},
    "no embedding": {"inputs_embeds": torch.zeros(1, 0, 32)},
}


@pytest.mark.parametrize("drafting", DRAFTS)
@pytest.mark.parametrize("empty", EMPTY)
def test_prompts_of_nothing(empty, drafting):
    """Plain `generate` fails on them somewhere in the model."""
    with pytest.raises((RuntimeError, IndexError)):
        pair()[0].generate(**EMPTY[empty], **GREEDY)
    streamer = RecordingStreamer()
    with pytest.raises(hf_exactassist.InvalidArgument, match="prompts are empty .* BOS token"):
        ours(pair(), drafting, **EMPTY[empty], **GREEDY, streamer=streamer)
    assert not streamer.puts and streamer.ended == 1


def test_empty_ids_beside_embeddings():
    embeds = pair()[0].get_input_embeddings()(prompts([5])["input_ids"]).detach()
    assert_as_plain(pair(), input_ids=torch.zeros(1, 0, dtype=torch.long), inputs_embeds=embeds)


@pytest.mark.parametrize("masked", [True, False])
def test_rows_of_padding_alone(masked):
    """The side of the padding is not at fault."""
    ids = torch.tensor([[0, 0, 0], [4, 5, 6], [0, 0, 0]])
    mask = {"attention_mask": (ids != 0).long()} if masked else {}
    with pytest.raises(hf_exactassist.UnsupportedArgument, match=r"Rows \[0, 2\] have no token to read") as refusal:
        ours(pair(), input_ids=ids, **mask, **GREEDY)
    assert "left" not in str(refusal.value)


def test_padding_on_the_right():
    ids = torch.tensor([[7, 8, 0], [4, 5, 6]])
    with pytest.raises(hf_exactassist.UnsupportedArgument, match="pad on the left"):
        ours(pair(), input_ids=ids, attention_mask=(ids != 0).long(), **GREEDY)


@pytest.mark.parametrize("drafting", DRAFTS)
@pytest.mark.parametrize("batch", [1, 2])
def test_prompts_as_embeddings(batch, drafting):
    """Without ids the assistant does not see the prompt, and drafts from what was published."""
    inputs = prompts([6, 4][:batch])
    embeddings = pair()[0].get_input_embeddings()(inputs["input_ids"]).detach()
    settings = {"inputs_embeds": embeddings, "attention_mask": inputs["attention_mask"]}
    plain = assert_as_plain(pair(), drafting, **settings, eos_token_id=None, pad_token_id=0)
    assert plain.shape[1] == 12
    # with the ids beside them, they are returned
    both = assert_as_plain(pair(), drafting, **settings, input_ids=inputs["input_ids"])
    assert both[:, : inputs["input_ids"].shape[1]].tolist() == inputs["input_ids"].tolist()


# --- lengths and ends ---


@pytest.mark.parametrize("drafting", DRAFTS)
@pytest.mark.parametrize("k", [1, 5, 20])
@pytest.mark.parametrize("new", [1, 2, 3])
def test_exact_lengths(new, k, drafting):
    number = {"num_assistant_tokens": k} if drafting == "assistant" else {}
    output = ours(
        pair(), drafting, **prompts([5, 3]), max_new_tokens=new, do_sample=False, eos_token_id=None, **number
    )
    plain = pair()[0].generate(**prompts([5, 3]), max_new_tokens=new, do_sample=False, eos_token_id=None)
    assert output.tolist() == plain.tolist() and output.shape[1] == 5 + new


def test_the_assistant_reads_no_further_than_the_budget():
    """A draft of the remaining budget less one, and no forward for its last token (report A61)."""
    output = ours(
        pair(),
        **prompts([5]),
        max_new_tokens=5,
        do_sample=False,
        eos_token_id=None,
        num_assistant_tokens=20,
        return_dict_in_generate=True,
    )
    # the first token is the prefill's: a draft has at most three tokens, then fewer
    assert output.assist_stats.draft_forwards <= 3 + 2 + 1 and len(output.assist_stats.drafted_by_position) == 3


@pytest.mark.parametrize("drafting", DRAFTS)
@pytest.mark.parametrize("lengths", [(5,), (5, 3)], ids=str)
def test_no_eos_and_no_pad_token(drafting, lengths):
    models = copy.deepcopy(pair())
    for model in models:
        for config in (model.config, model.generation_config):
            config.eos_token_id = config.pad_token_id = None
    plain = assert_as_plain(models, drafting, **prompts(lengths))
    assert plain.shape[1] == 5 + 12


def test_max_length_and_min_length():
    assert_as_plain(pair(), **prompts([5, 3]), max_new_tokens=None, max_length=11)
    free = pair()[0].generate(**prompts([5]), **GREEDY, eos_token_id=None)
    eos = free[0, 7].item()
    assert_as_plain(pair(), **prompts([5]), eos_token_id=eos)
    forced = assert_as_plain(pair(), **prompts([5]), eos_token_id=eos, min_new_tokens=8)
    assert forced.shape[1] >= 13


# --- copies, positions, types, chunks ---


@pytest.mark.parametrize("drafting", DRAFTS)
def test_num_return_sequences(drafting):
    """Rows in the order plain `generate` gives them; greedy copies it refuses itself."""
    inputs = prompts([5, 3])
    one = pair()[0].generate(**inputs, **GREEDY)
    settings = {"max_new_tokens": 12, "num_return_sequences": 3}
    copies = ours(pair(), drafting, **inputs, **settings, do_sample=True, top_k=1)
    assert copies.tolist() == one.repeat_interleave(3, dim=0).tolist()
    with pytest.raises(ValueError, match="num_return_sequences"):
        ours(pair(), drafting, **inputs, **settings, do_sample=False)


def test_token_types_of_gpt2():
    models, inputs = pair("gpt2"), prompts([6, 4])
    types = torch.tensor([[3, 3, 4, 4, 5, 5], [0, 0, 6, 6, 7, 7]])
    plain = assert_as_plain(models, **inputs, token_type_ids=types)
    assert plain.tolist() != models[0].generate(**inputs, **GREEDY).tolist()


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_positions_of_the_users(architecture):
    inputs = prompts([6, 4])
    positions = torch.tensor([[0, 2, 4, 6, 8, 30], [0, 0, 5, 6, 7, 8]])
    plain = assert_as_plain(pair(architecture), **inputs, position_ids=positions)
    assert plain.tolist() != pair(architecture)[0].generate(**inputs, **GREEDY).tolist()


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunked_prefill(architecture, chunk):
    assert_as_plain(pair(architecture), **prompts([11]), prefill_chunk_size=chunk)
    assert_as_plain(pair(architecture), **prompts([11, 4]), prefill_chunk_size=chunk)


def test_generation_config_object():
    """It rules the call, keyword arguments beat it, and drafting settings are found in it."""
    models, inputs = pair(), prompts([5, 3])
    config = GenerationConfig(
        max_new_tokens=9, eos_token_id=None, pad_token_id=0, num_assistant_tokens=2, do_sample=False
    )
    plain = models[0].generate(**inputs, generation_config=config)
    output = assisted(models, inputs, generation_config=config, return_dict_in_generate=True)
    assert output.sequences.tolist() == plain.tolist() and plain.shape[1] == 14
    assert len(output.assist_stats.drafted_by_position) == 2
    shorter = assisted(models, inputs, generation_config=config, max_new_tokens=4)
    assert shorter.tolist() == plain[:, :9].tolist()
    lookup = GenerationConfig(max_new_tokens=9, eos_token_id=None, pad_token_id=0, prompt_lookup_num_tokens=3)
    assert hf_exactassist.generate(models[0], **inputs, generation_config=lookup).tolist() == plain.tolist()
    assert lookup.prompt_lookup_num_tokens == 3


def test_settings_in_the_targets_own_config():
    target, assistant = copy.deepcopy(pair()[0]), pair()[1]
    plain = target.generate(**prompts([5]), **GREEDY)
    target.generation_config.prompt_lookup_num_tokens = 3
    output = hf_exactassist.generate(target, **prompts([5]), **GREEDY, return_dict_in_generate=True)
    assert output.sequences.tolist() == plain.tolist() and output.assist_stats.draft_forwards == 0
    assert target.generation_config.prompt_lookup_num_tokens == 3
    target.generation_config.prompt_lookup_num_tokens = None
    target.generation_config.num_assistant_tokens = 2
    output = assisted((target, assistant), prompts([5]), **GREEDY, return_dict_in_generate=True)
    assert len(output.assist_stats.drafted_by_position) == 2


# --- refusals ---

MODE = hf_exactassist.UnsupportedDecodingMode
ARGUMENT = hf_exactassist.UnsupportedArgument
INVALID = hf_exactassist.InvalidArgument

REFUSED = {
    "beams": ({"num_beams": 2}, MODE, "num_beams=1"),
    "sampled beams": ({"num_beams": 2, "do_sample": True}, MODE, "num_beams=1"),
    "contrastive search": ({"penalty_alpha": 0.6, "top_k": 4}, MODE, "penalty_alpha"),
    "DoLa": ({"dola_layers": "low", "repetition_penalty": 1.2}, MODE, "dola_layers"),
    "ensemble": ({"assistant_ensemble_weight": 0.5}, MODE, "assistant_ensemble_weight.*leave it out"),
    "forced words": ({"force_words_ids": [[[7]]], "num_beams": 2}, MODE, "constraints"),
    "token healing": ({"token_healing": True}, ARGUMENT, "token_healing.*before the call"),
    "several devices": ({"synced_gpus": True}, ARGUMENT, "synced_gpus.*Leave it out"),
    "rows of positions": ({"position_ids": torch.arange(5).expand(3, 1, 5)}, ARGUMENT, "2-D `position_ids`"),
    "speculation type": ({"speculation_type": "dflash"}, ARGUMENT, "speculation_type.*leave it out"),
    "no drafts": ({"num_assistant_tokens": 0}, INVALID, "num_assistant_tokens.*at least 1"),
    "half a draft": ({"num_assistant_tokens": 1.5}, INVALID, "num_assistant_tokens.*whole number"),
    "schedule": ({"num_assistant_tokens_schedule": "fast"}, INVALID, "num_assistant_tokens_schedule.*heuristic"),
    "threshold": ({"assistant_confidence_threshold": 2}, INVALID, "assistant_confidence_threshold"),
    "two drafters": ({"prompt_lookup_num_tokens": 3}, INVALID, "choose one"),
    "stop strings alone": ({"stop_strings": ["a"]}, INVALID, "pass the target's tokenizer"),
}


# these are no settings of a generation config
NOT_IN_A_CONFIG = ("several devices", "rows of positions")
PLACES = [(name, "argument") for name in REFUSED]
PLACES += [(name, "generation config") for name in REFUSED if name not in NOT_IN_A_CONFIG]


@pytest.mark.parametrize("name,place", PLACES)
def test_refusals(name, place):
    """By name, with the way out in the text, and before the target has read anything."""
    settings, error, text = REFUSED[name]
    if place == "generation config":
        settings = {"generation_config": GenerationConfig(**{"max_new_tokens": 4, **settings})}
    streamer, forwards = RecordingStreamer(), []
    handle = pair()[0].register_forward_pre_hook(lambda *args: forwards.append(1))
    try:
        hf_exactassist.models.admission.require(pair()[0], "target")  # its probe's forwards do not count
        forwards.clear()
        with pytest.raises(error, match=text):
            assisted(pair(), prompts([5]), streamer=streamer, **{**settings, "max_new_tokens": 4})
    finally:
        handle.remove()
    assert not forwards and len(streamer.puts) <= 1 and streamer.ended == 1


def test_the_target_as_its_own_assistant():
    """Every draft is right: only a budget that ends a round early makes drafts go unused."""
    output = assisted((pair()[0], pair()[0]), prompts([5, 3]), **GREEDY, return_dict_in_generate=True)
    assert output.sequences.tolist() == pair()[0].generate(**prompts([5, 3]), **GREEDY).tolist()
    assert output.assist_stats.accepted == output.assist_stats.drafted > 0


@pytest.mark.parametrize("other", ["gpt2", torch.nn.Linear(2, 2)], ids=["name", "module"])
def test_an_assistant_that_cannot_generate(other):
    with pytest.raises(INVALID, match="from_pretrained"):
        assisted((pair()[0], other), prompts([5]), **GREEDY)


def t5():
    settings = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**settings, decoder_start_token_id=0)).eval()


def test_encoder_without_anything_to_read():
    with pytest.raises(hf_exactassist.InvalidArgument, match="decoder alone"):
        assisted((pair()[0], t5()), prompts([5]), **GREEDY)


# --- the assistant's own configs (upstream row 22) ---

ASSISTANTS_OWN = {
    "num_return_sequences": 3,
    "num_beams": 4,
    "stop_strings": ["a"],
    "cache_implementation": "static",
    "max_length": 3,
    "max_new_tokens": 1,
    "min_new_tokens": 50,
    "eos_token_id": [7, 8],
    "pad_token_id": 5,
    "bos_token_id": 9,
    "do_sample": True,
    "use_cache": False,
    "return_dict_in_generate": True,
    "output_attentions": True,
    "output_scores": True,
    "repetition_penalty": 3.0,
    "no_repeat_ngram_size": 1,
    "forced_eos_token_id": 2,
    "suppress_tokens": [5, 6],
    "temperature": 0.3,
    "top_k": 2,
    "top_p": 0.5,
    "max_time": 0.0,
    "prompt_lookup_num_tokens": 3,
    "assistant_early_exit": 1,
    "guidance_scale": 2.0,
    "token_healing": True,
    "prefill_chunk_size": 1,
    "penalty_alpha": 0.6,
    "assistant_ensemble_weight": 0.5,
    "is_assistant": True,
}


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("name", [*ASSISTANTS_OWN, "all"])
def test_an_assistants_generation_config_cannot_break_a_call(name, sample):
    models = pair()[0], noisy(tiny())
    values = ASSISTANTS_OWN if name == "all" else {name: ASSISTANTS_OWN[name]}
    for key, value in values.items():
        setattr(models[1].generation_config, key, value)
    before = copy.deepcopy(vars(models[1].generation_config))
    inputs = prompts([5, 3])
    if sample:
        output = assisted(models, inputs, do_sample=True, seed=1, max_new_tokens=12, eos_token_id=None, pad_token_id=0)
        assert output.shape == (2, 17)
    else:
        plain = models[0].generate(**inputs, **GREEDY)
        output = assisted(models, inputs, **GREEDY, return_dict_in_generate=True)
        assert output.sequences.tolist() == plain.tolist()
        assert drafts_were_mixed(output)
    assert vars(models[1].generation_config) == before


@pytest.mark.parametrize(
    "name,value", [("use_cache", False), ("output_attentions", True), ("output_hidden_states", True)]
)
def test_an_assistants_model_config_cannot_break_a_call(name, value):
    models = pair()[0], noisy(tiny())
    models[1].set_attn_implementation("eager")
    setattr(models[1].config, name, value)
    inputs = prompts([5, 3])
    output = assisted(models, inputs, **GREEDY, return_dict_in_generate=True)
    assert output.sequences.tolist() == models[0].generate(**inputs, **GREEDY).tolist()
    assert getattr(models[1].config, name) is value and output.hidden_states is None
