"""The doors: `generate` as a function, and `enable`/`disable` for a model instance."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation import StoppingCriteriaList, StopStringCriteria

from .decoding import AssistedDecoding, SteppedDecoding
from .errors import InvalidArgument, UnsupportedArgument
from .models import admission, checks, compat, encoder, wrappers
from .options import Options
from .output import AssistedEncoderDecoderOutput
from .resolve import Settings, call_settings, resolve_drafter, wants_assistance
from .session import Session


Wrapped = TypeVar("Wrapped")

_PREVIOUS = "_exactassist_previous_generate"
# what `generate` takes by name besides settings, and hands on as it is
_PASSED = (
    "generation_config",
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "synced_gpus",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
    "streamer",
)
# what it does not know
_OWN = ("seed", "generator", "row_ids", "coupling", "layout", "compile", "telemetry")


def generate(
    model: PreTrainedModel,
    inputs: torch.Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    prefix_allowed_tokens_fn: Callable[[int, torch.Tensor], list[int]] | None = None,
    synced_gpus: bool | None = None,
    assistant_model: PreTrainedModel | None = None,
    streamer: Any = None,
    negative_prompt_ids: torch.Tensor | None = None,
    negative_prompt_attention_mask: torch.Tensor | None = None,
    custom_generate: str | Callable[..., Any] | None = None,
    *,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    row_ids: Sequence[int] | None = None,
    coupling: str | None = None,
    layout: str | None = None,
    compile: str | None = None,
    telemetry: Any = None,
    **kwargs: Any,
) -> Any:
    """`model.generate(...)` with exact assistance for any batch.

    All arguments of [`~transformers.GenerationMixin.generate`] keep their names and meanings. With `assistant_model`
    or `prompt_lookup_num_tokens` this library decodes: greedy calls return the tokens of the call without them,
    sampled calls follow its law. Every other call is Transformers' own, unchanged.

    Args:
        model (`PreTrainedModel`): the target; also one wrapped by PEFT or `torch.compile`.
        inputs (`torch.Tensor` of shape `(B, P)`, *optional*): prompts, left-padded; also as `input_ids=`.
        generation_config (`GenerationConfig`, *optional*): as in Transformers; keyword arguments beat it.
        logits_processor (`LogitsProcessorList`, *optional*): further processors; stateless ones only, for now.
        stopping_criteria (`StoppingCriteriaList`, *optional*): further criteria; each sees every published prefix.
        prefix_allowed_tokens_fn (`Callable`, *optional*): allowed next tokens by batch index and prefix.
        synced_gpus (`bool`, *optional*): refused with an assistant if `True`.
        assistant_model (`PreTrainedModel`, *optional*): a smaller model with the target's token map, wrapped or not.
        streamer (`BaseStreamer`, *optional*): gets one token at a time; ended once, also on error.
        negative_prompt_ids (`torch.Tensor`, *optional*): for guidance, which is refused with an assistant for now.
        negative_prompt_attention_mask (`torch.Tensor`, *optional*): the same.
        custom_generate (`str` or `Callable`, *optional*): another decoding loop or recipe; the call then goes to it.
        seed (`int`, *optional*): fixes what a sampled call draws; without, one number is taken from `generator`.
        generator (`torch.Generator`, *optional*): torch's global generator by default.
        row_ids (`Sequence[int]`, *optional*): identity of each returned row for its random numbers; a row's result
            depends on seed and identity, not on its place or company in a batch. Its index by default.
        coupling (`str`, *optional*): how sampled calls judge drafts. `"maximal"`, the default, accepts most;
            `"shared_noise"` returns token for token what the call without assistance returns under the same
            `torch.manual_seed` (or `seed=`, or `generator=`), at a somewhat lower acceptance.
        layout (`str`, *optional*): `"replay"`, the default, reads the last published token together with the drafts;
            `"retained"` reads it beforehand. The same tokens either way; the first costs one forward a round less.
        compile (`str`, *optional*): `"draft"` runs the assistant's forwards over drafts through `torch.compile`,
            `"both"` the target's too; not compiled by default. Compiling takes from seconds to minutes, once per model
            and shape in a process. Compiled kernels round differently, as other kernels do.
        telemetry (`str`, `PathLike` or `Callable[[dict], None]`, *optional*): gets one record per reached decision
            and one per round; a path is added to as JSON lines.
        **kwargs: generation settings and model arguments, as in Transformers.

    Returns:
        what `model.generate` returns. With `return_dict_in_generate=True` the output object also has `assist_stats`; a
        dictionary that Whisper returns (segments, times of words) has it as a key.

    Raises:
        ExactAssistError: what cannot be kept exact, before the first token, with what to change.
    """
    model = wrappers.uncompiled(model)
    wrappers.unwrapped(model, "target")
    # of the object itself: PEFT's looks up in the model inside what it does not have
    plain = vars(model).get(_PREVIOUS) or types.MethodType(type(model).generate, model)
    passed = {
        "generation_config": generation_config,
        "logits_processor": logits_processor,
        "stopping_criteria": stopping_criteria,
        "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn,
        "synced_gpus": synced_gpus,
        "negative_prompt_ids": negative_prompt_ids,
        "negative_prompt_attention_mask": negative_prompt_attention_mask,
        "streamer": streamer,
    }
    own = {
        "seed": seed,
        "generator": generator,
        "row_ids": row_ids,
        "coupling": coupling,
        "layout": layout,
        "compile": compile,
        "telemetry": telemetry,
    }
    settings = call_settings(model, generation_config, kwargs)
    if custom_generate is not None or not wants_assistance(settings, assistant_model):
        others = {"assistant_model": assistant_model, "custom_generate": custom_generate}
        # our own names are for a recipe that knows them; Transformers refuses them, since they would do nothing.
        # Only what was given, so that a model with a `generate` of its own is not shown names it does not know
        given = {name: value for name, value in {**passed, **others, **own}.items() if value is not None}
        if inputs is None:
            return plain(**given, **kwargs)
        # a repository's `generate` is a partial with `model=`, which takes keywords only
        by_keyword = isinstance(plain, functools.partial)
        return plain(inputs=inputs, **given, **kwargs) if by_keyword else plain(inputs, **given, **kwargs)
    return _assisted(AssistedDecoding, model, inputs, assistant_model, passed, own, settings, kwargs)


def start(
    model: PreTrainedModel,
    inputs: torch.Tensor | None = None,
    *,
    assistant_model: PreTrainedModel | None = None,
    **kwargs: Any,
) -> Session:
    """Opens an assisted call that is stepped from outside instead of run to its end.

    ```python
    session = hf_exactassist.start(model, **inputs, assistant_model=assistant, max_new_tokens=64)
    for row, token in session:
        ...
    output = session.result()
    ```

    Args:
        model (`PreTrainedModel`): the target.
        inputs (`torch.Tensor` of shape `(B, P)`, *optional*): prompts; also as `input_ids=`.
        assistant_model (`PreTrainedModel`, *optional*): the assistant; or set `prompt_lookup_num_tokens`.
        **kwargs: as for [`generate`].

    Returns:
        `Session`: nothing has been published yet. `step()` publishes one round, iteration gives published tokens as
        `(row, token)`, `result()` is what `generate` returns. After an exception the session goes on where it was.

    Raises:
        ExactAssistError: what cannot be kept exact, or a call without a drafter.
    """
    model = wrappers.uncompiled(model)
    wrappers.unwrapped(model, "target")
    settings = call_settings(model, kwargs.get("generation_config"), kwargs)
    if kwargs.get("custom_generate") is not None or not wants_assistance(settings, assistant_model):
        raise InvalidArgument("A session needs a drafter: pass `assistant_model` or `prompt_lookup_num_tokens`.")
    passed = {name: kwargs.pop(name, None) for name in _PASSED}
    own = {name: kwargs.pop(name, None) for name in _OWN}
    return _assisted(SteppedDecoding, model, inputs, assistant_model, passed, own, settings, kwargs)


def _assisted(
    kind: type[AssistedDecoding],
    model: PreTrainedModel,
    inputs: torch.Tensor | None,
    assistant_model: PreTrainedModel | None,
    passed: dict[str, Any],
    own: dict[str, Any],
    settings: Settings,
    kwargs: dict[str, Any],
) -> Any:
    """Runs `generate` with a loop of the given kind."""
    decoding, streamer = None, passed["streamer"]
    try:
        inner = wrappers.unwrapped(model, "target")
        wrappers.require_same(model, "target")
        wrappers.check_arguments(model, kwargs)
        given = (kwargs.get("inputs_embeds"), inputs, kwargs.get("input_ids"))
        # where embeddings are given, ids may be empty
        checks.check_prompts(next((prompts for prompts in given if prompts is not None), None))
        decoding, kwargs = _prepare(
            kind, inner, settings, assistant_model, streamer, own, passed["synced_gpus"], kwargs
        )
        passed["stopping_criteria"], kwargs = _stop_strings(settings, passed["stopping_criteria"], kwargs)
        with wrappers.generating_as(model, inner), encoder.watching(inner) as decoding.encoder_inputs:
            passed["generation_config"], kwargs = _without_handled(inner, passed["generation_config"], kwargs)
            if compat.has_whisper_generate(inner):
                # its own `generate` calls the usual one for every stretch of audio
                passed = {name: value for name, value in passed.items() if value is not None}
                heard = () if inputs is None else (inputs,)
                output = type(inner).generate(inner, *heard, custom_generate=decoding, **passed, **kwargs)
                if isinstance(output, AssistedEncoderDecoderOutput):
                    # it makes a new one of what its calls returned
                    object.__setattr__(output, "assist_stats", decoding.stats)
                elif isinstance(output, dict):
                    # segments and times of words come in a dictionary, of which readers take what they know
                    output["assist_stats"] = decoding.stats
                return output
            return GenerationMixin.generate(inner, inputs, custom_generate=decoding, **passed, **kwargs)
    finally:
        # whoever reads from the streamer must not wait for ever, wherever the call failed; the loop ends it itself
        if streamer is not None and not (decoding is not None and decoding.called):
            streamer.end()


def _prepare(
    kind: type[AssistedDecoding],
    model: PreTrainedModel,
    settings: Settings,
    assistant_model: PreTrainedModel | None,
    streamer: Any,
    own: dict[str, Any],
    synced_gpus: bool | None,
    kwargs: dict[str, Any],
) -> tuple[AssistedDecoding, dict[str, Any]]:
    """Checks the models and closes over what Transformers drops for callables."""
    if synced_gpus:
        raise UnsupportedArgument("`synced_gpus` is not supported: rows end at different times. Leave it out.")
    if settings.get("token_healing"):
        raise UnsupportedArgument("`token_healing` changes the prompt inside `generate`: heal it before the call.")
    admission.require(model, "target")
    own = own | _from_configs(settings, own)
    if compat.has_whisper_generate(model):
        own = _for_stretches(kind, model, own)
    assistant_tokenizer = kwargs.get("assistant_tokenizer")
    drafter, schedule = resolve_drafter(
        model, settings, assistant_model, kwargs.get("tokenizer"), assistant_tokenizer, own["compile"]
    )
    decoding = kind(
        drafter,
        schedule,
        streamer=streamer,
        # keyword arguments first, then the generation configs, as for Transformers' own settings
        **{name: value for name, value in own.items() if value is not None},
        keep_cache=kwargs.get(compat.CACHE_ARGUMENT) is not None or kwargs.get("past_key_values") is not None,
    )
    return decoding, {name: value for name, value in kwargs.items() if name != "assistant_tokenizer"}


def _from_configs(settings: Settings, own: dict[str, Any]) -> dict[str, Any]:
    """This library's settings that a generation config holds and the call does not set."""
    return {name: settings.get(name) for name in ("coupling", "layout", "compile", "seed") if own[name] is None}


