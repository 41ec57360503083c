"""A commit that contradicts itself or the state is refused by name and changes nothing (contract 0x06A to 0x06E)."""

import pickle
from dataclasses import replace

import pytest
import torch

import hf_exactassist
from hf_exactassist.errors import BrokenRound, ForeignRows, InvalidCommit
from hf_exactassist.records import Spent
from tests.tiny import EVEN_NOISE, noisy, prompts, tiny


LAYOUTS = ("replay", "retained")
SETTINGS = {"eos_token_id": [7, 23], "pad_token_id": 0, "max_new_tokens": 24, "do_sample": True, "seed": 9}
LENGTHS = [9, 4, 6]


@pytest.fixture(scope="module")
def models():
    target = tiny()
    return target, noisy(target, EVEN_NOISE["llama"])


@pytest.fixture(scope="module")
def expected(models):
    """The uninterrupted result; equal in both layouts."""
    call = {**SETTINGS, "assistant_model": models[1], "num_assistant_tokens": 3}
    return hf_exactassist.generate(models[0], **prompts(LENGTHS), **call)


def opened(models, layout):
    call = {**SETTINGS, "assistant_model": models[1], "num_assistant_tokens": 3, "layout": layout}
    return hf_exactassist.start(models[0], **prompts(LENGTHS), **call)


def unpublished(session, fits):
    """Steps until a round has a row that fits; that round, not yet published, and the row's place in it.

    Args:
        session: a session.
        fits: `fits(commit, place)` says whether a row will do.
    """
    session.step()
    while not session.finished:
        with torch.no_grad():
            commit = session.round(session.wanted(1.0))
        for place in range(len(commit.rows)):
            if fits(commit, place):
                return commit, place
        session.publish(commit)
    pytest.fail("no round of this call has such a row")


def any_row(commit, place):
    return True


def ends_in(kind):
    return lambda commit, place: commit.terminal[place] == kind


def changed(commit, place, **values):
    """The commit with other values in one row's place."""
    tables = {name: list(getattr(commit, name)) for name in values}
    for name, value in values.items():
        tables[name][place] = value
    return replace(commit, **{name: tuple(table) for name, table in tables.items()})


def tokens_of(commit, place, *more):
    return commit.tokens[place] + more


def cut_short(commit, place):
    """The row ends one token earlier, all else fitting."""
    return {
        "tokens": commit.tokens[place][:-1],
        "terminal": "stop",
        "committed_kv": commit.committed_kv[place][:-1],
        "discarded_kv": (commit.committed_kv[place][-1], *commit.discarded_kv[place]),
        "stops": None,
    }


