"""Where tensors live: none is made without saying where, and target and assistant may stand on different devices.

Tests marked `gpu` need an accelerator; on the CPU the same bodies run in the normal tier.
"""

import ast
import copy
import functools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from accelerate import dispatch_model
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from transformers import GenerationConfig

import hf_exactassist
from hf_exactassist import InvalidArgument, UnsupportedArgument
from hf_exactassist.judging import Judge
from hf_exactassist.models.admission import admit
from hf_exactassist.options import Options
from hf_exactassist.randomness import SHARED_NOISE_DEVICES
from tests.api.helpers import RecordingStreamer, cache_of, drafts_were_mixed
from tests.tiny import VOCABULARY, noisy, prompts, tiny


PACKAGE = Path(hf_exactassist.__file__).parent
TORCH = Path(torch.__file__).parent
MAKERS = _device_constructors()


# --- nothing is made without saying where


def unplaced(file):
    """Lines of a file that call a maker of tensors, or of a generator, without a device."""
    names = {maker.__name__ for maker in MAKERS} | {"Generator"}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"torch.{name}" for name in names}:
            by_place = node.func.attr == "Generator" and node.args
            if not by_place and all(keyword.arg != "device" for keyword in node.keywords):
                yield f"{file.name}:{node.lineno}"


def test_every_maker_of_tensors_is_told_a_device():
    """What belongs on the CPU says so too: a default device of the caller's must not move it."""
    found = [place for file in sorted(PACKAGE.rglob("*.py")) for place in unplaced(file)]
    assert not found, f"say on which device: {found}"


class Unplaced(TorchFunctionMode):
    """Writes down where the package makes a tensor without saying on which device, by whatever name."""

    def __init__(self):
        super().__init__()
        self.places, self.calls = set(), 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in MAKERS:
            frame = sys._getframe(1)
            while TORCH in Path(frame.f_code.co_filename).parents:
                frame = frame.f_back
            file = Path(frame.f_code.co_filename)
            # what Transformers makes is its own matter
            if PACKAGE in file.parents:
                self.calls += 1
                if kwargs.get("device") is None:
                    self.places.add(f"{file.relative_to(PACKAGE)}:{frame.f_lineno}")
        return func(*args, **kwargs)


def alone(name):
    """Models whose rows run alone."""
    torch.manual_seed(0)
    common = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if name == "openai":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        return transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**common, **sizes)).eval()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2}
    if name == "mamba2":
        sizes |= {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1}
        return transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**common, **sizes)).eval()
    return transformers.MambaForCausalLM(transformers.MambaConfig(**common, **sizes)).eval()


def models(name):
    """A pair that no probe has seen."""
    if name in ("openai", "mamba", "mamba2"):
        return alone(name), noisy(alone(name))
    target = tiny("llama" if name == "eager" else name)
    target.set_attn_implementation("eager" if name == "eager" else "sdpa")
    return target, noisy(target, 0.1 if name == "gemma3" else 0.02)


def odd(input_ids, scores):
    """A criterion that asks for scores, and answers for each row."""
    return (input_ids[:, -1] == 3) | (scores[-1].argmax(dim=-1) == 3)


SAMPLED = {"do_sample": True, "seed": 3, "temperature": 0.9, "top_p": 0.95}
# EOS ids become tensors in processors and criteria
ENDS = {"eos_token_id": [2, 9, 17], "min_new_tokens": 4}
OUTPUTS = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
ONE_BY_ONE = {
    "sampled with ends": {**SAMPLED, **ENDS},
    "shared noise": {**SAMPLED, "coupling": "shared_noise"},
    "lookup": {"prompt_lookup_num_tokens": 3, **ENDS},
    "outputs": {**SAMPLED, **OUTPUTS, "stopping_criteria": [odd]},
}
CALLS = {
    **ONE_BY_ONE,
    "greedy": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    "retained": {**SAMPLED, "layout": "retained", "output_hidden_states": True, **OUTPUTS},
    "confidence": {"assistant_confidence_threshold": 0.3, "num_assistant_tokens_schedule": "heuristic"},
    "lookup, sampled": {"prompt_lookup_num_tokens": 3, **SAMPLED},
    "telemetry": {**SAMPLED, "telemetry": lambda record: None},
    "own warpers": {**SAMPLED, "warpers": {"temperature": 0.7, "top_k": 30}},
    "no cache": {"use_cache": False},
}
GUARDED = [
    *(("llama", call) for call in CALLS),
    *((name, call) for name in ("eager", "gemma3") for call in ("retained", "greedy")),
    *((name, call) for name in ("openai", "mamba", "mamba2") for call in ONE_BY_ONE),
]


