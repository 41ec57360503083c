"""One trial per type: is assisted text plain text, alone and in a padded batch?

The reference of every row is that row alone, without padding, through plain `generate`.
"""

from __future__ import annotations

import copy
import io
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

import hf_exactassist
from hf_exactassist import AssistStats
from hf_exactassist.models import admission, compat

from .build import VOCABULARY, NotBuilt, build, class_name, noisy, reads_apart, text_settings


LENGTHS = (12, 7, 3)
DRAFT_TOKENS = 4
SECONDS = 60
# tried in turn until some drafts are accepted and some are not
NOISES = (0.05, 0.15, 0.02, 0.4, 0.008, 0.003)
WANTED = (0.3, 0.9)
# a text of fewer different tokens says little
VARIED = 5

EQUAL, SERIAL, REFUSED, DIFFERENT, CRASHED = "equal", "serial", "refused", "different", "crashed"
NOT_BUILT, PLAIN_FAILS = "not built", "plain fails"
# worst first
STATUSES = (CRASHED, DIFFERENT, PLAIN_FAILS, NOT_BUILT, REFUSED, SERIAL, EQUAL)

Inputs = dict[str, torch.Tensor]


@dataclass
class Outcome:
    """What a trial showed.

    Args:
        model_type: the type.
        class_name: the model's class.
        strategy: how the package runs it; empty if that was never asked, or it does not run it.
        alone: status of two prompts, each at batch 1.
        batch: status of three rows of different length, padded on the left, for an encoder on the right.
        acceptance: accepted drafts per drafted one at batch 1; `None` without drafts.
        detail: what went wrong, or why it is not run in the best way.
    """

    model_type: str
    class_name: str
    strategy: str = ""
    alone: str = CRASHED
    batch: str = CRASHED
    acceptance: float | None = None
    detail: str = ""

    @property
    def status(self) -> str:
        return min(self.alone, self.batch, key=STATUSES.index)

    def end(self, status: str, detail: str) -> None:
        """Nothing more will be tried."""
        self.alone = self.batch = status
        self.say(detail)

    def say(self, detail: str) -> None:
        self.detail = f"{self.detail} {detail}".strip()


