"""The scripts of the page on evaluations at scale, without the clusters they are for."""

import json
import re
import subprocess
import sys
import types
from dataclasses import asdict

import numpy as np
import pytest

from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.demo import PROMPTS, load_pair
from hf_exactassist.evaluation.plan import CALL, COMPARE, Step, Unit
from hf_exactassist.evaluation.records import Call, Comparison, to_json
from hf_exactassist.telemetry import AssistStats
from tests.recipes.conftest import ROOT


PAGE = (ROOT / "docs" / "evaluation-at-scale.md").read_text(encoding="utf-8")


def block(language, mark):
    """The one block of a language that has these words."""
    found = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL) if mark in text]
    assert len(found) == 1, (mark, len(found))
    return found[0]


def run(text, **names):
    exec(compile(text, "a block of the page", "exec"), names)
    return names


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder to work in that finds the recipes where the scripts look for them."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_actor_answers_a_batch_both_ways():
    actor = run(block("python", "class AssistedPair"))["AssistedPair"](max_new_tokens=12)
    texts = list(PROMPTS[:3])
    counts = actor({"prompt": np.array(texts)})
    model, assistant, tokenizer = load_pair()
    pair = Pair(model, tokenizer, assistant)
    inputs = pair.inputs([tokenizer(text)["input_ids"] for text in texts])
    plain = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    tokens = sum(len(pair.text(row)) for row in plain[:, inputs["input_ids"].shape[1] :].tolist())
    assert counts["texts"] == counts["identical"] == [3]
    assert counts["plain_tokens"] == counts["assisted_tokens"] == counts["published"] == [tokens]
    assert counts["plain_seconds"][0] > 0 and counts["assisted_seconds"][0] > 0
    assert 0 < counts["row_rounds"][0] <= tokens - 3
    assert all(len(column) == 1 for column in counts.values())


def test_the_ways_take_turns(monkeypatch):
    names = run(block("python", "class AssistedPair"))
    order, decode = [], names["decode"]
    monkeypatch.setitem(names, "decode", lambda pair, way, *rest: order.append(way.kind) or decode(pair, way, *rest))
    actor = names["AssistedPair"](max_new_tokens=4)
    for _ in range(2):
        actor({"prompt": np.array(["The king"])})
    assert order == ["ours", "plain", "plain", "ours"]


def test_the_pipeline_hands_ray_what_the_actor_takes(home, monkeypatch, capsys):
    pandas = pytest.importorskip("pandas")
    asked = {}

    class Rows:
        def map_batches(self, actor, *, fn_constructor_kwargs, batch_size, compute, num_cpus, num_gpus):
            asked.update(batch_size=batch_size, compute=compute)
            made = actor(**{**fn_constructor_kwargs, "max_new_tokens": 8})
            self.parts = [made({"prompt": np.array(PROMPTS[at : at + 2])}) for at in (0, 2)]
            return self

        def to_pandas(self):
            return pandas.concat([pandas.DataFrame(part) for part in self.parts])

    def read_json(path):
        assert path == "prompts.jsonl"
        return Rows()

    ray = types.SimpleNamespace(data=types.SimpleNamespace(read_json=read_json, ActorPoolStrategy=dict))
    monkeypatch.setitem(sys.modules, "ray", ray)
    module = types.ModuleType("assisted_pair")
    module.AssistedPair = run(block("python", "class AssistedPair"))["AssistedPair"]
    monkeypatch.setitem(sys.modules, "assisted_pair", module)
    run(block("py", "import ray"))
    assert asked == {"batch_size": 8, "compute": {"size": 2}}
    told = capsys.readouterr().out
    assert "times as fast" in told and "4 of 4 texts are plain generate's" in told
    assert len(pandas.read_parquet("counts.parquet")) == 2


