"""Short runs on a model itself that say in which way it can be run exactly.

A probe leaves the model, its settings and every random generator as they were, and what it makes a model print is
nobody's business. Without memory it gives no answer, but the error.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation import LogitsProcessor, LogitsProcessorList
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging

from ..memory import is_out_of_memory
from . import compat, finer
from .lone_rows import LoneRows
from .runner import RowRunner


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps to itself what models and `generate` say while they are probed."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)


class Differs(str):
    """A failure that rounding may explain."""


def asked(probe: Callable[[PreTrainedModel], str], model: PreTrainedModel) -> str:
    """What a probe says of a model; where rounding may explain its failure, what it says of finer copies.

    Args:
        probe (`Callable[[PreTrainedModel], str]`): returns what is wrong, or nothing.
        model (`PreTrainedModel`): the model.

    Returns:
        `str`: what is wrong, if anything.
    """
    failure = probe(model)
    for dtype in finer.FINER.get(model.dtype, ()):
        copied = finer.computing_in(dtype, model) if isinstance(failure, Differs) else None
        if copied is None:
            break
        said = probe(copied)
        if said and not isinstance(said, Differs):
            # not every model can compute in every dtype
            break
        failure = said
    return failure


# the probe's rows: a padded and an unpadded prompt, then ragged blocks after unequal acceptance
_PROMPTS = ((5, 3), (3, 7, 2, 4))
_BLOCKS = ((6, 2, 8), (9, 5, 3))
_ACCEPTED = (3, 1)
_NEXT = ((4, 9), (2, 6))
# the row without padding
_UNPADDED = 1


@torch.no_grad()
def probe_ragged(model: PreTrainedModel) -> str:
    """Scores ragged rows in blocks and compares with each row read alone; says what is wrong, if anything."""
    vocabulary = compat.text_config(model).vocab_size
    device = compat.model_device(model, torch.device("cpu"))

    def tensor(rows: Any) -> torch.Tensor:
        return torch.tensor(rows, device=device) % vocabulary

    width = max(map(len, _PROMPTS))
    padded = [[0] * (width - len(row)) + list(row) for row in _PROMPTS]
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in _PROMPTS], device=device)
    reads_both_ways = bool(getattr(compat.text_config(model), "use_bidirectional_attention", None))
    # generators of every device are put back: the caller's next draw must not depend on whether a probe ran
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            runner = RowRunner(model)
            # on as many axes as the model's positions have
            positions = model._prepare_position_ids_for_generation(tensor(padded), {"attention_mask": mask})
            kwargs = {"attention_mask": mask, "position_ids": positions, "use_cache": True}
            first = runner.prefill(tensor(padded), GenerationConfig(), kwargs).logits[:, -1]
            block = runner.forward(tensor(_BLOCKS), [width] * 2).logits
            after = [width + kept for kept in _ACCEPTED]
            last = runner.forward(tensor(_NEXT), after, counts=[1, 2], right=True).logits
            step = None
            if runner.may_drop_masks:
                step = _step_alone(model, tensor([_PROMPTS[_UNPADDED]]), tensor([_BLOCKS[_UNPADDED][:1]]))
            differences = []
            for row, prompt in enumerate(_PROMPTS):
                stepped = [(prompt + _BLOCKS[row][:1], step)] if row == _UNPADDED and step is not None else []
                # a right-aligned block of one token has its filler in front
                tail = (_NEXT[row][1],) if row == 0 else _NEXT[row]
                read: dict[tuple[int, ...], torch.Tensor] = {}
                # longest first, so that little is read twice
                for path, got in (
                    (prompt + _BLOCKS[row][: _ACCEPTED[row]] + tail, last[row, -len(tail) :]),
                    (prompt + _BLOCKS[row], block[row]),
                    *stepped,
                    (prompt, first[row : row + 1]),
                ):
                    if reads_both_ways:
                        # a full forward would let the prompt see its continuation
                        written = [token % vocabulary for token in path[len(prompt) :]]
                        alone = _plain_logits(model, tensor(padded), written, mask)[row, -len(got) :]
                    else:
                        begun = next((longer for longer in read if longer[: len(path)] == path), path)
                        if begun not in read:
                            read[begun] = model(input_ids=tensor([begun]), use_cache=False).logits[0].float()
                        alone = read[begun][len(path) - len(got) : len(path)]
                    differences.append(((got.float() - alone).abs().max() / alone.std().clamp_min(1e-12)).item())
        except Exception as error:  # whatever a model raises in a way of running that is not its own
            if is_out_of_memory(error):
                raise
            what = f"{type(error).__name__}: {error}"
            return f"scoring a block of tokens per row failed ({what})."
    bound = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.1
    # one by one: `max` may pass over a NaN
    if all(difference <= bound for difference in differences):
        return ""
    if any(math.isnan(difference) for difference in differences):
        return (
            "its scores hold NaN, perhaps for padded prompts only. Check its weights, load it with "
            '`attn_implementation="sdpa"`, or drop the assistant for this call.'
        )
    return Differs(
        f"rows scored in blocks differ from rows scored alone by {max(differences):.2g} standard deviations of a "
        "logit."
    )


def _step_alone(model: PreTrainedModel, prompt: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Logits `(1, V)` of one token behind a prompt without padding, which is read without a mask."""
    runner, mask = RowRunner(model), torch.ones_like(prompt)
    positions = model._prepare_position_ids_for_generation(prompt, {"attention_mask": mask})
    kwargs = {"attention_mask": mask, "position_ids": positions, "use_cache": True}
    runner.prefill(prompt, GenerationConfig(), kwargs)
    return runner.forward(token, [prompt.shape[1]]).logits[0]


