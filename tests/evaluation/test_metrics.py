"""Metrics of the `evaluate` library, prompt by prompt."""

import builtins
import math
import textwrap

import pytest

from hf_exactassist.errors import InvalidArgument, UnusableData
from hf_exactassist.evaluation import metrics
from hf_exactassist.evaluation.metrics import Metric, load_metric, metric_told, not_compared
from tests.evaluation.made import call, plain, prompt_set


SCRIPT = """
import datasets
import evaluate


class Made(evaluate.Metric):
    def _info(self):
        text = datasets.Value("{feature}")
        features = datasets.Features(dict(predictions=text, references=text))
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        {body}
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Writes a metric's folder and says where it is."""
    evaluate = pytest.importorskip("evaluate")
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path / "cache")

    def write(body, name="made", feature="string"):
        folder = tmp_path / name
        folder.mkdir()
        code = SCRIPT.format(body=textwrap.indent(body, " " * 8).lstrip(), feature=feature)
        (folder / f"{name}.py").write_text(code)
        return str(folder)

    return write


LENGTHS = """same = [float(one == other) for one, other in zip(predictions, references)]
return {"list": same, "name": "made", "same": sum(same) / len(same), "words": len(predictions[0].split())}"""


def test_a_local_metric(script):
    """The first number of its result, or that of a key; lists and names are passed over."""
    path = script(LENGTHS)
    metric = load_metric(path)
    assert metric.name == "made" and metric("a b", "a b") == 1.0 and metric("a b", "c") == 0.0
    words = load_metric(f"{path}:words")
    assert words.name == "made:words" and words("a b c", "x") == 3.0
    with pytest.raises(InvalidArgument, match="no number of that key: it has same, words"):
        load_metric(f"{path}:list")


@pytest.mark.parametrize(
    ("body", "feature", "why"),
    [
        ("raise RuntimeError('two texts at least')", "string", "two texts at least"),
        ("return {'value': 1.0}", "float32", "could not convert"),
        ("return {'value': float('nan')}", "string", "no finite number"),
        ("return {'values': [1.0]}", "string", "holds no number"),
    ],
)
def test_what_cannot_be_computed_for_one_text(script, body, feature, why):
    with pytest.raises(InvalidArgument, match=f"cannot be computed for one text.*{why}.*choose another"):
        load_metric(script(body, feature=feature))


def test_what_is_not_there(script, tmp_path):
    with pytest.raises(UnusableData, match="cannot be loaded .*give the path of its folder"):
        load_metric(str(tmp_path / "missing"))
    with pytest.raises(UnusableData, match="'no_such_metric' cannot be loaded"):
        load_metric("no_such_metric")


def test_packages_that_are_missing(script, monkeypatch):
    path = script("return {}", name="needs")
    with open(f"{path}/needs.py", "a") as file:
        file.write("\nimport no_such_package\n")
    with pytest.raises(InvalidArgument, match="needs another package: .*no_such_package"):
        load_metric(path)
    original = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "evaluate":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InvalidArgument, match=r"pip install 'hf-exactassist\[eval\]'"):
        load_metric(path)


def fail(text, reference):
    raise KeyError("no digits")


@pytest.mark.parametrize(
    ("measure", "why"),
    [(fail, "no digits"), (lambda text, reference: math.nan, "is nan"), (lambda text, reference: math.inf, "is inf")],
)
def test_texts_without_a_number(measure, why):
    with pytest.raises(UnusableData, match=f"metric made .*{why}"):
        Metric("made", measure)("a", "b")


def test_a_metric_goes_on_after_a_text_without_a_number(script):
    metric = load_metric(script("return {'inverse': 1 / len(predictions[0].split())}"))
    with pytest.raises(UnusableData, match="division by zero"):
        metric("", "x")
    assert metric("a b", "x") == 0.5


# --- beside plain decoding

WORDS = Metric("Words", lambda text, reference: float(len(text.split()) - len(reference)))


def decode(tokens):
    return " ".join(map(str, tokens))


def test_paired_by_prompt(monkeypatch):
    """Prompt 0: means of 2 and 4 against 1 and 1; prompt 2: 1 against 3. Prompt 1 has no reference."""
    # by hand; more are asked for else
    monkeypatch.setattr(metrics, "FEWEST", 2)
    prompts = prompt_set("a", "a", "a", references=["", None, "xx"])
    texts = {call: {0: [2, 4], 1: [9, 9], 2: [3, 3]}, plain: {0: [1, 1], 1: [1, 1], 2: [5, 5]}}
    ours, theirs = (
        [
            make(batch=prompt, repeat=repeat, texts=[range(lengths[repeat])])
            for prompt, lengths in texts[make].items()
            for repeat in (0, 1)
        ]
        for make in (call, plain)
    )
    found = metric_told(WORDS, ours, theirs, prompts, decode)
    assert (found["name"], found["prompts"], found["assisted"], found["plain"]) == ("Words", 2, 2.0, 2.0)
    assert (found["mean"], found["low"], found["high"], found["level"]) == (0.0, -2.0, 2.0, 0.95)
    assert found["sentence"].startswith("Words shows no difference")


def test_too_few_references():
    prompts = prompt_set("a", "a", references=["", None])
    found = metric_told(WORDS, [call(), call(batch=1)], [plain(), plain(batch=1)], prompts, decode)
    assert found == "Words was not compared: 5 prompts with a reference are needed, got 1."


def test_a_text_without_a_number_is_told_with_its_row():
    """Nothing is wrong with the reference: the text is empty."""
    prompts = prompt_set("a", "a", references=["x", "y" * 50])
    inverse = Metric("Inverse", lambda text, reference: 1 / len(text.split()))
    ours, theirs = [call(), call(batch=1, texts=[[]])], [plain(), plain(batch=1)]
    found = metric_told(inverse, ours, theirs, prompts, decode)
    assert found.startswith(
        "Inverse was not compared: row 11 (counted from 0) has the assisted text '' and the reference 'yyyy"
    )
    assert "(division by zero). The same command with a metric that has a number" in found
    assert "the plain text ''" in metric_told(inverse, theirs, ours, prompts, decode)
    quality = {"not_tested": ["Lengths were not tested.", found]}
    report = {"modes": [{"arms": [{"quality": None}, {"quality": quality}, {"quality": quality}]}]}
    assert not_compared(report) == [found]
