"""`exactassist evaluate`: what is decoded, told and refused. How long anything takes is never tested."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hf_exactassist.cli import evaluate as command
from hf_exactassist.cli import evaluate_options as options
from hf_exactassist.evaluation import data, metrics, pages, plan, steps
from hf_exactassist.evaluation import report as report_module
from hf_exactassist.evaluation.decoding import Decoder
from hf_exactassist.evaluation.processes import Processes
from hf_exactassist.options import COUPLINGS, LAYOUTS


ROOT = Path(__file__).parents[2]
SHORT = ["-n", 6, "-k", 2, "--prompts-per-kind", 1, "--kind", "prose", "--kind", "lists"]
WAYS = ["small, K=2", "small, default"]


@pytest.fixture(autouse=True, scope="module")
def no_pages():
    """Pictures take seconds, and have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "html", lambda report: "<!doctype html>")
        yield


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def evaluated(exactassist, out, *arguments) -> dict:
    done = exactassist("evaluate", *arguments, "--out", out, "--json")
    assert done.code == 0, done.err
    (report,) = done.objects
    return report


def test_the_embedded_pair(exactassist, tiny_embedded, out):
    done = exactassist("evaluate", *SHORT, "--out", out)
    assert done.code == 0, done.err
    for part in ("Greedy", "Sampled", "embedded, K=2", "embedded, default", "2/2 identical", "no difference in"):
        assert part in done.out
    begun, *_, written = done.err.splitlines()
    # for the log of a batch job
    assert begun == "warming up, greedy" and "report.html" in written
    report = json.loads((out / "report.json").read_text())
    assert report["complete"] and report["settings"]["modes"] == ["greedy", "sampled"]
    assert report["header"]["target"]["name"] == "embedded"
    assert [arm["name"] for arm in report["modes"][0]["arms"]] == ["embedded, K=2", "embedded, default"]
    # the same command again reads what there is
    assert evaluated(exactassist, out, *SHORT)["digest"] == report["digest"]


def test_ways_and_settings(exactassist, folders, out):
    arguments = [*folders.arguments, *SHORT, "-k", 1, "--prompt-lookup", 4, "--no-default", "--layout", "retained"]
    arguments += ["--mode", "sampled", "--coupling", "maximal", "--coupling", "shared_noise", "--temperature", 0.7]
    report = evaluated(
        exactassist, out, *arguments, "--top-k", 9, "--repetition-penalty", 1.2, "--repeats", 2, "-b", 2
    )
    settings = report["settings"]
    assert settings["sampling"] == {"temperature": 0.7, "top_k": 9}
    assert settings["settings"] == {"repetition_penalty": 1.2}
    assert (settings["repeats"], settings["batch_size"], settings["max_new_tokens"]) == (2, 2, 6)
    names = ["assistant, K=1", "assistant, K=2", "prompt lookup, K=4"]
    wanted = [f"{name}, retained" for name in names] + [f"{name}, shared noise, retained" for name in names]
    assert [arm["name"] for arm in report["modes"][0]["arms"]] == wanted
    assert all(arm["refused"] is None for arm in report["modes"][0]["arms"])
    assert all(arm["quality"]["identical"] == 4 for arm in report["modes"][0]["arms"][3:])


def test_prompt_lookup_alone(exactassist, folders, out):
    report = evaluated(exactassist, out, "-t", folders.target, "--prompt-lookup", 3, *SHORT[:2], *SHORT[4:])
    assert [arm["name"] for arm in report["modes"][0]["arms"]] == ["prompt lookup, K=3"]
    assert report["header"]["assistants"] == []


