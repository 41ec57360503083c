"""Prompt lookup copies what followed an earlier occurrence of the last tokens; the target judges it (A21, A43)."""

import pytest
import torch

from hf_exactassist.drafters import DraftingContext, PromptLookupDrafter
from hf_exactassist.records import Commit
from hf_exactassist.state.processors import ProcessorPipeline
from hf_exactassist.state.rows import Rows
from tests.tiny import looping, prompts, same_as_plain, tiny


def started(ids, mask=None, size=2, number=9, vocabulary=80, eos=()):
    """A drafter at the start of a call with these prompts."""
    ids = torch.tensor(ids)
    rows = Rows(ids, None if mask is None else torch.tensor(mask), ids.shape[1] + 20, 0, stop_alone=True)
    drafter = PromptLookupDrafter(number, size)
    drafter.start(DraftingContext(rows, ProcessorPipeline([], ids, vocabulary), vocabulary, frozenset(eos), None))
    return drafter


def drafts(drafter, *wanted):
    """Each row's draft tokens."""
    draft = drafter.propose(wanted)
    assert draft.probs is None
    assert draft.tokens.shape == (len(wanted), draft.width)
    return [row[:length].tolist() for row, length in zip(draft.tokens, draft.lengths, strict=True)]


def test_continues_the_earlier_occurrence_of_the_last_tokens():
    assert drafts(started([[3, 4, 5, 6, 7, 8, 3, 4]]), 3) == [[5, 6, 7]]


def test_the_longest_run_is_looked_up_first():
    """Token 4 first occurs before 9, but the run 3, 4 before 6."""
    text = [[4, 9, 3, 4, 6, 7, 3, 4]]
    assert drafts(started(text, size=2), 2) == [[6, 7]]
    assert drafts(started(text, size=1), 2) == [[9, 3]]


def test_shorter_runs_are_tried_where_longer_ones_do_not_occur():
    text = [[4, 9, 5, 8, 3, 4]]
    assert drafts(started(text, size=5), 2) == [[9, 5]]


def test_the_first_of_several_occurrences_is_taken():
    assert drafts(started([[3, 4, 5, 3, 4, 6, 3, 4]]), 1) == [[5]]


def test_the_run_itself_is_no_occurrence():
    assert drafts(started([[5, 6, 7, 8]]), 4) == [[]]


def test_occurrence_may_overlap_the_run():
    assert drafts(started([[9, 3, 3, 3]]), 2) == [[3]]


@pytest.mark.parametrize("ids", [[[3]], [[3, 4]], [[0, 0, 3]]])
def test_short_prompts_give_no_draft(ids):
    assert drafts(started(ids, size=10), 4) == [[]]


@pytest.mark.parametrize(("wanted", "number", "length"), [(0, 9, 0), (1, 9, 1), (2, 9, 2), (9, 2, 2), (9, 9, 4)])
def test_drafts_stay_within_what_is_wanted_and_what_there_is(wanted, number, length):
    """A59, A61."""
    assert drafts(started([[3, 4, 5, 6, 3, 4]], number=number), wanted) == [[5, 6, 3, 4][:length]]


def test_rows_are_looked_up_on_their_own():
    """A ragged batch: one row matches, one does not, one wants fewer."""
    drafter = started([[3, 4, 5, 6, 3, 4], [5, 3, 4, 7, 8, 9], [7, 8, 9, 7, 7, 8]])
    assert drafts(drafter, 4, 4, 1) == [[5, 6, 3, 4], [], [9]]


def test_padding_is_no_text():
    """Pads in front neither match nor are they copied, whatever their id."""
    row = [4, 4, 4, 4, 7, 5, 4]
    assert drafts(started([row]), 3) == [[4, 4, 4]]
    assert drafts(started([row], mask=[[0, 0, 0, 0, 1, 1, 1]]), 3) == [[]]
    # nor what a mask hides inside
    assert drafts(started([[3, 4, 9, 5, 6, 3, 4]], mask=[[1, 1, 0, 1, 1, 1, 1]]), 2) == [[5, 6]]


