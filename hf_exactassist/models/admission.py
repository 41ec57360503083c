"""Which models and calls are admitted. What is not is refused by name, before the first token."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationMode

from ..errors import UnsupportedArchitecture, UnsupportedArgument, UnsupportedCache, UnsupportedDecodingMode
from . import compat
from .runner import OUTPUT_FLAGS, RowRunner


_FORWARD_ARGUMENTS = {
    "attention_mask",
    "position_ids",
    "token_type_ids",
    "inputs_embeds",
    "use_cache",
    "logits_to_keep",
    compat.CACHE_ARGUMENT,
    *OUTPUT_FLAGS,
}
# weak keys: a probe's answer holds for one model object in one attention setting and dies with the model
_PROBED: weakref.WeakKeyDictionary[PreTrainedModel, set[tuple[Any, ...]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Admission:
    """How a model is run, or why it is not.

    Attributes:
        admitted (`bool`): whether the model can be scored in ragged blocks.
        reason (`str`): why not; empty if admitted.
        attention (`str`): attention path.
        layers (`dict[str, int]`): number of cache layers per kind.
    """

    admitted: bool
    reason: str
    attention: str
    layers: dict[str, int]


def check_decoding_mode(generation_config: GenerationConfig) -> None:
    """Refuses modes that are not one sampled or greedy sequence per row.

    Raises:
        UnsupportedDecodingMode: beams, contrastive search, DoLa, constraints or an ensemble weight.
    """
    if generation_config.assistant_ensemble_weight is not None:
        raise UnsupportedDecodingMode(
            "`assistant_ensemble_weight` trades the target's law for speed, which is never done here: leave it out."
        )
    mode = generation_config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise UnsupportedDecodingMode(
            f"Assistance is defined for greedy decoding and sampling, and this call asks for {mode.value}: set "
            "`num_beams=1` and leave out `penalty_alpha`, `dola_layers` and constraints, or drop `assistant_model` "
            "and `prompt_lookup_num_tokens`."
        )


def check_model_arguments(model_kwargs: dict[str, Any]) -> None:
    """Refuses forward arguments whose continuation over drafts is not defined here.

    Raises:
        UnsupportedArgument: an argument other than masks, positions, token types, embeddings and output flags.
        UnsupportedCache: a cache that is not a plain [`~transformers.DynamicCache`].
    """
    foreign = sorted(
        name for name, value in model_kwargs.items() if value is not None and name not in _FORWARD_ARGUMENTS
    )
    if foreign:
        raise UnsupportedArgument(
            f"Assisted decoding does not know how to continue the model argument(s) {', '.join(foreign)} over drafted "
            "tokens: leave them out, or drop the assistant for this call."
        )
    position_ids = model_kwargs.get("position_ids")
    if position_ids is not None and position_ids.dim() != 2:
        raise UnsupportedArgument("Only 2-D `position_ids` (one position per token) are supported with an assistant.")
    cache = model_kwargs.get(compat.CACHE_ARGUMENT)
    if cache is not None:
        check_cache(cache)
        if model_kwargs.get("use_cache") is False:
            raise UnsupportedCache("A cache is passed together with `use_cache=False`: leave one of them out.")


def check_outputs_without_cache(generation_config: GenerationConfig) -> None:
    """Refuses per-step outputs that exist only where every step reads the whole sequence.

    Raises:
        UnsupportedArgument: attentions or hidden states are to be returned.
    """
    wanted = [name for name in OUTPUT_FLAGS if getattr(generation_config, name)]
    if wanted and generation_config.return_dict_in_generate:
        raise UnsupportedArgument(
            f"With `use_cache=False`, {' and '.join(wanted)} speak about the whole sequence at every step, which an "
            "assistant saves reading again: leave out `use_cache=False`, or these outputs."
        )


def check_cache(cache: Any) -> None:
    """Refuses caches that cannot be rolled back row by row.

    Raises:
        UnsupportedCache: static, quantized, offloaded, recurrent or foreign caches.
    """
    kinds = {type(layer) for layer in cache.layers} if type(cache) is DynamicCache else {type(cache)}
    if cache.__class__ is not DynamicCache or not kinds <= {DynamicLayer, DynamicSlidingWindowLayer}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UnsupportedCache(
            f"Assisted decoding needs a `DynamicCache` of attention layers and got {names}: pass "
            '`cache_implementation="dynamic"`, or `DynamicCache(config=model.config)`.'
        )
    if cache.offloading:
        raise UnsupportedCache(
            'Offloaded caches are not supported with an assistant: pass `cache_implementation="dynamic"`, or a cache '
            "without `offloading`."
        )


def admit(model: PreTrainedModel) -> Admission:
    """Checks a model by its surface and by a short probe on itself; the answer is remembered with the model.

    The probe compares, on a few tokens, ragged block scoring over a row-addressed cache with independent full
    forwards. It runs in the model's own dtype and attention path and leaves random generators and the model as they
    were.

    Args:
        model (`PreTrainedModel`): target or assistant.

    Returns:
        `Admission`: the outcome.
    """
    attention = getattr(compat.text_config(model), "_attn_implementation", None) or "eager"
    reason = _surface(model, attention)
    layers: dict[str, int] = {}
    if not reason:
        for window in compat.layer_windows(model):
            kind = "full attention" if window is None else f"sliding attention ({window})"
            layers[kind] = layers.get(kind, 0) + 1
        passed = _PROBED.setdefault(model, set())
        setting = (attention, model.dtype, model.training, _hooks(model))
        if setting not in passed:
            reason = _probe(model)
            # a model that failed may be mended, so only success is remembered
            passed.update([] if reason else [setting])
    return Admission(not reason, reason, attention, layers)


def require(model: PreTrainedModel, role: str) -> None:
    """Refuses a model that is not admitted.

    Args:
        model (`PreTrainedModel`): the model.
        role (`str`): `"target"` or `"assistant"`, for the message.

    Raises:
        UnsupportedArchitecture: the model cannot be scored in ragged blocks; the message says why.
    """
    admission = admit(model)
    if not admission.admitted:
        raise UnsupportedArchitecture(f"The {role} {type(model).__name__} is not supported: {admission.reason}")


def check_length(model: PreTrainedModel, shortest: int, longest: int) -> None:
    """Refuses texts across a length at which the model computes earlier positions anew.

    Args:
        model (`PreTrainedModel`): the target.
        shortest (`int`): tokens of the shortest prompt.
        longest (`int`): tokens that the longest row may reach.

    Raises:
        UnsupportedArchitecture: the call may cross such a length.
    """
    for length, alike_beyond in compat.turning_points(model):
        if longest > length and not (alike_beyond and shortest > length):
            raise UnsupportedArchitecture(
                f"Beyond {length} tokens {type(model).__name__} computes earlier positions anew (its RoPE scaling or "
                f"key selection depends on the length), so drafts cannot be scored in blocks there, and this call may "
                f"reach {longest}: lower `max_new_tokens`, or drop the assistant for this call."
            )


def _hooks(model: PreTrainedModel) -> tuple[int, ...]:
    """What changes a model's forward without changing its class."""
    found = []
    for module in model.modules():
        found += [*module._forward_hooks, *module._forward_pre_hooks]
        if "forward" in module.__dict__:
            found.append(id(module.__dict__["forward"]))
    return tuple(found)


