"""The two frontier layouts by the identities of their rows (contract 0x01B, 0x01C, 0x04A to 0x04E, 0x06B, 0x06C)."""

import pytest
import torch

from hf_exactassist.errors import DuplicatedFrontier, ForeignRows, FrontierInDraft, MixedLayouts, ShiftedRows
from hf_exactassist.records import CallIdentity, Coordinate, Draft, RowCoordinate, Spent
from hf_exactassist.state import transaction
from hf_exactassist.state.layout import (
    block_inputs,
    cached_length,
    check_block,
    draft_rows,
    scored_rows,
    visibility,
)


LAYOUTS = ("replay", "retained")
TEXT, DRAFT = (1, 4, 7, 9, 3, 12), (8, 6, 2)
FRONTIER, LENGTH, WHOLE = TEXT[-1], len(TEXT), TEXT + DRAFT
# inputs of the call, their places, and the places its logits speak about
CALLS = {
    "replay": ((12, 8, 6, 2), (5, 6, 7, 8), (6, 7, 8, 9)),
    "retained": ((8, 6, 2), (6, 7, 8), (7, 8, 9)),
}


def scores_after(place):
    """What stands for the logits of the input at a place: the whole prefix they are conditioned on."""
    return list(WHOLE[: place + 1]) + [-1] * (len(WHOLE) - place - 1)


def call(layout):
    """Inputs, places, retained first row and logits of a correct call."""
    read = block_inputs(layout, torch.tensor([FRONTIER]), torch.tensor([DRAFT]))[0].tolist()
    first = cached_length(layout, LENGTH)
    places = range(first, first + len(read))
    retained = torch.tensor([[scores_after(LENGTH - 1)]]) if layout == "retained" else None
    return tuple(read), places, retained, torch.tensor([[scores_after(place) for place in places]])


