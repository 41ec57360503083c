"""Compiled blocks score like uncompiled ones, over storage whose shapes repeat; what cannot be compiled is refused.

Dynamo traces here, and what it has traced runs as it is: a compiler of kernels would take minutes.
"""

import gc
import weakref

import pytest
import torch
from transformers import GenerationConfig

from hf_exactassist.errors import UnsupportedArgument
from hf_exactassist.models import compiled, compiling
from hf_exactassist.models.compiled import CompiledRows
from hf_exactassist.models.runner import RowRunner
from hf_exactassist.state.cache import RowCache
from hf_exactassist.state.fixed import SMALLEST, FixedStorage, rounded
from tests.tiny import ARCHITECTURES, VOCABULARY, noisy, prompts, tiny


def begun(model, lengths=(1, 5, 13)):
    """A plain and a compiled runner that have read the same prompts."""
    pair = RowRunner(model), CompiledRows(model)
    inputs = prompts(lengths)
    mask = inputs["attention_mask"]
    for runner in pair:
        kwargs = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0), "use_cache": True}
        with torch.no_grad():
            runner.prefill(inputs["input_ids"], GenerationConfig(), kwargs)
    return pair


def step(pair, starts, counts, right=False, keep=None, seed=0):
    """One block through both, compared where tokens are real; and its lengths as if all had been kept."""
    width = max(counts)
    block = torch.randint(3, VOCABULARY, (len(counts), width), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        plain, ours = (runner.forward(block, starts, counts, right=right, keep=keep).logits for runner in pair)
    assert ours.shape == plain.shape == (len(counts), width if keep is None else keep, VOCABULARY)
    for row, count in enumerate(counts):
        count = min(count, ours.shape[1])
        place = slice(ours.shape[1] - count, None) if right or keep is not None else slice(0, count)
        torch.testing.assert_close(ours[row, place], plain[row, place], rtol=0, atol=2e-5 * plain.std().item())
    ends = [start + count for start, count in zip(starts, counts, strict=True)]
    for runner in pair:
        runner.cache.lengths = ends
    for row, end in enumerate(ends):
        assert pair[1].cache.tokens[row, :end].tolist() == pair[0].cache.tokens[row, :end].tolist()
    assert pair[0].forwards == pair[1].forwards
    return ends


@pytest.mark.parametrize(
    "architecture, attention", [*((name, "sdpa") for name in ARCHITECTURES), ("llama", "eager"), ("gemma3", "eager")]
)
def test_compiled_blocks_score_like_plain_ones(graphs, architecture, attention):
    """Ragged, padded, rejected, right-aligned, too wide to compile; rows leave and come back."""
    model = tiny(architecture)
    model.set_attn_implementation(attention)
    pair = begun(model)
    step(pair, [13, 13, 13], [4, 2, 3])
    ends = step(pair, [14, 13, 16], [5, 3, 6], seed=1)
    ends = step(pair, ends, [1, 1, 1], seed=2)
    ends = step(pair, ends, [2, 1, 0], right=True, keep=1, seed=3)
    ends = step(pair, ends, [17, 18, 3], seed=4)
    states = [[runner.cache.take_row(row) for row in range(3)] for runner in pair]
    for runner in pair:
        runner.keep_rows([0, 2])
    ends = step(pair, [ends[0] - 1, ends[2]], [2, 2], right=True, keep=1, seed=5)
    for runner, rows in zip(pair, states, strict=True):
        runner.regroup(rows)
    step(pair, pair[0].cache.lengths, [3, 1, 2], seed=6)
    # by rows, slots, width and places with scores
    assert set(compiled.compiled_for(model)) == {
        (4, 256, 8, 8),
        (4, 256, 4, 4),
        (4, 256, 1, 1),
        (4, 256, 2, 1),
        (2, 256, 2, 1),
    }
    assert len(graphs) == 5


def test_no_position_is_asked_for_behind_the_table(graphs):
    """gpt2, whose learned positions are used up; the filler of a block would stand behind them."""
    pair = begun(tiny("gpt2", n_positions=20), (16, 3))
    ends = step(pair, [16, 16], [3, 1])
    step(pair, ends, [1, 3])
    limited = CompiledRows(pair[1].model, position_limit=20)
    with torch.no_grad():
        limited.prefill(prompts([16])["input_ids"], GenerationConfig(), {"use_cache": True})
        limited.forward(torch.tensor([[5, 6, 7]]), [18])


def test_storage_grows_and_nothing_is_lost(graphs):
    pair = begun(tiny(), (200, 250))
    ends = step(pair, [250, 250], [3, 4])
    assert (pair[1].storage.rows, pair[1].storage.slots) == (2, 256)
    step(pair, ends, [3, 1], seed=1)
    assert (pair[1].storage.rows, pair[1].storage.slots) == (2, 512)


@pytest.fixture
def cache():
    made = RowCache([None, None])
    for number, layer in enumerate(made.layers):
        states = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(number))
        layer.load(states, states + 1, 5)
    made.begin(torch.arange(15).reshape(3, 5), 5)
    return made