def _drops_out(model: PreTrainedModel) -> bool:
    """Whether training mode makes forwards random."""
    rates = [value for name, value in compat.text_config(model).to_dict().items() if "drop" in name]
    rates += [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    return model.training and any(isinstance(rate, float) and rate > 0 for rate in rates)


def _surface(model: PreTrainedModel, attention: str) -> str:
    """Why the model's class or configuration rules it out; empty if it does not."""
    if _drops_out(model):
        return "it is in training mode, where dropout makes every forward different: call `model.eval()`."
    if compat.prepares_inputs_itself(model):
        return (
            "its class prepares the inputs of each step in its own way, which blocks of drafts would bypass. Drop the "
            "assistant for this call."
        )
    if model.config.is_encoder_decoder:
        return "encoder-decoder models are not supported yet. Drop the assistant for this call."
    if type(model).generate is not GenerationMixin.generate:
        return (
            "its class has a `generate` of its own that prepares more than tokens. Drop the assistant for this call."
        )
    if getattr(model, "_is_stateful", False):
        return (
            "its recurrent state cannot be rolled back to the accepted tokens yet. Drop the assistant for this call."
        )
    if attention not in ("sdpa", "eager"):
        return (
            f"the attention path {attention!r} does not take ready 4-D masks. Load it with "
            '`attn_implementation="sdpa"` or `"eager"`.'
        )
    if not {"position_ids", compat.CACHE_ARGUMENT} <= compat.forward_parameters(model):
        return (
            "its forward takes no explicit `position_ids` or no cache, so rows cannot stand at different positions. "
            "Drop the assistant for this call."
        )
    layers = DynamicCache(config=compat.text_config(model)).layers
    foreign = {
        type(layer).__name__ for layer in layers if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer)
    }
    kinds = set(getattr(compat.text_config(model), "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
    }
    if getattr(compat.text_config(model), "attention_chunk_size", None) is not None:
        kinds.add("chunked_attention")
    if "local" in (getattr(compat.text_config(model), "attention_layers", None) or ()):
        # GPT-Neo; a probe would have to be longer than the window to notice
        kinds.add("local_attention")
    if foreign or kinds:
        names = ", ".join(sorted(foreign | kinds))
        return f"its layers of kind {names} cannot be rolled back row by row yet. Drop the assistant for this call."
    if any(window is not None and window < 2 for window in compat.layer_windows(model)):
        return "a sliding window of less than two tokens leaves nothing to cache. Drop the assistant for this call."
    return ""


# the probe's rows: a padded and an unpadded prompt, then ragged blocks after unequal acceptance
_PROMPTS = ((5, 3), (3, 7, 2, 4))
_BLOCKS = ((6, 2, 8), (9, 5, 3))
_ACCEPTED = (3, 1)
_NEXT = ((4, 9), (2, 6))


@torch.no_grad()
def _probe(model: PreTrainedModel) -> str:
    """Scores ragged rows in blocks and compares with full forwards of each row; says what is wrong, if anything."""
    vocabulary = compat.text_config(model).vocab_size
    device = compat.model_device(model, torch.device("cpu"))

    def tensor(rows: Any) -> torch.Tensor:
        return torch.tensor(rows, device=device) % vocabulary

    width = max(map(len, _PROMPTS))
    padded = [[0] * (width - len(row)) + list(row) for row in _PROMPTS]
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in _PROMPTS], device=device)
    # generators of every device are put back: the caller's next draw must not depend on whether a probe ran
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            runner = RowRunner(model)
            kwargs = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0), "use_cache": True}
            first = runner.prefill(tensor(padded), GenerationConfig(), kwargs).logits[:, -1]
            block = runner.forward(tensor(_BLOCKS), [width] * 2).logits
            after = [width + kept for kept in _ACCEPTED]
            last = runner.forward(tensor(_NEXT), after, counts=[1, 2], right=True).logits
            differences = []
            for row, prompt in enumerate(_PROMPTS):
                # a right-aligned block of one token has its filler in front
                tail = (_NEXT[row][1],) if row == 0 else _NEXT[row]
                for path, got in (
                    (prompt, first[row : row + 1]),
                    (prompt + _BLOCKS[row], block[row]),
                    (prompt + _BLOCKS[row][: _ACCEPTED[row]] + tail, last[row, -len(tail) :]),
                ):
                    full = model(input_ids=tensor([path]), use_cache=False).logits[0, -len(got) :].float()
                    differences.append(((got.float() - full).abs().max() / full.std().clamp_min(1e-12)).item())
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
            what = f"{type(error).__name__}: {error}"
            return f"scoring a block of tokens per row failed ({what}). Drop the assistant for this call."
    bound = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.25
    # one by one: `max` may pass over a NaN
    if all(difference <= bound for difference in differences):
        return ""
    if any(math.isnan(difference) for difference in differences):
        return (
            "its scores hold NaN, perhaps for padded prompts only. Check its weights, load it with "
            '`attn_implementation="sdpa"`, or drop the assistant for this call.'
        )
    return (
        f"rows scored in blocks differ from rows scored alone by {max(differences):.2g} standard deviations of a "
        "logit. Drop the assistant for this call."
    )
