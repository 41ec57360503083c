"""Models that accelerate has spread over memory and disk: `model.device` may be `meta`, which no token can live on."""

import copy

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from transformers import AutoModelForCausalLM

import hf_exactassist
from tests.exactness.test_lone_rows import built
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny
from tests.tiny_encoder_decoder import sentences
from tests.tiny_encoder_decoder import tiny as tiny_encoder_decoder


SETTINGS = {"do_sample": False, "max_new_tokens": 12, "eos_token_id": None, "pad_token_id": 0}
HALVES = {
    "model.embed_tokens": "cpu",
    "model.rotary_emb": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "cpu",
    "lm_head": "disk",
}


def on_disk(model, folder):
    model.save_pretrained(folder / "saved")
    place = {"device_map": {"": "disk"}, "offload_folder": str(folder / "offloaded")}
    return AutoModelForCausalLM.from_pretrained(folder / "saved", **place).eval()


SETUPS = {
    "cpu_offload": lambda model, folder: cpu_offload(model),
    "disk_offload": lambda model, folder: disk_offload(model, str(folder)),
    "halves": lambda model, folder: dispatch_model(model, HALVES, main_device="cpu", offload_dir=str(folder)),
    "disk": on_disk,
}


def offloaded(setup, role, folder, target, assistant):
    """The two models, of which those of the role are offloaded."""
    pair = {"target": target, "assistant": assistant}
    for name, model in pair.items():
        if role in (name, "both"):
            (folder / name).mkdir()
            pair[name] = SETUPS[setup](model, folder / name)
    return pair["target"], pair["assistant"]


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("role", ["target", "assistant", "both"])
@pytest.mark.parametrize("setup", SETUPS)
def test_offloaded_models_give_the_same_tokens(tmp_path, setup, role, layout):
    target = tiny()
    assistant, inputs = noisy(target, EVEN_NOISE["llama"]), prompts([9, 4, 6])
    expected = target.generate(**inputs, **SETTINGS)
    target, assistant = offloaded(setup, role, tmp_path, target, assistant)
    assert setup == "halves" or "meta" in {target.device.type, assistant.device.type}
    call = {**SETTINGS, "assistant_model": assistant, "num_assistant_tokens": 3, "layout": layout}
    for _ in range(2):
        output = hf_exactassist.generate(target, **inputs, **call, return_dict_in_generate=True)
        assert torch.equal(output.sequences, expected) and output.assist_stats.accepted > 0
    session = hf_exactassist.start(target, **inputs, **call)
    while session.step() is not None:
        # loading and unloading between steps is no change of the model
        pass
    assert torch.equal(session.result(), expected)


@pytest.mark.parametrize("setup", ["cpu_offload", "disk_offload"])
def test_offloaded_rows_that_run_alone(tmp_path, setup):
    target, inputs = built("bloom"), prompts([6])
    expected = target.generate(**inputs, **SETTINGS)
    assistant = noisy(target, 0.03)
    offloaded = SETUPS[setup](copy.deepcopy(target), tmp_path)
    assert torch.equal(hf_exactassist.generate(offloaded, **inputs, **SETTINGS, assistant_model=assistant), expected)


@pytest.mark.parametrize("role", ["target", "assistant", "both"])
@pytest.mark.parametrize("setup", ["cpu_offload", "disk_offload"])
@pytest.mark.parametrize("kind", ["t5", "bart", "marian"])
def test_offloaded_models_with_encoders(tmp_path, kind, setup, role):
    """`generate` makes a stand-in for inputs it was not given on `model.device`, and so on `meta`."""
    target, inputs = tiny_encoder_decoder(kind, 3), sentences([9, 5, 12])
    # the penalty keeps tiny models from saying one word for ever
    settings = {**SETTINGS, "repetition_penalty": 1.5, "return_dict_in_generate": True}
    expected = target.generate(**inputs, **settings).sequences
    assistant = noisy(target, 0.03)
    target, assistant = offloaded(setup, role, tmp_path, target, assistant)
    output = hf_exactassist.generate(target, **inputs, **settings, assistant_model=assistant)
    assert torch.equal(output.sequences, expected) and output.assist_stats.accepted