def held(cache):
    return [part.clone() for layer in cache.layers for part in (layer.keys[:, :, :5], layer.values[:, :, :5])]


def test_storage_keeps_its_place(cache):
    """What a graph may have recorded: the addresses of tensors."""
    storage, before = FixedStorage(), held(cache)
    storage.hold(cache, 6)
    assert (storage.rows, storage.slots) == (4, SMALLEST)
    places = [part.data_ptr() for part in (*storage.keys, *storage.values, *storage.tokens)]
    assert all(torch.equal(a, b) for a, b in zip(held(cache), before, strict=True))
    assert [layer.keys.data_ptr() for layer in cache.layers] == places[:2]
    cache.keep_rows([0, 1, 2])
    storage.hold(cache, SMALLEST)
    assert [part.data_ptr() for part in (*storage.keys, *storage.values, *storage.tokens)] == places
    assert (
        cache.tokens.data_ptr() == places[-1]
        and cache.tokens[:, :5].tolist() == torch.arange(15).reshape(3, 5).tolist()
    )
    assert all(torch.equal(a, b) for a, b in zip(held(cache), before, strict=True))
    cache.keep_rows([2, 0])
    storage.hold(cache, 6)
    assert (storage.rows, storage.slots) == (2, SMALLEST) and cache.tokens[0, :5].tolist() == [10, 11, 12, 13, 14]
    assert all(torch.equal(a, b[[2, 0]]) for a, b in zip(held(cache), before, strict=True))


def test_interrupted_storage_goes_on(cache):
    """Ctrl-C between two layers: some are views of the new storage already."""
    storage, before = FixedStorage(), held(cache)
    hold, calls = storage._hold, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        hold(*args)

    storage._hold = interrupted
    with pytest.raises(KeyboardInterrupt):
        storage.hold(cache, SMALLEST + 1)
    storage.hold(cache, SMALLEST + 1)
    assert all(torch.equal(a, b) for a, b in zip(held(cache), before, strict=True))
    views = [part.data_ptr() for layer in cache.layers for part in (layer.keys, layer.values)]
    stores = [part.data_ptr() for pair in zip(storage.keys, storage.values, strict=True) for part in pair]
    assert views == stores and all(part.shape[2] == 2 * SMALLEST for part in storage.keys)


def test_rounded():
    assert [rounded(number) for number in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 16]


# --- graphs


def test_the_model_stays_as_it_is_and_no_graph_outlives_it(graphs):
    model = tiny()
    before = [(type(part), dict(vars(part)), dict(part.__dict__.get("_buffers", {}))) for part in model.modules()]
    compiling.require(model, "target", 2, 6)
    step(begun(model), [13] * 3, [2, 2, 2])
    assert graphs
    after = [(type(part), dict(vars(part)), dict(part.__dict__.get("_buffers", {}))) for part in model.modules()]
    for (kind, attributes, buffers), (now, others, later) in zip(before, after, strict=True):
        assert kind is now and attributes.keys() == others.keys() and buffers.keys() == later.keys()
        assert all(others[name] is attributes[name] for name in attributes)
    known, gone = weakref.ref(model), len(compiled._COMPILED)
    del model, before, after, attributes, others, buffers, later
    graphs.clear()
    gc.collect()
    assert known() is None and len(compiled._COMPILED) < gone


