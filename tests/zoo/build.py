"""Tiny random models of every causal-LM and every encoder-decoder type of Transformers.

Sizes are filled in by the names of the configuration's own fields. What that leaves open stands in `EXCEPTIONS`.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import transformers
from transformers import AutoConfig, BertConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)


TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
# the others that Transformers lists as sequence to sequence are decoders that read audio
ENCODER_DECODER_TYPES = sorted(
    model_type
    for model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    if getattr(CONFIG_MAPPING[model_type], "is_encoder_decoder", False)
)
VOCABULARY = 61
# more parameters than this are a size that was overlooked
LARGEST = 5_000_000


def _each(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


# what a field of a configuration is set to, where a configuration has it
SIZES: dict[str, Any] = {
    **_each(
        VOCABULARY, "vocab_size n_words vocab_size_per_layer_input src_vocab_size tgt_vocab_size decoder_vocab_size"
    ),
    **_each(
        32,
        "hidden_size n_embd d_model emb_dim embedding_size embedding_dim word_embed_proj_dim lru_width dim "
        "router_hidden_size",
    ),
    **_each(
        48,
        "intermediate_size n_inner d_ff d_inner dff dim_ff ffn_dim ffn_hidden_size dense_intermediate_size "
        "encoder_ffn_dim decoder_ffn_dim",
    ),
    **_each(
        24,
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size "
        "moe_shared_expert_intermediate_size shared_experts_intermediate_size",
    ),
    **_each(
        2,
        "num_hidden_layers n_layer n_layers num_layers layers encoder_layers decoder_layers num_encoder_layers "
        "num_decoder_layers num_blocks",
    ),
    **_each(
        4,
        "num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads "
        "decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads",
    ),
    **_each(2, "num_key_value_heads num_kv_heads num_query_groups swa_num_key_value_heads"),
    **_each(8, "head_dim dim_head d_head d_kv attention_head_dim swa_head_dim global_head_dim kv_channels v_head_dim"),
    # latent attention, and keys chosen by an index
    **_each(16, "q_lora_rank kv_lora_rank qk_head_dim o_lora_rank adapter_rank"),
    **_each(8, "qk_rope_head_dim qk_nope_head_dim query_pre_attn_scalar index_head_dim index_topk"),
    **_each(2, "o_groups gated_norm_rank"),
    # so many heads that no two keys score alike: which of them a model takes depends on the shape of its forward
    **_each(16, "index_n_heads"),
    **_each(4, "index_block_size"),
    **_each(2, "index_topk_blocks"),
    # positions and windows, shorter than the texts
    **_each(
        256,
        "max_position_embeddings n_positions n_ctx max_seq_len max_seq_length model_max_length "
        "max_encoder_position_embeddings max_decoder_position_embeddings",
    ),
    **_each(8, "sliding_window window_size attention_window_size swa_window_size sliding_window_size"),
    **_each(4, "rotary_dim"),
    **_each(4, "local_radius global_block_size num_global_tokens"),
    **_each(8, "relative_attention_num_buckets"),
    **_each(16, "attention_chunk_size relative_attention_max_distance"),
    **_each(8, "floor_scale log_scaling_n_floor"),
    # experts
    **_each(4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    **_each(2, "num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k experts_per_token"),
    **_each(1, "n_group num_expert_group topk_group n_shared_experts num_shared_experts first_k_dense_replace"),
    **_each(1, "encoder_sparse_step decoder_sparse_step"),
    **_each(2, "num_sparse_encoder_layers num_sparse_decoder_layers"),
    **_each(1, "moe_layer_freq zero_expert_num moe_layer_start_index"),
    # recurrent layers
    **_each(8, "state_size mamba_d_state ssm_state_size mamba_chunk_size"),
    **_each(4, "conv_kernel mamba_d_conv mamba_dt_rank time_step_rank hidden_size_per_layer_input"),
    **_each(2, "mamba_expand expand"),
    **_each(1, "mamba_n_groups mamba_ngroups n_groups"),
    **_each(4, "mamba_n_heads mamba_num_heads linear_num_key_heads linear_num_value_heads linear_num_heads"),
    **_each(16, "mamba_d_head mamba_head_dim mamba_headdim"),
    **_each(8, "linear_key_head_dim linear_value_head_dim linear_head_dim"),
    # vision and audio parts, which are built and not used
    **_each(16, "image_size"),
    **_each(8, "patch_size"),
    # tokens
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # decoders in evaluation mode, with text that does not repeat the last token for ever
    "is_decoder": True,
    "use_cache": True,
    "tie_word_embeddings": False,
}
# fields with an entry per layer: each kind of the default value stays, once
PER_LAYER = ("layer_types", "layers_block_type", "block_types", "mlp_layer_types")
DEPTHS = {"num_hidden_layers", "n_layer", "n_layers", "num_layers"}
KEY_HEADS = {"num_key_value_heads", "num_kv_heads"}
# a short text, and no end before it is complete
TEXT: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
# how every encoder-decoder type begins and ends, and no beams
START: dict[str, Any] = {
    "decoder_start_token_id": 3,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "eos_token_id": None,
    "num_beams": 1,
}

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_BYTES = {"vocab_size": 260, "hidden_size_global": 32}
# what the names of the fields leave open, per type of configuration
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "big_bird": {"attention_type": "original_full"},
    "blt": {"num_hidden_layers": 2, "vocab_size": 260, "encoder_hash_byte_group_vocab": 61},
    "blt_local_encoder": _BYTES,
    "blt_local_decoder": _BYTES,
    "blt_patcher": _BYTES,
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "deepseek_v4": {
        "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"],
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "num_hidden_layers": 3,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
    },
    "dory": {
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
        "num_hidden_layers": 4,
        "n_input_layers": 1,
        "n_output_layers": 1,
    },
    "dots3_note_text": {
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 8,
    },
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "gemma4_unified_vision": {"mm_embed_dim": 32, "mm_posemb_size": 16, "output_proj_dims": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "inkling2_loop_text": {"unpadded_vocab_size": 61},
    "inkling2_text": {"unpadded_vocab_size": 61},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "led": {"attention_window": 8},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "minimax_m3_vl_text": {
        "index_n_heads": 2,
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse"],
    },
    "musicgen_decoder": {"num_codebooks": 1},
    "musicgen_melody_decoder": {"num_codebooks": 1},
    "pegasus_x": {"block_size": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "ple_embed_dim": 8,
        "ngram_vocab_size_base": 61,
        "hc_lowrank": 8,
    },
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16]},
    "roc_bert": {"shape_vocab_size": 61, "shape_embed_dim": 16, "pronunciation_embed_dim": 16},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"n_mamba_heads": 4},
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": 8},
    # the parts of a configuration of parts
    "dbrx": {"attn_config": {"clip_qkv": 8.0, "rope_theta": 10000.0}, "ffn_config": {"hidden_size": 32}},
}


class NotBuilt(Exception):
    """A type that has no tiny model, and why."""


def class_name(model_type: str, encoder_decoder: bool = False) -> str:
    """Name of the model's class: that of a causal LM, or of an encoder-decoder model."""
    names = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES if encoder_decoder else MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    name = names[model_type]
    return name if isinstance(name, str) else name[0]


