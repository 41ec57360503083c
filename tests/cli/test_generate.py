"""`exactassist generate`: the target's tokens on stdout, whatever the way in and the batch size."""

import json

import pytest
from transformers import PreTrainedTokenizerFast, TextStreamer

from hf_exactassist import options
from hf_exactassist.cli import generate as command
from hf_exactassist.models import compiled
from hf_exactassist.state import manifest


PROMPTS = ["the king", "who goes there", "long live the queen of the night and", "a friend"]


def test_text_is_the_targets_own(exactassist, folders, plain):
    done = exactassist("generate", *folders.arguments, "-n", 24, "the king", "--json")
    assert done.code == 0, done.err
    (result,) = done.objects
    assert result["tokens"] == plain("the king", max_new_tokens=24, do_sample=False)
    assert result["prompt"] == "the king"
    assert 0 < result["stats"]["accepted"] < result["stats"]["drafted"]
    assert "seed" not in result
    text = exactassist("generate", *folders.arguments, "-n", 24, "the king")
    assert text.out == result["text"] + "\n"
    assert f"{result['stats']['published']} tokens in" in text.err and text.err.rstrip().endswith("greedy")


@pytest.mark.parametrize("sampling", [[], ["--do-sample", "--seed", 3, "--temperature", 0.7, "--top-k", 0]])
@pytest.mark.parametrize("batch_size", [3, 4])
def test_batch_equals_single(exactassist, folders, sampling, batch_size):
    """Greedy and, as each prompt keeps its own random numbers, sampled too."""
    common = ["generate", *folders.arguments, "-n", 16, "--json", *sampling, *PROMPTS]
    single, batch = exactassist(*common), exactassist(*common, "--batch-size", batch_size)
    assert batch.code == 0, batch.err
    assert [(entry["prompt"], entry["tokens"]) for entry in batch.objects] == [
        (entry["prompt"], entry["tokens"]) for entry in single.objects
    ]
    assert [entry["stats"]["prompts"] for entry in batch.objects] == {3: [3, 3, 3, 1], 4: [4] * 4}[batch_size]


def test_seeds_decide(exactassist, folders):
    common = ["generate", *folders.arguments, "-n", 12, "--json", "--do-sample", "the king"]
    first, again, other = (exactassist(*common, "--seed", seed).objects[0] for seed in (1, 1, 2))
    assert first["tokens"] == again["tokens"] != other["tokens"]
    unseeded = exactassist(*common)
    seed = unseeded.objects[0]["seed"]
    assert f"sampled with seed {seed}" in unseeded.err
    assert exactassist(*common, "--seed", seed).objects[0]["tokens"] == unseeded.objects[0]["tokens"]


def test_settings_reach_the_decoding(exactassist, folders, plain):
    done = exactassist("generate", *folders.arguments, "-n", 24, "--repetition-penalty", 1.5, "--json", "the king")
    assert done.objects[0]["tokens"] == plain("the king", max_new_tokens=24, do_sample=False, repetition_penalty=1.5)
    done = exactassist("generate", *folders.arguments, "-n", 24, "--num-assistant-tokens", 2, "--json", "the king")
    assert len(done.objects[0]["stats"]["drafted_by_position"]) == 2
    greedy = plain("the king", max_new_tokens=24, do_sample=False)
    almost = ["--do-sample", "--top-k", 1, "--top-p", 0.9, "--min-p", 0.1]
    done = exactassist("generate", *folders.arguments, "-n", 24, *almost, "--json", "the king")
    assert done.objects[0]["tokens"] == greedy


def test_prompt_lookup_needs_no_assistant(exactassist, folders, plain):
    prompt = "the king the king the king the king"
    done = exactassist("generate", "--target", folders.target, "--prompt-lookup", 3, "-n", 24, "--json", prompt)
    assert done.code == 0, done.err
    assert done.objects[0]["tokens"] == plain(prompt, max_new_tokens=24, do_sample=False)
    assert done.objects[0]["stats"]["draft_forwards"] == 0


def test_the_end_token_ends_a_row(exactassist, folders, plain, monkeypatch):
    """Rows of a batch that end early lose their padding, not their text."""
    long = plain("the king", max_new_tokens=16, do_sample=False)
    eos = long[5]
    changed = json.loads((folders.target / "generation_config.json").read_text()) | {"eos_token_id": eos}
    monkeypatch.setattr(
        "transformers.GenerationConfig.from_pretrained",
        classmethod(lambda cls, *args, **kwargs: cls(**changed)),
    )
    done = exactassist("generate", *folders.arguments, "-n", 16, "-b", 2, "--json", "the king", "who goes there")
    assert done.code == 0, done.err
    first, second = done.objects
    assert (first["tokens"], first["finish"]) == (long[: long.index(eos) + 1], "eos")
    assert second["finish"] == ("eos" if eos in second["tokens"] else "length")


