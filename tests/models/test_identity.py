"""What a model is, in a manifest: equal for equal models, other for whatever changes what it computes."""

import contextlib
import copy
import gc
import hashlib
import weakref

import pytest
import torch
from transformers import LlamaForCausalLM, PretrainedConfig, PreTrainedModel

import hf_exactassist
from hf_exactassist.models import identity
from tests.tiny import noisy, prompts, tiny


@pytest.fixture
def model():
    return tiny()


def changed(before, after):
    """Names of the fields that differ."""
    assert list(before) == list(after)
    return {name for name in before if before[name] != after[name]}


@contextlib.contextmanager
def matmul_precision(value):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Adapted(torch.nn.Linear):
    """A layer as PEFT makes them, as far as a manifest is concerned; it adds `scale` times its own product."""

    def __init__(self, base, scale=0.5):
        super().__init__(base.in_features, base.out_features, bias=False)
        self.weight, self.scale = base.weight, scale
        self._active, self.merged_adapters, self.disable_adapters = ["first"], [], False

    @property
    def active_adapters(self):
        return self._active

    def forward(self, x):
        plain = super().forward(x)
        return plain if self.disable_adapters else plain * (1 + self.scale * len(self._active))


def adapt(model):
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj).eval()
    return [layer.self_attn.q_proj for layer in model.model.layers]


# --- describe


def test_a_model_loaded_twice_is_the_same(tmp_path, model):
    """Contract 0x01A."""
    model.save_pretrained(tmp_path)
    first, second = (LlamaForCausalLM.from_pretrained(tmp_path) for _ in range(2))
    assert identity.describe(first) == identity.describe(second)
    fields = identity.describe(first)
    assert fields["class"] == "transformers.models.llama.modeling_llama.LlamaForCausalLM"
    assert fields["name"] == str(tmp_path) and fields["revision"] is None
    assert (fields["dtype"], fields["attention"], fields["device"]) == ("torch.float32", "sdpa", "cpu")
    assert fields["adapters"] == [] and fields["training"] is False
    # from elsewhere it has another name, and nothing else is different
    model.save_pretrained(tmp_path / "elsewhere")
    third = LlamaForCausalLM.from_pretrained(tmp_path / "elsewhere")
    assert changed(fields, identity.describe(third)) == {"name"}
    assert identity.describe(copy.deepcopy(first)) == fields


