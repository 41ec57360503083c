"""What a model reads with its prompt alone (images, audio), and what it is shown in every later step.

Both are asked of the model itself, in the words of plain `generate`: `prepare_inputs_for_generation` says what a step
after the first one gets. No list of models or arguments is kept.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.utils import ModelOutput

from ..errors import UnsupportedArgument
from . import compat


# arguments with an entry per token, which `generate` grows with the text
PER_TOKEN = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
OUTPUT_FLAGS = ("output_attentions", "output_hidden_states")
# arguments that hold text, or say how it is read
_TEXT_ARGUMENTS = {
    "input_ids",
    "attention_mask",
    "position_ids",
    "inputs_embeds",
    "use_cache",
    "logits_to_keep",
    compat.CACHE_ARGUMENT,
    *PER_TOKEN,
    *OUTPUT_FLAGS,
}
# what a decoder that attends to an encoder has beside them
_ENCODER_ARGUMENTS = {"encoder_outputs", "decoder_attention_mask"}
# what makes features of images and audio, and positions of their placeholders, before or in the first forward
_READERS = ("get_image_features", "get_video_features", "get_audio_features", "get_rope_index")


def shown(model: PreTrainedModel, arguments: dict[str, Any]) -> dict[str, Any]:
    """What a model is shown besides text, out of forward arguments."""
    known = {*_TEXT_ARGUMENTS, compat.cache_argument(model)}
    if compat.reads_encoder(model):
        known |= _ENCODER_ARGUMENTS
    # `generate` puts an empty dict of encoder outputs into calls without images
    return {
        name: value
        for name, value in arguments.items()
        if name not in known and value is not None and not (isinstance(value, dict) and not value)
    }


def shown_to(assistant: PreTrainedModel, arguments: dict[str, Any]) -> dict[str, Any]:
    """What an assistant is shown of the images and audio of a call; nothing if it reads text alone.

    Args:
        assistant (`PreTrainedModel`): the assistant.
        arguments (`dict[str, Any]`): the target's forward arguments.

    Returns:
        `dict[str, Any]`: arguments for the assistant's first reading.

    Raises:
        UnsupportedArgument: the assistant takes only some of them, or they have become the target's own features.
    """
    if compat.reads_encoder(assistant):
        # an encoder reads them
        return {}
    taken, given = compat.forward_parameters(assistant), shown(assistant, arguments)
    if not given.keys() & taken:
        return {}
    why = "use an assistant of the target's own kind, or one that reads text alone"
    if missing := given.keys() - taken:
        raise UnsupportedArgument(
            f"The assistant {type(assistant).__name__} reads {', '.join(sorted(given.keys() & taken))} and not "
            f"{', '.join(sorted(missing))}: {why}."
        )
    if "mm_encoder_outputs" in given:
        raise UnsupportedArgument(
            f"`mm_encoder_outputs` are features of the target's, which no {type(assistant).__name__} can read as an "
            f"assistant: pass the images themselves to `hf_exactassist.generate`, or {why}."
        )
    types = {name: arguments[name] for name in PER_TOKEN if arguments.get(name) is not None and name in taken}
    return {**given, **types}


def later_step(model: PreTrainedModel, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What plain `generate` shows the model in the step after the prompt.

    Args:
        model (`PreTrainedModel`): the model.
        input_ids (`torch.LongTensor` of shape `(B, P)`): prompts.
        model_kwargs (`dict[str, Any]`): forward arguments as `generate` prepared them for the prompt; not changed.

    Returns:
        `dict[str, Any]`: the arguments of that forward that have a value.
    """
    # with a cache, whatever the call says: blocks are scored over one
    kwargs = {**model_kwargs, "use_cache": True}
    kwargs = model._update_model_kwargs_for_generation(ModelOutput(), kwargs, is_encoder_decoder=False)
    text = torch.cat([input_ids, input_ids.new_zeros(len(input_ids), 1)], dim=1)
    step = model.prepare_inputs_for_generation(text, next_sequence_length=1, is_first_iteration=False, **kwargs)
    return {name: value for name, value in step.items() if value is not None}


def goes_on(model: PreTrainedModel, input_ids: torch.Tensor, model_kwargs: dict[str, Any]) -> set[str]:
    """Names of arguments that later forwards read too.

    Not so those that the model leaves out after the first step, nor those that only describe what its features and
    positions are made of: `generate` may go on passing them, but without raw inputs nothing reads them.
    """
    parts = (model, model.base_model)
    readers = [getattr(part, name) for part in parts for name in _READERS if hasattr(part, name)]
    described = {name for reader in readers for name in inspect.signature(reader).parameters}
    return {*later_step(model, input_ids, model_kwargs)} - described - compat.DESCRIBES_FEATURES


def has_position_axes(model: PreTrainedModel) -> bool:
    """Whether the model's tokens have positions on several axes, such as time, height and width."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=compat.model_device(model, torch.device("cpu")))
    with undisturbed(model):
        return model._prepare_position_ids_for_generation(ids, {}).dim() > 2


@contextlib.contextmanager
def undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Puts back the tensors that forwards and preparations leave in attributes of modules: offsets of positions.

    Other attributes stay: some say what has been set up for good.
    """
    before = [(vars(part), dict(vars(part))) for part in model.modules()]
    try:
        yield
    finally:
        for now, held in before:
            for name, value in [*now.items()]:
                was = held.get(name)
                if value is not was and (isinstance(value, torch.Tensor) or isinstance(was, torch.Tensor)):
                    now[name] = was


def prepared(
    model: PreTrainedModel, input_ids: torch.Tensor, copies: int, arguments: dict[str, Any]
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Prompts and forward arguments as `generate` prepares them in a call of the model's own.

    Args:
        model (`PreTrainedModel`): the model; it stays as it was.
        input_ids (`torch.LongTensor` of shape `(B, P)`): prompts.
        copies (`int`): rows to make of each prompt.
        arguments (`dict[str, Any]`): the model's arguments for these prompts.

    Returns:
        prompts of shape `(B * copies, P)` and their arguments.
    """
    made: list[tuple[torch.Tensor, dict[str, Any]]] = []

    def take(model: Any, input_ids: torch.Tensor, *others: Any, **kwargs: Any) -> torch.Tensor:
        # positional or by name, these are no business of a forward
        settings = ("logits_processor", "stopping_criteria", "generation_config")
        made.append((input_ids, {name: value for name, value in kwargs.items() if name not in settings}))
        return input_ids

    # a shallow copy: the model's own settings would be filled in, and none of them prepares a forward
    bare = copy.copy(model)
    bare.generation_config = GenerationConfig()
    config = GenerationConfig(
        max_new_tokens=1, do_sample=copies > 1, num_beams=1, num_return_sequences=copies, pad_token_id=0
    )
    with undisturbed(model):
        GenerationMixin.generate(bare, input_ids, generation_config=config, custom_generate=take, **arguments)
    return made[0]
