"""How long prompts are read: without square masks, in chunks where the call says so, and not before it pays."""

import contextlib
import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hf_exactassist
from hf_exactassist import AssistedDecoding
from hf_exactassist.drafters import AssistantModelDrafter
from hf_exactassist.models import compat
from hf_exactassist.schedules import DraftSchedule
from tests.exactness.test_lone_rows import built
from tests.exactness.test_work import LENGTHS, query_tokens
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


LONG = 150
GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": 12}
# those whose layers all see the whole text: a window is written into a mask
FULL_ATTENTION = ("llama", "qwen2", "gpt2", "gpt_neox")


class Squares(TorchDispatchMode):
    """Notes operators whose results have two axes of at least so many places."""

    def __init__(self, size):
        super().__init__()
        self.size, self.found = size, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for part in tree_leaves(out):
            if isinstance(part, torch.Tensor) and sum(axis >= self.size for axis in part.shape) >= 2:
                self.found.append((str(func), tuple(part.shape)))
        return out


def assisted(target, inputs, assistant, **settings):
    settings = {**GREEDY, "num_assistant_tokens": 3, **settings}
    return hf_exactassist.generate(
        target, **inputs, **settings, assistant_model=assistant, return_dict_in_generate=True
    )


def even(target, architecture="llama"):
    return noisy(target, EVEN_NOISE[architecture])


# --- masks ---


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("architecture", FULL_ATTENTION)
def test_without_padding_no_mask_is_square(architecture, rows):
    """Prompts of equal length: neither the target's reading nor the assistant's makes anything of P x P."""
    target = tiny(architecture)
    assistant, inputs = even(target, architecture), prompts([LONG] * rows)
    with Squares(LONG) as squares:
        stats = assisted(target, inputs, assistant).assist_stats
    assert squares.found == [] and stats.drafted > 0


