"""`exactassist bench`: what is measured and told. How long anything takes is never tested."""

import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_exactassist.benchmark import forwards, measuring
from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.benchmark.prompts import Prompt
from hf_exactassist.cli import bench as command
from hf_exactassist.cli.bench_tables import text_lines
from hf_exactassist.cli.loading import load


SHORT = ["-n", 6, "--repeats", 1, "-k", 2, "-k", 1, "--prompts-per-kind", 1]
NAMES = ["plain", "transformers, K=1", "transformers, K=2", "ours, K=1", "ours, K=2", "ours, default"]


def measured(exactassist, *arguments) -> dict:
    done = exactassist("bench", *SHORT, "--json", "-", *arguments)
    assert done.code == 0, done.err
    (report,) = done.objects
    return report


def test_the_embedded_pair(exactassist):
    report = measured(exactassist, "--mode", "greedy", "--mode", "sampled", "-b", 1, "-b", 2)
    assert report["schema"] == 1 and not report["interrupted"]
    assert set(report) == {"schema", "header", "settings", "interrupted", "prompts", "cases"}
    header, settings = report["header"], report["settings"]
    assert header["threads"] == 1 and header["target"]["name"] == "embedded"
    assert header["target"]["parameters"] > header["assistant"]["parameters"]
    assert (settings["clock"], settings["numbers"]) == ("cpu", [1, 2])
    assert [prompt["kind"] for prompt in report["prompts"]] == ["plays"]
    cases = report["cases"]
    assert [(case["mode"], case["batch_size"]) for case in cases] == [
        ("greedy", 1),
        ("greedy", 2),
        ("sampled", 1),
        ("sampled", 2),
    ]
    for case in cases:
        assert case["repeats"] == 1 and case["advice"]
        assert [one["name"] for one in case["variants"]] == NAMES
        assert set(case["forwards"]["target"]) == {"1", "2", "3"}
        assert len(case["acceptance"]["survival"]) == 2
        for one in case["variants"]:
            assert one["reason"] is None and len(one["samples"]) == 1
            assert one["measured"]["cpu"]["seconds_per_token"]["median"] > 0
            assert (one["text"] is None) == (case["mode"] == "sampled")
            assert one["text"] is None or one["text"]["identical"]
            assert one["samples"][0]["new_tokens"] <= 6 * case["batch_size"]
            assert (one["samples"][0]["stats"] is not None) == (one["kind"] == "ours")
            assert 0 < one["inside"]["forward_share"] < 1
    # hooks do not let the target be probed anew within what is counted
    ours = cases[0]["variants"][3]
    assert ours["inside"]["target_forwards"] == ours["samples"][0]["stats"]["target_forwards"]
    assert cases[0]["variants"][0]["inside"]["draft_forwards"] == 0


def test_tables_and_files(exactassist, tiny_embedded, tmp_path):
    json_file, plot_file = tmp_path / "figures.json", tmp_path / "picture.png"
    done = exactassist("bench", *SHORT, "--json", json_file, "--plot", plot_file)
    assert done.code == 0, done.err
    assert json.loads(json_file.read_text())["schema"] == 1
    assert plot_file.read_bytes().startswith(b"\x89PNG")
    for part in ("1 thread", "CPU time", "Greedy, batch size 1", "transformers, K=2", "ours, default", "speed-"):
        assert part in done.out
    assert "Text of all variants: identical to plain" in done.out
    assert "load average" in done.out and "torch" in done.out
    assert "figures.json" in done.err and "picture.png" in done.err


