"""Three doors, one implementation, and nothing of the caller's changed (user reports A97 to A100)."""

import copy
import functools
import importlib.metadata
import inspect
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, pipeline
from transformers.generation import (
    GenerationMixin,
    LogitsProcessorList,
    MaxLengthCriteria,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
)

import hf_exactassist
from hf_exactassist import AssistedDecoding, disable, enable, is_enabled
from hf_exactassist.drafters import PromptLookupDrafter
from hf_exactassist.schedules import ConstantSchedule
from tests.api.helpers import RecordingStreamer, drafts_were_mixed, pair, toy_tokenizer
from tests.tiny import noisy, prompts, tiny


RECIPE = Path(__file__).parents[2] / "recipes" / "exact-assist"
GREEDY = {"max_new_tokens": 16, "do_sample": False}


@pytest.fixture
def own():
    """A pair of its own for a test that touches the instance."""
    return copy.deepcopy(pair()[0]), copy.deepcopy(pair()[1])


# --- enable and disable ---


def test_enabled_model_decodes_with_the_assistant(own, loops):
    target, assistant = own
    inputs = prompts([5, 9, 3])
    plain = target.generate(**inputs, **GREEDY)
    assert enable(target) is target and is_enabled(target)
    output = target.generate(**inputs, **GREEDY, assistant_model=assistant, return_dict_in_generate=True)
    assert output.sequences.tolist() == plain.tolist()
    assert drafts_were_mixed(output) and len(loops) == 1


def test_enable_and_disable_are_idempotent(own):
    target, before = own[0], set(own[0].__dict__)
    enable(target)
    first = target.generate
    enable(target)
    assert target.generate == first
    disable(target)
    disable(target)
    assert not is_enabled(target)
    assert target.generate.__func__ is GenerationMixin.generate
    assert set(target.__dict__) == before


def test_disable_leaves_a_model_alone_that_was_not_enabled(own):
    own[0].generate = replaced = lambda *args, **kwargs: "mine"
    disable(own[0])
    assert own[0].generate is replaced


def test_enable_asks_for_a_model_that_can_generate(own):
    for other in (own[0].model, torch.nn.Linear(2, 2), "gpt2"):
        with pytest.raises(hf_exactassist.InvalidArgument, match="can generate"):
            enable(other)


def hub_function(model, inputs=None, **kwargs):
    return "hub", inputs, kwargs


def test_an_instance_level_generate_is_kept_and_restored(own, loops):
    """As `from_pretrained(repo, trust_remote_code=True)` sets it; without an assistant it still answers."""
    target, assistant = own
    target.generate = original = functools.partial(hub_function, model=target)
    ids = prompts([4])["input_ids"]
    enable(target)
    enable(target)
    assert target.generate(inputs=ids, top_k=3) == ("hub", ids, {"top_k": 3})
    # the partial itself cannot be called so: better than before
    assert target.generate(ids, top_k=3) == ("hub", ids, {"top_k": 3})
    assert target.generate(input_ids=ids) == ("hub", None, {"input_ids": ids})
    assert not loops
    target.generate(ids, **GREEDY, assistant_model=assistant)
    assert len(loops) == 1
    disable(target)
    assert target.generate is original


def test_positional_prompts(own, loops):
    target, assistant = own
    ids = prompts([6])["input_ids"]
    plain = target.generate(ids, **GREEDY)
    enable(target)
    assert target.generate(ids, **GREEDY).tolist() == plain.tolist()
    assert not loops
    assert target.generate(ids, GenerationConfig(**GREEDY), assistant_model=assistant).tolist() == plain.tolist()
    assert len(loops) == 1


def test_a_deep_copy_is_bound_to_the_copy(own):
    target, assistant = own
    enable(target)
    other = copy.deepcopy(target)
    with torch.no_grad():
        other.lm_head.weight.copy_(other.lm_head.weight.roll(1, dims=0))
    assert other.generate.args == (other,) and target.generate.args == (target,)
    inputs = prompts([5])
    plain = GenerationMixin.generate(other, **inputs, **GREEDY)
    assert plain.tolist() != GenerationMixin.generate(target, **inputs, **GREEDY).tolist()
    assert other.generate(**inputs, **GREEDY, assistant_model=assistant).tolist() == plain.tolist()
    disable(other)
    assert is_enabled(target) and not is_enabled(other)