def test_padding_is_written_into_a_mask():
    """That is what the spy would see."""
    target = tiny()
    with Squares(LONG) as squares:
        assisted(target, prompts([LONG, LONG - 1]), even(target))
    assert any(shape[-2:] == (LONG, LONG) for _, shape in squares.found)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_in_chunks_no_mask_is_square_whatever_the_prompts(architecture):
    target = tiny(architecture)
    inputs = prompts([LONG, LONG // 2])
    with Squares(LONG) as squares:
        stats = assisted(target, inputs, even(target, architecture), prefill_chunk_size=32).assist_stats
    assert squares.found == [] and stats.drafted > 0


# --- chunks ---


def chunks(total, size):
    return [size] * (total // size) + [total % size] * (total % size > 0)


@pytest.mark.parametrize("size", [1, 16, 50, LONG, 1000])
@pytest.mark.parametrize("lengths", [(LONG,), (LONG, 40)])
def test_target_and_assistant_read_in_chunks(lengths, size):
    target = tiny()
    assistant, inputs = copy.deepcopy(target), prompts(lengths)
    plain = target.generate(**inputs, **GREEDY, prefill_chunk_size=size)
    with query_tokens(target) as widths, query_tokens(assistant) as read:
        output = assisted(target, inputs, assistant, prefill_chunk_size=size)
    assert output.sequences.tolist() == plain.tolist() and output.assist_stats.acceptance_rate == 1
    # the assistant reads the first token together with the prompt
    due, theirs = chunks(LONG, size), chunks(LONG + 1, size)
    assert widths[: len(due)] == due and max(widths[len(due) :]) == 4
    assert read[: len(theirs)] == theirs and max(read[len(theirs) :]) <= 2
    assert output.assist_stats.target_forwards == len(widths)
    assert output.assist_stats.draft_forwards == len(read)


@pytest.mark.skipif(compat.CACHE_ARGUMENT != "cache", reason="earlier releases cut up what the cache holds too")
def test_only_what_a_cache_does_not_hold_is_read_in_chunks():
    target = tiny()
    inputs = prompts([LONG])
    first = target.generate(**inputs, **GREEDY, return_dict_in_generate=True)
    more = torch.cat([first.sequences, prompts([20], seed=3)["input_ids"]], dim=1)
    assistant = even(target)
    with query_tokens(target) as widths:
        output = assisted(target, {"input_ids": more}, assistant, prefill_chunk_size=8, cache=first.cache)
    assert widths[:3] == [8, 8, 5] and max(widths[3:]) <= 4
    assert output.assist_stats.target_forwards == len(widths)


@pytest.mark.parametrize("kind", ["lfm2", "rwkv", "openai", "mamba"])
def test_assistants_of_other_kinds(kind):
    """Where a class cannot read in chunks, the assistant reads at once, and the text is the target's anyway."""
    target, inputs = tiny(), prompts([40, 7])
    plain = target.generate(**inputs, **GREEDY)
    stats = {}
    for size in (None, 16):
        output = assisted(target, inputs, built(kind), prefill_chunk_size=size)
        assert output.sequences.tolist() == plain.tolist()
        stats[size] = output.assist_stats
    assert stats[16].drafted_by_position == stats[None].drafted_by_position
    assert stats[16].accepted_by_position == stats[None].accepted_by_position


def test_rows_alone_read_in_chunks():
    target, inputs = built("lfm2"), prompts([40, 17])
    assistant = noisy(target, 0.1)
    with query_tokens(target) as widths:
        output = assisted(target, inputs, assistant, prefill_chunk_size=16)
    assert widths[:5] == [16, 16, 8, 16, 1]
    assert output.assist_stats.target_forwards == len(widths)


# --- not before it is wanted ---


class From(DraftSchedule):
    """No drafts for so many rounds."""

    def __init__(self, rounds):
        self.rounds = rounds

    def start(self):
        self.seen = {}

    def length(self, row):
        return 2 if self.seen.get(row, 0) > self.rounds else 0

    def observe(self, row, drafted, accepted):
        self.seen[row] = self.seen.get(row, 0) + 1


@pytest.mark.parametrize("rounds", [1, 4, 100])
@pytest.mark.parametrize("lengths", [(9,), LENGTHS])
def test_the_assistant_reads_nothing_until_a_draft_is_wanted(lengths, rounds):
    target = tiny()
    assistant, inputs = copy.deepcopy(target), prompts(lengths)
    shared = torch.ones(target.config.vocab_size, dtype=torch.bool)
    loop = AssistedDecoding(AssistantModelDrafter(assistant, shared), From(rounds))
    with query_tokens(assistant) as widths:
        output = target.generate(**inputs, **GREEDY, custom_generate=loop, return_dict_in_generate=True)
    assert output.sequences.tolist() == target.generate(**inputs, **GREEDY).tolist()
    # the prompt, the prefill's token and those of the rounds before
    assert widths[:1] == ([] if rounds == 100 else [max(lengths) + 1 + rounds])
    assert output.assist_stats.draft_forwards == len(widths)
    assert output.assist_stats.accepted == output.assist_stats.drafted


@contextlib.contextmanager
def unread(assistant):
    with query_tokens(assistant) as widths:
        yield
    assert widths == []


def test_the_assistant_reads_nothing_in_calls_that_end_at_once():
    target = tiny()
    assistant, inputs = even(target), prompts(LENGTHS)
    with unread(assistant):
        assisted(target, inputs, assistant, max_new_tokens=1)
    first = target.generate(**inputs, **{**GREEDY, "max_new_tokens": 1})[:, -1].tolist()
    with unread(assistant):
        stats = assisted(target, inputs, assistant, eos_token_id=first).assist_stats
    assert stats.published == len(LENGTHS)


def test_the_assistant_of_a_serial_target_reads_nothing():
    target, assistant = built("mamba"), tiny()
    with unread(assistant):
        stats = assisted(target, prompts([9]), assistant).assist_stats
    assert stats.serial and stats.published == GREEDY["max_new_tokens"]