def test_prompts_of_a_file(exactassist, folders, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("the king is\nwho\n")
    report = measured(exactassist, *folders.arguments, "--prompts", file, "--without-transformers")
    assert report["prompts"] == [{"kind": "given", "text": "the king is"}, {"kind": "given", "text": "who"}]
    assert [one["kind"] for one in report["cases"][0]["variants"]] == ["plain", "ours", "ours", "ours"]
    assert len(report["cases"][0]["batches"]) == 2


def test_kinds(exactassist, folders):
    report = measured(exactassist, *folders.arguments, "--without-transformers")
    assert [prompt["kind"] for prompt in report["prompts"]] == ["prose", "code", "lists"]
    assert set(report["cases"][0]["variants"][0]["by_kind"]) == {"prose", "code", "lists"}
    done = exactassist("bench", *folders.arguments, *SHORT, "--kind", "lists", "--kind", "code")
    assert done.code == 0 and "speed-up (accepted per round)" in done.out


def test_an_assistant_with_another_tokenizer(exactassist, folders, foreign):
    report = measured(exactassist, "-t", folders.target, "-a", foreign, "--kind", "prose")
    reasons = {one["name"]: one["reason"] for one in report["cases"][0]["variants"]}
    assert reasons["transformers, K=1"] == "the assistant has another tokenizer"
    assert reasons["ours, K=1"] is None and report["cases"][0]["forwards"]["reason"] is None
    done = exactassist("bench", *SHORT, "-t", folders.target, "-a", foreign, "--kind", "prose")
    assert "Without transformers, K=1; transformers, K=2: the assistant has another tokenizer." in done.out


def test_what_transformers_refuses_is_told(exactassist, tiny_embedded, monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("heads of\ntwo sizes")

    monkeypatch.setattr("transformers.generation.utils.GenerationMixin._assisted_decoding", refuse)
    report = measured(exactassist)
    reasons = [one["reason"] for one in report["cases"][0]["variants"]]
    assert reasons[1] == "Transformers refuses: ValueError: heads of two sizes"
    assert reasons[0] is None and reasons[3:] == [None] * 3


def test_models_whose_forwards_cannot_be_called_alone(exactassist, tiny_embedded, monkeypatch):
    def fail(*args, **kwargs):
        raise TypeError("forward wants something else")

    monkeypatch.setattr(measuring, "time_forwards", fail)
    case = measured(exactassist)["cases"][0]
    assert case["forwards"]["reason"] == "TypeError: forward wants something else"
    assert case["variants"][3]["measured"] is not None and case["advice"].startswith("Drafting ")


def test_different_texts_are_told(exactassist, tiny_embedded, wrong_texts):
    done = exactassist("bench", *SHORT)
    assert done.code == 0, done.err
    assert "Text of ours, K=1: differs from plain at token 6 of prompt 1" in done.out
    assert "Text of transformers, K=1; transformers, K=2: identical to plain" in done.out


def test_a_text_ends_at_its_end(folders):
    """Rows that end are filled up while others go on; that is no text, and no time per token."""
    loaded = load(str(folders.target), str(folders.assistant), device="cpu")
    pair = Pair(loaded.target, loaded.tokenizer, loaded.assistant)
    assert pair.ends == {0} and pair.text([5, 4, 0, 0, 0]) == (5, 4, 0) and pair.text([5, 4]) == (5, 4)
    pair.target.generation_config.eos_token_id = [7, 4]
    assert Pair(loaded.target, loaded.tokenizer, loaded.assistant).text([5, 4, 0, 0, 0]) == (5, 4)


def test_near_ties_are_told_where_texts_differ():
    variant = {
        "name": "ours, K=3",
        "kind": "ours",
        "text": {"identical": False, "first_difference": {"prompt": 0, "position": 10, "plain": 3, "other": 4}},
        "rounds": {"stats": {"near_ties": 2}},
    }
    assert text_lines([variant]) == [
        "Text of ours, K=3: differs from plain at token 11 of prompt 1 (2 near ties, where half precision can decide)"
    ]


def test_ctrl_c_leaves_what_was_measured(exactassist, tiny_embedded, monkeypatch, tmp_path):
    left, timed = [5], measuring.timed

    def interrupted(*args):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return timed(*args)

    monkeypatch.setattr(measuring, "timed", interrupted)
    file = tmp_path / "figures.json"
    # four variants a repeat: the first is whole, the second begins
    options = ["-n", 6, "--repeats", 3, "-k", 1, "-k", 2, "--prompts-per-kind", 1, "--without-transformers"]
    done = exactassist("bench", *options, "--json", file)
    assert done.code == 130
    report = json.loads(file.read_text())
    assert report["interrupted"] and report["cases"][0]["repeats"] == 1
    assert "1 whole repeat\n" in done.out and done.err.endswith("Interrupted.\n")
    left[0] = 1
    done = exactassist("bench", *options, "--json", file, "--plot", tmp_path / "picture.png")
    assert done.code == 130
    assert json.loads(file.read_text())["cases"][0]["repeats"] == 0


def test_the_pair_is_left_as_it_was(exactassist, tiny_embedded, monkeypatch):
    """Transformers is given draft lengths in the assistant's config, and hooks are set on both models."""
    seen = []
    original = measuring.measure

    def spied(pair, *args):
        before = pair.assistant.generation_config
        told = before.to_dict()
        original(pair, *args)
        models = (pair.target, pair.assistant)
        seen.append(pair.assistant.generation_config is before and before.to_dict() == told)
        seen.append(not any(model._forward_hooks or model._forward_pre_hooks for model in models))

    monkeypatch.setattr(measuring, "measure", spied)
    measured(exactassist)
    assert seen == [True, True]


def test_the_seed_fixes_what_is_drawn(exactassist, tiny_embedded):
    def counted(seed):
        report = measured(exactassist, "--mode", "sampled", "--seed", seed, "-n", 24)
        found = [one["samples"][0]["stats"] or {} for one in report["cases"][0]["variants"]]
        # these hang on the clock
        return [{name: part for name, part in one.items() if name not in ("seconds", "costs")} for one in found]

    first = counted(4)
    assert first == counted(4) != counted(5)


def test_progress_counts_every_step(folders):
    loaded = load(str(folders.target), str(folders.assistant), device="cpu")
    pair = Pair(loaded.target, loaded.tokenizer, loaded.assistant, loaded.assistant_tokenizer)
    plan = measuring.Plan((1,), measuring.MODES, (1, 2), repeats=2, max_new_tokens=4)
    prompts, count = [Prompt("given", text) for text in ("the king", "who", "long live")], []
    cases = []
    measuring.measure(pair, plan, prompts, cases, lambda: count.append(1))
    assert len(count) == plan.steps(prompts)
    assert len(cases) == 4


def test_forwards_are_those_of_generate(folders):
    """Timed alone, a forward reads what `generate` would let it read: positions and mask of a ragged batch."""
    target = AutoModelForCausalLM.from_pretrained(folders.target)
    tokenizer = AutoTokenizer.from_pretrained(folders.target)
    rows = [tokenizer(text)["input_ids"] for text in ("the king is dead", "who")]
    pair = Pair(target, tokenizer, target)
    inputs = pair.inputs(rows)
    with torch.no_grad():
        reader = forwards._Reader(target, inputs)
        told = target(**inputs).logits[:, -1:].argmax(-1)
        seen = []
        handle = target.register_forward_hook(lambda _, __, output: seen.append(output.logits))
        reader.read(told)
        reader.time(1)
        reader.time(1)
        handle.remove()
    for row, ids in enumerate(rows):
        # the row alone, without any padding; the last token is read twice
        alone = torch.tensor([[*ids, int(told[row]), int(told[row])]])
        logits = target(alone).logits[0]
        torch.testing.assert_close(seen[0][row, -1], logits[-2], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(seen[1][row, -1], logits[-1], rtol=1e-4, atol=1e-4)
    # what is timed is forgotten
    assert seen[1].equal(seen[2])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mode", "beam"], "Unknown --mode 'beam': choose one of greedy, sampled"),
        (["--kind", "poems"], "Unknown --kind 'poems'"),
        (["--clock", "sun"], "Unknown --clock 'sun': choose one of cpu, wall"),
        (["--temperature", "0"], "--temperature must be a number above 0"),
        (["--target", "x"], "give --target and --assistant, or neither"),
        (["--assistant", "x"], "give --target and --assistant, or neither"),
        (["--prompts", "missing.txt"], "Cannot read missing.txt"),
        (["--prompts", "missing.txt", "--kind", "code"], "choose one"),
        (["--json", "missing/f.json"], "Cannot write --json missing/f.json: No such file"),
        (["--plot", "missing/f.png"], "Cannot write --plot missing/f.png: No such file"),
        (["--plot", "picture.doc"], "Plots cannot be written as 'picture.doc'"),
        (["--dtype", "int3"], "Unknown --dtype 'int3'"),
    ],
)
def test_usage_errors_are_one_line_with_code_2(exactassist, arguments, says):
    done = exactassist("bench", *arguments)
    assert done.code == 2, done.err
    assert says in done.err and done.err.count("\n") == 1 and done.out == ""


def test_plots_without_matplotlib(exactassist, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    done = exactassist("bench", "--plot", "picture.png")
    assert done.code == 2 and "pip install 'hf-exactassist[bench]'" in done.err


def test_files_that_cannot_be_written_are_found_early_and_left_alone(exactassist, tmp_path):
    file = tmp_path / "figures.json"
    file.write_text("of an earlier run")
    assert exactassist("bench", "--json", file, "--dtype", "int3").code == 2
    assert file.read_text() == "of an earlier run"
    assert exactassist("bench", "--json", tmp_path / "new.json", "--dtype", "int3").code == 2
    assert not (tmp_path / "new.json").exists()


def test_defaults_are_shown_in_help(exactassist):
    assert command.NUMBERS == (1, 2, 3, 5, 8)
    assert "1 2 3 5 8" in " ".join(exactassist("bench", "-h").out.split())