# what a row must be, what becomes of it, the error and its words
ROWS = {
    "accepted more than drafted": (
        any_row,
        lambda c, i: {"accepted": c.drafted[i] + 1},
        InvalidCommit,
        "accepts more than was drafted",
    ),
    "accepted less than none": (
        any_row,
        lambda c, i: {"accepted": -1},
        InvalidCommit,
        "accepts more than was drafted",
    ),
    "more tokens than accepted": (
        ends_in("recovered"),
        lambda c, i: {"tokens": tokens_of(c, i, 5), "committed_kv": c.committed_kv[i] + c.tokens[i][-1:]},
        InvalidCommit,
        "more than was accepted and one token",
    ),
    "a stop before the round": (any_row, lambda c, i: {"stops": 3}, InvalidCommit, "at a length it does not pass"),
    "a stop beyond the round": (any_row, lambda c, i: {"stops": 99}, InvalidCommit, "at a length it does not pass"),
    "no token": (any_row, lambda c, i: {"tokens": ()}, InvalidCommit, "publishes nothing"),
    "beyond the budget": (
        any_row,
        lambda c, i: {"drafted": 40, "accepted": 40, "tokens": (5,) * 41},
        InvalidCommit,
        "beyond the row's budget",
    ),
    "a recovered token called bonus": (
        ends_in("recovered"),
        lambda c, i: {"terminal": "bonus"},
        InvalidCommit,
        "in 'bonus' where 'recovered' is due",
    ),
    "a recovered token called stop": (
        ends_in("recovered"),
        lambda c, i: {"terminal": "stop"},
        InvalidCommit,
        "in 'stop' where 'recovered' is due",
    ),
    "a bonus token called recovered": (
        ends_in("bonus"),
        lambda c, i: {"terminal": "recovered"},
        InvalidCommit,
        "in 'recovered' where 'bonus' is due",
    ),
    "a bonus token called stop": (
        ends_in("bonus"),
        lambda c, i: {"terminal": "stop"},
        InvalidCommit,
        "in 'stop' where 'bonus' is due",
    ),
    "a cut row called recovered": (
        ends_in("stop"),
        lambda c, i: {"terminal": "recovered"},
        InvalidCommit,
        "in 'recovered' where 'stop' is due",
    ),
    "a cut row called bonus": (
        ends_in("stop"),
        lambda c, i: {"terminal": "bonus"},
        InvalidCommit,
        "in 'bonus' where 'stop' is due",
    ),
    "a cut row without a stop": (
        ends_in("stop"),
        lambda c, i: {"stops": None},
        InvalidCommit,
        "cuts row . without a stop",
    ),
    "a row cut short without a stop": (
        lambda c, i: len(c.tokens[i]) > 1 and c.terminal[i] != "stop",
        cut_short,
        InvalidCommit,
        "cuts row . without a stop",
    ),
    "numbers given back": (
        lambda c, i: c.spent_before[i].draft > 0,
        lambda c, i: {"spent_after": c.spent_before[i]._replace(draft=c.spent_before[i].draft - 1)},
        InvalidCommit,
        "gives numbers back",
    ),
    "other numbers before": (
        any_row,
        lambda c, i: {"spent_before": c.spent_before[i].plus(Spent(accept=1))},
        InvalidCommit,
        "starts from other numbers",
    ),
    "a rejected token's rows for the recovered one": (
        ends_in("recovered"),
        lambda c, i: {"committed_kv": c.committed_kv[i] + c.discarded_kv[i][:1]},
        ForeignRows,
        "would keep keys and values of",
    ),
    "another token's rows for an accepted one": (
        lambda c, i: len(c.tokens[i]) > 1,
        lambda c, i: {"committed_kv": (*c.committed_kv[i][:-1], c.committed_kv[i][-1] + 1)},
        ForeignRows,
        "would keep keys and values of",
    ),
    "another accepted token than has rows": (
        lambda c, i: len(c.tokens[i]) > 1,
        lambda c, i: {"tokens": (c.tokens[i][0] + 1, *c.tokens[i][1:])},
        ForeignRows,
        "for a text going on with",
    ),
    "the recovered token's rows": (
        ends_in("recovered"),
        lambda c, i: {"committed_kv": c.committed_kv[i] + c.tokens[i][-1:]},
        ForeignRows,
        "would keep keys and values of",
    ),
    "too few rows discarded": (
        ends_in("recovered"),
        lambda c, i: {"discarded_kv": c.discarded_kv[i][1:]},
        InvalidCommit,
        "keeps rejected keys and values",
    ),
}
WHOLE = {
    "another call": (lambda c: {"request_id": "another"}, "belongs to another call"),
    "another round": (lambda c: {"round_id": f"{c.request_id}/99"}, "has the number of another round"),
    "rows in another order": (lambda c: {"rows": c.rows[::-1]}, "has other rows than are active"),
    "one row less": (lambda c: {"rows": c.rows[:-1]}, "has other rows than are active"),
    "another state of the processors": (
        lambda c: {"processors_before": "0" * 64},
        "starts from another state of the logits processors",
    ),
}


