"""Models are admitted by their surface and probes on themselves, or refused by name before the first token.

Contract 0x06L, 0x07A; user-reports A15 and A19: what cannot be rolled back row by row is not tried.
"""

import copy
import gc
import random
import weakref

import numpy as np
import pytest
import torch
import transformers as hf

import hf_exactassist
from hf_exactassist import UnsupportedArchitecture
from hf_exactassist.models import admission, probes
from tests.tiny import ARCHITECTURES, VOCABULARY, noisy, prompts, tiny


SETTINGS = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 4}
IDS = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BERT = {
    **IDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "is_decoder": True,
    "initializer_range": 0.3,
}


def built(model, config, **settings):
    torch.manual_seed(0)
    return getattr(hf, model)(getattr(hf, config)(**settings)).eval()


def gpt_neo(window):
    sizes = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
    }
    kinds = {"attention_types": [[["global", "local"], 1]], "window_size": window}
    return built("GPTNeoForCausalLM", "GPTNeoConfig", **IDS, **sizes, **kinds)


SEQ2SEQ = {**IDS, "d_model": 32, "decoder_start_token_id": 1}
BART = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
MAMBA = {**IDS, "hidden_size": 32, "num_hidden_layers": 2}
LLAMA4 = {
    **IDS,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "intermediate_size_mlp": 32,
    "num_local_experts": 1,
    "head_dim": 8,
}
# model, how it is run, and why not in ragged rows
LONE = {
    "bloom": (
        lambda: built("BloomForCausalLM", "BloomConfig", **IDS, hidden_size=32, n_layer=2, n_head=4),
        "row by row",
        "position_ids",
    ),
    # the window of the second is far beyond what a probe reads
    "gpt_neo": (lambda: gpt_neo(4), "row by row", "local_attention"),
    "gpt_neo, wide": (lambda: gpt_neo(256), "row by row", "local_attention"),
    "mamba": (lambda: built("MambaForCausalLM", "MambaConfig", **MAMBA), "serial", "recurrent state"),
    "roformer": (lambda: built("RoFormerForCausalLM", "RoFormerConfig", **BERT), "row by row", "position_ids"),
    "roberta": (
        lambda: built("RobertaForCausalLM", "RobertaConfig", **BERT),
        "row by row",
        "differ from rows scored alone",
    ),
    "chunked attention": (
        lambda: built("Llama4ForCausalLM", "Llama4TextConfig", **LLAMA4),
        "row by row",
        "chunked_attention",
    ),
    "t5": (
        lambda: built("T5ForConditionalGeneration", "T5Config", **SEQ2SEQ, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
        "row by row",
        "encoder",
    ),
    "bart": (
        lambda: built(
            "BartForConditionalGeneration", "BartConfig", **SEQ2SEQ, **BART, encoder_layers=1, decoder_layers=1
        ),
        "row by row",
        "encoder",
    ),
}


class OwnGenerate(hf.LlamaForCausalLM):
    """Stands for classes that make speech or pictures of what they generate."""

    def generate(self, *args, **kwargs):
        return super().generate(*args, **kwargs)


def own_generate():
    return OwnGenerate(tiny().config).eval()


RECURRENT = {**IDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "lru_width": 32}
# model, and what its refusal says
REFUSED = {
    "own generate": (own_generate, "`generate` of its own"),
    "state in modules": (
        lambda: built("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", **RECURRENT, intermediate_size=64),
        "keeps its state in its modules",
    ),
}
LAYERS = {
    "mistral": {"sliding attention (8)": 2},
    "gemma3": {"sliding attention (8)": 1, "full attention": 1},
}


def forwards(model):
    """Counts the model's forwards from here on."""
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.parametrize(
    "attention, dtype",
    [
        ("sdpa", torch.float32),
        ("sdpa", torch.bfloat16),
        ("sdpa", torch.float64),
        ("eager", torch.float32),
        ("eager", torch.bfloat16),
    ],
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_models_that_score_ragged_blocks_are_admitted(architecture, attention, dtype):
    model = tiny(architecture).to(dtype)
    model.set_attn_implementation(attention)
    answer = admission.admit(model)
    assert answer == admission.Admission(True, "", attention)
    assert admission.cache_layers(model, answer) == LAYERS.get(architecture, {"full attention": 2})
    admission.require(model, "target")


def test_float64_on_the_eager_path_runs_rows_alone_since_padding_breaks_it_in_transformers():
    """Its softmax is float32, where the float64 mask of a padding query is -inf throughout: 0 x NaN follows."""
    model = tiny().double()
    model.set_attn_implementation("eager")
    plain = model.generate(**prompts([3, 6]), **SETTINGS, return_dict_in_generate=True, output_logits=True)
    assert plain.logits[0][0].isnan().all() and not plain.logits[0][1].isnan().any()
    answer = admission.admit(model)
    assert answer.strategy == "row by row" and "NaN" in answer.reason


@pytest.mark.parametrize("name", LONE)
def test_other_models_run_their_rows_alone_and_say_why(name):
    build, strategy, reason = LONE[name]
    answer = admission.admit(build())
    assert answer.admitted and answer.strategy == strategy and reason in answer.reason


@pytest.mark.parametrize("role", ["target", "assistant"])
@pytest.mark.parametrize("name", REFUSED)
def test_other_models_are_refused_by_name_and_told_what_to_do(name, role):
    """In either role, with the class, the reason and a way out."""
    build, reason = REFUSED[name]
    model, calls = build(), []
    assert not admission.admit(model).admitted
    pair = {"target": (model, tiny()), "assistant": (tiny(), model)}[role]
    pair[0].register_forward_pre_hook(lambda *_: calls.append(1))
    # the probe's forwards do not count; where the target fails it, it is asked again
    admitted = admission.admit(pair[0]).admitted
    probing = len(calls) if admitted else None
    with pytest.raises(UnsupportedArchitecture) as refusal:
        hf_exactassist.generate(pair[0], **prompts([4, 2]), **SETTINGS, assistant_model=pair[1])
    message = str(refusal.value)
    assert f"The {role} {type(model).__name__} is not supported" in message
    assert reason in message and "Drop the assistant" in message
    assert probing is None or len(calls) == probing


def test_a_window_that_the_cache_does_not_know_of_would_be_missed():
    """Why GPT-Neo is refused by its configuration: within the window its layers look like full attention."""
    model = gpt_neo(12)
    text = torch.randint(3, VOCABULARY, (1, 30), generator=torch.Generator().manual_seed(0))
    wide = gpt_neo(256)
    with torch.no_grad():
        ours, theirs = model(input_ids=text).logits[0], wide(input_ids=text).logits[0]
    assert (ours[:12] - theirs[:12]).abs().max() < 1e-5 < (ours[-1] - theirs[-1]).abs().max()
    assert probes.probe_ragged(model) == "" and admission.admit(model).strategy == "row by row"


def test_global_layers_alone_of_the_same_class_are_admitted():
    sizes = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    model = built("GPTNeoForCausalLM", "GPTNeoConfig", **IDS, **sizes, attention_types=[[["global"], 2]])
    assert admission.admit(model).admitted
    settings = {**SETTINGS, "max_new_tokens": 30}
    inputs = prompts([1, 8, 13])
    ours = hf_exactassist.generate(model, **inputs, **settings, assistant_model=noisy(model, 0.05))
    assert torch.equal(ours, model.generate(**inputs, **settings))


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "flex_attention"])
def test_attention_paths_that_cannot_run_here_are_refused_and_those_without_ready_masks_run_rows_alone(attention):
    model = tiny()
    assert admission._surface(model, attention) == f"the attention path {attention!r} does not take ready 4-D masks."
    model.config._attn_implementation = attention
    answer = admission.admit(model)
    assert attention in answer.reason and answer.strategy in ("row by row", "")
    if not answer.admitted:
        with pytest.raises(UnsupportedArchitecture, match=attention):
            hf_exactassist.generate(model, **prompts([4]), **SETTINGS, assistant_model=tiny(seed=1))


