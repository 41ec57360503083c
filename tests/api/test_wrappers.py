"""Models wrapped by PEFT or `torch.compile` work through every door as they do in Transformers; others are refused."""

import copy
import functools

import pytest
import torch
from transformers import GenerationConfig, pipeline

import hf_exactassist
from hf_exactassist import disable, enable, errors, is_enabled
from hf_exactassist.models import identity
from tests.api.helpers import RecordingStreamer, drafts_were_mixed, pair, toy_tokenizer
from tests.tiny import noisy, prompts, tiny


GREEDY = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
INPUTS = prompts([5, 9, 3])
# what PEFT asks of models when it wraps them
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def adapted(model, seed=0, **settings):
    """A PEFT model with random adapters that change the text."""
    peft = pytest.importorskip("peft")
    settings = {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, **settings}
    torch.manual_seed(seed)
    return peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()


def with_noise(wrapper):
    """An assistant for a PEFT model: the same with noise on every weight."""
    return noisy(wrapper, 0.05)


@pytest.fixture
def lora():
    return adapted(tiny())


def contents(wrapper):
    """What a call could leave behind."""
    parts = {name: (part, set(vars(part))) for name, part in wrapper.named_modules()}
    config = wrapper.generation_config
    return parts, config, copy.deepcopy(vars(config)), [len(part._forward_pre_hooks) for part in wrapper.modules()]


# --- PEFT: one way in, three doors


@pytest.mark.parametrize("role", ["target", "assistant", "both"])
@pytest.mark.parametrize("door", ["function", "enabled", "enabled inside", "session"])
def test_adapters_in_the_layers(lora, door, role, loops):
    plain_model, target, assistant = tiny(), lora, with_noise(lora)
    if role == "target":
        assistant = with_noise(lora).merge_and_unload()
    if role == "assistant":
        target = copy.deepcopy(lora).merge_and_unload()
    expected = target.generate(**INPUTS, **GREEDY)
    assert expected.tolist() != plain_model.generate(**INPUTS, **GREEDY).tolist()
    held = contents(target), contents(assistant)
    call = {**INPUTS, **GREEDY, "assistant_model": assistant, "return_dict_in_generate": True}
    if door == "function":
        output = hf_exactassist.generate(target, **call)
    elif door == "session":
        output = hf_exactassist.start(target, **call).result()
    else:
        outer = target.get_base_model() if door == "enabled inside" and role != "assistant" else target
        assert enable(outer) is outer and is_enabled(outer)
        output = target.generate(**call)
        assert target.generate(**INPUTS, **GREEDY).tolist() == expected.tolist()
        disable(outer)
        assert not is_enabled(outer)
    assert output.sequences.tolist() == expected.tolist()
    assert drafts_were_mixed(output) and len(loops) == (door != "session")
    if door != "enabled inside":
        assert (contents(target), contents(assistant)) == held


def test_enabling_touches_the_wrapper_alone(lora):
    before = set(vars(lora))
    enable(lora)
    enable(lora)
    assert is_enabled(lora) and not is_enabled(lora.get_base_model())
    other = copy.deepcopy(lora)
    assert is_enabled(other) and other.generate.args == (other,)
    disable(lora)
    disable(lora)
    assert set(vars(lora)) == before and is_enabled(other)
    assert lora.generate.__func__ is type(lora).generate


def test_what_was_kept_of_the_model_inside_is_not_taken_for_the_wrappers(lora, loops):
    """PEFT's objects answer for the model inside where they have no such attribute."""
    lora.get_base_model().generate = lambda *args, **kwargs: set(kwargs)
    enable(lora.get_base_model())
    enable(lora)
    # PEFT keeps `adapter_names` to itself
    names = {"adapter_names": ["default", "__base__", "default"]}
    assert lora.generate(**INPUTS, **GREEDY, **names) == {*INPUTS, *GREEDY}
    output = lora.generate(**INPUTS, **GREEDY, assistant_model=with_noise(lora))
    assert len(loops) == 1 and output.shape == (3, 25)
    disable(lora)
    disable(lora.get_base_model())
    assert lora.generate(**INPUTS, **GREEDY, **names) == {*INPUTS, *GREEDY}