def _for_stretches(kind: type[AssistedDecoding], model: PreTrainedModel, own: dict[str, Any]) -> dict[str, Any]:
    """Settings for a `generate` that decodes one stretch of audio after the other, in batches that shrink."""
    if kind is SteppedDecoding or own["row_ids"] is not None:
        what = "Sessions are" if kind is SteppedDecoding else "`row_ids` are"
        raise UnsupportedArgument(
            f"{what} not defined for {type(model).__name__}, whose `generate` decodes several times over: use "
            "`hf_exactassist.generate` without `row_ids`."
        )
    if own["seed"] is None:
        return own
    # one seed for every stretch would draw the same numbers again
    device = compat.model_device(model, torch.device("cpu"))
    generator = torch.Generator(device).manual_seed(Options(seed=own["seed"]).seed or 0)
    return {**own, "seed": None, "generator": generator}


def _stop_strings(settings: Settings, stopping_criteria: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Stop strings as a criterion: `generate` cannot see the tokenizer when it calls a callable."""
    kwargs = dict(kwargs)
    tokenizer = kwargs.pop("tokenizer", None)
    strings = settings.get("stop_strings")
    if strings is None:
        return stopping_criteria, kwargs
    if tokenizer is None:
        raise InvalidArgument("`stop_strings` are set: pass the target's tokenizer as `tokenizer=`.")
    if any(type(rule) is StopStringCriteria for rule in stopping_criteria or ()):
        # Transformers lets a criterion of the caller's replace its own of the same kind
        return stopping_criteria, kwargs
    rule = StopStringCriteria(stop_strings=strings, tokenizer=tokenizer)
    return StoppingCriteriaList([rule, *(stopping_criteria or ())]), kwargs


def _without_handled(
    model: PreTrainedModel, generation_config: GenerationConfig | None, kwargs: dict[str, Any]
) -> tuple[GenerationConfig | None, dict[str, Any]]:
    """Takes out what is handled here, so that `generate` prepares a plain call."""
    handled = ("stop_strings", "prompt_lookup_num_tokens")
    kwargs = {name: value for name, value in kwargs.items() if name not in handled}
    if generation_config is not None and any(getattr(generation_config, name) is not None for name in handled):
        generation_config = copy.deepcopy(generation_config)
        for name in handled:
            setattr(generation_config, name, None)
    for name in handled:
        if getattr(model.generation_config, name) is not None:
            # an explicit `None` is the only thing that beats the model's own config
            kwargs[name] = None
    return generation_config, kwargs


def enable(model: Wrapped) -> Wrapped:
    """Makes `model.generate(...)` this library's [`generate`]; scripts and pipelines then need no other change.

    Only the instance is touched, as Transformers itself does for Hub repositories that ship a `generate`. Idempotent.

    Args:
        model (`PreTrainedModel`): a model that can generate, also one wrapped by PEFT or `torch.compile`; the model
            that PEFT has wrapped stays as it is.

    Returns:
        what was given, for chaining.

    Raises:
        InvalidArgument: the object cannot generate.
    """
    bearer = wrappers.uncompiled(model)
    wrappers.unwrapped(bearer, "target")
    if not is_enabled(bearer):
        previous = vars(bearer).get("generate")
        # a shallow copy of an enabled model carries the door of the original
        if previous is not None and getattr(previous, "func", None) is not generate:
            setattr(bearer, _PREVIOUS, previous)
        # a partial, so that deep copies and pickles of the model are bound to themselves
        bearer.generate = functools.partial(generate, bearer)
    return model


def disable(model: Wrapped) -> Wrapped:
    """Undoes [`enable`]. Idempotent.

    Args:
        model (`PreTrainedModel`): what was given to [`enable`].

    Returns:
        the same, for chaining.
    """
    bearer = wrappers.uncompiled(model)
    if is_enabled(bearer):
        del bearer.generate
        previous = vars(bearer).pop(_PREVIOUS, None)
        if previous is not None:
            bearer.generate = previous
    return model


def is_enabled(model: Any) -> bool:
    """Whether [`enable`] is in force."""
    model = wrappers.uncompiled(model)
    door = vars(model).get("generate")
    return isinstance(door, functools.partial) and door.func is generate and door.args == (model,)