def test_dropout_at_work_is_refused_with_the_call_to_make():
    """A model in training mode has no tokens of its own to agree with; without dropout the mode means nothing."""
    model = tiny("gpt2").train()
    for pair, role in (((model, tiny("gpt2")), "target"), ((tiny("gpt2"), model), "assistant")):
        with pytest.raises(UnsupportedArchitecture, match=rf"{role} GPT2LMHeadModel.*model\.eval\(\)"):
            hf_exactassist.generate(pair[0], **prompts([4]), **SETTINGS, assistant_model=pair[1])
    assert model.training
    assert admission.admit(model.eval()).admitted
    assert admission.admit(tiny("llama").train()).admitted


def test_a_model_that_cannot_score_blocks_says_what_happened():
    """A19: a model that does not honour the cache it is given."""
    model = tiny()

    def refuse(module, args, kwargs):
        if kwargs["input_ids"].shape[0] == 2 and kwargs["attention_mask"].dim() == 4:
            raise ValueError("no such mask")

    model.register_forward_pre_hook(refuse, with_kwargs=True)
    answer = admission.admit(model)
    assert answer.strategy == "row by row" and "ValueError: no such mask" in answer.reason


def test_a_model_that_fails_throughout_says_what_happened():
    model = tiny()

    def refuse(module, args):
        raise ValueError("never")

    model.register_forward_pre_hook(refuse)
    answer = admission.admit(model)
    assert not answer.admitted and "ValueError: never" in answer.reason and "Drop the assistant" in answer.reason


