"""Named refusals, each saying what to change.

What a call asks for is refused before the first token; a round that does not fit its call, before it changes anything.
"""

from __future__ import annotations


class ExactAssistError(ValueError):
    """Root of everything this library refuses: the call cannot be kept exact as it stands."""


class UnsupportedDecodingMode(ExactAssistError):
    """Beams, contrastive search and other modes that are not one token sequence per row."""


class UnsupportedArchitecture(ExactAssistError):
    """The model cannot be scored in blocks with rows of different length."""


class UnsupportedCache(ExactAssistError):
    """The states of the cache cannot be taken over row by row, or it has no room for the call."""


class UnsupportedArgument(ExactAssistError):
    """An argument whose meaning under assistance is not defined here (yet)."""


class InvalidArgument(ExactAssistError):
    """An argument has a value that makes no sense."""


class UnusableData(InvalidArgument):
    """A data set is not there, cannot be read, or has rows that give no prompt."""


class UnusableFolder(InvalidArgument):
    """The folder of an evaluation's results cannot be used."""


class ForeignFolder(UnusableFolder):
    """It holds something else than an evaluation."""


class OtherEvaluation(UnusableFolder):
    """It holds an evaluation of other models, prompts or settings."""


class FolderInUse(UnusableFolder):
    """Another process is writing into it."""


class DamagedRecords(UnusableFolder):
    """Its records cannot be read."""


class ProcessEnded(ExactAssistError):
    """Another of the processes that share an evaluation has ended."""


class NotReproducible(ExactAssistError):
    """The same call gave another text the second time."""


class StatefulProcessor(ExactAssistError):
    """What a logits processor remembers cannot be saved, or it has been used before."""


class BatchCoupledProcessor(ExactAssistError):
    """A logits processor lets rows of a batch depend on each other, but rows reach their tokens at different times."""


class BatchCoupledCriterion(ExactAssistError):
    """A stopping criterion that answered row by row starts to answer once for a whole batch."""


class DifferentVocabularies(ExactAssistError):
    """Target and assistant do not give the same token the same id."""


class SessionEnded(ExactAssistError):
    """A session cannot be stepped: it was abandoned, or is being stepped already."""


# --- a round that belongs to another state of the call (contract 0x01A, 0x01D) ---


class StaleRound(ExactAssistError):
    """A proposal, a verification or a commit was made in another state than the present one."""


class GenerationChanged(StaleRound):
    """Another round has been published since."""


class RowsChanged(StaleRound):
    """Other rows are active."""


class PrefixChanged(StaleRound):
    """The published tokens of a row differ."""


class CacheLengthChanged(StaleRound):
    """Another number of tokens is in the target's cache."""


class PositionsChanged(StaleRound):
    """A row's next token stands at another position."""


class StreamsChanged(StaleRound):
    """Seed, row identities or the numbers used up so far differ."""


class LayoutChanged(StaleRound):
    """The other frontier layout is in force."""


class CouplingChanged(StaleRound):
    """Drafts are judged in another way."""


class ModelChanged(StaleRound):
    """A model of another class, name, configuration, mode or with other weights."""


class RevisionChanged(StaleRound):
    """Another revision of a model."""


class AdaptersChanged(StaleRound):
    """Other adapters are loaded or active."""


class DtypeChanged(StaleRound):
    """Another dtype, autocast or matrix-product setting."""


class AttentionChanged(StaleRound):
    """Another attention path."""


class LibrariesChanged(StaleRound):
    """Another version of a library."""


class TokenMapChanged(StaleRound):
    """Other tokens are shared between target and assistant, or another vocabulary."""


class ProcessorsChanged(StaleRound):
    """Other logits processors, another order, or other settings of one."""


class DrafterChanged(StaleRound):
    """Another drafter, or other settings of it."""


class ScheduleChanged(StaleRound):
    """Another draft-length schedule, or other settings of it."""


class StoppingChanged(StaleRound):
    """Other stopping rules."""


# --- a round whose rows are not what its layout says (contract 0x04A to 0x04D, 0x06B, 0x06C) ---


class BrokenRound(ExactAssistError):
    """The rows of a target call do not fit the call's tokens; the round is given up."""


class MixedLayouts(BrokenRound):
    """The cache is as in one frontier layout, the call or its first scores as in the other."""


class DuplicatedFrontier(BrokenRound):
    """The last published token is read although its keys and values are in the cache."""


class ShiftedRows(BrokenRound):
    """Scores or keys and values stand at other places than the tokens they belong to."""


class FrontierInDraft(BrokenRound):
    """Keys and values said to be the draft's begin with those of the last published token."""


class ForeignRows(BrokenRound):
    """Keys and values were made from other tokens than those they are kept for."""


class InvalidCommit(BrokenRound):
    """A commit contradicts itself or the state it starts from."""
