"""How often processors are called: once a round without history, else no further than the first rejection (0x06J)."""

import contextlib
from unittest import mock

import pytest
from transformers.generation import LogitsProcessor, RepetitionPenaltyLogitsProcessor, TopPLogitsWarper

import hf_exactassist
from hf_exactassist.schedules import ConstantSchedule
from tests.tiny import ScriptedDrafter, prompts, tiny


NEW, WIDTH = 30, 4


class Pure(LogitsProcessor):
    """Of a class nobody knows; its answer depends on the tokens alone."""

    stateless = True

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores.roll(1, dims=-1)


@pytest.fixture(scope="module")
def target():
    return tiny()


@contextlib.contextmanager
def counted(kind):
    with mock.patch.object(kind, "__call__", autospec=True, side_effect=kind.__call__) as calls:
        yield calls


def run(target, lengths, script, **settings):
    """Drafts of a fixed width with forced accept lengths, by a drafter that asks no processor."""
    settings = {"do_sample": False, "eos_token_id": None, "max_new_tokens": NEW, **settings}
    inputs, pure = prompts(lengths), Pure()
    given = [pure] if settings.pop("pure", False) else []
    plain = target.generate(**inputs, **settings, logits_processor=[Pure()] if given else [])
    drafter = ScriptedDrafter(plain, script)
    loop = hf_exactassist.AssistedDecoding(drafter, ConstantSchedule(WIDTH))
    with counted(RepetitionPenaltyLogitsProcessor) as penalty, counted(TopPLogitsWarper) as warper:
        output = target.generate(**inputs, **settings, logits_processor=given, custom_generate=loop)
    assert output.tolist() == plain.tolist()
    return drafter.observed, {"pure": pure.calls, "penalty": penalty.call_count, "warper": warper.call_count}


@pytest.mark.parametrize("lengths", [[6], [6, 4, 5]])
def test_one_call_a_round_without_history(target, lengths):
    """Whatever the rows accept, all places of all rows go in one call."""
    sampled = {"do_sample": True, "top_p": 1e-6, "top_k": 0}
    commits, calls = run(target, lengths, lambda row, number: (number + row) % 5, **sampled)
    assert calls["warper"] == len(commits)


@pytest.mark.parametrize("name", ["pure", "penalty"])
@pytest.mark.parametrize("right", [0, 2, 4])
def test_one_call_a_published_token_with_history(target, right, name):
    """A suffix that is rejected is not processed."""
    settings = {"pure": True} if name == "pure" else {"repetition_penalty": 1.3}
    commits, calls = run(target, [6], lambda row, number: right, **settings)
    assert calls[name] == NEW
    assert {count for commit in commits[2:-2] for count in commit.accepted} == {right}


@pytest.mark.parametrize("right", [0, 4])
def test_rows_at_the_same_column_share_a_call(target, right):
    commits, calls = run(target, [6, 4, 5], lambda row, number: right, repetition_penalty=1.3)
    assert calls["penalty"] == NEW


def test_rows_at_different_columns_are_called_apart_and_no_more(target):
    commits, calls = run(target, [6, 4, 5], lambda row, number: (number + 2 * row) % 5, repetition_penalty=1.3)
    assert NEW < calls["penalty"] <= 3 * NEW
