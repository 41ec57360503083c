"""A model whose logits are a table look-up by the visible prefix: a real `PreTrainedModel` that costs next to nothing.

It uses cache, masks and positions as attention does (keys are token and position, a query sums over what it may see),
so a wrong mask, slot or position changes the law.
"""

import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_exactassist.models.compat import CACHE_ARGUMENT


class HashConfig(PretrainedConfig):
    model_type = "hash"

    def __init__(self, vocab_size=4, seed=0, sharpness=1.5, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size, self.seed, self.sharpness = vocab_size, seed, sharpness
        self.num_hidden_layers, self.hidden_size, self.num_attention_heads = 1, 2, 1


class HashModel(PreTrainedModel, GenerationMixin):
    """`noise` mixes the logits with those of another seed: a relative that often agrees."""

    config_class = HashConfig
    _supports_sdpa = True

    def __init__(self, config, noise=0.0):
        super().__init__(config)
        generator = torch.Generator().manual_seed(config.seed)
        self.weights = torch.nn.Parameter(torch.rand(64, generator=generator, dtype=torch.float64) * 9)
        self.head = torch.nn.Parameter(torch.rand(config.vocab_size, generator=generator, dtype=torch.float64) * 9)
        self.other = torch.nn.Parameter(torch.rand(config.vocab_size, generator=generator, dtype=torch.float64) * 9)
        self.noise = noise

    def get_output_embeddings(self):
        return None

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, cache=None, past_key_values=None,
        use_cache=None, logits_to_keep=0, **kwargs,
    ):  # fmt: skip
        cache = past_key_values if cache is None else cache
        past = cache.get_seq_length() if cache is not None else 0
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None] + past
        states = torch.stack([input_ids, position_ids.expand(input_ids.shape)], dim=-1).double()
        mask = create_causal_mask(
            config=self.config, inputs_embeds=states, attention_mask=attention_mask, **{CACHE_ARGUMENT: cache},
            position_ids=position_ids,
        )  # fmt: skip
        keys = states[:, None]
        if use_cache and cache is not None:
            keys, _ = cache.update(keys, keys, 0)
        if mask is None:
            mask = torch.ones(input_ids.shape[1], keys.shape[2], dtype=torch.bool).tril(
                keys.shape[2] - input_ids.shape[1]
            )
            mask = mask[None, None]
        elif mask.dtype != torch.bool:
            mask = mask == 0
        terms = (keys[:, 0, :, 0] + 1) * self.weights[keys[:, 0, :, 1].long().clamp(0, 63)]
        digest = (terms[:, None] * mask[:, 0]).sum(-1)
        # what a query is itself counts twice, so that position errors show at the query too
        digest = digest + self.weights[position_ids.long().clamp(0, 63)] * (input_ids + 1)
        digest = digest[:, -logits_to_keep:] if logits_to_keep else digest
        logits = torch.sin(digest[..., None] * self.head) + self.noise * torch.sin(digest[..., None] * self.other)
        return CausalLMOutputWithPast(logits=logits * self.config.sharpness, **{CACHE_ARGUMENT: cache})


def hash_pair(vocabulary=4, seed=0, noise=0.7, **config):
    """A target and an assistant that differ clearly and overlap."""
    target = HashModel(HashConfig(vocab_size=vocabulary, seed=seed, **config)).eval()
    assistant = HashModel(HashConfig(vocab_size=vocabulary, seed=seed, **config), noise).eval()
    return target, assistant
