"""Where rounding hides whether a way to run a model is right, its own weights in a finer dtype decide."""

import copy

import pytest
import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

import hf_exactassist
from hf_exactassist.models import admission, finer, probes
from hf_exactassist.models.runner import RowRunner
from tests.tiny import noisy, prompts, tiny


HALVES = (torch.bfloat16, torch.float16)


def rounding(dtype=torch.bfloat16):
    """A model that rounds by the shape of its forward: far in half precision, not at all in a finer one."""
    model = tiny().to(dtype)
    model.lm_head.register_forward_hook(_shape_matters)
    return model


def _shape_matters(module, inputs, output):
    return output * (1 + 0.3 * output.shape[1]) if output.dtype in HALVES else output


def test_rounding_alone_does_not_keep_a_model_from_ragged_rows():
    model = rounding()
    assert isinstance(probes.probe_ragged(model), probes.Differs), "it must round too much for a first opinion"
    assert admission.admit(model).strategy == "ragged rows"
    output = hf_exactassist.generate(
        model, **prompts([5, 3]), max_new_tokens=6, assistant_model=noisy(model, 0.01), return_dict_in_generate=True
    )
    assert output.assist_stats.serial is None and output.assist_stats.drafted


def test_a_wrong_way_is_not_taken_for_rounding(monkeypatch):
    right = RowRunner._mask
    monkeypatch.setattr(RowRunner, "_mask", lambda *args: torch.ones_like(right(*args)))
    assert admission.admit(rounding()).strategy == "row by row"


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2", "gpt_neox"])
@pytest.mark.parametrize("dtype", HALVES)
def test_copies_compute_as_converted_models_do_and_leave_the_weights_alone(dtype, architecture):
    model = tiny(architecture).to(dtype)
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    ids = torch.tensor([[5, 9, 3, 4]])
    for finer_dtype in finer.FINER[dtype]:
        copied = finer.computing_in(finer_dtype, model)
        with torch.no_grad():
            got, expected = copied(ids).logits, copy.deepcopy(model).to(finer_dtype)(ids).logits
        assert got.dtype == finer_dtype and copied.dtype == finer_dtype
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    assert model.dtype == dtype
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == before[name][0] and torch.equal(tensor, before[name][1])


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 7, 13])
def test_experts_that_take_no_doubles_are_looked_at_one_by_one(seed):
    """Kernels that group experts know no float64, where alone rounding and structure can be told apart."""
    sizes = {
        "vocab_size": 101, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        "max_position_embeddings": 512, "layer_types": ["linear_attention", "full_attention"],
    }  # fmt: skip
    torch.manual_seed(seed)
    model = Qwen3NextForCausalLM(Qwen3NextConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    before = model.config._experts_implementation
    assert admission.admit(model).strategy == "row by row"
    assert model.config._experts_implementation == before
    copied = finer.computing_in(torch.float64, model)
    assert copied(torch.tensor([[5, 9, 3]])).logits.dtype == torch.float64
    inputs = prompts([12, 7, 3])
    settings = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 16}
    output = hf_exactassist.generate(
        model, **inputs, **settings, assistant_model=noisy(model, 0.05), return_dict_in_generate=True
    )
    for row, length in zip(range(3), (12, 7, 3), strict=True):
        alone = model.generate(inputs["input_ids"][row : row + 1, -length:], **settings)[0, length:]
        assert output.sequences[row, 12:].tolist() == alone.tolist()
    assert output.assist_stats.serial is None and output.assist_stats.accepted


def test_weights_are_put_back_after_a_forward_that_fails():
    model = rounding()
    copied = finer.computing_in(torch.float32, model)
    with pytest.raises(IndexError):
        copied(torch.tensor([[10**6]]))
    assert {parameter.dtype for name, parameter in copied.named_parameters() if name != "dtype"} == {torch.bfloat16}


def test_there_is_no_copy_of_packed_or_absent_weights():
    model = tiny()
    model.lm_head.register_buffer("packed", torch.zeros(3, dtype=torch.uint8))
    assert finer.computing_in(torch.float64, model) is None
    with torch.device("meta"):
        absent = tiny()
    assert finer.computing_in(torch.float64, absent) is None
