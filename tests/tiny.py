"""Tiny models, their noisy relatives and drafters that follow a script."""

import copy

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import hf_exactassist
from hf_exactassist.drafters import Drafter
from hf_exactassist.records import Draft


ARCHITECTURES = ("llama", "qwen2", "mistral", "gemma3", "gpt2", "gpt_neox")
VOCABULARY = 80
# `noisy` relatives at these amounts have about half of five drafts accepted
EVEN_NOISE = {"llama": 0.008, "qwen2": 0.008, "mistral": 0.016, "gemma3": 0.1, "gpt2": 0.06, "gpt_neox": 0.05}


def tiny(architecture="llama", vocabulary=VOCABULARY, seed=0, **settings):
    """A random model of two layers whose text varies, in float32 and evaluation mode."""
    torch.manual_seed(seed)
    common = {
        "vocab_size": vocabulary,
        "initializer_range": 0.3,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    llama = {
        **common,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        **settings,
    }
    if architecture == "llama":
        model = LlamaForCausalLM(LlamaConfig(**llama))
    elif architecture == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**llama))
    elif architecture == "mistral":
        model = MistralForCausalLM(MistralConfig(**{"sliding_window": 8, **llama}))
    elif architecture == "gemma3":
        mixed = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8}
        # tied and scaled embeddings make random weights repeat the last token for ever
        mixed["tie_word_embeddings"] = False
        model = Gemma3ForCausalLM(Gemma3TextConfig(**{**mixed, **llama}))
        # its initialisation leaves the norms at 1 + 0 and the logits flat
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
    elif architecture == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(**{**common, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, **settings})
        )
    elif architecture == "gpt_neox":
        neox = {name: value for name, value in llama.items() if name != "num_key_value_heads"}
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**neox))
    else:
        raise ValueError(architecture)
    return model.eval()


def noisy(model, noise=0.1, seed=1):
    """A relative of `model` that often agrees with it."""
    relative, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in relative.parameters():
            scale = parameter.std() if parameter.numel() > 1 else parameter.abs()
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale.nan_to_num(0) * noise)
    return relative


def contrary(model):
    """A copy whose logits are negated: its favourite token is the one `model` likes least."""
    relative = copy.deepcopy(model)
    relative.get_output_embeddings().register_forward_hook(lambda module, inputs, output: -output)
    return relative


def prompts(lengths, vocabulary=VOCABULARY, seed=0):
    """Left-padded random prompts of the given lengths: `input_ids` and `attention_mask`."""
    generator, width = torch.Generator().manual_seed(seed), max(lengths)
    ids = torch.randint(3, vocabulary, (len(lengths), width), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate(lengths):
        ids[row, : width - length] = 0
        mask[row, : width - length] = 0
    return {"input_ids": ids, "attention_mask": mask}


class ScriptedDrafter(Drafter):
    """Proposes `sequences`' own tokens, made wrong from a scripted place on, so that accept lengths are forced.

    Args:
        sequences: the target's greedy sequences, `(B, L)`.
        script: `script(row, round)` is the number of right tokens; round 0 is the first with a draft.
        vocabulary: size of the target's vocabulary.
    """

    def __init__(self, sequences, script, vocabulary=VOCABULARY):
        self.sequences, self.script, self.vocabulary = sequences, script, vocabulary
        self.observed = []

    def start(self, context):
        super().start(context)
        self.round = 0

    def propose(self, lengths):
        rows = self.context.rows
        tokens = torch.zeros(len(lengths), max(lengths, default=0), dtype=torch.long)
        for i, (row, wanted) in enumerate(zip(rows.active, lengths, strict=True)):
            start = rows.lengths[row]
            right = self.sequences[row, start : start + wanted]
            tokens[i, : len(right)] = right
            wrong = self.script(row, self.round)
            tokens[i, wrong:] = (tokens[i, wrong:] + 1) % self.vocabulary
        self.round += 1
        return Draft(tokens, tuple(lengths))

    def observe(self, commit):
        self.observed.append(commit)


def looping(seed=1):
    """A model whose greedy text falls into loops, and a prompt with one: prompt lookup gets most drafts accepted."""
    model = tiny(seed=seed, initializer_range=0.05)
    start = prompts([7], seed=1)["input_ids"]
    return model, {"input_ids": model.generate(start, do_sample=False, max_new_tokens=26, eos_token_id=None)}


def byte_tokenizer():
    """A byte-level tokenizer of `VOCABULARY` tokens, among them halves of a character and pairs of letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["<pad>", "<s>", "</s>", *letters, "\u0120", "\u00c3", "\u00a9", ".", ","]
    tokens += [a + b for a in "aeio" for b in "nrstl"] + ["\u0120" + letter for letter in letters]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def same_as_plain(model, inputs, assisted, criteria=None, processors=None, **settings):
    """Runs a call with and without assistance, and compares tokens, lengths and numbers of scores.

    Args:
        model: the target.
        inputs: `input_ids` and perhaps `attention_mask`.
        assisted: what asks for assistance.
        criteria: makes stopping criteria anew for each call.
        processors: makes logits processors anew for each call.
        settings: of both calls; greedy if they do not say otherwise.

    Returns:
        the output of the assisted call.
    """
    settings = {"do_sample": False, "return_dict_in_generate": True, "output_scores": True, **settings}

    def made():
        both = {"stopping_criteria": criteria and criteria(), "logits_processor": processors and processors()}
        return {name: value for name, value in both.items() if value is not None}

    plain = model.generate(**inputs, **settings, **made())
    ours = hf_exactassist.generate(model, **inputs, **settings, **made(), **assisted)
    assert ours.sequences.tolist() == plain.sequences.tolist()
    new = ours.sequences.shape[1] - inputs["input_ids"].shape[1]
    assert len(ours.scores) == len(plain.scores) == new
    return ours
