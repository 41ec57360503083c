"""Exact speculative decoding for Transformers: the same output law, faster, for any batch."""

from .api import disable, enable, generate, is_enabled
from .decoding import AssistedDecoding
from .errors import (
    BatchCoupledCriterion,
    DifferentVocabularies,
    ExactAssistError,
    InvalidArgument,
    StatefulProcessor,
    UnsupportedArchitecture,
    UnsupportedArgument,
    UnsupportedCache,
    UnsupportedDecodingMode,
)
from .telemetry import AssistStats


__version__ = "0.1.0"

__all__ = [
    "AssistStats",
    "AssistedDecoding",
    "BatchCoupledCriterion",
    "DifferentVocabularies",
    "ExactAssistError",
    "InvalidArgument",
    "StatefulProcessor",
    "UnsupportedArchitecture",
    "UnsupportedArgument",
    "UnsupportedCache",
    "UnsupportedDecodingMode",
    "disable",
    "enable",
    "generate",
    "is_enabled",
]