CHANGES = {
    "weights in place": lambda model: model.lm_head.weight.mul_(2),
    "another tensor": lambda model: setattr(model.lm_head, "weight", torch.nn.Parameter(model.lm_head.weight.flip(0))),
    "another layer": lambda model: model.model.layers.__setitem__(1, noisy(model.model.layers[1], 0.5)),
    "a hook": lambda model: model.lm_head.register_forward_hook(lambda module, inputs, output: -output),
    "attention path": lambda model: model.set_attn_implementation("eager"),
    "dtype": lambda model: model.double(),
    "another setting": lambda model: setattr(model.model.norm, "variance_epsilon", 1.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_is_seen(graphs, name):
    """A graph holds neither weights nor settings: after a change it gives what the model gives now."""
    model = tiny()
    step(begun(model), [13] * 3, [2, 2, 2])
    with torch.no_grad():
        CHANGES[name](model)
    step(begun(model), [13] * 3, [2, 2, 2])


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_that_change_are_seen(graphs):
    peft = pytest.importorskip("peft")
    model = tiny()
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], init_lora_weights=False)
    outer = peft.get_peft_model(model, config).eval()
    step(begun(model), [13] * 3, [2, 2, 2])
    outer.add_adapter("other", config)
    outer.set_adapter("other")
    step(begun(model), [13] * 3, [2, 2, 2])
    outer.base_model.disable_adapter_layers()
    step(begun(model), [13] * 3, [2, 2, 2])
    outer.base_model.enable_adapter_layers()
    outer.merge_adapter()
    step(begun(model), [13] * 3, [2, 2, 2])


def test_a_trial_is_made_once(graphs):
    model = tiny()
    compiling.require(model, "target", 3, 6)
    assert len(graphs) == 1
    compiling.require(model, "target", 4, 6)
    assert len(graphs) == 1
    step(begun(model), [13] * 3, [2, 6, 2])
    assert len(graphs) == 1
    decides_in_python(model)
    with pytest.raises(UnsupportedArgument):
        compiling.require(model, "target", 3, 6)


# --- refusals


def decides_in_python(model):
    model.model.register_forward_hook(lambda module, inputs, output: output if output[0].sum().item() else None)


def changes_python(model):
    calls = []
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: calls.append(1))


def is_offloaded(model):
    model.lm_head.to("meta")


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (decides_in_python, "`torch.compile` failed"),
        (changes_python, "`torch.compile` failed"),
        (is_offloaded, "several devices"),
    ],
)
@pytest.mark.parametrize("role", ["target", "assistant"])
def test_what_cannot_be_compiled_is_refused(graphs, monkeypatch, spoil, reason, role):
    model = tiny()
    compiling.admission.admit(model)
    spoil(model)
    way_out = 'compile="draft"' if role == "target" else "leave `compile` out"
    monkeypatch.setattr(compiling.admission, "admit", lambda model: compiling.admission.Admission(True, "", ""))
    with pytest.raises(UnsupportedArgument, match=f"(?s)the {role} Llama.*{reason}.*{way_out}"):
        compiling.require(model, role, 1, 6)


def test_a_compiler_that_fails_is_named(monkeypatch):
    def broken(graph, examples):
        raise RuntimeError("no C++ compiler")

    monkeypatch.setattr(compiled, "BACKEND", broken)
    with pytest.raises(UnsupportedArgument, match="no C\\+\\+ compiler"):
        compiling.require(tiny(), "target", 1, 6)


@pytest.mark.parametrize("wrong", [lambda logits: logits + 0.1, lambda logits: logits * torch.nan])
def test_a_compiler_that_computes_something_else_is_refused(monkeypatch, wrong):
    def miscompiled(graph, examples):
        return lambda *inputs: tuple(wrong(output) for output in graph.forward(*inputs))

    monkeypatch.setattr(compiled, "BACKEND", miscompiled)
    model = tiny()
    for _ in range(2):
        with pytest.raises(UnsupportedArgument, match="differ by"):
            compiling.require(model, "target", 1, 6)