def callable_loop(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
    return "theirs"


LEFT_ALONE = {
    "no assistant": {"max_new_tokens": 3},
    "sampling": {"do_sample": True, "temperature": 0.7, "max_new_tokens": 3},
    "early exit": {"assistant_early_exit": 1, "max_new_tokens": 3},
    "early exit in the config": {"generation_config": GenerationConfig(assistant_early_exit=1, max_new_tokens=3)},
    "MTP": {"use_mtp": True, "max_new_tokens": 3},
    "callable": {"custom_generate": callable_loop, "max_new_tokens": 3},
    "repository": {"custom_generate": "someone/recipe", "trust_remote_code": True},
}


# with an assistant, the first two would be this library's
CASES = [(name, False) for name in LEFT_ALONE] + [(name, True) for name in list(LEFT_ALONE)[2:]]


@pytest.mark.parametrize("name,with_assistant", CASES)
def test_other_calls_reach_transformers_unchanged(own, name, with_assistant, loops):
    target, assistant = own
    given = dict(LEFT_ALONE[name])
    if with_assistant:
        given["assistant_model"] = assistant
    seen = []
    target.generate = lambda *args, **kwargs: seen.append((args, kwargs))
    ids = prompts([4])["input_ids"]
    enable(target)
    target.generate(ids, **given)
    target.generate(input_ids=ids, **given)
    assert seen == [((ids,), given), ((), {"input_ids": ids, **given})]
    assert not loops


@pytest.mark.parametrize("name", ["no assistant", "sampling", "early exit", "callable"])
def test_other_calls_give_what_transformers_gives(own, name, loops):
    target, _ = own
    inputs = prompts([4])

    def answer():
        torch.manual_seed(3)
        output = target.generate(**inputs, **LEFT_ALONE[name])
        return output if isinstance(output, str) else output.tolist()

    plain = answer()
    enable(target)
    assert answer() == plain
    assert not loops


def test_own_arguments_are_not_dropped_in_silence(own):
    """Without an assistant `seed` would fix nothing, so Transformers refuses it as any name it does not know."""
    for name, value in (("seed", 3), ("generator", torch.Generator()), ("row_ids", [0])):
        with pytest.raises(ValueError, match=name):
            hf_exactassist.generate(own[0], **prompts([4]), do_sample=True, max_new_tokens=3, **{name: value})


# --- the function and the loop object ---


def test_the_function_door(loops):
    target, assistant = pair()
    inputs = prompts([5, 9, 3])
    plain = target.generate(**inputs, **GREEDY)
    assert hf_exactassist.generate(target, **inputs, **GREEDY).tolist() == plain.tolist()
    assert not loops
    ours = hf_exactassist.generate(target, **inputs, **GREEDY, assistant_model=assistant)
    lookup = hf_exactassist.generate(target, **inputs, **GREEDY, prompt_lookup_num_tokens=3)
    assert ours.tolist() == lookup.tolist() == plain.tolist()
    assert len(loops) == 2
    assert not is_enabled(target) and "generate" not in target.__dict__


def test_the_function_has_the_parameters_of_generate():
    """A positional argument means the same through every door."""
    ours = list(inspect.signature(hf_exactassist.generate).parameters)
    theirs = list(inspect.signature(GenerationMixin.generate).parameters)
    assert ours[: len(theirs) - 1] == ["model", *theirs[1:-1]]


@pytest.mark.parametrize("enabled", [False, True])
def test_the_loop_as_custom_generate(own, enabled, loops):
    target, _ = own
    inputs = prompts([5, 9])
    plain = target.generate(**inputs, **GREEDY)
    if enabled:
        enable(target)
    decoding = AssistedDecoding(PromptLookupDrafter(3), ConstantSchedule(3))
    for _ in range(2):  # an object can be used again
        assert target.generate(**inputs, **GREEDY, custom_generate=decoding).tolist() == plain.tolist()
    assert loops == [decoding] * 2


# --- the recipe ---


@pytest.fixture
def recipe():
    try:
        importlib.metadata.version("hf-exactassist")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("Transformers checks the recipe's requirement, and the package is not installed")
    return {"custom_generate": str(RECIPE), "trust_remote_code": True}


@pytest.mark.parametrize("enabled", [False, True])
def test_the_recipe(own, recipe, enabled, loops):
    target, assistant = own
    inputs = prompts([5, 9, 3])
    plain = target.generate(**inputs, **GREEDY)
    if enabled:
        enable(target)
    streamer = RecordingStreamer()
    output = target.generate(
        **inputs, **GREEDY, **recipe, assistant_model=assistant, streamer=streamer, return_dict_in_generate=True
    )
    assert output.sequences.tolist() == plain.tolist()
    assert drafts_were_mixed(output) and len(loops) == 1
    assert streamer.ended == 1 and len(streamer.puts) == 1 + plain.shape[1] - inputs["input_ids"].shape[1]
    # without an assistant, Transformers decodes
    assert target.generate(**inputs, **GREEDY, **recipe).tolist() == plain.tolist()
    assert len(loops) == 1


@pytest.mark.parametrize("enabled", [False, True])
def test_the_recipes_own_arguments(own, recipe, enabled):
    target, assistant = own
    settings = {"do_sample": True, "max_new_tokens": 12, "assistant_model": assistant, "seed": 4, "row_ids": [7]}
    expected = hf_exactassist.generate(target, **prompts([5]), **settings)
    if enabled:
        enable(target)
    torch.manual_seed(0)
    first = target.generate(**prompts([5]), **settings, **recipe)
    second = target.generate(**prompts([5]), **settings, **recipe)
    assert first.tolist() == second.tolist() == expected.tolist()


def test_the_recipe_has_the_form_of_a_hub_repository():
    card = (RECIPE / "README.md").read_text()
    _, front_matter, body = card.split("---\n", 2)
    assert "library_name: transformers" in front_matter and "custom_generate" in front_matter
    sections = [line[3:] for line in body.splitlines() if line.startswith("## ")]
    assert sections == [
        "Description",
        "Base model",
        "Model compatibility",
        "Additional Arguments",
        "Output Type changes",
        "Example usage",
    ]
    # neither spaces nor a second specifier: Transformers does not read pip's grammar
    requirements = (RECIPE / "custom_generate" / "requirements.txt").read_text()
    assert requirements == "hf-exactassist>=0.1\n"


def test_recipes_are_leaves():
    code = (RECIPE.parent / "__init__.py").read_text()
    with pytest.raises(ModuleNotFoundError, match="custom_generate"):
        exec(compile(code, "recipes/__init__.py", "exec"), {})


# --- arguments arrive ---


def test_an_unknown_argument_raises_transformers_own_error(own):
    target, assistant = own
    with pytest.raises(ValueError) as plain:
        target.generate(**prompts([4]), max_new_tokens=3, no_such_argument=1)
    with pytest.raises(ValueError) as ours:
        hf_exactassist.generate(
            target, **prompts([4]), max_new_tokens=3, no_such_argument=1, assistant_model=assistant
        )
    assert str(ours.value) == str(plain.value)


@pytest.fixture(params=["function", "enabled", "recipe"])
def door(request, own):
    """`call(**kwargs)` through each of the doors."""
    target, assistant = own
    if request.param == "function":
        return functools.partial(hf_exactassist.generate, target, assistant_model=assistant)
    if request.param == "enabled":
        return functools.partial(enable(target).generate, assistant_model=assistant)
    return functools.partial(target.generate, assistant_model=assistant, **request.getfixturevalue("recipe"))


def test_the_tokenizer_arrives(door):
    target, tokenizer, inputs = pair()[0], toy_tokenizer(), prompts([5])
    free = target.generate(**inputs, **GREEDY)
    stop = [tokenizer.convert_ids_to_tokens(free[0, 11].item())]
    plain = target.generate(**inputs, **GREEDY, stop_strings=stop, tokenizer=tokenizer)
    assert 5 < plain.shape[1] < free.shape[1]
    assert door(**inputs, **GREEDY, stop_strings=stop, tokenizer=tokenizer).tolist() == plain.tolist()


def test_an_explicit_none_arrives(door, own):
    """It is the only thing that beats the model's own config."""
    target, inputs = pair()[0], prompts([5])
    free = target.generate(**inputs, **GREEDY, eos_token_id=None)
    own[0].generation_config.eos_token_id = free[0, 9].item()
    assert door(**inputs, **GREEDY).shape[1] < free.shape[1]
    assert door(**inputs, **GREEDY, eos_token_id=None).tolist() == free.tolist()


def test_the_streamer_arrives(door):
    streamer = RecordingStreamer()
    output = door(**prompts([5]), **GREEDY, streamer=streamer)
    assert torch.cat([value.reshape(-1) for value in streamer.puts]).tolist() == output[0].tolist()
    assert streamer.ended == 1


def test_the_assistant_tokenizer_arrives(door):
    settings = {**prompts([5]), **GREEDY, "tokenizer": toy_tokenizer()}
    with pytest.raises(hf_exactassist.DifferentVocabularies, match="does not say what bytes"):
        door(**settings, assistant_tokenizer=toy_tokenizer(swapped=True))
    plain = pair()[0].generate(**prompts([5]), **GREEDY)
    assert door(**settings, assistant_tokenizer=toy_tokenizer()).tolist() == plain.tolist()


# --- pipelines ---


CHAT = (
    "{% for message in messages %}{{ 'w10 ' if message['role'] == 'user' else 'w11 ' }}{{ message['content'] }} "
    "{% endfor %}{% if add_generation_prompt %}w11{% endif %}"
)


def test_pipeline_in_batches(own, loops):
    target, assistant = own
    tokenizer = toy_tokenizer()
    texts = ["w5 w6 w7 w8 w9", "w30 w31", "w40 w41 w42 w43", "w50"]
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)(texts, batch_size=2, **GREEDY)
    assert not loops
    generator = pipeline("text-generation", model=enable(target), tokenizer=tokenizer, assistant_model=assistant)
    assert generator(texts, batch_size=2, **GREEDY) == plain
    assert len(loops) == 2  # four texts, two at a time
    assert all(loop.drafter.model is assistant for loop in loops)