def test_switched_and_disabled_adapters(lora):
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    lora.add_adapter("other", peft.LoraConfig(target_modules=["k_proj"], init_lora_weights=False))
    assistant, seen = with_noise(lora), []
    call = functools.partial(hf_exactassist.generate, lora, **INPUTS, **GREEDY, assistant_model=assistant)
    for name in ("default", "other", "default"):
        lora.set_adapter(name)
        assistant.set_adapter(name)
        seen.append((call().tolist(), identity.describe(lora.get_base_model())))
        assert seen[-1][0] == lora.generate(**INPUTS, **GREEDY).tolist()
    with lora.disable_adapter():
        seen.append((call().tolist(), identity.describe(lora.get_base_model())))
        assert seen[-1][0] == tiny().generate(**INPUTS, **GREEDY).tolist()
    assert seen[0] == seen[2] and seen[0][0] != seen[1][0]
    assert len({str(fields) for _, fields in seen}) == 3


def test_an_adapter_switched_within_a_session_is_noticed(lora):
    session = hf_exactassist.start(lora, **INPUTS, **GREEDY, assistant_model=with_noise(lora))
    session.step()
    with lora.disable_adapter(), pytest.raises(errors.AdaptersChanged, match="disabled is true now"):
        session.step()


def test_adapters_around_adapters():
    peft = pytest.importorskip("peft")
    inner = adapted(tiny())
    with pytest.warns(UserWarning):
        outer = adapted(inner, seed=2, target_modules=["k_proj"])
    assert type(outer.base_model.model) is peft.PeftModelForCausalLM
    expected = outer.generate(**INPUTS, **GREEDY)
    output = hf_exactassist.generate(outer, **INPUTS, **GREEDY, assistant_model=with_noise(outer))
    assert output.tolist() == expected.tolist()