def test_a_data_set_with_kinds_references_and_the_chat_template(exactassist, folders, out, tmp_path, monkeypatch):
    file, seen = tmp_path / "talks.jsonl", []
    rows = [{"ask": f"the king {word}", "topic": "kings", "good": "is dead"} for word in ("is", "was")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    original = steps.token_rows

    def spied(models, prompts):
        seen.append((prompts, original(models, prompts)))
        return seen[-1][1]

    monkeypatch.setattr(steps, "token_rows", spied)
    arguments = ["--dataset", file, "--column", "ask", "--kind-column", "topic", "--reference-column", "good"]
    report = evaluated(
        exactassist, out, *folders.arguments, *arguments, "--chat", "-n", 4, "-k", 1, "--mode", "greedy"
    )
    (prompts, ids), *_ = seen
    assert [prompt.reference for prompt in prompts.prompts] == ["is dead"] * 2 and prompts.chat
    # the template writes the start token, and the tokenizer not once more
    assert [row.count(1) for row in ids] == [1, 1] and ids[0][0] == 1
    assert report["prompts"]["chat"] and report["prompts"]["column"] == "ask"
    limited = evaluated(
        exactassist, tmp_path / "other", *folders.arguments, *arguments, "--limit", 1, "-n", 4, "-k", 1, "--no-default"
    )
    assert limited["prompts"]["rows"] == [0]


def test_a_metric_that_fails_is_told_with_the_report(exactassist, folders, out, tmp_path, monkeypatch):
    """By then hours may have gone into decoding."""
    failing = metrics.Metric("made", lambda text, reference: 1 / 0)
    for module in (metrics, report_module):
        monkeypatch.setattr(module, "load_metric", lambda name: failing)
    file = tmp_path / "asked.jsonl"
    file.write_text('{"prompt": "the king", "good": "is dead"}\n' * 2)
    arguments = ["--dataset", file, "--reference-column", "good", "--metric", "made", "-n", 4, "-k", 1, "--no-default"]
    done = exactassist("evaluate", *folders.arguments, *arguments, "--out", out)
    assert (
        done.code == 0 and done.err.count("made was not compared: row 0 (counted from 0) has the assisted text") == 2
    )
    assert "division by zero" in done.err and (out / "report.html").exists()
    assert "made was not compared" in (out / "report.md").read_text()


def test_several_assistants_have_names_of_their_own(exactassist, folders, foreign, out):
    arguments = ["-t", folders.target, "-a", folders.assistant, "-a", foreign, *SHORT, "--mode", "greedy"]
    report = evaluated(exactassist, out, *arguments, "--no-default")
    names = [arm["name"] for arm in report["modes"][0]["arms"]]
    assert names == ["assistant, K=2", f"{foreign.name}, K=2"]
    assert [one["name"] for one in report["header"]["assistants"]] == ["assistant", foreign.name]


def test_names_that_would_be_confused_stay_whole():
    drafters = options.Drafters("t", ("a/small", "b/small", "c/plain", "org/tiny"), None)
    assert drafters.names() == {"a/small": "a/small", "b/small": "b/small", "c/plain": "c/plain", "tiny": "org/tiny"}


def test_what_is_refused_is_told_and_the_rest_goes_on(exactassist, folders, lowercasing, out):
    arguments = ["-t", folders.target, "-a", folders.assistant, "-a", lowercasing, *SHORT, "--mode", "greedy"]
    done = exactassist("evaluate", *arguments, "--out", out, "--no-default")
    assert done.code == 0, done.err
    assert "Without model, K=2: The assistant's tokenizer" in done.out and "2/2 identical" in done.out
    alone = exactassist("evaluate", "-t", folders.target, "-a", lowercasing, *SHORT, "--out", out / "alone")
    assert alone.code == 1 and "No way of decoding can be evaluated: The assistant's tokenizer" in alone.err


@pytest.mark.parametrize(("ends", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_keep_what_is_done(exactassist, tiny_embedded, out, monkeypatch, request, ends, code):
    # a shell without job control lets background programs ignore Ctrl-C
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, inherited))
    left, original = [11], Decoder.__call__

    def interrupted(*arguments):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(ends)
        return original(*arguments)

    monkeypatch.setattr(Decoder, "__call__", interrupted)
    before = signal.getsignal(signal.SIGTERM)
    done = exactassist("evaluate", *SHORT, "--out", out)
    assert done.code == code and signal.getsignal(signal.SIGTERM) == before
    assert "with a report of it; the same command goes on" in done.err
    assert done.err.endswith("Interrupted.\n") and done.out == ""
    report = json.loads((out / "report.json").read_text())
    assert not report["complete"] and report["steps"]["done"] == 4
    assert evaluated(exactassist, out, *SHORT)["complete"]


def test_an_interrupted_report_is_not_claimed(exactassist, tiny_embedded, out, monkeypatch):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(steps.Steps, "do", interrupted)
    monkeypatch.setattr("hf_exactassist.evaluation.running.write_results", interrupted)
    done = exactassist("evaluate", *SHORT, "--out", out)
    assert done.code == 130 and f"What is done is kept in {out}; the same command goes on." in done.err


def test_another_evaluation_in_the_folder(exactassist, tiny_embedded, out):
    evaluated(exactassist, out, *SHORT, "--mode", "greedy")
    done = exactassist("evaluate", *SHORT, "--mode", "greedy", "--out", out, "--seed", 4)
    assert done.code == 1 and "with other plan.seed (--seed): give another folder (--out)" in done.err
    assert evaluated(exactassist, out, *SHORT, "--mode", "greedy", "--seed", 4, "--overwrite")["complete"]


def test_a_foreign_folder_is_told_before_anything_is_loaded(exactassist, out):
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    done = exactassist("evaluate", "-t", "no-such-model", "-a", "none", "--out", out, "--overwrite")
    assert done.code == 1 and "holds something else than an evaluation" in done.err
    assert (out / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mode", "beam"], "Unknown --mode 'beam': choose one of greedy, sampled"),
        (["--kind", "poems"], "Unknown --kind 'poems'"),
        (["--coupling", "tight"], "Unknown --coupling 'tight'"),
        (["--layout", "wide"], "Unknown --layout 'wide'"),
        (["--target", "x"], "Who drafts for this --target?"),
        (["--assistant", "x"], "An --assistant needs a --target"),
        (["-t", "x", "--prompt-lookup", "2", "-k", "3"], "-k and --no-default are for an --assistant"),
        (["-t", "x", "--prompt-lookup", "2", "--no-default"], "-k and --no-default are for an --assistant"),
        (["--limit", "3", "--column", "x"], "--column, --limit has a meaning for a --dataset only"),
        (["--dataset", "d.txt", "--kind", "prose"], "choose one"),
        (["--dataset", "d.txt", "--prompts-per-kind", "2"], "choose one"),
        (["--dataset", "d.txt", "--column", "a", "--template", "{a}"], "choose one"),
        (["--metric", "exact_match"], "name a --dataset and its --reference-column"),
        (["--dataset", "d.txt", "--metric", "exact_match"], "name a --dataset and its --reference-column"),
        (["--mode", "greedy", "--top-k", "3"], "--top-k has a meaning for sampling only"),
        (["--mode", "greedy", "--coupling", "maximal"], "--coupling has a meaning for sampling only"),
        (["--coupling", "shared_noise"], "--coupling shared_noise is for sampling alone"),
        (["--temperature", "0"], "--temperature must be a number above 0"),
        (["--repetition-penalty", "-1"], "--repetition-penalty must be a number above 0"),
        (["--dtype", "int3"], "Unknown --dtype 'int3'"),
        (["--device", "sun"], "The device 'sun' cannot be used here"),
    ],
)
def test_usage_errors_are_one_line_with_code_2(exactassist, out, arguments, says):
    done = exactassist("evaluate", *arguments, "--out", out)
    assert done.code == 2, done.err
    assert says in done.err and done.err.count("\n") == 1 and done.out == ""
    assert not out.exists()