def test_pipeline_with_a_chat(own, loops):
    target, assistant = own
    tokenizer = toy_tokenizer(chat_template=CHAT)
    chat = [{"role": "user", "content": "w20 w21 w22"}]
    plain = pipeline("text-generation", model=target, tokenizer=tokenizer)(chat, **GREEDY)
    generator = pipeline("text-generation", model=enable(target), tokenizer=tokenizer, assistant_model=assistant)
    answer = generator(chat, **GREEDY)
    assert answer == plain and len(loops) == 1
    assert answer[0]["generated_text"][-1]["role"] == "assistant"


# --- the caller's objects ---


def snapshot(model):
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    held = {name: copy.deepcopy(vars(part)) for name, part in (("c", model.config), ("g", model.generation_config))}
    return weights, held, set(model.__dict__), model.training


def assert_unchanged(model, before):
    after = snapshot(model)
    assert after[0].keys() == before[0].keys()
    assert all(torch.equal(after[0][name], value) for name, value in before[0].items())
    assert repr(after[1]) == repr(before[1]) and after[2:] == before[2:]


def fails_at_ten_columns(input_ids, scores):
    if input_ids.shape[1] == 10:
        raise ZeroDivisionError
    return torch.zeros(len(input_ids), dtype=torch.bool)


CALLS = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 20},
    "outputs": {"return_dict_in_generate": True, "output_scores": True, "output_hidden_states": True},
    "heuristic": {"num_assistant_tokens_schedule": "heuristic", "num_assistant_tokens": 2},
    "refused": {"num_beams": 2},
    "fails": {"stopping_criteria": StoppingCriteriaList([fails_at_ten_columns])},
}