def test_chat_uses_the_template(exactassist, folders, plain):
    done = exactassist("generate", *folders.arguments, "-n", 8, "--chat", "--json", "who?")
    assert done.objects[0]["tokens"] == plain("<user>who?\n<answer>", max_new_tokens=8, do_sample=False)
    assert done.objects[0]["prompt"] == "who?"


def test_stream_writes_the_same_text(exactassist, folders):
    common = ["generate", *folders.arguments, "-n", 24, "the king"]
    done = exactassist(*common, "--stream")
    assert done.code == 0, done.err
    assert done.out == exactassist(*common).out


def test_embedded_pair_is_the_default(exactassist, tiny_embedded, plain):
    done = exactassist("generate", "-n", 8, "--json", "the king")
    assert done.objects[0]["tokens"] == plain("the king", max_new_tokens=8, do_sample=False)


def test_long_texts_are_noted(exactassist, folders):
    done = exactassist("generate", *folders.arguments, "-n", 254, "the king and a friend of the night")
    assert "the target was made for 256" in done.err
    assert done.code == 0


# --- what a run was made with, and how its drafts fared


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("layout", [None, *command.LAYOUTS])
def test_manifests_and_the_acceptance_log(exactassist, folders, tmp_path, layout):
    """One manifest a batch, in order; the log's rounds begin where it stands."""
    manifests, log = tmp_path / "manifests.jsonl", tmp_path / "log.jsonl"
    for path in (manifests, log):
        path.write_text("of an earlier run")
    common = ["generate", *folders.arguments, "-n", 10, "--json", "--do-sample", "--seed", 4, "-b", 3, *PROMPTS]
    plain = exactassist(*common)
    how = [] if layout is None else ["--layout", layout]
    done = exactassist(*common, "--manifest", manifests, "--telemetry", log, *how)
    assert done.code == 0, done.err
    assert [entry["tokens"] for entry in done.objects] == [entry["tokens"] for entry in plain.objects]
    first, second = lines(manifests)
    assert (first["prompts"], second["prompts"]) == ([1, 2, 3], [4])
    assert list(first) == ["prompts", "call", "round", "digest", "end"]
    assert first["round"]["layout"] == (layout or "replay") and first["round"]["generation"] == 0
    assert first["call"]["streams"] == {"kind": "philox", "seed": 4, "rows": [0, 1, 2]}
    assert second["call"]["streams"]["rows"] == [3] and len(second["round"]["rows"]) == 1
    assert first["call"]["target"]["name"] == str(folders.target)
    assert manifest.digest({"call": manifest.digest(first["call"]), "round": first["round"]}) == first["digest"]
    assert len({first["digest"], first["end"], second["digest"], second["end"]}) == 4
    rounds = [record for record in lines(log) if record["event"] == "round"]
    starts = [record["coordinate"] for record in rounds if record["generation"] == 0]
    assert starts == [first["digest"], second["digest"]]
    published = [[] for _ in PROMPTS]
    for record in rounds:
        offset = 0 if record["round"].partition("/")[0] == rounds[0]["round"].partition("/")[0] else 3
        for row in record["rows"]:
            published[offset + row["row"]] += row["published"]
    assert published == [entry["tokens"] for entry in done.objects]
    accepted = sum(record["event"] == "decision" and record["accepted"] for record in lines(log))
    assert accepted == done.objects[0]["stats"]["accepted"] + done.objects[3]["stats"]["accepted"]


def test_equal_runs_write_equal_manifests(exactassist, folders, tmp_path):
    found = []
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        path = tmp_path / name
        common = [*folders.arguments, "-n", 6, "--do-sample", "--seed", seed, "the king"]
        assert exactassist("generate", *common, "--manifest", path).code == 0
        found.append(path.read_text())
    assert found[0] == found[1] != found[2]


def test_choices_are_those_of_the_library():
    assert command.LAYOUTS == options.LAYOUTS and command.COMPILED == options.COMPILED


def test_compiled_forwards_write_the_same_text(exactassist, folders, monkeypatch):
    graphs = []
    monkeypatch.setattr(compiled, "BACKEND", lambda graph, examples: graphs.append(graph) or graph.forward)
    common = ["generate", *folders.arguments, "-n", 6, "--greedy", "the king"]
    plain, done = exactassist(*common), exactassist(*common, "--compile", "draft")
    assert (done.code, done.out) == (0, plain.out) and graphs