def test_shards_hold_every_prompt_once(home, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "cache")
    prompts = [f"prompt {number}" for number in range(19)]
    (home / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    run(block("py", "SHARDS"))
    shards = [datasets.Dataset.from_parquet(f"shards/{index}.parquet")["prompt"][:] for index in range(8)]
    assert sorted(text for shard in shards for text in shard) == sorted(prompts)
    tasks = re.search(r"--array=0-(\d+)", block("bash", "#SBATCH")).group(1)
    assert int(tasks) == len(shards) - 1


@pytest.mark.parametrize("mark", ["#SBATCH", "accelerate launch", "afterok"])
def test_shell_blocks_are_well_formed(mark):
    checked = subprocess.run(["bash", "-n"], input=block("bash", mark), text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def call(arm, batch, texts, seconds, stats=None, mode="greedy"):
    step = Step(CALL, Unit(mode, 0, batch), arm)
    return Call(step, [batch], [3], texts, [False], {"cpu": seconds / 10, "wall": seconds}, stats)


def folder(path, calls, **more):
    path.mkdir(parents=True)
    report = {"complete": True, "settings": {"max_new_tokens": 8}, **more}
    (path / "report.json").write_text(json.dumps(report))
    # two processes, and steps that are no calls
    for number, part in enumerate((calls[:2], [*calls[2:], Comparison(Step(COMPARE, Unit("greedy", 0, 0)), [0], {})])):
        lines = "".join(json.dumps(to_json(record)) + "\n" for record in part)
        (path / f"records-0000{number + 1}-of-00002.jsonl").write_text(lines)


def merge(monkeypatch, *folders):
    monkeypatch.setattr(sys, "argv", ["merge.py", *map(str, folders)])
    return run(block("py", "runs/*"))


STATS = asdict(AssistStats(row_rounds=2, accepted=2, drafted_by_position=[2], accepted_by_position=[2]))


def test_shards_are_merged(home, monkeypatch, capsys):
    folder(
        home / "runs/0",
        [
            call("plain", 0, [[1, 2, 3, 4, 5]], 1.0),
            call("A, K=1", 0, [[1, 2, 3, 4, 5]], 0.5, STATS),
            call("plain", 1, [[1, 2, 3, 4, 5]], 2.0),
            call("A, K=1", 1, [[1, 2, 3, 4, 6]], 0.25, STATS),
        ],
    )
    # the same unit of another shard is another prompt
    none = asdict(AssistStats(row_rounds=4, drafted_by_position=[4], accepted_by_position=[0]))
    folder(home / "runs/1", [call("plain", 0, [[7] * 5], 1.0), call("A, K=1", 0, [[7] * 5], 1.25, none)])
    merge(monkeypatch, home / "runs/0", home / "runs/1")
    told = capsys.readouterr().out
    # 8 rounds accept 4 tokens; 4 s and 2 s for 15 tokens each
    assert "greedy, A, K=1: 1.50 tokens per round, 2.00 times as fast" in told
    assert "1 of 3 greedy texts differs" in told


def test_sampled_texts_are_tested_and_those_with_shared_noise_compared(home, monkeypatch, capsys):
    calls = []
    for batch in range(6):
        for arm in ("plain", "A, K=1", "A, K=1, shared noise"):
            stats = None if arm == "plain" else STATS
            calls.append(call(arm, batch, [[batch] * 5], 1.0, stats, mode="sampled"))
    folder(home / "runs/0", calls)
    merge(monkeypatch, home / "runs/0")
    first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert first.startswith("sampled, A, K=1:") and "against equal laws" in second
    assert third.startswith("sampled, A, K=1, shared noise:") and fourth == "6 of 6 are the same"


@pytest.mark.parametrize(
    ("more", "message"), [({"complete": False}, "not complete"), ({"settings": {}}, "different settings")]
)
def test_what_cannot_be_merged_is_refused(home, monkeypatch, more, message):
    calls = [call("plain", 0, [[1]], 1.0), call("A, K=1", 0, [[1]], 1.0, STATS)]
    folder(home / "runs/0", calls)
    folder(home / "runs/1", calls, **more)
    with pytest.raises(SystemExit, match=message):
        merge(monkeypatch, home / "runs/0", home / "runs/1")