class _TooLong(BaseException):
    """Not an `Exception`, so that nobody takes it for an answer of the model's."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def trial(model_type: str, encoder_decoder: bool = False) -> Outcome:
    """Builds a tiny model of a type, a causal LM or an encoder-decoder, and compares assisted with plain text."""
    outcome = Outcome(model_type, class_name(model_type, encoder_decoder))
    # some models print what they do not understand at every step
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            with _limited(SECONDS):
                _run(outcome, encoder_decoder)
        except _TooLong:
            outcome.end(CRASHED, f"It took more than {SECONDS} seconds.")
    return outcome


def _run(outcome: Outcome, encoder_decoder: bool) -> None:
    try:
        model = build(outcome.model_type, encoder_decoder)
    except NotBuilt as error:
        outcome.end(NOT_BUILT, str(error))
        return
    batch = _batch(model)
    rows = [_row(batch, i) for i in range(len(LENGTHS))]
    try:
        expected = [_plain(model, row) for row in rows]
    except Exception as error:
        outcome.end(PLAIN_FAILS, _told(error))
        return
    if max(len(set(text[0].tolist())) for text in expected) < VARIED:
        outcome.say("Its texts hardly vary.")
    if reads_apart(model) and torch.equal(expected[0], expected[1]):
        outcome.say("Its texts do not depend on what its encoder reads.")
    try:
        admitted = admission.admit(model)
    except Exception as error:
        outcome.end(CRASHED, f"Admission: {_told(error)}")
        return
    outcome.strategy = admitted.strategy
    if admitted.admitted and admitted.reason:
        outcome.say(admitted.reason)
    middle = sum(WANTED) / 2
    for noise in NOISES:
        assistant = noisy(model, noise)
        outcome.alone, rate = _compare(outcome, model, assistant, rows[:2], expected[:2])
        if outcome.alone != EQUAL:
            chosen = assistant
            break
        if outcome.acceptance is None or abs(rate - middle) < abs(outcome.acceptance - middle):
            outcome.acceptance, chosen = rate, assistant
        if WANTED[0] <= rate <= WANTED[1]:
            break
    if outcome.alone == REFUSED:
        outcome.batch = REFUSED
        return
    outcome.batch, _ = _compare(outcome, model, chosen, [batch], [torch.cat(expected)])


def _batch(model: PreTrainedModel) -> Inputs:
    """Prompts of different length: a decoder's are padded on the left, an encoder's on the right."""
    generator, width = torch.Generator().manual_seed(3), max(LENGTHS)
    vocabulary = min(VOCABULARY, compat.text_config(model).vocab_size)
    ids = torch.full((len(LENGTHS), width), text_settings(model)["pad_token_id"])
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        columns = slice(length) if reads_apart(model) else slice(width - length, width)
        ids[row, columns] = torch.randint(3, vocabulary, (length,), generator=generator)
        mask[row, columns] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _row(batch: Inputs, row: int) -> Inputs:
    """One row of a batch without its padding."""
    kept = batch["attention_mask"][row].bool()
    return {name: part[row : row + 1, kept] for name, part in batch.items()}


def _new(model: PreTrainedModel, inputs: Inputs, sequences: torch.Tensor) -> torch.Tensor:
    """The new tokens in what `generate` returned."""
    return sequences[:, 1 if reads_apart(model) else inputs["input_ids"].shape[1] :]


def _plain(model: PreTrainedModel, inputs: Inputs) -> torch.Tensor:
    """New tokens of plain `generate`."""
    return _new(model, inputs, model.generate(**inputs, **text_settings(model)))


def _assisted(model: PreTrainedModel, assistant: PreTrainedModel, inputs: Inputs) -> tuple[torch.Tensor, AssistStats]:
    """New tokens with an assistant, and its counters."""
    settings = {"assistant_model": assistant, "num_assistant_tokens": DRAFT_TOKENS, "return_dict_in_generate": True}
    output = hf_exactassist.generate(model, **inputs, **text_settings(model), **settings)
    return _new(model, inputs, output.sequences), output.assist_stats


def _compare(
    outcome: Outcome,
    model: PreTrainedModel,
    assistant: PreTrainedModel,
    calls: list[Inputs],
    expected: list[torch.Tensor],
) -> tuple[str, float]:
    """Status and acceptance of some calls. What is wrong is added to the outcome's detail."""
    status, accepted, drafted = EQUAL, 0, 0
    for inputs, wanted in zip(calls, expected, strict=True):
        where = f"Batch {len(wanted)}:"
        before = {name: part.clone() for name, part in [*model.state_dict().items(), *inputs.items()]}
        try:
            got, stats = _assisted(model, assistant, inputs)
        except hf_exactassist.ExactAssistError as error:
            outcome.say(str(error))
            return REFUSED, 0.0
        except Exception as error:
            outcome.say(f"{where} {_told(error)}.")
            return CRASHED, 0.0
        changed = [
            name for name, part in [*model.state_dict().items(), *inputs.items()] if _differs(part, before[name])
        ]
        if changed:
            outcome.say(f"{where} the call changed {', '.join(changed)}.")
            return DIFFERENT, 0.0
        if not torch.equal(got, wanted):
            outcome.say(f"{where} {_difference(model, assistant, inputs, got, wanted)}.")
            return DIFFERENT, 0.0
        if stats.serial:
            status = SERIAL
        accepted, drafted = accepted + stats.accepted, drafted + stats.drafted
    return status, accepted / drafted if drafted else 0.0


def _differs(part: torch.Tensor, before: torch.Tensor) -> bool:
    return not torch.allclose(part, before, rtol=0, atol=0, equal_nan=True)


def _difference(
    model: PreTrainedModel, assistant: PreTrainedModel, inputs: Inputs, got: torch.Tensor, wanted: torch.Tensor
) -> str:
    """Where two results part, and whether rounding is to blame."""
    if got.shape != wanted.shape:
        return f"shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    firsts = [(row, (got[row] != wanted[row]).nonzero()[:1, 0].tolist()) for row in range(len(wanted))]
    said = ", ".join(f"row {row} differs from token {first[0]} on" for row, first in firsts if first)
    if len(wanted) > 1 and torch.equal(got, _plain(model, inputs)):
        said += "; equal to plain `generate` of the padded batch"
    try:
        exact, relative = copy.deepcopy(model).double(), copy.deepcopy(assistant).double()
        plain = torch.cat([_plain(exact, _row(inputs, row)) for row in range(len(wanted))])
        same = torch.equal(_assisted(exact, relative, inputs)[0], plain)
    except Exception as error:
        return f"{said}; in float64: {_told(error)}"
    return f"{said}; {'equal' if same else 'different too'} in float64"


def _told(error: Exception) -> str:
    """An error in one line, with the function it comes from."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name}: {' '.join(str(error).split())}"