def test_records_do_not_overwrite_prompts_or_each_other(exactassist, folders, tmp_path):
    path, other = tmp_path / "prompts.txt", tmp_path / "other"
    path.write_text("the king\n")
    for option in ("--manifest", "--telemetry"):
        done = exactassist("generate", *folders.arguments, "-n", 4, "--file", path, option, path)
        assert done.code == 2 and f"{option} and --file name the same file" in done.err
    same = ["--manifest", other, "--telemetry", tmp_path / "." / "other"]
    done = exactassist("generate", *folders.arguments, "-n", 4, "--file", path, *same)
    assert done.code == 2 and "--telemetry and --manifest name the same file" in done.err
    assert path.read_text() == "the king\n"


def test_a_run_that_does_not_begin_leaves_earlier_records(exactassist, folders, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("of an earlier run")
    for wrong in (["--dtype", "int3", "who"], ["--target", tmp_path / "missing", "--assistant", "x", "who"]):
        assert exactassist("generate", "--telemetry", path, "--manifest", tmp_path / "m", *wrong).code in (1, 2)
        assert path.read_text() == "of an earlier run"


# --- ways in


def test_lines_of_a_file(exactassist, folders, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfthe king\r\n\n  who goes there \n")
    done = exactassist("generate", *folders.arguments, "-n", 4, "--file", path, "--json")
    assert [entry["prompt"] for entry in done.objects] == ["the king", "  who goes there "]


def test_json_lines(exactassist, folders, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "the king\\nis", "id": 7}\n\n{"prompt": "ünd"}\n', encoding="utf-8")
    done = exactassist("generate", *folders.arguments, "-n", 4, "-f", path, "--json")
    assert [entry["prompt"] for entry in done.objects] == ["the king\nis", "ünd"]


@pytest.mark.parametrize("arguments", [[], ["--file", "-"]])
def test_stdin(exactassist, folders, arguments):
    done = exactassist("generate", *folders.arguments, "-n", 4, "--json", *arguments, stdin="the king\nwho\n")
    assert [entry["prompt"] for entry in done.objects] == ["the king", "who"]


def test_several_texts_have_headings_on_stderr_only(exactassist, folders):
    done = exactassist("generate", *folders.arguments, "-n", 4, "the king", "who")
    alone = [exactassist("generate", *folders.arguments, "-n", 4, prompt).out for prompt in ("the king", "who")]
    assert done.out == "".join(alone)
    assert "[1/2] the king" in done.err and "[2/2] who" in done.err


# --- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "x", "who"], "--assistant MODEL, or --prompt-lookup N"),
        (["--assistant", "x", "--prompt-lookup", "2", "who"], "choose one"),
        (["--prompt-lookup", "2", "--num-assistant-tokens", "3", "who"], "--prompt-lookup N, N tokens"),
        (["--temperature", "0.5", "--top-k", "3", "who"], "--temperature, --top-k"),
        (["--greedy", "--min-p", "0.5", "who"], "add --do-sample"),
        (["--do-sample", "--temperature", "0", "who"], "use --greedy"),
        (["--repetition-penalty", "-1", "who"], "--repetition-penalty must be a number above 0"),
        (["--repetition-penalty", "nan", "who"], "--repetition-penalty must be a number above 0"),
        (["--stream", "--json", "who"], "choose one"),
        (["--stream", "who", "where"], "2 are given"),
        ([""], "Prompt 1 is empty"),
        (["who", "--file", "x.txt"], "not both"),
        (["--file", "missing.txt"], "Cannot read missing.txt: No such file"),
        (["--dtype", "int3", "who"], "float32, bfloat16"),
        (["--device", "toaster", "who"], "'toaster'"),
        (["--layout", "rerun", "who"], "replay, retained"),
        (["--compile", "target", "who"], "draft, both"),
        (["--manifest", "missing/m.jsonl", "who"], "Cannot write --manifest missing/m.jsonl: No such file"),
        (["--telemetry", "missing/t.jsonl", "who"], "Cannot write --telemetry missing/t.jsonl: No such file"),
        (["--telemetry", ".", "who"], "Cannot write --telemetry .: Is a directory"),
        (["--telemetry", "/dev/null", "--manifest", "/dev/null", "who"], "name the same file"),
    ],
)
def test_usage_errors_are_one_line_with_code_2(exactassist, arguments, says):
    done = exactassist("generate", *arguments)
    assert done.code == 2, done.err
    assert done.err.startswith("Error: ") and done.err.count("\n") == 1
    assert says in done.err
    assert done.out == ""


