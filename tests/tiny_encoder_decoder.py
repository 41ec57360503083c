"""Tiny encoder-decoder models whose text varies, and what they read."""

import copy

import torch
import transformers as hf


VOCABULARY = 80
IDS = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    "forced_eos_token_id": None,
}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "tie_word_embeddings": False}
# model, configuration, settings: relative positions, learned ones, fixed ones counted without the padding token
KINDS = {
    "t5": ("T5ForConditionalGeneration", "T5Config", T5),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "m2m_100": ("M2M100ForConditionalGeneration", "M2M100Config", BART),
    "marian": ("MarianMTModel", "MarianConfig", BART),
}
WHISPER = {
    **{name: size for name, size in BART.items() if name not in ("max_position_embeddings", "forced_eos_token_id")},
    "num_mel_bins": 8,
    "max_source_positions": 30,
    "max_target_positions": 64,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}


def tiny(kind="t5", seed=0, **settings):
    """A random model in float32 and evaluation mode."""
    model, config, sizes = KINDS[kind]
    return _enlivened(getattr(hf, model), getattr(hf, config)(**{**IDS, **sizes, **settings}), seed)


def whisper(seed=0, timestamps=60, **settings):
    """A random Whisper, for English alone; ids from `timestamps` on are some."""
    config = hf.WhisperConfig(**{**IDS, **WHISPER, **settings})
    model = _enlivened(hf.WhisperForConditionalGeneration, config, seed)
    model.generation_config.no_timestamps_token_id = timestamps - 1
    model.generation_config.is_multilingual = False
    return model


def whisper_decoder(model):
    """The decoder of a Whisper as a model of its own, which is given encoder outputs."""
    decoder = hf.WhisperForCausalLM(copy.deepcopy(model.config)).eval()
    decoder.load_state_dict(model.state_dict(), strict=False)
    return decoder


def _enlivened(kind, config, seed):
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.3)
    return model


def sentences(lengths, seed=0, vocabulary=VOCABULARY):
    """Random texts for the encoder, padded on the right: `input_ids` and `attention_mask`."""
    generator, width = torch.Generator().manual_seed(seed), max(lengths)
    ids = torch.randint(4, vocabulary, (len(lengths), width), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate(lengths):
        ids[row, length:] = 0
        mask[row, length:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def audio(rows=1, stretches=1, seed=0):
    """Random log-mel features `(rows, bins, frames)`; Whisper reads 60 frames at a time."""
    return torch.randn(rows, 8, 60 * stretches, generator=torch.Generator().manual_seed(seed))
