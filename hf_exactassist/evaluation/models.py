"""What takes part in an evaluation: a target, and who drafts for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from ..benchmark.environment import described, environment
from ..benchmark.pair import Target
from ..errors import ExactAssistError
from ..models import compat, identity
from ..vocabulary.admission import pair_of, shared_tokens


@dataclass(frozen=True)
class Assistant:
    """A model that drafts.

    Attributes:
        model (`PreTrainedModel`): the model.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): its own; the target's by default.
    """

    model: PreTrainedModel
    tokenizer: Any = None


@dataclass(frozen=True)
class Models(Target):
    """A target and its assistants.

    Attributes:
        assistants (`dict[str, Assistant]`): by the names that ways of decoding know them by.
        name (`str`): what the target is called in reports.
    """

    assistants: dict[str, Assistant] = field(default_factory=dict)
    name: str = "target"

    @property
    def rounds_like(self) -> torch.dtype:
        """A dtype with as many digits as the target's matrix products have."""
        narrow = self.target.dtype == torch.float32 and self.device.type == "cuda"
        return torch.float16 if narrow and torch.backends.cuda.matmul.allow_tf32 else self.target.dtype

    def header(self) -> dict[str, Any]:
        """Where and with what is measured, as a report tells it."""
        return {
            **environment(self.device),
            "target": described(self.target, self.name),
            "assistants": [described(one.model, name) for name, one in self.assistants.items()],
        }

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on: weights, configurations, settings of generation, tokenizers."""
        return {
            "target": _identity(self.target, self.tokenizer),
            "assistants": {name: _identity(one.model, one.tokenizer) for name, one in self.assistants.items()},
        }

    def proposable(self) -> dict[str, frozenset[int] | None]:
        """The target's tokens that each assistant can propose; `None` for all."""
        return {name: self._proposable(one) for name, one in self.assistants.items()}

    def _proposable(self, assistant: Assistant) -> frozenset[int] | None:
        sizes = compat.head_size(self.target), compat.head_size(assistant.model)
        tokenizers = self.tokenizer, assistant.tokenizer
        declared = compat.declared_tokens(self.target), compat.declared_tokens(assistant.model)
        try:
            shared = shared_tokens(*sizes, *tokenizers, *declared)
            if shared is not None:
                return None if bool(shared.all()) else frozenset(shared.nonzero().flatten().tolist())
            return frozenset(pair_of(*sizes, *tokenizers).vocabulary_map.leads_to.tolist()) - {-1}
        except ExactAssistError:
            # such a pair is refused, and nothing is proposed
            return None


def _identity(model: PreTrainedModel, tokenizer: Any) -> dict[str, Any]:
    # where a checkpoint lies, and on which of several like devices it runs, makes no difference
    told = {key: value for key, value in identity.describe(model).items() if key not in ("name", "device")}
    generation = model.generation_config.to_dict()
    generation.pop("transformers_version", None)
    size = None if tokenizer is None else len(tokenizer)
    return {**told, "generation": generation, "vocabulary": size, "place": model.device.type}