def reads_apart(model: PreTrainedModel) -> bool:
    """Whether an encoder reads the prompt, so that the decoder's text begins with a start token."""
    return bool(model.config.is_encoder_decoder)


def text_settings(model: PreTrainedModel) -> dict[str, Any]:
    """How a model writes its text."""
    return {**TEXT, "repetition_penalty": 1.5} if reads_apart(model) else TEXT


def build(model_type: str, encoder_decoder: bool = False) -> PreTrainedModel:
    """A tiny random model in float32 and evaluation mode, whose text varies where weights can make it vary.

    Args:
        model_type: one of `TYPES`, or of `ENCODER_DECODER_TYPES`.
        encoder_decoder: which of the two; some types are in both.

    Raises:
        NotBuilt: there is none; the message says why.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model_class = getattr(transformers, class_name(model_type, encoder_decoder))
            config = _config(model_type, model_class)
            with torch.device("meta"):
                weights = sum(part.numel() for part in model_class._from_config(copy.deepcopy(config)).parameters())
            if weights > LARGEST:
                raise NotBuilt(f"its tiny form still has {weights / 1e6:.0f} million weights")
            torch.manual_seed(0)
            model = model_class._from_config(config, dtype=torch.float32).eval()
            if encoder_decoder:
                model.generation_config.update(**START)
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    _enliven(model)
    return model


def _config(model_type: str, model_class: type[PreTrainedModel]) -> Any:
    """The configuration of a tiny model: that of the text part alone, where the class takes it."""
    config_class = CONFIG_MAPPING[model_type]
    if model_type == "encoder-decoder":
        encoder, decoder = _shrunk(BertConfig), _shrunk(BertConfig)
        encoder.is_decoder = False
        return config_class.from_encoder_decoder_configs(encoder, decoder, pad_token_id=0)
    if model_class.config_class in getattr(config_class, "sub_configs", {}).values():
        config_class = model_class.config_class
    return _shrunk(config_class)


def _shrunk(config_class: Any) -> Any:
    """A configuration of tiny sizes, its parts included."""
    exceptions = EXCEPTIONS.get(config_class.model_type, {})
    try:
        given = vars(config_class())
    except Exception:
        return config_class(**exceptions)
    settings = {name: size for name, size in SIZES.items() if name in given}
    kinds = {name: list(dict.fromkeys(given[name])) for name in PER_LAYER if given.get(name)}
    depth = max([2, *map(len, kinds.values())])
    for name, some in kinds.items():
        settings[name] = some + some[-1:] * (depth - len(some))
    settings |= dict.fromkeys(DEPTHS & settings.keys(), depth)
    if given.get("is_encoder_decoder"):
        # the classes themselves say which of their parts is the decoder
        settings.pop("is_decoder", None)
    if given.get("sliding_window") is None:
        settings.pop("sliding_window", None)
    if given.get("num_key_value_heads") == given.get("num_attention_heads"):
        settings |= dict.fromkeys(KEY_HEADS & settings.keys(), settings.get("num_attention_heads"))
    for name, part in getattr(config_class, "sub_configs", {}).items():
        part = type(given.get(name)) if part is AutoConfig else part
        if hasattr(part, "model_type"):
            settings[name] = _shrunk(part)
    return config_class(**(settings | exceptions))


def _enliven(model: PreTrainedModel) -> None:
    """Draws weights until the text varies: texts that repeat themselves would agree whatever is wrong."""
    initial = {name: weights.detach().clone() for name, weights in model.named_parameters()}
    prompts = torch.arange(3, 15)[None]
    start = prompts.shape[1]
    if reads_apart(model):
        # every text begins with the same token
        prompts, start = torch.cat([prompts, prompts + 20, prompts + 40]), 1
    tried = []
    for seed, spread in enumerate((0.3, 0.3, 0.15, 0.6, 0.1, 1.0)):
        _draw(model, initial, spread, seed)
        try:
            texts = model.generate(prompts, **text_settings(model))[:, start:]
        except Exception:
            # whoever uses the model will be told
            return
        tried.append((min(len(set(text)) for text in texts.tolist()), spread, seed))
        if tried[-1][0] >= texts.shape[1] // 2:
            return
    _draw(model, initial, *max(tried)[1:])


def _draw(model: PreTrainedModel, initial: dict[str, torch.Tensor], spread: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            drawn = torch.randn(weights.shape, generator=generator)
            is_matrix = weights.dim() >= 2 and "A_log" not in name
            # what is no matrix keeps its meaning: scales near one, rates of decay
            weights.copy_(drawn * spread if is_matrix else initial[name] + drawn * 0.05)


def noisy(model: PreTrainedModel, amount: float) -> PreTrainedModel:
    """A relative of `model` that agrees with it the less, the larger the amount."""
    relative, generator = copy.deepcopy(model), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in relative.parameters():
            scale = weights.std() if weights.numel() > 1 else weights.abs()
            weights.add_(torch.randn(weights.shape, generator=generator) * scale.nan_to_num(0) * amount)
    return relative