def test_drafts_end_with_an_eos():
    assert drafts(started([[3, 4, 5, 2, 6, 3, 4]], eos=[2]), 5) == [[5, 2]]


def test_tokens_the_target_cannot_emit_are_not_drafted():
    """The prompt may hold tokens beyond the head's columns; nothing from the first one on is copied."""
    assert drafts(started([[3, 4, 5, 6, 79, 7, 3, 4]], vocabulary=64), 5) == [[5, 6]]
    assert drafts(started([[3, 4, 70, 6, 3, 4]], vocabulary=64), 5) == [[]]


def test_text_generated_so_far_is_looked_up_too():
    """Columns after the prompt belong to the text, and prompt masks do not reach there."""
    drafter = started([[0, 3, 4]], mask=[[0, 1, 1]])
    assert drafts(drafter, 3) == [[]]
    commit = Commit((0,), (0,), (0,), ((8, 9, 8),), (None,))
    drafter.context.rows.lay_out(commit.tokens)
    drafter.context.rows.publish(commit)
    drafter.observe(commit)
    assert drafts(drafter, 3) == [[9, 8]]


@pytest.mark.parametrize("k", [1, 2, 5, 20])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_repetitive_prompt_gives_plain_generates_text(k, size):
    """A21: most drafts are accepted, in several rounds."""
    target, inputs = looping()
    ours = same_as_plain(
        target,
        inputs,
        {"prompt_lookup_num_tokens": k, "max_matching_ngram_size": size},
        max_new_tokens=40,
        eos_token_id=None,
    )
    assert ours.assist_stats.accepted >= 10
    assert ours.assist_stats.rounds < 30


@pytest.mark.parametrize("k", [2, 5])
def test_ragged_batch_gives_plain_generates_text(k):
    target, inputs = looping()
    text = inputs["input_ids"][0]
    ids, mask = prompts([33, 20, 28, 1]).values()
    for row, length in enumerate([33, 20, 28]):
        ids[row, 33 - length :] = text[:length]
    ours = same_as_plain(
        target,
        {"input_ids": ids, "attention_mask": mask},
        {"prompt_lookup_num_tokens": k},
        max_new_tokens=20,
        eos_token_id=None,
    )
    assert 0.2 < ours.assist_stats.acceptance_rate < 1


@pytest.mark.parametrize("k", [1, 5])
def test_suppressed_tokens_are_copied_but_never_committed(k):
    """A43."""
    target, inputs = looping()
    length = inputs["input_ids"].shape[1]
    banned = int(target.generate(**inputs, do_sample=False, max_new_tokens=3)[0, length + 1])
    ours = same_as_plain(
        target,
        inputs,
        {"prompt_lookup_num_tokens": k},
        max_new_tokens=20,
        eos_token_id=None,
        suppress_tokens=[banned],
    )
    assert banned in inputs["input_ids"] and banned not in ours.sequences[0, length:]
    assert ours.assist_stats.accepted < ours.assist_stats.drafted


def test_prompt_with_tokens_beyond_the_head_gives_plain_generates_text():
    """Heads may be smaller than embeddings."""
    target = tiny(vocabulary=64, initializer_range=0.05, seed=1)
    target.resize_token_embeddings(80)
    head = torch.nn.Linear(32, 64, bias=False)
    head.weight = torch.nn.Parameter(target.lm_head.weight[:64].detach().clone())
    target.lm_head = head
    ids = prompts([9], vocabulary=64)["input_ids"]
    text = target.generate(ids, do_sample=False, max_new_tokens=12, eos_token_id=None)
    text[0, 12:14] = 70
    inputs = {"input_ids": torch.cat([text, text], dim=1)}
    ours = same_as_plain(target, inputs, {"prompt_lookup_num_tokens": 6}, max_new_tokens=20, eos_token_id=None)
    assert ours.assist_stats.drafted
