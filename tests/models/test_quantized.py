"""Models with quantized weights, as they come: the same tokens, or a refusal where blocks and rows change numbers."""

import logging

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import hf_exactassist
from hf_exactassist.models import compat, identity
from hf_exactassist.models.admission import admit
from tests.api.helpers import drafts_were_mixed
from tests.tiny import noisy, prompts, tiny


SETTINGS = {"do_sample": False, "max_new_tokens": 16, "eos_token_id": None, "pad_token_id": 0}
INPUTS, ONE = prompts([9, 4, 6]), prompts([6])


def model_and_relative():
    model = tiny(hidden_size=64, intermediate_size=128)
    return model, noisy(model, 0.008)


def bitsandbytes(folder, **settings):
    """Quantized while loading, on the CPU."""
    pytest.importorskip("bitsandbytes")
    # one line for every product
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    model, relative = model_and_relative()
    model.save_pretrained(folder)
    config = BitsAndBytesConfig(**settings)
    loaded = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=torch.float32).eval()
    assert any(module.__module__.startswith("bitsandbytes") for module in loaded.modules())
    return loaded, relative


def quanto(weights, activations=None, freeze=True):
    library = pytest.importorskip("optimum.quanto")
    model, relative = model_and_relative()
    kinds = {"weights": getattr(library, weights)}
    if activations is not None:
        kinds["activations"] = getattr(library, activations)
    library.quantize(model, **kinds)
    if activations is not None:
        with library.Calibration():
            model(**INPUTS)
    if freeze:
        library.freeze(model)
    return model, relative


def hqq(bits):
    base, quantize = pytest.importorskip("hqq.models.hf.base"), pytest.importorskip("hqq.core.quantize")
    model, relative = model_and_relative()
    config = quantize.BaseQuantizeConfig(nbits=bits, group_size=64)
    base.AutoHQQHFModel.quantize_model(model, quant_config=config, compute_dtype=torch.float32, device="cpu")
    return model, relative


def dynamic(dtype):
    """torch's own, with activations rounded by the largest of the whole forward if the weights are integers."""
    model, relative = model_and_relative()
    with pytest.warns(DeprecationWarning):
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=dtype), relative


IN_BLOCKS = {
    "bitsandbytes 4 bit": lambda folder: bitsandbytes(folder, load_in_4bit=True),
    "bitsandbytes nf4": lambda folder: bitsandbytes(folder, load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "bitsandbytes 8 bit": lambda folder: bitsandbytes(folder, load_in_8bit=True, llm_int8_threshold=0.0),
    "quanto int8": lambda folder: quanto("qint8"),
    "quanto int8 unfrozen": lambda folder: quanto("qint8", freeze=False),
    "quanto int4": lambda folder: quanto("qint4"),
    "quanto int8 activations": lambda folder: quanto("qint8", "qint8"),
    "hqq 8 bit": lambda folder: hqq(8),
    "hqq 4 bit": lambda folder: hqq(4),
    "torch float16": lambda folder: dynamic(torch.float16),
}


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_quantized_targets_and_assistants(tmp_path, name):
    model, relative = IN_BLOCKS[name](tmp_path)
    assert admit(model).strategy == "ragged rows" and compat.head_size(model) == 80
    call = {**INPUTS, **SETTINGS, "return_dict_in_generate": True}
    for target, assistant in ((model, relative), (relative, model)):
        expected = target.generate(**INPUTS, **SETTINGS)
        for layout in ("replay", "retained"):
            output = hf_exactassist.generate(target, **call, assistant_model=assistant, layout=layout)
            assert output.sequences.tolist() == expected.tolist() and drafts_were_mixed(output)
    session = hf_exactassist.start(model, **INPUTS, **SETTINGS, assistant_model=relative)
    while session.step() is not None:
        # reading quantized weights is no change of the model
        pass
    assert session.result().tolist() == model.generate(**INPUTS, **SETTINGS).tolist()
    plain = tiny(hidden_size=64, intermediate_size=128)
    assert identity.describe(model)["weights"] != identity.describe(plain)["weights"]


BY_THE_WHOLE_FORWARD = {
    "bitsandbytes with outliers": lambda folder: bitsandbytes(folder, load_in_8bit=True),
    "torch int8": lambda folder: dynamic(torch.qint8),
}


@pytest.mark.parametrize("name", BY_THE_WHOLE_FORWARD)
def test_layers_that_round_by_the_whole_forward(tmp_path, name):
    """A block of drafts would change the numbers, and so would a row that ends before the others."""
    model, relative = BY_THE_WHOLE_FORWARD[name](tmp_path)
    alone, together = model(**prompts([9])).logits, model(**prompts([9, 9])).logits
    assert (alone[0] - together[0]).abs().max() > 1e-3
    expected = model.generate(**ONE, **SETTINGS)
    call = {**SETTINGS, "assistant_model": relative, "return_dict_in_generate": True}
    output = hf_exactassist.generate(model, **ONE, **call)
    assert output.sequences.tolist() == expected.tolist() and output.assist_stats.serial
    for inputs, more in ((INPUTS, {}), (ONE, {"num_return_sequences": 2, "do_sample": True})):
        with pytest.raises(hf_exactassist.UnsupportedArchitecture, match="beside it.*one by one"):
            hf_exactassist.generate(model, **inputs, **{**call, **more})
    # drafts may be as they please
    output = hf_exactassist.generate(relative, **INPUTS, **{**call, "assistant_model": model})
    assert output.sequences.tolist() == relative.generate(**INPUTS, **SETTINGS).tolist()
    assert drafts_were_mixed(output)


def test_outliers_that_no_probe_has_seen(tmp_path):
    """Whether a column is computed otherwise is decided by the text: no probe can say that it never will be."""
    model, relative = bitsandbytes(tmp_path, load_in_8bit=True, llm_int8_threshold=1e6)
    assert admit(model).strategy == "serial" and "llm_int8_threshold=0.0" in admit(model).reason


class Rounded(torch.nn.Linear):
    """A layer that rounds what it reads to 127 parts of the largest value in the forward."""

    def forward(self, x):
        step = x.abs().max() / 127
        return super().forward((x / step).round() * step)


def test_layers_exchanged_in_place_are_probed_anew():
    """Quantization libraries put other layers into the same model."""
    model, relative = model_and_relative()
    assert admit(model).strategy == "ragged rows"
    for layer in model.model.layers:
        layer.mlp.up_proj.__class__ = Rounded
    assert admit(model).strategy == "serial"
    output = hf_exactassist.generate(model, **ONE, **SETTINGS, assistant_model=relative)
    assert output.tolist() == model.generate(**ONE, **SETTINGS).tolist()
