"""`exactassist demo`: the same text twice, and the numbers."""

import json

import pytest

from hf_exactassist import demo as embedded


try:
    embedded.target_path(), embedded.assistant_path()
    LANDED = True
except FileNotFoundError:
    LANDED = False


@pytest.mark.skipif(not LANDED, reason="the embedded pair is not there yet")
@pytest.mark.parametrize("prompt", [[], ["--prompt", "The king is dead."]])
def test_the_embedded_pair(exactassist, prompt):
    done = exactassist("demo", "-n", 48, "--runs", 1, "--json", *prompt)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["equal"] and report["text"] == report["assisted_text"]
    assert report["assisted"]["accepted"] > 0
    assert report["assisted"]["target_forwards"] < report["plain"]["target_forwards"]
    assert report["sampled"]["text"]


@pytest.mark.skipif(not LANDED, reason="the embedded pair is not there yet")
def test_the_embedded_pair_in_the_other_commands(exactassist):
    done = exactassist("check", "--json")
    report = json.loads(done.out)
    assert done.code == 0 and report["tokens"]["same_map"] and report["parameter_ratio"] < 0.5
    done = exactassist("generate", "-n", 12, "-b", 2, "--json", *embedded.PROMPTS[:2])
    assert done.code == 0 and all(entry["text"] for entry in done.objects)


@pytest.mark.parametrize("command", [["demo"], ["generate", "who"], ["check"], ["bench"]])
def test_a_missing_embedded_pair_is_one_line(exactassist, monkeypatch, tmp_path, command):
    def missing(name):
        raise FileNotFoundError(f"The embedded {name} is missing in {tmp_path}: install it.")

    monkeypatch.setattr(embedded, "_checkpoint_path", missing)
    done = exactassist(*command)
    assert done.code == 1
    assert "The embedded target is missing" in done.err and "--target" in done.err
    assert done.err.count("\n") == 1


def test_numbers_and_texts(exactassist, tiny_embedded, plain):
    done = exactassist("demo", "-n", 20, "--runs", 2, "--prompt", "the king", "--json", "--seed", 4)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["equal"] and report["new_tokens"] == len(plain("the king", max_new_tokens=20, do_sample=False))
    assert report["plain"]["tokens_per_second"] > 0 and report["assisted"]["tokens_per_second"] > 0
    assert report["speedup"] == pytest.approx(report["plain"]["seconds"] / report["assisted"]["seconds"])
    again = json.loads(exactassist("demo", "-n", 20, "--runs", 1, "--prompt", "the king", "--json", "--seed", 4).out)
    assert (again["text"], again["sampled"]["text"]) == (report["text"], report["sampled"]["text"])


def test_tables(exactassist, tiny_embedded):
    done = exactassist("demo", "-n", 12, "--runs", 1, "--threads", 1)
    assert done.code == 0, done.err
    assert done.err == ""
    for part in ("the same 12 greedy tokens", "tokens per second", "accepted per round", "with seed 0"):
        assert part in done.out


def test_different_texts_fail(exactassist, tiny_embedded, wrong_texts):
    """What must never be is told as such."""
    for form in ([], ["--json"]):
        done = exactassist("demo", "-n", 12, "--runs", 1, *form)
        assert done.code == 1
        assert "differ from the plain ones" in done.err
    assert json.loads(done.out)["equal"] is False


def test_an_empty_prompt(exactassist):
    done = exactassist("demo", "--prompt", "")
    assert done.code == 2 and "empty" in done.err
