"""The log taken apart, row by row."""

import json

from hf_exactassist.evaluation.rounds import rounds_table, row_rounds
from tests.evaluation.made import call, compare, events, look, prompt_set, row


LOG = events(
    [row([], 0, 1), row([], 0, 1, row=1)],
    [row([2, 3], 1, 9, overlap=[0.5, 0.25]), row([2, 3], 2, row=1)],
    [row([4], 1, 5)],
    seconds={1: {"make_ready": 0.1, "propose": 0.2, "score": 0.3, "process": 0.4, "judge": 0.5}},
)


def test_rows():
    found = row_rounds(LOG)
    assert [(part.row, part.generation, part.at) for part in found] == [
        (0, 0, 0),
        (1, 0, 0),
        (0, 1, 1),
        (1, 1, 1),
        (0, 2, 3),
    ]
    assert [part.cut for part in found] == [False, False, False, True, False]
    assert [len(part.decisions) for part in found] == [0, 0, 2, 2, 1]
    assert [one["token"] for one in found[2].decisions] == [2, 3]


def test_several_calls_in_one_log():
    """Each call counts its rows' tokens anew."""
    both = row_rounds([*LOG, *events([row([], 0, 1)], [row([2], 0, 1)], name="other")])
    assert [part.at for part in both if part.row == 0] == [0, 1, 3, 0, 1]


def test_table():
    prompts = prompt_set("prose", "code", "lists")
    records = [look(LOG, batch=1), call(), compare({"x": [None]}), look(LOG, prompts=[2, 0])]
    table = rounds_table(records, prompts)
    assert table == rounds_table(records[::-1], prompts)
    assert len(table) == 10 and len({tuple(line) for line in table}) == 1
    assert [(line["batch"], line["prompt"], line["index"], line["kind"]) for line in table[:2]] == [
        (0, 2, 12, "lists"),
        (0, 0, 10, "prose"),
    ]
    line = table[2]
    assert (line["round"], line["at"], line["drafted"], line["accepted"], line["published"]) == (1, 1, 2, 1, 2)
    assert line["overlap"] == 0.375 and line["seconds_judge"] == 0.5 and not line["stopped"]
    assert table[3]["stopped"] and table[3]["overlap"] is None
    assert table[0]["seconds_propose"] is None
    json.dumps(table, allow_nan=False)