def check(layout, read=None, places=None, cached=None, draft=DRAFT, frontier=FRONTIER):
    """`check_block` of a correct call but for what is passed."""
    right, right_places, _, _ = call(layout)
    check_block(
        layout,
        frontier,
        LENGTH,
        cached_length(layout, LENGTH) if cached is None else cached,
        draft,
        right_places if places is None else places,
        right if read is None else read,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_call_reads_where_and_what_it_scores(layout):
    """0x01C, 0x04B."""
    inputs, places, scored = CALLS[layout]
    read, own_places, _, logits = call(layout)
    assert read == inputs and tuple(own_places) == places
    assert tuple(WHOLE[place] for place in own_places) == read
    conditioned = [tuple(token for token in row if token >= 0) for row in logits[0].tolist()]
    assert [len(prefix) for prefix in conditioned] == list(scored)
    check(layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_extract_the_same_tuple(layout):
    """0x04B, 0x04D: scores of each draft and of the token after them, and the drafts' own keys and values."""
    read, places, retained, logits = call(layout)
    scores = scored_rows(layout, retained, logits, len(DRAFT))[0].tolist()
    assert scores == [scores_after(LENGTH - 1 + i) for i in range(len(DRAFT) + 1)]
    offset = LENGTH - places[0]
    assert draft_rows(read, offset, DRAFT, FRONTIER) == DRAFT
    owners = dict(zip(places, read, strict=True))
    assert [owners[LENGTH + i] for i in range(len(DRAFT))] == list(DRAFT)
    assert owners.get(LENGTH - 1) == (FRONTIER if layout == "replay" else None)


@pytest.mark.parametrize("length", [1, 2, 6])
def test_the_frontier_alone_tells_the_layouts_apart(length):
    """0x01B."""
    assert cached_length("retained", length) == length == cached_length("replay", length) + 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_round_without_drafts_reads_the_frontier_or_nothing(layout):
    """0x06B: one row of scores is left, the frontier's."""
    frontier = torch.tensor([FRONTIER])
    read = block_inputs(layout, frontier, torch.zeros(1, 0, dtype=torch.long))[0].tolist()
    assert read == ([FRONTIER] if layout == "replay" else [])
    first = cached_length(layout, LENGTH)
    check(layout, read, range(first, first + len(read)), draft=())
    row = torch.tensor([[scores_after(LENGTH - 1)]])
    parts = (row, None) if layout == "retained" else (None, row)
    assert torch.equal(scored_rows(layout, *parts, 0), row)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_tokens_are_not_taken_for_a_replayed_frontier(layout):
    """The frontier may be drafted again."""
    draft = (FRONTIER, FRONTIER)
    read = draft if layout == "retained" else (FRONTIER, *draft)
    first = cached_length(layout, LENGTH)
    check(layout, read, range(first, first + len(read)), draft=draft)
    assert draft_rows(read, LENGTH - first, draft, FRONTIER) == draft


# --- visibility ---


def table(text):
    return [[digit == "1" for digit in line.split()] for line in text.strip().splitlines()]


RETAINED_TABLE = """
    1 1 1 1 0 0
    1 1 1 1 1 0
    1 1 1 1 1 1
"""
REPLAY_TABLE = "1 1 1 0 0 0" + RETAINED_TABLE


@pytest.mark.parametrize(("queries", "expected"), [((3, 6), RETAINED_TABLE), ((2, 6), REPLAY_TABLE)])
def test_drafts_see_the_prefix_and_what_came_before_them(queries, expected):
    """0x04C: prefix at 0 to 2, drafts at 3 to 5; replay begins one query earlier by the same rule."""
    assert visibility(torch.arange(*queries), torch.arange(6)).tolist() == table(expected)


def test_a_window_counts_the_querys_own_key():
    expected = """
        0 1 1 1 0 0
        0 0 1 1 1 0
        0 0 0 1 1 1
    """
    assert visibility(torch.arange(3, 6), torch.arange(6), 3).tolist() == table(expected)
    assert torch.equal(visibility(torch.arange(3, 6), torch.arange(6), 1), torch.eye(6, dtype=torch.bool)[3:])


def test_rows_of_a_batch_have_positions_of_their_own():
    rows = torch.tensor([[3, 4], [1, 2]])
    visible = visibility(rows, torch.arange(5))
    assert visible.shape == (2, 2, 5)
    assert all(torch.equal(visible[i], visibility(rows[i], torch.arange(5))) for i in range(2))


BLOCKS = """
    1 0 0 0 0
    1 1 0 0 0
    1 1 1 0 0
    0 0 0 1 0
    0 0 0 1 1
"""


@pytest.mark.parametrize("positions", [(3, 4, 5, 8, 9), (0, 1, 2, 0, 1), (8, 9, 10, 3, 4)])
def test_packed_requests_see_themselves_alone(positions):
    """0x04E: block diagonal and causal in each block, wherever the requests' positions lie."""
    positions, requests = torch.tensor(positions), torch.tensor([0, 0, 0, 1, 1])
    assert visibility(positions, positions, None, requests, requests).tolist() == table(BLOCKS)
    shuffled = torch.tensor([3, 0, 4, 2, 1])
    mixed = visibility(positions[shuffled], positions[shuffled], None, requests[shuffled], requests[shuffled])
    assert mixed.tolist() == torch.tensor(table(BLOCKS))[shuffled][:, shuffled].tolist()


def test_positions_alone_would_let_a_packed_request_read_another():
    """0x04E: the request term is needed."""
    later, restarted = torch.tensor([3, 4, 5, 8, 9]), torch.tensor([0, 1, 2, 0, 1])
    assert visibility(later, later)[3:, :3].all()
    assert visibility(restarted, restarted)[0, 3] and visibility(restarted, restarted)[3, 0]


def test_a_window_holds_inside_each_packed_request():
    positions, requests = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 0, 0, 1, 1])
    expected = """
        1 0 0 0 0
        1 1 0 0 0
        0 1 1 0 0
        0 0 0 1 0
        0 0 0 1 1
    """
    assert visibility(positions, positions, 2, requests, requests).tolist() == table(expected)


# --- named failures ---


