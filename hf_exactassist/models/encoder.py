"""What the target's encoder was given, so that an assistant's encoder can read the same.

`generate` runs the encoder and hands on what it said, not what it read. So the encoder is watched while `generate`
prepares the call.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import InvalidArgument, UnsupportedArgument
from ..memory import is_out_of_memory
from . import compat


class EncoderInputs:
    """The last call of an encoder in this thread: what it was given by name, and what it said."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._given: dict[str, Any] = {}
        self._said: torch.Tensor | None = None

    def note(self, encoder: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        """A forward hook."""
        if threading.get_ident() == self._thread:
            names = list(inspect.signature(encoder.forward).parameters)
            self._given, self._said = {**dict(zip(names, args, strict=False)), **kwargs}, outputs[0]

    def of(self, encoder_outputs: Any) -> dict[str, Any] | None:
        """What the encoder was given when it said this, perhaps once for several rows; `None` if it said it unseen."""
        said = encoder_outputs[0]
        if self._said is None or said.shape[0] % self._said.shape[0]:
            return None
        copies = said.shape[0] // self._said.shape[0]
        return self._given if torch.equal(said[::copies], self._said) else None


@contextlib.contextmanager
def watching(model: PreTrainedModel) -> Iterator[EncoderInputs | None]:
    """Watches a model's encoder, if it has one, and leaves nothing on it.

    Args:
        model (`PreTrainedModel`): the target.
    """
    if not compat.is_encoder_decoder(model):
        yield None
        return
    inputs = EncoderInputs()
    handle = model.get_encoder().register_forward_hook(inputs.note, with_kwargs=True)
    try:
        yield inputs
    finally:
        handle.remove()


class EncoderReading:
    """What an assistant's decoder is given of an encoder: the target's outputs, or those of its own encoder.

    Args:
        model (`PreTrainedModel`): the assistant.
        target (`PreTrainedModel`, *optional*): the target.
        arguments (`dict[str, Any]`): the target's forward arguments.
        inputs (`dict[str, Any]`, *optional*): what the target's encoder was given, if that is known.
        batch (`int`): rows of the call.

    Raises:
        InvalidArgument: the assistant cannot read what there is.
        UnsupportedArgument: its encoder's inputs are not known.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        target: PreTrainedModel | None,
        arguments: dict[str, Any],
        inputs: dict[str, Any] | None,
        batch: int,
    ) -> None:
        self.model, self.batch = model, batch
        self._outputs: Any = None
        self._mask = arguments.get("attention_mask") if compat.is_encoder_decoder(model) else None
        said = arguments.get("encoder_outputs")
        if not compat.reads_encoder(model):
            return
        name = type(model).__name__
        if said is None or target is None:
            if compat.is_encoder_decoder(model):
                raise InvalidArgument(
                    f"The assistant {name} has an encoder, and the target has none whose inputs it could read: choose "
                    "an assistant that is a decoder alone."
                )
        elif not compat.is_encoder_decoder(model) or model.get_encoder() is target.get_encoder():
            width = compat.encoder_width(model)
            if said[0].shape[-1] != width:
                raise InvalidArgument(
                    f"The assistant {name} reads encoder outputs of width {width}, and the target's have width "
                    f"{said[0].shape[-1]}: choose an assistant made for this encoder, or one with its own."
                )
            self._outputs = said
        elif inputs is None:
            raise UnsupportedArgument(
                f"The assistant {name} has an encoder of its own, and what the target's has read is not known: pass "
                "the inputs themselves instead of `encoder_outputs`, through `hf_exactassist.generate` or an enabled "
                "model."
            )
        else:
            known = inspect.signature(model.get_encoder().forward).parameters
            read = {part: value for part, value in inputs.items() if part in known and isinstance(value, torch.Tensor)}
            main = target.main_input_name
            if main not in read:
                raise InvalidArgument(
                    f"The target's encoder reads `{main}`, and that of the assistant {name} was not given any or does "
                    "not take it: choose an assistant of the same kind, and pass the inputs themselves."
                )
            self._outputs = self._read(read, batch)

    @torch.no_grad()
    def _read(self, inputs: dict[str, torch.Tensor], batch: int) -> Any:
        """What the assistant's own encoder says, a row of the call each; now, while a refusal comes in time."""
        device, dtype = compat.model_device(self.model, torch.device("cpu")), self.model.dtype
        given = {
            name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
            for name, value in inputs.items()
        }
        try:
            outputs = self.model.get_encoder()(**given, return_dict=True)
        except Exception as error:  # whatever a model says of inputs that are not its own
            if is_out_of_memory(error):
                raise
            what = ", ".join(sorted(inputs))
            raise InvalidArgument(
                f"The encoder of the assistant {type(self.model).__name__} cannot read the {what} of this call "
                f"({type(error).__name__}: {error}): choose an assistant made for the same inputs (audio "
                "features, vocabulary), one that shares the target's encoder, or one that is a decoder alone."
            ) from error
        prompts = len(next(iter(inputs.values())))
        return compat.rows_of(outputs, [row * prompts // batch for row in range(batch)], prompts)

    def of_rows(self, rows: Sequence[int]) -> dict[str, Any]:
        """Forward arguments of some rows of the call."""
        if self._outputs is None:
            return {}
        device = compat.model_device(self.model, torch.device("cpu"))
        mask = {} if self._mask is None else {"attention_mask": self._mask[list(rows)].to(device)}
        outputs = compat.rows_of(self._outputs, rows, self.batch)
        outputs["last_hidden_state"] = outputs[0].to(device, self.model.dtype)
        return {"encoder_outputs": outputs, **mask}