KINDS = {
    "IA3": {"target_modules": ["k_proj"], "feedforward_modules": []},
    "AdaLora": {"target_modules": ["q_proj"], "total_step": 9},
    "AdaptionPrompt": {"adapter_len": 3, "adapter_layers": 2},
    "TrainableTokens": {"target_modules": ["embed_tokens"], "token_indices": [61, 68]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_adapters_in_the_layers(kind):
    peft = pytest.importorskip("peft")
    config = getattr(peft, f"{kind}Config")(task_type="CAUSAL_LM", **KINDS[kind])
    wrapper = peft.get_peft_model(tiny(), config).eval()
    with torch.no_grad():
        for parameter in wrapper.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    expected = wrapper.generate(**INPUTS, **GREEDY)
    assert expected.tolist() != tiny().generate(**INPUTS, **GREEDY).tolist()
    output = hf_exactassist.generate(wrapper, **INPUTS, **GREEDY, assistant_model=noisy(wrapper.get_base_model()))
    assert output.tolist() == expected.tolist()


def test_mixed_adapters():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    wrapper = peft.PeftMixedModel(tiny(), peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)).eval()
    expected = wrapper.generate(**INPUTS, **GREEDY)
    assert hf_exactassist.generate(wrapper, **INPUTS, **GREEDY, assistant_model=tiny()).tolist() == expected.tolist()


def test_a_generation_config_of_the_wrappers_own(lora):
    """PEFT's `generate` hands it to the model inside for good; here the model gets its own back."""
    free = lora.generate(**INPUTS, **GREEDY)
    inside = lora.get_base_model()
    own = inside.generation_config
    lora.generation_config = GenerationConfig(max_new_tokens=7, eos_token_id=free[1, 12].item(), pad_token_id=0)
    output = hf_exactassist.generate(lora, **INPUTS, assistant_model=with_noise(lora))
    assert inside.generation_config is own
    lookup = copy.deepcopy(lora)
    lookup.generation_config.prompt_lookup_num_tokens = 2
    assert hf_exactassist.generate(lookup, **INPUTS).tolist() == output.tolist()
    assert output.tolist() == lora.generate(**INPUTS).tolist()
    inside.generation_config = own
    with pytest.raises(hf_exactassist.UnsupportedDecodingMode):
        hf_exactassist.generate(lora, **INPUTS, prompt_lookup_num_tokens=2, num_beams=2)
    assert inside.generation_config is own


def test_an_assistants_settings_are_its_wrappers(lora):
    assistant = with_noise(lora)
    assistant.generation_config = copy.deepcopy(assistant.generation_config)
    assistant.generation_config.num_assistant_tokens = 1
    call = {**INPUTS, **GREEDY, "assistant_model": assistant, "return_dict_in_generate": True}
    output = hf_exactassist.generate(lora, **call)
    assert output.assist_stats.drafted <= 3 * output.assist_stats.rounds


# --- PEFT: what only the wrapper computes


PROMPTS = {
    "PrefixTuning": "PREFIX_TUNING",
    "PromptTuning": "PROMPT_TUNING",
    "PromptEncoder": "P_TUNING",
}


def learned_prompt(model, kind):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = getattr(peft, f"{kind}Config")(task_type="CAUSAL_LM", num_virtual_tokens=3)
    wrapper = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for parameter in wrapper.prompt_encoder.parameters():
            parameter.add_(torch.randn_like(parameter))
    return wrapper


@pytest.mark.parametrize("kind", PROMPTS)
def test_learned_prompts_are_refused_by_name(kind):
    wrapper, streamer = learned_prompt(tiny(), kind), RecordingStreamer()
    for call in (hf_exactassist.generate, hf_exactassist.start):
        with pytest.raises(hf_exactassist.UnsupportedArchitecture, match=f"target.*{PROMPTS[kind]}.*Drop the assist"):
            call(wrapper, **prompts([5]), **GREEDY, assistant_model=tiny(), streamer=streamer)
    assert streamer.puts == [] and streamer.ended
    with pytest.raises(hf_exactassist.UnsupportedArchitecture, match=f"assistant.*{PROMPTS[kind]}"):
        hf_exactassist.generate(tiny(), **prompts([5]), **GREEDY, assistant_model=wrapper)
    # without an assistant the enabled wrapper is PEFT's own
    expected = wrapper.generate(**prompts([5]), **GREEDY)
    assert enable(wrapper).generate(**prompts([5]), **GREEDY).tolist() == expected.tolist()
    with wrapper.disable_adapter():
        output = wrapper.generate(**INPUTS, **GREEDY, assistant_model=pair()[1])
        assert output.tolist() == tiny().generate(**INPUTS, **GREEDY).tolist()


@pytest.mark.parametrize("kind", PROMPTS)
def test_learned_prompts_around_an_enabled_model(kind):
    """PEFT patches the model for its own `generate`, after a call that has shown the model fit for blocks."""
    model, assistant = enable(tiny()), pair()[1]
    model.generate(**INPUTS, **GREEDY, assistant_model=assistant)
    wrapper = learned_prompt(model, kind)
    for inputs in (prompts([5]), INPUTS):
        with pytest.raises(hf_exactassist.UnsupportedArchitecture, match="PEFT puts.*Drop the assistant"):
            wrapper.generate(**inputs, **GREEDY, assistant_model=assistant)
    # nothing is left behind
    output = model.generate(**INPUTS, **GREEDY, assistant_model=assistant)
    assert output.tolist() == tiny().generate(**INPUTS, **GREEDY).tolist()


def test_what_peft_takes_for_each_row_is_refused(lora):
    call = {**INPUTS, **GREEDY, "adapter_names": ["default", "__base__", "default"]}
    expected = lora.generate(**call)
    with pytest.raises(hf_exactassist.UnsupportedArgument, match="adapter_names.*set_adapter"):
        hf_exactassist.generate(lora, **call, assistant_model=with_noise(lora))
    assert enable(lora).generate(**call).tolist() == expected.tolist()
    # through the model inside, PEFT's hooks are in place: probes see them
    disable(lora)
    enable(lora.get_base_model()).generate(**INPUTS, **GREEDY, assistant_model=tiny())
    with pytest.raises(hf_exactassist.ExactAssistError):
        lora.generate(**call, assistant_model=tiny())


def test_activated_lora_is_refused():
    wrapper = adapted(tiny(), alora_invocation_tokens=[7, 8])
    with pytest.raises(hf_exactassist.UnsupportedArchitecture, match="activated LoRA"):
        hf_exactassist.generate(wrapper, **INPUTS, **GREEDY, assistant_model=tiny())


def test_wrappers_that_compute_outside_the_model_are_refused(lora, monkeypatch):
    """As X-LoRA, whose forward runs the model twice."""
    tuner = type(lora.base_model)
    monkeypatch.setattr(tuner, "forward", lambda self, *args, **kwargs: self.model(*args, **kwargs))
    with pytest.raises(hf_exactassist.UnsupportedArchitecture, match="LORA computes outside"):
        hf_exactassist.generate(lora, **INPUTS, **GREEDY, assistant_model=tiny())


def test_a_pipeline_around_a_peft_model(lora, loops):
    texts, tokenizer = ["w5 w6 w7 w8 w9", "w30 w31"], toy_tokenizer()
    settings = {"batch_size": 2, "max_new_tokens": 12, "do_sample": False}
    plain = pipeline("text-generation", model=lora, tokenizer=tokenizer)(texts, **settings)
    assistant = with_noise(lora)
    assisted = pipeline("text-generation", model=enable(lora), tokenizer=tokenizer, assistant_model=assistant)
    assert assisted(texts, **settings) == plain and len(loops) == 1


# --- torch.compile


@pytest.mark.parametrize("role", ["target", "assistant"])
@pytest.mark.parametrize("door", ["function", "enabled", "session"])
def test_compiled_models(door, role, loops):
    """Plain `compiled.generate` runs the module that was given to `torch.compile`, and so does this library."""
    target, assistant = tiny(), pair()[1]
    plain = target.generate(**INPUTS, **GREEDY)
    if role == "target":
        target = torch.compile(target)
        assert target.generate.__self__ is target._orig_mod
    else:
        assistant = torch.compile(assistant)
    call = {**INPUTS, **GREEDY, "assistant_model": assistant, "return_dict_in_generate": True}
    if door == "function":
        output = hf_exactassist.generate(target, **call)
    elif door == "session":
        output = hf_exactassist.start(target, **call).result()
    else:
        assert enable(target) is target and is_enabled(target)
        output = target.generate(**call)
        assert target.generate(**INPUTS, **GREEDY).tolist() == plain.tolist()
        disable(target)
        assert not is_enabled(target)
    assert output.sequences.tolist() == plain.tolist() and drafts_were_mixed(output)
    assert len(loops) == (door != "session")


def test_compiled_models_with_adapters(lora):
    compiled, assistant = torch.compile(lora), with_noise(lora)
    expected = lora.generate(**INPUTS, **GREEDY)
    call = {**INPUTS, **GREEDY, "assistant_model": torch.compile(assistant)}
    assert hf_exactassist.generate(compiled, **call).tolist() == expected.tolist()
    enable(compiled)
    assert is_enabled(lora) and compiled.generate(**call).tolist() == expected.tolist()
    disable(lora)
    assert not is_enabled(compiled)


# --- other objects


@pytest.mark.parametrize("role", ["target", "assistant"])
def test_other_objects_are_refused_by_name(role):
    for other in (torch.nn.Sequential(tiny()), torch.nn.DataParallel(tiny()), tiny().model, "gpt2"):
        models = [tiny(), other] if role == "assistant" else [other, tiny()]
        with pytest.raises(hf_exactassist.InvalidArgument, match=f"{role} must be.*got {type(other).__name__}"):
            hf_exactassist.generate(models[0], **INPUTS, **GREEDY, assistant_model=models[1])