def test_every_sampled_weight_counts(model):
    """In each tensor the first value and seven evenly spaced ones behind it."""
    before = identity.describe(model)
    for tensor in model.parameters():
        flat = tensor.data.view(-1)
        for place in range(0, len(flat), max(len(flat) // 8, 1))[:8]:
            kept = flat[place].clone()
            with torch.no_grad():
                tensor.view(-1)[place] += 1
            assert changed(before, identity.describe(model)) == {"weights"}
            with torch.no_grad():
                tensor.view(-1)[place] = kept
    assert identity.describe(model) == before


def test_the_digest_is_a_sketch_and_does_not_see_every_weight(model):
    """A single value between the sampled ones can change unseen; noise on a tensor, as of training, cannot."""
    before = identity.describe(model)
    weight = model.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        weight.view(-1)[1] += 1
    assert identity.describe(model) == before
    with torch.no_grad():
        weight.add_(torch.randn_like(weight) * 1e-3)
    assert changed(before, identity.describe(model)) == {"weights"}


def test_names_and_shapes_of_weights_count(model):
    before = identity.describe(model)
    model.model.layers[0].extra = torch.nn.Parameter(torch.zeros(0))
    assert changed(before, identity.describe(model)) == {"weights"}


def test_quantized_weights_are_buffers_and_count(model):
    model.register_buffer("qweight", torch.arange(64, dtype=torch.int32))
    model.register_buffer("cache", torch.arange(64), persistent=False)
    before = identity.describe(model)
    assert before["dtype"] == "torch.float32, torch.int32"
    model.cache[0] = 5
    assert identity.describe(model) == before
    model.qweight[0] = 5
    assert changed(before, identity.describe(model)) == {"weights"}


@pytest.mark.parametrize("to", ["half", "bfloat16", "double"])
def test_another_dtype(model, to):
    before = identity.describe(model)
    getattr(model, to)()
    assert {"dtype", "weights"} >= changed(before, identity.describe(model)) >= {"dtype"}
    model.float()
    # rounded on the way, other than by doubles
    assert changed(before, identity.describe(model)) == (set() if to == "double" else {"weights"})


def test_one_tensor_of_another_dtype(model):
    before = identity.describe(model)
    model.lm_head.to(torch.bfloat16)
    after = identity.describe(model)
    assert "dtype" in changed(before, after) and after["dtype"] == "torch.bfloat16, torch.float32"


def test_the_best_name_of_a_change_comes_first(model):
    """A dtype changes the weights' digest too, and is what must be called by name."""
    fields = list(identity.describe(model))
    assert max(map(fields.index, ("revision", "dtype", "attention", "adapters"))) < fields.index("weights")


def test_attention_mode_and_configuration(model):
    before = identity.describe(model)
    model.set_attn_implementation("eager")
    assert changed(before, identity.describe(model)) == {"attention"}
    model.set_attn_implementation("sdpa")
    model.train()
    assert changed(before, identity.describe(model)) == {"training"}
    model.eval()
    model.model.layers[1].train()
    assert changed(before, identity.describe(model)) == {"training"}
    model.eval()
    other = tiny(rms_norm_eps=1e-3)
    assert changed(before, identity.describe(other)) == {"config"}
    model.config.rms_norm_eps = 1e-3
    assert identity.describe(model) == identity.describe(other)
    model.config.rms_norm_eps = 1e-6
    assert identity.describe(model) == before


def test_name_and_revision(model):
    before = identity.describe(model)
    model.config._commit_hash = "0a1b2c"
    assert changed(before, identity.describe(model)) == {"revision"}
    model.config._commit_hash = None
    model.config._name_or_path = "someone/model"
    assert changed(before, identity.describe(model)) == {"name"}


def test_adapters(model):
    """Contract 0x06F: same weights and adapters."""
    plain = identity.describe(model)
    layers = adapt(model)
    before = identity.describe(model)
    assert changed(plain, before) == {"adapters"}
    assert before["adapters"] == [{"active": ["first"], "merged": [], "disabled": False}] * 2
    for layer in layers:
        layer._active = ["first", "second"]
    assert changed(before, identity.describe(model)) == {"adapters"}
    layers[1]._active, layers[0]._active = ["first"], ["first"]
    assert identity.describe(model) == before
    layers[1].disable_adapters = True
    assert identity.describe(model)["adapters"][1]["disabled"] is True
    layers[1].disable_adapters = False
    layers[0].merged_adapters = ["first"]
    assert identity.describe(model)["adapters"][0]["merged"] == ["first"]


def test_the_arithmetic_of_the_moment(model):
    before = identity.describe(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert changed(before, identity.describe(model)) == {"autocast"}
        assert identity.describe(model)["autocast"] == "torch.bfloat16"
    with matmul_precision("high"):
        assert changed(before, identity.describe(model)) == {"matmul_precision"}
    assert identity.describe(model) == before


def test_a_description_is_kept_as_long_as_nothing_changes(model, monkeypatch):
    calls, original = [], identity._weights
    monkeypatch.setattr(identity, "_weights", lambda subject: calls.append(1) or original(subject))
    first = identity.describe(model)
    assert identity.describe(model) == first and len(calls) == 1
    first["name"] = "scribble"
    assert identity.describe(model)["name"] == "" and len(calls) == 1
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    identity.describe(model)
    assert len(calls) == 2


def test_memory_used_again_is_not_mistaken_for_the_old_weights(model):
    """There and back: float32 may lie where it lay before, rounded."""
    with torch.no_grad():
        # rounded by bfloat16, so that the sketch sees it
        model.lm_head.weight[0, 0] = 1.001
    before = identity.describe(model)
    look = identity.watch(model)
    seen = look()
    for _ in range(5):
        model.bfloat16()
        gc.collect()
        model.float()
        assert changed(before, identity.describe(model)) == {"weights"} and look() != seen


def test_models_are_not_kept_alive():
    model = tiny()
    gone = weakref.ref(model)
    identity.describe(model)
    look = identity.watch(model)
    look()
    del model, look
    gc.collect()
    assert gone() is None


# --- unusual models


def test_models_without_memory():
    with torch.device("meta"):
        first, second, other = tiny(), tiny(), tiny(hidden_size=64)
    assert identity.describe(first) == identity.describe(second)
    assert identity.describe(first)["device"] == "meta"
    assert {"config", "weights"} <= changed(identity.describe(first), identity.describe(other))
    look = identity.watch(first)
    seen = look()
    # offloaded weights are new objects after every forward
    for part in first.modules():
        for name, tensor in part._parameters.items():
            if tensor is not None:
                part._parameters[name] = torch.nn.Parameter(torch.empty_like(tensor))
    assert look() == seen


def test_integer_parameters(model):
    numbers = torch.arange(-64, 64, dtype=torch.int8).reshape(16, 8)
    model.model.quantized = torch.nn.Parameter(numbers, requires_grad=False)
    before, look = identity.describe(model), identity.watch(model)
    seen = look()
    assert before["dtype"] == "torch.float32, torch.int8"
    numbers[0, 0] += 1
    assert look() != seen and changed(before, identity.describe(model)) == {"weights"}


class Bare(PreTrainedModel):
    """A model that computes without parameters."""

    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)


def test_models_without_parameters():
    model = Bare(PretrainedConfig())
    fields = identity.describe(model)
    assert (fields["dtype"], fields["device"]) == ("", "cpu")
    assert identity.describe(Bare(PretrainedConfig())) == fields
    assert identity.watch(model)() == identity.watch(model)()


class Wrapped(torch.Tensor):
    """A tensor class without values of its own, as quantization libraries make them."""

    @staticmethod
    def __new__(cls, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(func)


def test_tensor_classes_that_give_no_values_away(model):
    model.model.wrapped = torch.nn.Parameter(Wrapped((2, 3)), requires_grad=False)
    before, look = identity.describe(model), identity.watch(model)
    seen = look()
    assert identity.describe(model) == before and look() == seen
    model.model.wrapped = torch.nn.Parameter(Wrapped((2, 4)), requires_grad=False)
    assert look() != seen and changed(before, identity.describe(model)) == {"weights"}


def test_models_made_in_inference_mode():
    with torch.inference_mode():
        model = tiny()
    assert next(model.parameters()).is_inference()
    look = identity.watch(model)
    assert look() == look() and identity.describe(model) == identity.describe(tiny())
    with torch.inference_mode():
        assert identity.describe(model) == identity.describe(tiny())


# --- watch


def put(model, name, tensor):
    setattr(model, name, torch.nn.Parameter(tensor))


CHANGES = {
    "a weight in place": lambda model: model.lm_head.weight[0, 0].add_(1),
    "all weights in place": lambda model: [tensor.mul_(1.5) for tensor in model.parameters()],
    "data replaced": lambda model: setattr(model.lm_head.weight, "data", model.lm_head.weight.data.clone()),
    "a parameter replaced": lambda model: put(model.lm_head, "weight", model.lm_head.weight.clone()),
    "a layer replaced": lambda model: setattr(model, "lm_head", copy.deepcopy(model.lm_head)),
    "layers exchanged": lambda model: model.model.layers.__init__(list(model.model.layers)[::-1]),
    "a layer without weights replaced": lambda model: setattr(model.model.layers[0].mlp, "act_fn", torch.nn.ReLU()),
    "loaded anew": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict())),
    "loaded by assignment": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
    "half": lambda model: model.half(),
    "there and back": lambda model: model.double().float(),
    "attention": lambda model: model.set_attn_implementation("eager"),
    "training": lambda model: model.train(),
    "training of a layer": lambda model: model.model.layers[1].train(),
    "adapters put in": adapt,
    "configuration": lambda model: setattr(model.config, "rms_norm_eps", 1e-3),
    "revision": lambda model: setattr(model.config, "_commit_hash", "0a1b"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_watch_notices(model, change):
    """Contract 0x01A: what would leave a proposal without its meaning."""
    look = identity.watch(model)
    seen = look()
    assert look() == seen == identity.watch(model)()
    with torch.no_grad():
        CHANGES[change](model)
    assert look() != seen


def test_a_watch_notices_weights_that_changed_places(model):
    first, second = (layer.self_attn.q_proj.weight for layer in model.model.layers)
    look = identity.watch(model)
    seen = look()
    first.data, second.data = second.data, first.data
    assert look() != seen


def test_a_watch_notices_switched_adapters_and_their_return(model):
    layers = adapt(model)
    look = identity.watch(model)
    seen = look()
    for name, value in (("_active", ["second"]), ("merged_adapters", ["first"]), ("disable_adapters", True)):
        before = getattr(layers[1], name)
        setattr(layers[1], name, value)
        assert look() != seen
        setattr(layers[1], name, before)
        assert look() == seen


def test_a_watch_notices_other_arithmetic(model):
    look = identity.watch(model)
    seen = look()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert look() != seen
    with matmul_precision("medium"):
        assert look() != seen
    assert look() == seen


def test_values_written_through_data_leave_no_trace(model):
    """The limit of a look that costs next to nothing; a manifest made anew has the sketch."""
    before = hashlib.sha256(model.lm_head.weight.detach().numpy().tobytes()).hexdigest()
    look = identity.watch(model)
    seen = look()
    model.lm_head.weight.data.add_(1)
    assert look() == seen
    assert hashlib.sha256(model.lm_head.weight.detach().numpy().tobytes()).hexdigest() != before


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_watch_is_quiet_while_models_work(model, attention):
    model.set_attn_implementation(attention)
    assistant = noisy(model)
    looks = [identity.watch(part) for part in (model, assistant)]
    seen, described = [look() for look in looks], [identity.describe(part) for part in (model, assistant)]
    inputs = prompts([7, 4])
    model(**inputs)
    with torch.inference_mode():
        model(**inputs)
    common = {"max_new_tokens": 8, "do_sample": True}
    model.generate(**inputs, **common)
    for layout in ("replay", "retained"):
        hf_exactassist.generate(model, **inputs, assistant_model=assistant, seed=1, layout=layout, **common)
    model.generate(input_ids=inputs["input_ids"][:1], assistant_model=assistant, do_sample=False, max_new_tokens=8)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    assert [look() for look in looks] == seen
    assert [identity.describe(part) for part in (model, assistant)] == described


def test_versions_of_everything_that_computes():
    found = identity.libraries()
    assert set(found) == {"hf_exactassist", "numpy", "python", "torch", "transformers"}
    assert all(type(version) is str and version[0].isdigit() for version in found.values())


def test_digests_of_tensors_see_every_value_shape_and_dtype():
    tensor = torch.arange(12.0).reshape(3, 4)
    other = tensor.clone()
    other[2, 3] += 1e-4
    kinds = [tensor, other, tensor.reshape(4, 3), tensor.double(), tensor.bfloat16(), tensor[:, :3], tensor.t()]
    assert len({identity.tensor_digest(kind) for kind in kinds}) == len(kinds)
    assert identity.tensor_digest(tensor.t().contiguous()) == identity.tensor_digest(tensor.t())
    assert identity.tensor_digest(torch.zeros(0, 3)) != identity.tensor_digest(torch.zeros(3, 0))
