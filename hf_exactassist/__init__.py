"""Exact speculative decoding for Transformers: the same output law, faster, for any batch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    BatchCoupledCriterion,
    BatchCoupledProcessor,
    BrokenRound,
    DifferentVocabularies,
    ExactAssistError,
    InvalidArgument,
    SessionEnded,
    StaleRound,
    StatefulProcessor,
    UnsupportedArchitecture,
    UnsupportedArgument,
    UnsupportedCache,
    UnsupportedDecodingMode,
)
from .version import __version__


if TYPE_CHECKING:
    from .api import disable, enable, generate, is_enabled, start
    from .decoding import AssistedDecoding
    from .session import Session
    from .state.transactional import TransactionalLogitsProcessor
    from .telemetry import AssistStats

__all__ = [
    "AssistStats",
    "AssistedDecoding",
    "BatchCoupledCriterion",
    "BatchCoupledProcessor",
    "BrokenRound",
    "DifferentVocabularies",
    "ExactAssistError",
    "InvalidArgument",
    "Session",
    "SessionEnded",
    "StaleRound",
    "StatefulProcessor",
    "TransactionalLogitsProcessor",
    "UnsupportedArchitecture",
    "UnsupportedArgument",
    "UnsupportedCache",
    "UnsupportedDecodingMode",
    "__version__",
    "disable",
    "enable",
    "generate",
    "is_enabled",
    "start",
]

# loaded when first used: torch and Transformers take seconds, and `exactassist --help` needs neither
_HOMES = {
    "AssistStats": "telemetry",
    "AssistedDecoding": "decoding",
    "Session": "session",
    "TransactionalLogitsProcessor": "state.transactional",
    "disable": "api",
    "enable": "api",
    "generate": "api",
    "is_enabled": "api",
    "start": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