@pytest.mark.parametrize(
    ("layout", "given", "match"),
    [("retained", False, "is no retained first row under the retained"), ("replay", True, "is retained first row")],
)
def test_scores_of_the_other_layout_are_refused(layout, given, match):
    """0x04A: the layouts must not be mixed, though the numbers of rows may fit."""
    rows = torch.zeros(1, len(DRAFT) + 1, 5)
    with pytest.raises(MixedLayouts, match=match):
        scored_rows(layout, *((rows[:, :1], rows[:, 1:]) if given else (None, rows)), len(DRAFT))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cut", [slice(1, None), slice(None, -1)])
def test_logits_one_row_short_are_refused(layout, cut):
    """0x04D."""
    _, _, retained, logits = call(layout)
    with pytest.raises(ShiftedRows, match="3 drafts need 4 rows of scores, got 3"):
        scored_rows(layout, retained, logits[:, cut], len(DRAFT))


def test_a_retained_row_and_a_replayed_one_are_one_too_many():
    """0x04D."""
    with pytest.raises(ShiftedRows, match="need 4 rows of scores, got 5"):
        scored_rows("retained", call("retained")[2], call("replay")[3], len(DRAFT))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cache_as_the_other_layout_leaves_it_is_refused(layout):
    """0x01B, 0x04A."""
    read, places = call("retained")[:2] if layout == "replay" else call("replay")[:2]
    with pytest.raises(MixedLayouts, match=f"Under the {layout} layout"):
        check(layout, read, places, cached=LENGTH if layout == "replay" else LENGTH - 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", [LENGTH - 1, LENGTH])
def test_a_frontier_read_twice_is_refused(layout, first):
    """0x04A: every score would be shifted."""
    with pytest.raises(DuplicatedFrontier, match="Token 12 is in the cache and was read again"):
        check(layout, (FRONTIER, *DRAFT), range(first, first + 4), cached=LENGTH)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("by", [-1, 1])
def test_rows_written_one_place_early_or_late_are_refused(layout, by):
    """0x04D."""
    with pytest.raises(ShiftedRows, match="were due"):
        check(layout, places=[place + by for place in call(layout)[1]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_row_too_many_or_too_few_is_refused(layout):
    read, places, _, _ = call(layout)
    for wrong in (read[:-1], (*read, 5)):
        with pytest.raises(ShiftedRows, match="were due"):
            check(layout, wrong)
        with pytest.raises(ShiftedRows, match="were due"):
            check(layout, wrong, range(places[0], places[0] + len(wrong)))


def test_a_replayed_frontier_is_not_the_drafts():
    """0x04D: the slice begins one row early."""
    with pytest.raises(FrontierInDraft, match="begin with those of token 12"):
        draft_rows((FRONTIER, *DRAFT), 0, DRAFT, FRONTIER)


@pytest.mark.parametrize(("read", "offset"), [((FRONTIER, *DRAFT), 2), (DRAFT, 1), (DRAFT[::-1], 0), (DRAFT[:2], 0)])
def test_a_slice_of_other_tokens_is_refused(read, offset):
    with pytest.raises(ForeignRows, match="were made from"):
        draft_rows(read, offset, DRAFT, FRONTIER)


def test_a_rejected_tokens_rows_cannot_stand_for_the_recovered_one():
    """0x06C: they have the right shape."""
    with pytest.raises(ForeignRows, match=r"\(8, 6, 11\) were made from \(8, 6, 2\)"):
        draft_rows(DRAFT, 0, (8, 6, 11), FRONTIER)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_read_in_place_of_others_are_refused(layout):
    read = call(layout)[0]
    for place in range(len(read)):
        with pytest.raises(ForeignRows, match="made from"):
            check(layout, (*read[:place], 5, *read[place + 1 :]))


# --- a staged round ---


def staged(layout, accepted, terminal, kept=None, generation=1, **others):
    """The record of a round over `DRAFT`; `kept` tokens are published, all by default."""
    cached = cached_length(layout, LENGTH)
    row = RowCoordinate(0, "", LENGTH, cached, LENGTH, Spent(3, 2, 1))
    tokens = (*DRAFT[:accepted], terminal)[:kept]
    arguments = {
        "request_id": "call",
        "coordinate": Coordinate(CallIdentity("", {}), generation, layout, (row,)),
        "frontiers": [FRONTIER],
        "draft": Draft(torch.tensor([DRAFT]), (len(DRAFT),)),
        "drafted": [DRAFT],
        "starts": [cached],
        "frontiers_read": [FRONTIER],
        "read": [call(layout)[0]],
        "accepted": [accepted],
        "kept": (tokens,),
        "stops": (None if kept is None else LENGTH + kept,),
        "spent": [Spent(3, accepted, 1)],
        "processors": "hash",
    }
    return transaction.stage(**{**arguments, **others})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_a_round_keeps_what_was_accepted_and_forgets_the_rest(layout, accepted):
    """0x06B, 0x06C: cache and new tokens add up to the text but its last token, in either layout."""
    commit = staged(layout, accepted, 11)
    assert commit.tokens == ((*DRAFT[:accepted], 11),)
    assert commit.terminal == ("bonus" if accepted == 3 else "recovered",)
    assert commit.discarded_kv == (DRAFT[accepted:],)
    cached = TEXT[: cached_length(layout, LENGTH)]
    assert cached + commit.committed_kv[0] == (TEXT + commit.tokens[0])[:-1]
    assert commit.round_id == "call/1" and commit.layout == layout
    assert commit.spent_before == (Spent(3, 2, 1),) and commit.spent_after == (Spent(6, 2 + accepted, 2),)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("kept", "end"), [(1, "stop"), (2, "stop"), (3, "stop"), (4, "bonus")])
def test_a_round_cut_by_a_stop_keeps_no_rows_behind_it(layout, kept, end):
    """0x06B, 0x06C: the last published token has no keys and values, whichever it is."""
    commit = staged(layout, 3, 11, kept)
    assert commit.terminal == (end,) and commit.stops == (LENGTH + kept,)
    assert TEXT[: cached_length(layout, LENGTH)] + commit.committed_kv[0] == (TEXT + commit.tokens[0])[:-1]
    assert commit.discarded_kv == (DRAFT[kept - 1 :],)


def test_the_worked_snapshot():
    """0x01C."""
    commit = staged("replay", 2, 11)
    row = commit.coordinate.rows[0]
    assert (row.length, row.cached, row.position) == (6, 5, 6)
    assert commit.committed_kv == ((12, 8, 6),) and commit.discarded_kv == ((2,),)
    assert commit.tokens == ((8, 6, 11),) and commit.terminal == ("recovered",)
    assert staged("retained", 2, 11).committed_kv == ((8, 6),)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_round_whose_call_was_wrong_is_not_staged(layout):
    """0x04A to 0x04D, found out before there is a record."""
    first, read = cached_length(layout, LENGTH), call(layout)[0]
    for wrong, error in (
        ({"starts": [first - 1]}, ShiftedRows),
        ({"starts": [first + 1]}, ShiftedRows),
        ({"read": [read[:-1]]}, ShiftedRows),
        ({"read": [(*read[:-1], 5)]}, ForeignRows),
        ({"drafted": [(8, 6, 11)]}, ForeignRows),
    ):
        with pytest.raises(error):
            staged(layout, 2, 11, **wrong)


def test_the_prompts_round_finds_a_complete_cache_in_either_layout():
    """0x06C: its first row of scores is the prefill's."""
    row = RowCoordinate(0, "", LENGTH, LENGTH, LENGTH, Spent())
    for layout in LAYOUTS:
        commit = staged(
            layout, 0, 12, None, 0,
            coordinate=Coordinate(CallIdentity("", {}), 0, layout, (row,)),
            draft=Draft.empty(1, "cpu"), drafted=[()], starts=[LENGTH], read=[()],
        )  # fmt: skip
        assert commit.committed_kv == commit.discarded_kv == ((),) and commit.terminal == ("bonus",)