@pytest.mark.parametrize("arguments", [["--max-new-tokens", "0"], ["--top-p", "2"], ["--seed", "-1"], ["--nonsense"]])
def test_values_out_of_range_have_code_2(exactassist, arguments):
    done = exactassist("generate", *arguments, "who")
    assert done.code == 2 and arguments[0] in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"prompt": "who"}\n\n{"prompt": who}\n', "a.jsonl, line 3 is not JSON"),
        ("a.jsonl", b'{"prompt": "who"}\n{"text": "who"}\n', "a.jsonl, line 2 has no prompt"),
        ("a.jsonl", b'{"prompt": ""}\n', "a.jsonl, line 1 has no prompt"),
        ("a.jsonl", b'["who"]\n', "a.jsonl, line 1 has no prompt"),
        ("a.txt", b"\n  \n", "it has no line with text"),
        ("a.txt", b"gr\xfc\xdfe\n", "is not UTF-8 text (byte 2)"),
    ],
)
def test_broken_files(exactassist, tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    done = exactassist("generate", "--file", tmp_path / name)
    assert done.code == 2
    assert says in done.err and done.err.count("\n") == 1


def test_empty_stdin_and_a_terminal(exactassist, monkeypatch):
    assert "No prompts in stdin" in exactassist("generate", stdin="").err
    monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    done = exactassist("generate")
    assert done.code == 2 and "No prompts: give them as arguments" in done.err


@pytest.mark.parametrize("role", ["target", "assistant"])
def test_models_that_cannot_be_loaded(exactassist, folders, tmp_path, monkeypatch, role):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "empty").mkdir()
    names = {"target": str(folders.target), "assistant": str(folders.assistant)}
    for name, says in (
        (str(tmp_path / "missing"), "does not exist"),
        (str(tmp_path / "empty"), "Cannot load the"),
        (str(folders.target / "config.json"), "is a file"),
        ("nobody/nothing-of-this-name", "Cannot load the"),
    ):
        given = names | {role: name}
        done = exactassist("generate", "-t", given["target"], "-a", given["assistant"], "who")
        assert done.code == 1, done.err
        assert says in done.err and role in done.err and name in done.err
        assert done.err.count("\n") == 1 and "Traceback" not in done.err


def test_a_refusal_is_one_line_with_code_1(exactassist, folders, lowercasing):
    done = exactassist("generate", "-t", folders.target, "-a", lowercasing, "who")
    assert done.code == 1
    assert "changes text" in done.err and done.err.count("\n") == 1


def test_no_chat_template(exactassist, folders, foreign):
    done = exactassist("generate", "-t", foreign, "-a", foreign, "--chat", "who")
    assert done.code == 1 and "no chat template" in done.err


@pytest.mark.parametrize("way", ["option", "variable"])
def test_debug_lets_the_traceback_through(exactassist, monkeypatch, way):
    if way == "variable":
        monkeypatch.setenv("EXACTASSIST_DEBUG", "1")
    done = exactassist("generate", *(["--debug"] if way == "option" else []), "-f", "missing.txt")
    assert "Cannot read" in str(done.exception) and not isinstance(done.exception, SystemExit)


def test_foreign_exceptions_are_named(exactassist, folders, monkeypatch):
    def fail(*args, **kwargs):
        raise IndexError("index out of\nrange in self")

    monkeypatch.setattr("hf_exactassist.api.start", fail)
    done = exactassist("generate", *folders.arguments, "who")
    assert done.code == 1
    assert done.err == "Error: IndexError: index out of range in self (`--debug` shows where)\n"


@pytest.mark.parametrize("form", [["--json"], ["--stream"], []])
def test_interrupting_writes_what_there_is(exactassist, folders, plain, monkeypatch, tmp_path, form):
    """Ctrl-C in the middle of the second batch: the first is whole, the second is there as far as it got."""
    streams = form == ["--stream"]
    prompts = ["the king"] if streams else ["the king", "who"]
    # the first batch has a prompt and 8 tokens; then a prompt and 3 tokens
    left = [4] if streams else [9 + 4]
    listener = TextStreamer if streams else command._Columns
    put = listener.put

    def interrupted(self, value):
        put(self, value)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(listener, "put", interrupted)
    records = ["--manifest", tmp_path / "manifests", "--telemetry", tmp_path / "log"]
    done = exactassist("generate", *folders.arguments, "-n", 8, *form, *records, *prompts)
    assert done.code == 130
    # an interrupted batch has no end
    ends = [line["end"] for line in lines(tmp_path / "manifests")]
    assert [end is None for end in ends] == [False] * (len(prompts) - 1) + [True]
    assert lines(tmp_path / "log")[-1]["event"] == "round"
    assert done.err.endswith("Interrupted.\n") and "Traceback" not in done.err
    first, last = (plain(prompts[at], max_new_tokens=8, do_sample=False) for at in (0, -1))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folders.target)
    if form == ["--json"]:
        assert [entry["tokens"] for entry in done.objects] == [first, last[:3]]
        assert (done.objects[1]["finish"], done.objects[1]["stats"]) == ("interrupted", None)
    else:
        whole = "" if streams else tokenizer.decode(first, skip_special_tokens=True) + "\n"
        assert done.out == whole + tokenizer.decode(last[:3], skip_special_tokens=True) + "\n"