def test_a_data_set_that_is_not_there(exactassist, tiny_embedded, out):
    done = exactassist("evaluate", "--dataset", "missing.jsonl", "--out", out)
    assert done.code == 1 and "'missing.jsonl' is not there" in done.err and not out.exists()


def test_packages_that_are_missing(exactassist, monkeypatch):
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    done = exactassist("evaluate")
    assert done.code == 2 and "datasets and matplotlib: pip install 'hf-exactassist[eval]'" in done.err


def test_names_are_those_of_the_library(exactassist):
    assert options.MODES == plan.MODES and options.KINDS == data.KINDS
    assert (options.COUPLINGS, options.LAYOUTS) == (COUPLINGS, LAYOUTS)
    assert command.NUMBERS == (1, 3, 5)
    told = " ".join(exactassist("evaluate", "-h").out.split())
    assert "1 3 5" in told and "exactassist-evaluation" in told


# --- several processes, as `accelerate launch` starts them ---


def environment():
    # a hub is never asked, and each process has one thread
    more = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **more}


def launched(folders, out, *arguments):
    """Starts two processes."""
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    asked = ["-m", "hf_exactassist", "evaluate", *folders.arguments, *SHORT, "--out", out, "--json", *arguments]
    return subprocess.Popen(
        [*launch, *map(str, asked)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.timeout(600)
def test_two_processes_report_what_one_does(exactassist, folders, out, tmp_path):
    arguments = ["--mode", "sampled", "--repeats", "2", "--seed", "3"]
    process = launched(folders, out, *arguments)
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    two = json.loads(printed)
    assert sorted(file.name for file in out.glob("records*")) == [
        "records-00001-of-00002.jsonl",
        "records-00002-of-00002.jsonl",
    ]
    # the schedule that tests have by default is set in this process alone
    alone = [sys.executable, "-m", "hf_exactassist", "evaluate", *folders.arguments, *map(str, SHORT), *arguments]
    made = subprocess.run(
        [*alone, "--out", str(tmp_path / "one"), "--json"], env=environment(), capture_output=True, text=True
    )
    one = json.loads(made.stdout)
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["digest"] == two["digest"] and one["steps"] == two["steps"]


class Broken:
    """Stands for the connection to a process that is gone."""

    device = "cpu"

    def wait_for_everyone(self):
        raise RuntimeError("gloo/transport/tcp/pair.cc:547] Connection closed by peer")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_left_alone_ends_quietly(exactassist, tiny_embedded, out, monkeypatch, rank):
    monkeypatch.setattr(command, "_processes", lambda device: Processes(rank, 2, Broken()))
    done = exactassist("evaluate", *SHORT, "--out", out)
    assert done.code == 1 and "gloo" not in done.err
    told = "Error: Another process of this evaluation has ended (seen by process 1 of 2): mend what it told"
    assert told in done.err if rank == 0 else done.err == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_ends_takes_the_others_with_it(folders, out, ends):
    process = launched(folders, out, "--repeats", "500")
    deadline = time.monotonic() + 240
    while not (out / "records-00002-of-00002.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    if ends == signal.SIGINT:
        # as a terminal does it
        os.killpg(process.pid, ends)
    else:
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        os.kill(int(children[-1]), ends)
    process.communicate(timeout=240)
    assert process.returncode != 0
    assert all((out / f"records-0000{rank}-of-00002.jsonl").stat().st_size for rank in (1, 2))
