"""tools/real_models.py: derived models, on a tiny one. Those of packages are made by `make real`."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM


FILE = Path(__file__).parents[2] / "tools" / "real_models.py"


@pytest.fixture
def tool(monkeypatch):
    found = importlib.util.spec_from_file_location("real_models", FILE)
    module = importlib.util.module_from_spec(found)
    # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "real_models", module)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes, tie_word_embeddings=True)).eval()


def test_wider_mlps_compute_the_same(tool, model):
    wide = tool.with_wider_mlps(model, 100)
    layer = wide.model.layers[1].mlp
    assert layer.gate_proj.weight.shape == layer.up_proj.weight.shape == (100, 16)
    assert wide.config.intermediate_size == 100 and model.config.intermediate_size == 24
    assert layer.gate_proj.weight[99].any()
    ids = torch.arange(12)[None]
    torch.testing.assert_close(wide(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-6)


class Nothing:
    """A tokenizer of no consequence."""

    def save_pretrained(self, folder):
        pass


def test_derived_models_are_made_without_their_float32_form(tool, model, tmp_path, monkeypatch):
    monkeypatch.setitem(tool.RECIPES, "smollm2-wide16", tool.Recipe(source="smollm2", intermediate_size=48))
    monkeypatch.setattr(tool, "load", lambda folder: (AutoModelForCausalLM.from_pretrained(folder), Nothing()))
    small = tool.checkpoint(tmp_path, "smollm2")
    tool.save(model, Nothing(), small, tool.Dtype.float32, tool.description("smollm2", tool.Dtype.float32))
    folder = tool.make(tmp_path, "smollm2-wide16", tool.Dtype.bfloat16, lambda _: None)
    made = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert made.dtype == torch.bfloat16 and made.config.intermediate_size == 48
    assert tool.is_made(tmp_path, "smollm2-wide16", tool.Dtype.bfloat16)
    assert not tool.checkpoint(tmp_path, "smollm2-wide16").exists()


def test_what_a_recipe_does_not_ask_for_is_not_in_its_file(tool):
    told = tool.description("smollm2-draft70", tool.Dtype.float32)
    assert told["recipe"] == {"source": "smollm2", "noise": 0.2, "seed": 0}
    assert json.dumps(tool.description("smollm2-wide16", tool.Dtype.bfloat16)).count("24576") == 1


def test_large_models_are_made_only_if_named(tool, monkeypatch, tmp_path):
    from typer.testing import CliRunner

    made = []
    monkeypatch.setattr(tool, "make", lambda root, name, kind, say: made.append((name, kind.value)) or root)
    assert CliRunner().invoke(tool.app, ["--folder", str(tmp_path)]).exit_code == 0
    assert [name for name, _ in made] == [name for name in tool.RECIPES if name not in tool.ON_REQUEST]
    assert "smollm2" in tool.RECIPES and "smollm2-wide16" not in [name for name, _ in made]
    made.clear()
    arguments = ["smollm2-wide16", "--dtype", "bfloat16", "--folder", str(tmp_path)]
    assert CliRunner().invoke(tool.app, arguments).exit_code == 0
    assert made == [("smollm2-wide16", "bfloat16")]