@pytest.mark.parametrize("name", CALLS)
def test_nothing_of_the_callers_is_changed(name):
    target, assistant = tiny(), noisy(tiny())
    target.generation_config.prompt_lookup_num_tokens = None
    target.generation_config.repetition_penalty = 1.1
    assistant.generation_config.num_assistant_tokens = 3
    tokenizer = toy_tokenizer()
    config = GenerationConfig(max_new_tokens=10, stop_strings=["w77 w77"], pad_token_id=0, eos_token_id=[2, 9])
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.2)])
    criteria = StoppingCriteriaList([MaxLengthCriteria(15)])
    inputs, eos = prompts([4, 7]), config.eos_token_id
    settings = {"logits_processor": processors, "stopping_criteria": criteria, **CALLS[name]}
    criteria = settings["stopping_criteria"]
    lists, rules = (list(processors), list(criteria)), [vars(processors[0]).copy()]
    before = [snapshot(model) for model in (target, assistant)], repr(vars(config)), copy.deepcopy(inputs)
    vocabulary = tokenizer.get_vocab()
    try:
        hf_exactassist.generate(
            target, **inputs, generation_config=config, tokenizer=tokenizer, assistant_model=assistant, **settings
        )
        assert name not in ("refused", "fails")
    except (hf_exactassist.UnsupportedDecodingMode, ZeroDivisionError):
        assert name in ("refused", "fails")
    assert_unchanged(target, before[0][0])
    assert_unchanged(assistant, before[0][1])
    assert repr(vars(config)) == before[1] and config.eos_token_id is eos
    assert all(torch.equal(inputs[key], before[2][key]) for key in inputs)
    assert (list(processors), list(criteria)) == lists and [vars(processors[0])] == rules
    assert tokenizer.get_vocab() == vocabulary and tokenizer.padding_side == "left"
