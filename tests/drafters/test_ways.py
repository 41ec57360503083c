"""Which way of drafting a row takes next (contract 0x06C: only the past may choose)."""

from hf_exactassist.drafters.ways import Ways


def play(ways, accepted, rounds, row=0):
    """The choices of some rounds in which each way has this many tokens accepted."""
    chosen = []
    for _ in range(rounds):
        way = ways.choose(row)
        # asking changes nothing
        assert ways.choose(row) == way
        ways.observe(row, accepted[way])
        chosen.append(way)
    return chosen


def test_each_way_is_tried_and_the_better_one_taken():
    assert play(Ways(["a", "b"]), {"a": 1, "b": 3}, 4) == ["a", "b", "b", "b"]
    assert play(Ways(["a", "b"]), {"a": 3, "b": 1}, 4) == ["a", "b", "a", "a"]


def test_the_other_way_is_tried_again_at_growing_distances():
    chosen = play(Ways(["a", "b"]), {"a": 2, "b": 1}, 200)
    assert [at for at, way in enumerate(chosen) if way == "b"] == [1, 4, 13, 30, 63, 128, 193]


def test_a_way_that_has_become_better_is_found():
    ways = Ways(["a", "b"])
    assert play(ways, {"a": 2, "b": 1}, 20)[-1] == "a"
    later = play(ways, {"a": 0, "b": 4}, 30)
    assert later[-20:].count("b") >= 18


def test_rows_choose_by_their_own_past():
    ways = Ways(["a", "b"])
    play(ways, {"a": 1, "b": 3}, 3, row=0)
    assert play(ways, {"a": 3, "b": 1}, 4, row=1)[-2:] == ["a", "a"]
    assert ways.choose(0) == "b"


def test_one_way_is_always_taken():
    assert play(Ways(["a"]), {"a": 0}, 30) == ["a"] * 30
