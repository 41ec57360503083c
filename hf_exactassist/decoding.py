"""The loop as an object for `custom_generate=`."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from .drafters.base import Drafter
from .errors import InvalidArgument
from .models import admission, checks
from .models.encoder import EncoderInputs
from .options import Options
from .output import AssistedOutput
from .schedules import DraftSchedule
from .session import Session
from .telemetry import AssistStats


class AssistedDecoding:
    """A decoding loop for `model.generate(..., custom_generate=AssistedDecoding(...))`.

    [`~hf_exactassist.generate`] is the usual door: Transformers drops `streamer`, `tokenizer` and `assistant_model`
    for callables, so they must be given here instead.

    Args:
        drafter (`Drafter`): proposes tokens.
        schedule (`DraftSchedule`): how many.
        **options: the fields of [`~hf_exactassist.options.Options`]: `streamer` (`generate` gives it the prompt),
            `seed`, `generator`, `row_ids`, `coupling`, `layout`, `compile`, `telemetry`, `keep_cache`.

    Raises:
        InvalidArgument: an option makes no sense.
    """

    def __init__(self, drafter: Drafter, schedule: DraftSchedule, **options: Any) -> None:
        self.drafter, self.schedule, self.options = drafter, schedule, Options(**options)
        self.called = False
        # of all calls: Whisper's `generate` makes one for every stretch of audio
        self.stats = AssistStats()
        # whoever prepares the call may know what the target's encoder is given
        self.encoder_inputs: EncoderInputs | None = None

    @torch.no_grad()
    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> AssistedOutput | torch.Tensor:
        """Called by `generate` with everything prepared; returns what `generate` returns.

        Raises:
            ExactAssistError: the call cannot be kept exact; before the first token.
            RuntimeError: the target's scores leave no token to choose, as plain `generate` would find too.
        """
        self.called = True
        try:
            session = self.begin(
                model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs
            )
            try:
                result = session.result()
                self.stats += session.stats
                return result
            except BaseException:
                session.abandon()
                raise
        finally:
            if self.options.streamer is not None:
                self.options.streamer.end()

    def begin(
        self,
        model: PreTrainedModel,
        input_ids: torch.LongTensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> Session:
        """Checks a prepared call and opens its session; arguments as in [`__call__`]."""
        admission.require(model, "target")
        if self.options.compile == "draft" and self.drafter.model is None:
            raise InvalidArgument(
                '`compile="draft"` compiles an assistant, and this call drafts without a model: pass '
                '`assistant_model`, `compile="both"` for the target, or leave `compile` out.'
            )
        checks.check_decoding_mode(generation_config)
        checks.check_model_arguments(model, input_ids, model_kwargs)
        checks.check_batch(model, len(input_ids))
        read = None
        if self.encoder_inputs is not None and model_kwargs.get("encoder_outputs") is not None:
            read = self.encoder_inputs.of(model_kwargs["encoder_outputs"])
        return Session(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            model_kwargs,
            self.drafter,
            self.schedule,
            self.options,
            read,
        )


class SteppedDecoding(AssistedDecoding):
    """As [`AssistedDecoding`], but `generate` returns the open [`Session`] before anything is read."""

    def __call__(self, model: PreTrainedModel, input_ids: torch.LongTensor, *args: Any, **kwargs: Any) -> Any:
        """Called by `generate` with everything prepared."""
        self.called = True
        names = ("logits_processor", "stopping_criteria", "generation_config")
        prepared = dict(zip(names, args, strict=False))
        prepared |= {name: kwargs.pop(name) for name in names if name in kwargs}
        try:
            session = self.begin(model, input_ids, **prepared, model_kwargs=kwargs)
        except BaseException:
            if self.options.streamer is not None:
                self.options.streamer.end()
            raise
        session.listeners.ends_streamer = True
        return session
