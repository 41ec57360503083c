"""Named refusals. Each is raised before the first token and says what to change."""

from __future__ import annotations


class ExactAssistError(ValueError):
    """Root of everything this library refuses: the call cannot be kept exact as it stands."""


class UnsupportedDecodingMode(ExactAssistError):
    """Beams, contrastive search and other modes that are not one token sequence per row."""


class UnsupportedArchitecture(ExactAssistError):
    """The model cannot be scored in blocks with rows of different length."""


class UnsupportedCache(ExactAssistError):
    """The cache cannot be rolled back row by row."""


class UnsupportedArgument(ExactAssistError):
    """An argument whose meaning under assistance is not defined here (yet)."""


class InvalidArgument(ExactAssistError):
    """An argument has a value that makes no sense."""


class StatefulProcessor(ExactAssistError):
    """A logits processor remembers its calls, so scoring drafts would change what it does."""


class BatchCoupledProcessor(ExactAssistError):
    """A logits processor lets rows of a batch depend on each other, but rows reach their tokens at different times."""


class BatchCoupledCriterion(ExactAssistError):
    """A stopping criterion cannot be asked row by row: it answers for a batch at once, or remembers its calls."""


class DifferentVocabularies(ExactAssistError):
    """Target and assistant do not give the same token the same id."""