def test_scores_that_are_no_numbers_are_refused():
    model = tiny()
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    assert not admission.admit(model).admitted


@pytest.mark.parametrize("place", [(0, 0), (1, 1), (1, 2)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.0])
def test_the_probe_notices_a_wrong_logit_wherever_it_is(place, value):
    """Also one that is not a number, which compares with nothing."""
    model = tiny()

    def bend(module, inputs, output):
        if output.shape[:2] == (2, 3):
            output = output.clone()
            output[(*place, 5)] += value
        return output

    model.lm_head.register_forward_hook(bend)
    assert admission.admit(model).strategy == "row by row"


def test_the_probe_notices_keys_that_should_be_hidden():
    """A wrong mask is what a probe is for: a model that ignores masks over its cache is not admitted."""
    model = tiny()

    def blind(module, args, kwargs):
        if isinstance(kwargs.get("attention_mask"), torch.Tensor) and kwargs["attention_mask"].dim() == 4:
            kwargs["attention_mask"] = torch.ones_like(kwargs["attention_mask"])
        return args, kwargs

    model.register_forward_pre_hook(blind, with_kwargs=True)
    assert "differ from rows scored alone" in admission.admit(model).reason


# --- the probe is not noticed ---


def snapshot(model):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    held = {name: (id(value), value.clone(), value._version) for name, value in tensors.items()}
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    configs = copy.deepcopy([model.config.to_dict(), model.generation_config.to_dict()])
    return held, attributes, configs, model.training, model.config._attn_implementation


def unchanged(before, after):
    assert before[1:] == after[1:] and before[0].keys() == after[0].keys()
    for name, (identity, value, version) in before[0].items():
        other = after[0][name]
        assert identity == other[0] and version == other[2] and torch.equal(value, other[1]), name


@pytest.mark.parametrize("build", [*ARCHITECTURES, "dropout", *LONE])
def test_the_probe_leaves_the_model_and_every_generator_as_they_were(build):
    """The caller's next draw must not depend on whether it ran."""
    if build == "dropout":
        model = tiny("gpt2").train()
    else:
        model = LONE[build][0]() if build in LONE else tiny(build)
    before = snapshot(model)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    calls = forwards(model)
    answer = admission.admit(model)
    # dropout is refused without a look
    assert answer.admitted == bool(calls) == (build != "dropout")
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])
    unchanged(before, snapshot(model))
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_answer_is_remembered_for_the_model_in_its_setting():
    model = tiny()
    calls = forwards(model)
    first = admission.admit(model)
    assert calls
    for change in (
        lambda: None,
        lambda: model.set_attn_implementation("eager"),
        lambda: model.bfloat16(),
        lambda: model.train(),
    ):
        change()
        admission.admit(model)
        calls.clear()
        assert admission.admit(model).admitted
        assert not calls
    model.eval().float().set_attn_implementation("sdpa")
    assert admission.admit(model) == first and not calls


@pytest.mark.parametrize("change", ["attention", "dtype", "training", "another model"])
def test_another_setting_is_probed_anew(change):
    model = tiny()
    admission.admit(model)
    if change == "attention":
        model.set_attn_implementation("eager")
    elif change == "dtype":
        model.double()
    elif change == "training":
        model.train()
    else:
        model = copy.deepcopy(model)
    calls = forwards(model)
    admission.admit(model)
    assert calls


def test_a_model_that_failed_the_probe_is_asked_again():
    """It may have been mended."""
    model = tiny()
    weight = model.lm_head.weight[5].detach().clone()
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
        assert not admission.admit(model).admitted
        model.lm_head.weight[5] = weight
    assert admission.admit(model).strategy == "ragged rows"


def test_what_is_remembered_dies_with_the_model():
    model = tiny()
    admission.admit(model)
    reference, size = weakref.ref(model), len(admission._PROBED)
    del model
    gc.collect()
    assert reference() is None and len(admission._PROBED) < size


def test_a_window_of_one_token_leaves_rows_alone():
    answer = admission.admit(tiny("mistral", sliding_window=1))
    assert answer.strategy != "ragged rows" and "less than two tokens" in answer.reason


def test_layers_that_know_no_window_are_named():
    """MiniMax mixes attention with linear layers, which are not asked for a window."""
    config = hf.MiniMaxConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        layer_types=["linear_attention", "full_attention"],
    )
    answer = admission.admit(hf.MiniMaxForCausalLM(config).eval())
    assert answer.strategy != "ragged rows" and "linear_attention" in answer.reason