@pytest.mark.parametrize("name,call", GUARDED)
def test_no_tensor_is_made_without_a_device(name, call):
    target, assistant = models(name)
    call = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 8, **CALLS[call]}
    if "prompt_lookup_num_tokens" not in call:
        call["assistant_model"] = assistant
    assistant.generation_config = GenerationConfig(**call.pop("warpers", {}))
    with Unplaced() as guard:
        session = hf_exactassist.start(target, **prompts([9, 4, 6]), **call)
        while session.step() is not None:
            pass
        session.manifest()
        session.result()
    assert not guard.places, f"say on which device: {sorted(guard.places)}"
    assert guard.calls > 10


def test_the_guards_see_the_package_and_nothing_else(tmp_path):
    with Unplaced() as guard:
        torch.zeros(2)
        tiny()(**prompts([3]))
    assert not guard.places
    code = "import torch\ntorch.zeros(2)\ntorch.ones(2, device='cpu')\ntorch.Generator()\ntorch.Generator('cpu')\n"
    with guard:
        exec(compile(code, str(PACKAGE / "made_up.py"), "exec"), {})
    assert guard.places == {"made_up.py:2"} and guard.calls == 2
    (tmp_path / "made_up.py").write_text(code)
    assert list(unplaced(tmp_path / "made_up.py")) == ["made_up.py:2", "made_up.py:4"]


# --- models on devices


ACCELERATOR = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
HERE = "accelerator"
needs_one = [pytest.mark.gpu, pytest.mark.skipif(ACCELERATOR is None, reason="no accelerator")]
PLACES = [
    ("cpu", "cpu"),
    *(pytest.param(places, marks=needs_one) for places in ((HERE, "cpu"), ("cpu", HERE), (HERE, HERE))),
]
INPUTS = prompts([9, 4, 6])
PLAIN = {"max_new_tokens": 16, "pad_token_id": 0, "do_sample": False, "eos_token_id": None}


def device_of(place):
    return ACCELERATOR if place == HERE else torch.device(place)


@functools.cache
def originals(name):
    target = tiny(name) if name == "llama" else alone(name)
    return target, noisy(target, 0.01 if name == "llama" else 0.1)


def placed(places, name="llama", dtype=torch.float32):
    """Copies of a pair on their devices, and prompts beside the target."""
    pair = [
        copy.deepcopy(model).to(device_of(place), dtype) for model, place in zip(originals(name), places, strict=True)
    ]
    return *pair, {key: value.to(device_of(places[0])) for key, value in INPUTS.items()}


def assert_same(output, expected):
    """Equal tokens, on the device of the prompts."""
    assert output.device == expected.device
    assert output.tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["llama", "openai", "mamba2"])
@pytest.mark.parametrize("places", PLACES)
def test_greedy_on_devices(places, name):
    """Processors with EOS tensors, which stand beside the target and see the assistant's scores too."""
    target, assistant, inputs = placed(places, name)
    free = target.generate(**inputs, **PLAIN)
    ends = {"eos_token_id": free[1, [12, 20]].tolist(), "min_new_tokens": 5, "repetition_penalty": 1.1}
    for more in ({}, ends):
        call = {**inputs, **PLAIN, **more}
        expected = target.generate(**call)
        for layout in ("replay", "retained"):
            how = {"assistant_model": assistant, "layout": layout}
            output = hf_exactassist.generate(target, **call, **how, return_dict_in_generate=True, output_scores=True)
            assert_same(output.sequences, expected)
            assert output.assist_stats.accepted and output.scores[0].device == expected.device
        assert_same(hf_exactassist.generate(target, **call, prompt_lookup_num_tokens=2), expected)
    one = {key: value[:1] for key, value in inputs.items()}
    streamer = RecordingStreamer()
    output = hf_exactassist.generate(target, **one, **PLAIN, assistant_model=assistant, streamer=streamer)
    assert_same(output, target.generate(**one, **PLAIN))
    assert torch.cat([value.reshape(-1) for value in streamer.puts]).tolist() == output[0].tolist()


@pytest.mark.parametrize("places", PLACES)
def test_sampling_on_devices(places):
    """Random numbers are made on the CPU, so that a seed means the same on every device."""
    call = {**PLAIN, "do_sample": True, "seed": 5, "top_k": 30, "min_new_tokens": 3, "eos_token_id": [2, 9]}
    target, assistant, inputs = placed(places)
    reference = originals("llama")
    expected = hf_exactassist.generate(reference[0], **INPUTS, **call, assistant_model=reference[1])
    output = hf_exactassist.generate(
        target, **inputs, **call, assistant_model=assistant, return_dict_in_generate=True, telemetry=lambda _: None
    )
    assert output.sequences.tolist() == expected.tolist() and drafts_were_mixed(output)


