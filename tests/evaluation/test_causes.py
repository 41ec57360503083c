"""Why drafts are rejected: by place, by token, by cause; from records and from a saved log."""

import json
import math

import pytest

from hf_exactassist.errors import UnusableData
from hf_exactassist.evaluation.causes import (
    MAPPING,
    NOTES,
    POSITION,
    PROCESSORS,
    QUALITY,
    by_position,
    diagnose_log,
    diagnosis,
    rejected_tokens,
    shares,
)
from hf_exactassist.evaluation.rounds import row_rounds
from tests.evaluation.made import events, row


def rounds(*parts):
    return row_rounds(events([row([], 0, 1)], *([part] for part in parts)))


def test_places():
    found = by_position(
        rounds(
            row([2, 3], 1, 9, overlap=[0.5, 0.25], divergence=[1.0, None], same_top=[True, False]),
            row([2, 3], 0, 9, overlap=0.25, divergence=3.0, same_top=False),
        )
    )
    assert found == [
        {"position": 1, "decisions": 2, "overlap": 0.375, "divergence": 2.0, "infinite": 0, "same_top": 0.5},
        {"position": 2, "decisions": 1, "overlap": 0.25, "divergence": None, "infinite": 1, "same_top": 0.0},
    ]


def test_places_without_laws():
    (one,) = by_position(rounds(row([2], 0, 9)))
    assert one == {
        "position": 1,
        "decisions": 1,
        "overlap": None,
        "divergence": None,
        "infinite": 0,
        "same_top": None,
    }


def test_tokens():
    parts = [row([7], 0, 9), row([7], 1, 9), row([8, 7], 1, 9), row([6, 5, 4], 0, 9), row([8], 1, 9)]
    found = rejected_tokens(rounds(*parts), lambda tokens: f"<{tokens[0]}>")
    assert found == [
        {"token": 7, "text": "<7>", "drafted": 3, "rejected": 2},
        # 5 and 4 stand behind a rejection: they were not reached
        {"token": 6, "text": "<6>", "drafted": 1, "rejected": 1},
    ]
    many = rejected_tokens(rounds(*(row([token], 0, 99) for token in range(15))))
    assert [one["token"] for one in many] == list(range(10)) and many[0]["text"] is None


# --- causes


def test_each_cause():
    """Of 8 rejections 2 are excluded, 1 goes on with what cannot be proposed, and 5 are left.

    Of these 2 stand at the 9 first places and 3 at the 4 second ones, where first places' rate makes 8 / 9.
    """
    parts = [
        row([2], 0, 5, p=0.0),
        # excluded tokens are the processors' doing, whatever comes instead
        row([2], 0, 50, p=0.0),
        row([2], 0, 50),
        *[row([2], 0, 5)] * 2,
        *[row([2, 3], 1, 5)] * 3,
        row([2, 3], 2, 50),
    ]
    found = shares(rounds(*parts), proposable=range(10))
    rate = 2 / 9
    late = 3 - 4 * rate
    assert found == pytest.approx({QUALITY: (5 - late) / 8, PROCESSORS: 2 / 8, MAPPING: 1 / 8, POSITION: late / 8})
    assert math.fsum(found.values()) == pytest.approx(1)
    # a drafter that can propose everything is not excused by its vocabulary
    everything = shares(rounds(*parts))
    assert everything[MAPPING] == 0 and everything[PROCESSORS] == 2 / 8


def test_better_later_places_are_no_cause():
    found = shares(rounds(row([2], 0, 5), row([2, 3], 2, 5), row([2, 3], 1, 5)))
    assert found[POSITION] == pytest.approx((1 - 2 / 3) / 2)
    found = shares(rounds(row([2], 0, 5), row([2, 3], 2, 5)))
    assert found == {QUALITY: 1.0, PROCESSORS: 0.0, MAPPING: 0.0, POSITION: 0.0}


def test_places_that_are_better_and_worse_are_weighed_together():
    """First places: 2 of 4 rejected. Second: 0 of 2, one less; third: 2 of 2, one more."""
    parts = [*[row([2, 3, 4], 2, 5)] * 2, *[row([2, 3, 4], 0, 5)] * 2]
    assert shares(rounds(*parts))[POSITION] == 0.0


def test_without_rejections_there_is_no_cause():
    found = diagnosis(rounds(row([2], 1, 5)))
    assert found["causes"] == found["cause_notes"] == {} and found["rejected_tokens"] == []


def test_notes_are_told_of_causes_that_there_are():
    found = diagnosis(rounds(row([2], 0, 5, p=0.0), row([2], 0, 5)))
    assert found["cause_notes"] == {QUALITY: NOTES[QUALITY], PROCESSORS: NOTES[PROCESSORS]}


# --- a saved log

LOG = events([row([], 0, 1)], [row([2, 3], 1, 9, overlap=0.5, divergence=1.0, same_top=True)])


def write(path, lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_saved_log(tmp_path):
    path = write(tmp_path / "log.jsonl", [*map(json.dumps, LOG), ""])
    found = diagnose_log(path, decode=lambda tokens: "x")
    assert found == diagnosis(row_rounds(LOG), decode=lambda tokens: "x")
    assert found["rejected_tokens"] == [{"token": 3, "text": "x", "drafted": 1, "rejected": 1}]
    assert diagnose_log(str(path), proposable={2})["causes"][MAPPING] == 1.0


def test_a_log_of_an_older_version(tmp_path):
    """It does not compare laws."""
    old = [
        {key: value for key, value in one.items() if key not in ("overlap", "divergence", "same_top")} for one in LOG
    ]
    (first, _) = diagnose_log(write(tmp_path / "log.jsonl", map(json.dumps, old)))["by_position"]
    assert first["overlap"] is None and first["decisions"] == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"event": "decis', "JSON: take it out"),
        ("[1]", "'event'"),
        ('{"event": "other"}', "'event'"),
        ('{"event": ["decision"]}', "'event'"),
        ('{"event": "decision", "round": "a/1", "row": 0, "token": 2, "p": null, "accepted": true}', "'p'"),
        ('{"event": "decision", "round": "a/1", "row": 0, "token": 2, "p": 0.5}', "'accepted'"),
        ('{"event": "round", "round": "a/1", "generation": 1, "rows": [3]}', "'rows: fields'"),
        ('{"event": "round", "round": "a/1", "generation": 1, "rows": [{"row": 1}]}', "'rows: drafted'"),
    ],
)
def test_lines_that_are_none(tmp_path, line, why):
    path = write(tmp_path / "log.jsonl", [*map(json.dumps, LOG), line])
    with pytest.raises(UnusableData, match=f"^Line {len(LOG) + 1} of .*log.jsonl is no.*{why}"):
        diagnose_log(path)


def test_logs_that_are_none(tmp_path):
    with pytest.raises(UnusableData, match="cannot be read"):
        diagnose_log(tmp_path / "missing.jsonl")
    with pytest.raises(UnusableData, match="no draft that was judged"):
        diagnose_log(write(tmp_path / "empty.jsonl", []))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UnusableData, match="cannot be read"):
        diagnose_log(tmp_path / "binary")