# tokens read per row, and how many of them are right and kept in each row
ROUNDS = ((3, 1, 3), (4, 4, 2), (2, 2, 2))
STEPS = ((1, 1, 1),) * 4


_TAILS = ((6, 2, 8, 11, 7, 4, 3, 12), (9, 5, 3, 10, 2, 7, 6, 13))


class _Script(LogitsProcessor):
    """Makes plain `generate` write given tokens."""

    def __init__(self, start: int, tokens: Sequence[int]) -> None:
        self.start, self.tokens = start, tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        place = input_ids.shape[1] - self.start
        forced = torch.full_like(scores, -torch.inf)
        # what is written after the last of them is not read
        forced[:, self.tokens[place] if place < len(self.tokens) else 0] = 0
        return forced


def _plain_logits(
    model: PreTrainedModel, prompts: torch.Tensor, tail: Sequence[int], mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Logits `(B, len(tail) + 1, V)` of plain `generate` as it writes `tail` after each of the prompts `(B, P)`."""
    config = GenerationConfig(
        max_new_tokens=len(tail) + 1,
        do_sample=False,
        num_beams=1,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    mask = torch.ones_like(prompts) if mask is None else mask
    encoder, names = _encoder_arguments(model, len(prompts)), {"inputs": prompts, "attention_mask": mask}
    if encoder and (cache := compat.new_cache(model)) is not None:
        encoder[compat.cache_argument(model)] = cache
    if compat.is_encoder_decoder(model):
        # else `generate` puts a start token in front
        config.decoder_start_token_id = int(prompts[0, 0])
        # what it makes itself where only the encoder's outputs are known, but on `model.device`, which may be `meta`
        unread = prompts.new_full(encoder["encoder_outputs"][0].shape[:-1], -100)
        names = {"inputs": unread, "decoder_input_ids": prompts}
    # a shallow copy: the model's own settings would be filled in, and are none of the probe's business
    bare = copy.copy(model)
    bare.generation_config = GenerationConfig()
    script = LogitsProcessorList([_Script(prompts.shape[1], tail)])
    arguments = {"generation_config": config, "logits_processor": script}
    output = GenerationMixin.generate(bare, **names, **encoder, **arguments)
    return torch.stack(output.logits, dim=1).float()


def _encoder_arguments(model: PreTrainedModel, rows: int) -> dict[str, Any]:
    """What a decoder is given of an encoder; made up where the encoder does not read tokens."""
    if not compat.reads_encoder(model):
        return {}
    device = compat.model_device(model, torch.device("cpu"))
    if compat.is_encoder_decoder(model) and model.main_input_name == "input_ids":
        # ids that every vocabulary has
        read = torch.tensor([_PROMPTS[1]] * rows, device=device) % 3
        mask = torch.ones_like(read)
        outputs = model.get_encoder()(input_ids=read, attention_mask=mask, return_dict=True)
        return {"encoder_outputs": outputs, "attention_mask": mask}
    width, length = compat.encoder_width(model), 5
    states = torch.arange(length * width, device=device).sin().reshape(1, length, width).to(model.dtype)
    return {"encoder_outputs": BaseModelOutput(last_hidden_state=states.expand(rows, -1, -1))}


@torch.no_grad()
def probe_lone(model: PreTrainedModel, cached: bool, rounds: Any) -> str:
    """Runs two rows in turns, in blocks and going back, and compares with plain `generate` on each row."""
    vocabulary = compat.text_config(model).vocab_size
    device = compat.model_device(model, torch.device("cpu"))

    def tensor(rows: Any) -> torch.Tensor:
        return torch.tensor(rows, device=device) % vocabulary

    def kwargs(rows: int, width: int) -> dict[str, Any]:
        mask = torch.ones(rows, width, dtype=torch.long, device=device)
        name = "decoder_attention_mask" if compat.is_encoder_decoder(model) else "attention_mask"
        made: dict[str, Any] = {name: mask, "use_cache": cached, **_encoder_arguments(model, rows)}
        if "position_ids" in compat.forward_parameters(model):
            made["position_ids"] = mask.cumsum(1) - 1
        if "logits_to_keep" in compat.forward_parameters(model):
            # as `generate` asks: heads may round by all that they are given
            made["logits_to_keep"] = 1
        if cached and (cache := compat.new_cache(model)) is not None:
            made[compat.cache_argument(model)] = cache
        return made

    width = max(map(len, _PROMPTS))
    prompts = [[9] * (width - len(row)) + list(row) for row in _PROMPTS]
    tails = [[token % vocabulary for token in tail] for tail in _TAILS]
    differences = []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            expected = [
                _plain_logits(model, tensor([prompt]), tail)[0] for prompt, tail in zip(prompts, tails, strict=True)
            ]
            both = LoneRows(model, cached)
            got = [both.prefill(tensor(prompts), GenerationConfig(), kwargs(2, width)).logits[:, -1]]
            differences = [(got[0][row].float() - expected[row][0]).abs().max() for row in range(2)]
            starts, right = [0, 0], tensor(tails)
            for size, *kept in rounds:
                block = torch.stack([right[row, start : start + size] for row, start in enumerate(starts)])
                for row, count in enumerate(kept):
                    block[row, count:] = (block[row, count:] + 1) % vocabulary
                logits = both.forward(block, [width + start for start in starts]).logits.float()
                for row, (start, count) in enumerate(zip(starts, kept, strict=True)):
                    wanted = expected[row][start + 1 : start + 1 + count]
                    differences.append((logits[row, :count] - wanted).abs().max())
                starts = [start + count for start, count in zip(starts, kept, strict=True)]
            scale = torch.cat(expected).std().clamp_min(1e-12)
        except Exception as error:  # whatever a model raises in a way of running that is not its own
            if is_out_of_memory(error):
                raise
            return f"running rows alone failed ({type(error).__name__}: {error})."
    # tighter than between rows: a block that starts from a wrong state can still be near
    bound = {torch.float16: 0.03, torch.bfloat16: 0.1}.get(model.dtype, 1e-4)
    worst = [float(difference / scale) for difference in differences]
    if all(difference <= bound for difference in worst):
        return ""
    return Differs(f"they differ from plain steps by {max(worst):.2g} standard deviations of a logit.")


@torch.no_grad()
def rows_mix(model: PreTrainedModel) -> bool:
    """Whether plain steps score a row otherwise beside another row, as where numbers are rounded by the largest."""
    vocabulary = compat.text_config(model).vocab_size
    width = max(map(len, _PROMPTS))
    device = compat.model_device(model, torch.device("cpu"))
    prompts = torch.tensor([[9] * (width - len(row)) + list(row) for row in _PROMPTS], device=device) % vocabulary
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        together = _plain_logits(model, prompts, _TAILS[0][:1])
        expected = torch.cat(
            [_plain_logits(model, prompts[row : row + 1], _TAILS[0][:1]) for row in range(len(prompts))]
        )
    bound = {torch.float16: 0.03, torch.bfloat16: 0.1}.get(model.dtype, 1e-4)
    return not bool((together - expected).abs().max() <= bound * expected.std().clamp_min(1e-12))


@torch.no_grad()
def keeps_state_in_modules(model: PreTrainedModel) -> bool:
    """Whether a forward leaves something behind in attributes called states (RecurrentGemma); it is put back."""

    def states() -> list[tuple[dict[str, Any], str, Any]]:
        tables = [vars(part) for part in model.modules()]
        return [
            (table, name, value)
            for table in tables
            for name, value in table.items()
            if name.endswith(("state", "states"))
        ]

    before = states()
    try:
        _plain_logits(model, torch.tensor([_PROMPTS[1]], device=compat.model_device(model, torch.device("cpu"))), (3,))
    except Exception as error:  # what fails here fails in the probes too
        if is_out_of_memory(error):
            raise
    changed = [entry for entry, now in zip(before, states(), strict=False) if entry[2] is not now[2]]
    for table, name, value in before:
        table[name] = value
    return bool(changed)
