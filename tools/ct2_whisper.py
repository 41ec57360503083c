"""Whisper from a CTranslate2 folder, as Transformers' `WhisperForConditionalGeneration` and its processor.

A `model.bin` of binary version 6 is: the version, the name of the specification, its revision and the number of
tensors; then each tensor as name, rank, sizes, kind of number, length in bytes and bytes; then pairs of names that
share a tensor. All is little-endian, and a name is a length in two bytes and as many bytes, the last of them zero.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch


if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration, WhisperProcessor, WhisperTokenizer


VERSION = 6
KINDS = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
HEAD_WIDTH = 64  # of every Whisper
# a layer of Transformers, and the place in the file it comes from
NORMS = {"self_attn_layer_norm": "self_attention/layer_norm", "final_layer_norm": "ffn/layer_norm"}
LINEARS = {
    "self_attn.out_proj": "self_attention/linear_1",
    "fc1": "ffn/linear_0",
    "fc2": "ffn/linear_1",
}


class Tensors:
    """The tensors of a `model.bin`, by their names there."""

    def __init__(self, file: Path):
        self._arrays: dict[str, np.ndarray] = {}
        with file.open("rb") as stream:
            version, specification = _number(stream, "I"), _text(stream)
            if version != VERSION or specification != "WhisperSpec":
                raise ValueError(f"{file.name} is {specification}, version {version}: not WhisperSpec, {VERSION}")
            _number(stream, "I")  # the specification's revision
            for _ in range(_number(stream, "I")):
                name = _text(stream)
                sizes = [_number(stream, "I") for _ in range(_number(stream, "B"))]
                kind = np.dtype(KINDS[_number(stream, "B")])
                data = stream.read(_number(stream, "I"))
                self._arrays[name] = np.frombuffer(data, dtype=kind).reshape(sizes)
            for _ in range(_number(stream, "I")):
                alias, name = _text(stream), _text(stream)
                self._arrays[alias] = self._arrays[name]

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._arrays[name].astype(np.float32))

    def layers(self, side: str) -> int:
        """How many layers the encoder or the decoder has."""
        return len({name.split("/")[1] for name in self._arrays if name.startswith(f"{side}/layer_")} - {"layer_norm"})


def _number(stream: BinaryIO, kind: str) -> int:
    layout = struct.Struct(f"<{kind}")
    return layout.unpack(stream.read(layout.size))[0]


def _text(stream: BinaryIO) -> str:
    return stream.read(_number(stream, "H")).rstrip(b"\0").decode()


def read(folder: Path) -> tuple[WhisperForConditionalGeneration, WhisperProcessor]:
    """Model (float32) and processor of a folder with `model.bin`, `config.json` and `tokenizer.json`."""
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
        WhisperProcessor,
    )

    tensors = Tensors(folder / "model.bin")
    told = json.loads((folder / "config.json").read_text())
    tokenizer = _tokenizer(folder / "tokenizer.json")
    weights = _weights(tensors)
    vocabulary, width = weights["model.decoder.embed_tokens.weight"].shape
    mel_bins = weights["model.encoder.conv1.weight"].shape[1]
    end, start, without, previous = tokenizer.convert_tokens_to_ids(
        ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|startofprev|>"]
    )
    ids = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
    sizes = {
        f"{side}_{what}": size
        for side in ("encoder", "decoder")
        for what, size in {
            "layers": tensors.layers(side),
            "attention_heads": width // HEAD_WIDTH,
            "ffn_dim": weights[f"model.{side}.layers.0.fc1.weight"].shape[0],
        }.items()
    }
    config = WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        num_mel_bins=mel_bins,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **sizes,
        **ids,
    )
    model = WhisperForConditionalGeneration(config)
    model.load_state_dict({**weights, "proj_out.weight": weights["model.decoder.embed_tokens.weight"]})
    model.generation_config = GenerationConfig(
        **ids,
        suppress_tokens=told["suppress_ids"],
        begin_suppress_tokens=told["suppress_ids_begin"],
        alignment_heads=told["alignment_heads"],
        no_timestamps_token_id=without,
        prev_sot_token_id=previous,
        max_initial_timestamp_index=50,
        is_multilingual=False,
        return_timestamps=False,
        max_length=config.max_target_positions,
    )
    return model.eval(), WhisperProcessor(WhisperFeatureExtractor(feature_size=mel_bins), tokenizer)


def _weights(tensors: Tensors) -> dict[str, torch.Tensor]:
    weights = {"model.decoder.embed_tokens.weight": tensors["decoder/embeddings/weight"]}
    for conv in ("conv1", "conv2"):
        weights |= _linear(f"model.encoder.{conv}", tensors, f"encoder/{conv}")
    for side in ("encoder", "decoder"):
        weights[f"model.{side}.embed_positions.weight"] = tensors[f"{side}/position_encodings/encodings"]
        weights |= _norm(f"model.{side}.layer_norm", tensors, f"{side}/layer_norm")
        for number in range(tensors.layers(side)):
            to, at = f"model.{side}.layers.{number}", f"{side}/layer_{number}"
            for name, place in NORMS.items():
                weights |= _norm(f"{to}.{name}", tensors, f"{at}/{place}")
            for name, place in LINEARS.items():
                weights |= _linear(f"{to}.{name}", tensors, f"{at}/{place}")
            # queries, keys and values lie in one matrix, one below the other
            weights |= _projections(f"{to}.self_attn", "qkv", tensors, f"{at}/self_attention/linear_0")
            if side == "decoder":
                weights |= _norm(f"{to}.encoder_attn_layer_norm", tensors, f"{at}/attention/layer_norm")
                weights |= _projections(f"{to}.encoder_attn", "q", tensors, f"{at}/attention/linear_0")
                weights |= _projections(f"{to}.encoder_attn", "kv", tensors, f"{at}/attention/linear_1")
                weights |= _linear(f"{to}.encoder_attn.out_proj", tensors, f"{at}/attention/linear_2")
    return weights


def _norm(to: str, tensors: Tensors, at: str) -> dict[str, torch.Tensor]:
    return {f"{to}.weight": tensors[f"{at}/gamma"], f"{to}.bias": tensors[f"{at}/beta"]}


def _linear(to: str, tensors: Tensors, at: str) -> dict[str, torch.Tensor]:
    return {f"{to}.{kind}": tensors[f"{at}/{kind}"] for kind in ("weight", "bias")}


def _projections(to: str, which: str, tensors: Tensors, at: str) -> dict[str, torch.Tensor]:
    parts = zip(which, tensors[f"{at}/weight"].chunk(len(which)), tensors[f"{at}/bias"].chunk(len(which)), strict=True)
    weights = {}
    for letter, weight, bias in parts:
        weights[f"{to}.{letter}_proj.weight"] = weight
        if letter != "k":
            weights[f"{to}.{letter}_proj.bias"] = bias
        elif bias.any():
            raise ValueError(f"{at} gives the keys a bias, which Whisper does not have")
    return weights


def _tokenizer(file: Path) -> WhisperTokenizer:
    from transformers import AddedToken, WhisperTokenizer

    told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in told["model"]["merges"]]
    tokenizer = WhisperTokenizer(vocab=told["model"]["vocab"], merges=merges, pad_token="<|endoftext|>")
    special = [
        AddedToken(entry["content"], normalized=False, special=True)
        for entry in sorted(told["added_tokens"], key=lambda entry: entry["id"])
    ]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    for entry in told["added_tokens"]:
        found = tokenizer.convert_tokens_to_ids(entry["content"])
        if found != entry["id"]:
            raise ValueError(f"the tokenizer numbers {entry['content']} {found}, the file {entry['id']}")
    return tokenizer