@pytest.mark.parametrize("name", ["llama", "openai"])
@pytest.mark.parametrize("places", PLACES)
def test_shared_noise_on_devices(places, name):
    """Token for token what plain sampling draws with the generator of the target's device."""
    if device_of(places[0]).type not in SHARED_NOISE_DEVICES:
        pytest.skip("refused there")
    target, assistant, inputs = placed(places, name)
    call = {**inputs, **PLAIN, "do_sample": True, "temperature": 0.9}
    torch.manual_seed(7)
    expected = target.generate(**call)
    after = torch.rand(3, device=target.device)
    torch.manual_seed(7)
    output = hf_exactassist.generate(target, **call, assistant_model=assistant, coupling="shared_noise")
    assert_same(output, expected)
    assert torch.rand(3, device=target.device).tolist() == after.tolist()


def judge_on(device, **options):
    """What judges a sampled call whose ids live there; nothing is made there yet."""
    rows = SimpleNamespace(batch=1, ids=SimpleNamespace(device=torch.device(device)))
    return Judge(True, Options(coupling="shared_noise", **options), rows, VOCABULARY)


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"generator": torch.Generator("cpu")}])
@pytest.mark.parametrize("device", ["mps", "xpu:0", "meta"])
def test_shared_noise_is_refused_where_plain_sampling_is_not_known(device, options):
    """No generator is asked for that the caller did not give."""
    name = device.partition(":")[0]
    with pytest.raises(UnsupportedArgument, match=f"not on {name}: leave `coupling` out") as refusal:
        judge_on(device, **options)
    assert "generator" not in str(refusal.value)


def test_shared_noise_wants_the_generator_beside_the_ids():
    with pytest.raises(InvalidArgument, match=r'lives on cpu.*`torch.Generator\("cuda:1"\)`'):
        judge_on("cuda:1", generator=torch.Generator("cpu"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("places", PLACES)
def test_half_precision_on_devices(places, dtype):
    """Blocks and single steps round differently, so texts may part at near ties; the prefill's token cannot."""
    target, assistant, inputs = placed(places, dtype=dtype)
    assert admit(target).strategy == "ragged rows"
    expected = target.generate(**inputs, **PLAIN)
    for more in ({}, {"do_sample": True, "seed": 3}):
        call = {**inputs, **PLAIN, **more, **OUTPUTS, "assistant_model": assistant}
        output = hf_exactassist.generate(target, **call)
        width = inputs["input_ids"].shape[1]
        assert output.sequences.shape == expected.shape
        assert output.sequences[:, :width].tolist() == inputs["input_ids"].tolist()
        assert 0 <= output.sequences.min() and output.sequences.max() < VOCABULARY
        assert all(scores.isfinite().all() for scores in output.logits) and output.assist_stats.accepted
        if not more:
            assert output.sequences[:, width].tolist() == expected[:, width].tolist()


@pytest.mark.parametrize("places", PLACES)
def test_caches_of_the_callers_on_devices(places):
    target, assistant, inputs = placed(places)
    one = {key: value[:1] for key, value in inputs.items()}
    call = {**PLAIN, "return_dict_in_generate": True}
    plain = target.generate(**one, **call)
    ours = hf_exactassist.generate(target, **one, **call, assistant_model=assistant)
    for layer, expected in zip(cache_of(ours).layers, cache_of(plain).layers, strict=True):
        assert layer.keys.device == expected.keys.device
        torch.testing.assert_close(layer.keys, expected.keys, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("split", ["target", "assistant", "both"])
@pytest.mark.parametrize("places", [("cpu", "cpu"), pytest.param((HERE, "cpu"), marks=needs_one)])
def test_models_split_over_devices(places, split):
    """One layer on each device, moved by accelerate's hooks."""
    target, assistant, _ = placed(("cpu", "cpu"))
    first, second = (str(device_of(place)) for place in places)
    first = 0 if places[0] == HERE else first
    halves = {
        "model.embed_tokens": first,
        "model.rotary_emb": first,
        "model.layers.0": first,
        "model.layers.1": second,
        "model.norm": first,
        "lm_head": second,
    }
    expected = target.generate(**INPUTS, **PLAIN)
    if split != "assistant":
        target = dispatch_model(target, halves, main_device=first, force_hooks=True)
    if split != "target":
        assistant = dispatch_model(assistant, halves, main_device=first, force_hooks=True)
    inputs = {key: value.to(target.device) for key, value in INPUTS.items()}
    call = {**inputs, **PLAIN, "assistant_model": assistant, "return_dict_in_generate": True}
    output = hf_exactassist.generate(target, **call)
    assert output.sequences.tolist() == expected.tolist() and drafts_were_mixed(output)
