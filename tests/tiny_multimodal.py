"""Tiny models that read images or audio, and prompts for them."""

import functools

import torch
import transformers
from transformers import (
    CLIPVisionConfig,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PixtralVisionConfig,
    Qwen2Config,
    SiglipVisionConfig,
)


VOCABULARY, PLACEHOLDER, VIDEO, START, END = 96, 90, 91, 92, 93
_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_TEXT = {
    **_IDS,
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
_TOWER = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
_QWEN_TOWER = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
_QWEN_IDS = {"video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}
_MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_ANYRES = {"image_grid_pinpoints": [[8, 16], [16, 8], [16, 16]]}


def _settings(kind, text):
    """Keyword arguments of the kind's configuration; `text` changes that of its text part."""
    common = {**_TEXT, **text}
    llama, clip, siglip = LlamaConfig(**common), CLIPVisionConfig(**_TOWER), SiglipVisionConfig(**_TOWER)
    mrope = {**common, "rope_parameters": _MROPE}
    sliding = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8}
    audio = {"num_mel_bins": 8, "max_source_positions": 8}
    return {
        "llava": {"text_config": llama, "vision_config": clip},
        "llava_next": {"text_config": llama, "vision_config": clip, **_ANYRES},
        "llava_onevision": {
            "text_config": Qwen2Config(**common),
            "vision_config": siglip,
            "video_token_index": VIDEO,
            **_ANYRES,
        },
        "qwen2_vl": {
            "text_config": mrope,
            "vision_config": {**_QWEN_TOWER, "embed_dim": 16, "hidden_size": 32},
            **_QWEN_IDS,
        },
        "qwen2_5_vl": {
            "text_config": mrope,
            "vision_config": {
                **_QWEN_TOWER,
                "hidden_size": 16,
                "intermediate_size": 32,
                "out_hidden_size": 32,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
            **_QWEN_IDS,
        },
        "qwen3_vl": {
            "text_config": {**mrope, "head_dim": 8},
            "vision_config": {
                **_QWEN_TOWER,
                "hidden_size": 16,
                "intermediate_size": 32,
                "out_hidden_size": 32,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0, 1],
            },
            **_QWEN_IDS,
        },
        # linear attention in every other layer: its rows run one by one
        "qwen3_5": {
            "text_config": {
                **mrope,
                "rope_parameters": {**_MROPE, "partial_rotary_factor": 1.0},
                "head_dim": 8,
                "layer_types": ["linear_attention", "full_attention"],
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 8,
            },
            "vision_config": {
                **_QWEN_TOWER,
                "hidden_size": 16,
                "intermediate_size": 32,
                "out_hidden_size": 32,
                "num_position_embeddings": 16,
            },
            **_QWEN_IDS,
        },
        "gemma3": {
            "text_config": Gemma3TextConfig(**{**common, **sliding}),
            "vision_config": siglip,
            "mm_tokens_per_image": 4,
            "boi_token_index": START,
            "eoi_token_index": END,
            "tie_word_embeddings": False,
        },
        "paligemma": {
            "text_config": GemmaConfig(**{**common, "head_dim": 8}),
            "vision_config": SiglipVisionConfig(**_TOWER, projection_dim=32, num_image_tokens=4),
            "projection_dim": 32,
            "hidden_size": 32,
            "tie_word_embeddings": False,
        },
        "idefics3": {
            "text_config": llama,
            "vision_config": {**_TOWER, "image_size": 16},
            "scale_factor": 2,
        },
        "smolvlm": {
            "text_config": llama,
            "vision_config": {**_TOWER, "image_size": 16},
            "scale_factor": 2,
        },
        "internvl": {
            "text_config": Qwen2Config(**common),
            "vision_config": {**_TOWER, "image_size": [16, 16], "patch_size": [4, 4]},
            "image_seq_length": 4,
            "tie_word_embeddings": False,
        },
        "mistral3": {
            "text_config": MistralConfig(**{**common, "sliding_window": 8, "head_dim": 8}),
            "vision_config": PixtralVisionConfig(**{**_TOWER, "image_size": 16, "head_dim": 8}),
            "tie_word_embeddings": False,
        },
        "qwen2_audio": {
            "text_config": Qwen2Config(**common),
            "audio_config": {
                **audio,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 32,
                "d_model": 16,
            },
        },
        "voxtral": {
            "text_config": llama,
            "audio_config": {
                **{name: _TOWER[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")},
                **audio,
                "head_dim": 8,
                "intermediate_size": 64,
            },
        },
    }[kind]


_PLACEHOLDERS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")
_CLASSES = {
    "llava": "Llava",
    "llava_next": "LlavaNext",
    "llava_onevision": "LlavaOnevision",
    "qwen2_vl": "Qwen2VL",
    "qwen2_5_vl": "Qwen2_5_VL",
    "qwen3_vl": "Qwen3VL",
    "qwen3_5": "Qwen3_5",
    "gemma3": "Gemma3",
    "paligemma": "PaliGemma",
    "idefics3": "Idefics3",
    "smolvlm": "SmolVLM",
    "internvl": "InternVL",
    "mistral3": "Mistral3",
    "qwen2_audio": "Qwen2Audio",
    "voxtral": "Voxtral",
}
# kinds whose rows run together
KINDS = tuple(kind for kind in _CLASSES if kind != "qwen3_5")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")


@functools.cache
def tiny(kind, seed=0, placeholder=PLACEHOLDER, **text):
    """A random model whose text varies and depends on what it is shown; shared, so not to be changed.

    Args:
        kind: one of `KINDS`, or `"qwen3_5"`.
        seed: of the weights.
        placeholder: the token that an image or a sound replaces.
        text: settings of the part that decodes.
    """
    config_name = {"qwen2_5_vl": "Qwen2_5_VLConfig"}.get(kind, f"{_CLASSES[kind]}Config")
    config = getattr(transformers, config_name)(**_settings(kind, text))
    name = next(name for name in vars(config) if name in _PLACEHOLDERS)
    setattr(config, name, placeholder)
    config.eos_token_id, config.pad_token_id, config.bos_token_id = 2, 0, 1
    torch.manual_seed(seed)
    model = getattr(transformers, f"{_CLASSES[kind]}ForConditionalGeneration")(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            drawn = torch.randn(weights.shape, generator=generator)
            # scales stay near one
            weights.copy_(drawn * 0.3 if weights.dim() >= 2 else weights + drawn * 0.05)
    return model


def prompts(kind, counts, seed=0, picture=0):
    """Left-padded prompts, row `i` with `counts[i]` images or sounds and a text of its own length.

    Args:
        kind: of the model.
        counts: of each row.
        seed: of the text.
        picture: of what is shown.
    """
    words, pixels = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(picture)
    total = sum(counts)
    shown, sizes = _shown(kind, total, pixels)
    rows, sizes = [], iter(sizes)
    for row, count in enumerate(counts):
        text = torch.randint(3, PLACEHOLDER, (3 + 2 * row,), generator=words).tolist()
        pieces = [token for _ in range(count) for token in [START, *[PLACEHOLDER] * next(sizes), END]]
        rows.append([*text[:1], *pieces, *text[1:]])
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    made = {"input_ids": ids, "attention_mask": mask, **(shown if total else {})}
    if kind in (*QWEN, "gemma3", "paligemma") and total:
        name = "mm_token_type_ids" if kind in QWEN else "token_type_ids"
        made[name] = (ids == PLACEHOLDER).long()
    return made


def _shown(kind, total, pixels):
    """Images or sounds, and how many tokens each becomes."""

    def random(*shape):
        return torch.randn(*shape, generator=pixels)

    if kind in QWEN:
        # every other image is smaller; all of them take fewer positions than tokens
        grids = [[1, 4, 4] if i % 2 else [1, 4, 8] for i in range(total)]
        patches = sum(h * w for _, h, w in grids)
        shown = {"pixel_values": random(patches, 3 * 2 * 4 * 4), "image_grid_thw": torch.tensor(grids)}
        return shown, [h * w // 4 for _, h, w in grids]
    if kind in ("llava_next", "llava_onevision"):
        # an image of 8 x 16 is two tiles and an overview, 4 tokens each; every other row of the tiles ends in a token
        tall = {"pixel_values": random(total, 3, 3, 8, 8), "image_sizes": torch.tensor([[16, 8]] * total)}
        return tall, [4 + 4 * 2 + 4] * total
    if kind in ("idefics3", "smolvlm"):
        return {"pixel_values": random(1, total, 3, 16, 16)}, [4] * total
    if kind == "internvl":
        return {"pixel_values": random(total, 3, 16, 16)}, [4] * total
    if kind == "mistral3":
        return {"pixel_values": random(total, 3, 16, 16), "image_sizes": torch.tensor([[16, 16]] * total)}, [4] * total
    if kind == "qwen2_audio":
        lengths = [16 if i % 2 else 8 for i in range(total)]
        mask = torch.tensor([[1] * length + [0] * (16 - length) for length in lengths])
        return {"input_features": random(total, 8, 16), "feature_attention_mask": mask}, [
            ((length - 1) // 2 + 1 - 2) // 2 + 1 for length in lengths
        ]
    if kind == "voxtral":
        return {"input_features": random(total, 8, 16)}, [2] * total
    return {"pixel_values": random(total, 3, 8, 8)}, [4] * total