def refused(session, wrong, error, match):
    """The commit is refused, and nothing of the session is another than before."""
    state, text, ids = session.rows.state, session.sequences_so_far(), session.rows.ids.clone()
    counters = vars(session.stats).copy()
    with pytest.raises(error, match=match) as caught:
        session.publish(wrong)
    assert isinstance(caught.value, BrokenRound)
    assert session.rows.state is state and session.sequences_so_far() == text
    assert torch.equal(session.rows.ids, ids) and vars(session.stats) == counters


def goes_on(session, commit, expected):
    """The untouched commit is published, and the call ends as if nothing had been."""
    assert session.publish(commit) and session.rows.state.last is commit
    assert not session.publish(commit)
    assert torch.equal(session.result(), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_contradicts_itself_or_the_state(models, expected, name, layout):
    """0x06B, 0x06C."""
    fits, change, error, match = ROWS[name]
    session = opened(models, layout)
    commit, place = unpublished(session, fits)
    refused(session, changed(commit, place, **change(commit, place)), error, match)
    goes_on(session, commit, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", WHOLE)
def test_a_commit_of_another_state(models, expected, name, layout):
    """0x06A, 0x06D, 0x06E."""
    change, match = WHOLE[name]
    session = opened(models, layout)
    commit, _ = unpublished(session, lambda c, i: len(c.rows) == len(LENGTHS))
    refused(session, replace(commit, **change(commit)), InvalidCommit, match)
    goes_on(session, commit, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_frontiers_rows_are_committed_under_replay_alone(models, expected, layout):
    """0x06C: they are not the draft's."""
    session = opened(models, layout)
    commit, place = unpublished(session, any_row)
    kept = commit.committed_kv[place]
    wrong = kept[1:] if layout == "replay" else (session.rows.frontiers()[place], *kept)
    refused(session, changed(commit, place, committed_kv=wrong), ForeignRows, "would keep keys and values of")
    goes_on(session, commit, expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_equal_commit_is_as_good_as_the_staged_one(models, expected, layout):
    """0x06E: a record says everything; it need not be the object that `stage` made."""
    session = opened(models, layout)
    commit, _ = unpublished(session, any_row)
    assert session.publish(replace(commit)) and not session.publish(commit)
    assert torch.equal(session.result(), expected)


ENTRIES = ("drafted", "accepted", "tokens", "stops", "terminal", "committed_kv", "discarded_kv", "spent_after")


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_commit_has_one_entry_per_row(models, layout, name):
    session = opened(models, layout)
    commit, _ = unpublished(session, any_row)
    state = session.rows.state
    for entries in (getattr(commit, name)[:-1], getattr(commit, name) + getattr(commit, name)[:1]):
        with pytest.raises(InvalidCommit, match="another number of entries"):
            session.publish(replace(commit, **{name: entries}))
    with pytest.raises(InvalidCommit, match="not staged by this session"):
        session.publish(replace(commit, processors_after="x"))
    assert session.rows.state is state and session.publish(commit) is True


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_commit_that_nobody_staged_is_refused_though_nothing_contradicts_it(models, layout, expected):
    """A last token has no keys and values to be compared with."""
    session = opened(models, layout)
    commit, place = unpublished(session, ends_in("recovered"))
    state = session.rows.state
    for token in (5, -1, 10**6):
        forged = changed(commit, place, tokens=(*commit.tokens[place][:-1], token))
        with pytest.raises(InvalidCommit, match="was not staged by this session"):
            session.publish(forged)
    with pytest.raises(InvalidCommit, match="was not staged"):
        session.publish(replace(commit, spent_after=commit.spent_before))
    with pytest.raises(InvalidCommit, match="is malformed"):
        session.publish(replace(commit, tokens=tuple(list(tokens) for tokens in commit.tokens)))
    for nothing in (None, 3, {}):
        with pytest.raises(hf_exactassist.InvalidArgument, match="takes a commit"):
            session.publish(nothing)
    assert session.rows.state is state and session.publish(pickle.loads(pickle.dumps(commit))) is True
    assert torch.equal(session.result(), expected)
