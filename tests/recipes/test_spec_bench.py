"""Spec-Bench's form: tasks, conversations, the table, and runs that go on where they were."""

import importlib
import json
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hf_exactassist.benchmark.pair import Pair
from hf_exactassist.demo import load_pair
from hf_exactassist.errors import UnusableData
from tests.recipes.conftest import ROOT


FOLDER = ROOT / "recipes" / "spec-bench"
# our own, in the benchmark's form
QUESTIONS = [
    {"question_id": 7, "category": "writing", "turns": ["Write of the sea.", "Make it shorter."], "reference": []},
    {"question_id": 8, "category": "stem", "turns": ["Why is the night dark?", "And the day?"]},
    {"question_id": "t1", "category": "translation", "turns": ["To English: Guten Morgen."], "reference": "Morning."},
    {"question_id": 201, "category": "qa", "turns": ["who is king"]},
]


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def part(name):
    return importlib.import_module(f"spec_bench.{name}")


@pytest.fixture
def written(tmp_path):
    """A file with questions, by default all of them."""

    def write(entries=QUESTIONS):
        file = tmp_path / "question.jsonl"
        file.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
        return file

    return write


@pytest.fixture
def run(written, tmp_path):
    """Runs the command on the embedded pair; what it wrote lies in `out`."""
    questions = written()

    def call(*options):
        arguments = [str(questions), "--out", str(tmp_path / "out"), "--max-new-tokens", "12", *options]
        return CliRunner().invoke(part("cli").app, arguments)

    return call


# --- questions ---


def test_every_category_has_its_task(written):
    read, tasks = part("questions").read_questions, part("questions").TASKS
    assert len(tasks) == 6 and sum(map(len, tasks.values())) == 13
    asked = read(str(written()))
    assert [question.task for question in asked] == [
        "Multi-turn Conversation",
        "Multi-turn Conversation",
        "Translation",
        "Question Answering",
    ]
    assert asked[0].turns == ("Write of the sea.", "Make it shorter.")


def test_a_limit_is_for_each_task(written):
    questions = part("questions")
    asked = questions.read_questions(str(written()))
    assert [one.question_id for one in questions.choose(asked, 1)] == [7, "t1", 201]
    assert questions.choose(asked, None) == asked


def test_questions_of_a_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{name: entry[name] for name in ("question_id", "category", "turns")} for entry in QUESTIONS[:2]]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "questions.parquet")
    asked = part("questions").read_questions(str(tmp_path / "questions.parquet"))
    assert [one.question_id for one in asked] == [7, 8] and asked[1].turns[1] == "And the day?"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"question_id": 1, "category": "poetry", "turns": ["a"]}, "unknown category 'poetry': known are writing, "),
        ({"question_id": 1, "category": "qa"}, "lacks turns"),
        ({"category": "qa", "turns": ["a"]}, "lacks question_id"),
        ({"question_id": 1, "category": "qa", "turns": []}, "at least one text"),
        ({"question_id": 1, "category": "qa", "turns": "a"}, "at least one text"),
        ({"question_id": 1, "category": "qa", "turns": ["a", " "]}, "none of them blank"),
        ({"question_id": [1], "category": "qa", "turns": ["a"]}, "number or a name"),
        ({"question_id": 7, "category": "qa", "turns": ["a"]}, "of Line 1 of"),
        (["qa"], "is no object"),
    ],
)
def test_what_is_no_question_is_refused(written, entry, message):
    with pytest.raises(UnusableData, match=rf"Line 2 of .*{message}"):
        part("questions").read_questions(str(written([QUESTIONS[0], entry])))


def test_files_that_hold_nothing_are_refused(written, tmp_path):
    read = part("questions").read_questions
    with pytest.raises(UnusableData, match="no questions"):
        read(str(written([])))
    (tmp_path / "broken.jsonl").write_text('{"question_id": 1')
    with pytest.raises(UnusableData, match="Line 1 of .* is no JSON"):
        read(str(tmp_path / "broken.jsonl"))
    with pytest.raises(UnusableData, match="not there"):
        read(str(tmp_path / "none.jsonl"))


# --- conversations ---


def test_the_plain_format():
    _, _, tokenizer = load_pair()
    chat = part("chat").Chat.of(tokenizer, "auto")
    assert not chat.template
    ids = chat.prompt(["One?", "Two?"], ["First."], "here")
    assert ids == tokenizer("User: One?\n\nAssistant: First.\n\nUser: Two?\n\nAssistant:")["input_ids"]
    answer = tokenizer(" It is so.\n\nUser: And why?", add_special_tokens=False)["input_ids"]
    assert chat.answer(answer) == "It is so."


def test_the_chat_template():
    _, _, tokenizer = load_pair()
    tokenizer.chat_template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
        "{% if add_generation_prompt %}<answer>{% endif %}"
    )
    chat = part("chat").Chat.of(tokenizer, "auto")
    text = "<user>One?<assistant>First.<user>Two?<answer>"
    assert chat.prompt(["One?", "Two?"], ["First."], "here") == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert not part("chat").Chat.of(tokenizer, "plain").template


def test_a_template_that_is_not_there_is_refused(run):
    result = run("--chat", "template")
    assert result.exit_code == 1 and "no chat template" in result.stderr


# --- answers ---


@pytest.fixture
def pair():
    model, assistant, tokenizer = load_pair()
    return Pair(model, tokenizer, assistant)


def test_later_turns_hold_the_earlier_answers(pair):
    answering, chat = part("answering"), part("chat").Chat.of(pair.tokenizer, "auto")
    question = part("questions").Question(1, "writing", ("Who goes there?", "And who else?"))
    decoding = answering.Decoding(max_new_tokens=10, temperature=0.0, seed=0, num_assistant_tokens=3)
    record = answering.answer(pair, chat, decoding, question, 0)
    asked = [chat.prompt(question.turns[: turn + 1], record["answers"][:turn], "") for turn in range(2)]
    assert [turn["prompt_tokens"] for turn in record["turns"]] == list(map(len, asked))
    for prompt, turn, answer in zip(asked, record["turns"], record["answers"], strict=True):
        plain = pair.target.generate(**pair.inputs([prompt]), max_new_tokens=10, do_sample=False)
        tokens = pair.text(plain[0, len(prompt) :].tolist())
        assert chat.answer(tokens) == answer
        assert turn["identical"] and turn["plain"]["tokens"] == turn["assisted"]["tokens"] == len(tokens)
        assert turn["published"] == len(tokens) - 1 and 0 < turn["rounds"] <= turn["published"]


def test_sampled_answers_are_not_compared(pair):
    answering, chat = part("answering"), part("chat").Chat.of(pair.tokenizer, "auto")
    decoding = answering.Decoding(max_new_tokens=6, temperature=1.0, seed=3, num_assistant_tokens=2)
    question = part("questions").Question(1, "qa", ("Who?",))
    first, second = (answering.answer(pair, chat, decoding, question, number) for number in (0, 1))
    assert first["turns"][0]["identical"] is None
    # the seed is set for every call, whichever comes first
    assert first["answers"] == second["answers"]


def test_what_does_not_fit_is_skipped(pair):
    answering, chat = part("answering"), part("chat").Chat.of(pair.tokenizer, "auto")
    decoding = answering.Decoding(max_new_tokens=4, temperature=0.0, seed=0, num_assistant_tokens=2)
    long = part("questions").Question(1, "summarization", ("word " * 1100,))
    record = answering.answer(pair, chat, decoding, long, 0)
    assert "the models read no more" in record["skipped"] and not record["turns"]
    answering.warm_up(pair, chat, decoding, long)


def test_an_answer_ends_where_the_models_do(pair):
    answering, chat = part("answering"), part("chat").Chat.of(pair.tokenizer, "auto")
    decoding = answering.Decoding(max_new_tokens=40, temperature=0.0, seed=0, num_assistant_tokens=2)
    text = "word " * 1100
    while len(chat.prompt([text], [], "")) > 1020:
        text = text[: -len("word ")]
    prompt = chat.prompt([text], [], "")
    record = answering.answer(pair, chat, decoding, part("questions").Question(1, "rag", (text,)), 0)
    assert record["turns"][0]["plain"]["tokens"] == 1024 - len(prompt)


# --- the table ---


def record(number, category, *turns, skipped=None):
    """Turns as (tokens, plain seconds, assisted seconds, rounds)."""
    told = [
        {
            "plain": {"tokens": tokens, "cpu": 0.0, "wall": plain},
            "assisted": {"tokens": tokens, "cpu": 0.0, "wall": assisted},
            "rounds": rounds,
            "published": tokens - 1,
            "identical": number != 2,
        }
        for tokens, plain, assisted, rounds in turns
    ]
    return {"question_id": number, "category": category, "skipped": skipped, "turns": told, "answers": []}


RECORDS = [
    record(1, "writing", (11, 1.0, 0.5, 5), (21, 3.0, 1.5, 10)),
    record(2, "coding", (9, 1.0, 1.0, 8)),
    record(3, "rag", (41, 4.0, 1.0, 10)),
    record(4, "rag", skipped="too long"),
]


def test_figures_by_hand():
    lines = {row.task: row for row in part("table").rows(RECORDS, "wall")}
    chat = lines["Multi-turn Conversation"]
    # 10 + 20 + 8 tokens in 5 + 10 + 8 rounds
    assert chat.mean_accepted_tokens == 38 / 23
    # 32 tokens in 2 s and 9 in 1; plainly in 4 and 1
    assert chat.tokens_per_second == (16 + 9) / 2 and chat.plain_tokens_per_second == (8 + 9) / 2
    assert chat.speedup == 12.5 / 8.5
    assert chat.total_speedup == pytest.approx(5 / 3)
    assert (chat.identical, chat.compared, chat.questions) == (2, 3, 2)
    rag = lines["Retrieval-aug. Generation"]
    assert rag.mean_accepted_tokens == 4 and rag.speedup == 4 and (rag.questions, rag.skipped) == (1, 1)
    overall = lines["Overall"]
    assert overall.mean_accepted_tokens == 78 / 33
    # over questions, not over tasks
    assert overall.speedup == pytest.approx((16 + 9 + 41) / (8 + 9 + 10.25))
    empty = lines["Translation"]
    assert empty.questions == 0 and empty.speedup is None and empty.mean_accepted_tokens is None


def test_tables_are_written_in_the_published_form():
    table = part("table")
    lines = table.rows(RECORDS, "wall")
    text = table.markdown(lines, "T + A")
    assert "| Multi-turn Conversation | 2 | 1.65 | 12.5 | 8.5 | 1.47x | 1.67x | 2/3 |" in text
    assert "| Retrieval-aug. Generation | 1 (1 skipped) | 4.00 |" in text
    assert text.endswith("| T + A | 1.47x | - | - | - | - | 4.00x | 2.36 | 2.42x |\n")
    console = Console(width=80)
    with console.capture() as shown:
        console.print(table.rich_table(lines))
    assert "…" not in shown.get() and "1.47x" in shown.get()


# --- whole runs ---


def test_a_run_writes_the_table(run, tmp_path):
    result = run()
    assert result.exit_code == 0, result.stderr
    assert "plain format" in result.stderr and "Overall" in result.stdout
    report = json.loads((tmp_path / "out" / "table.json").read_text())
    assert report["complete"] and report["questions"] == {"done": 4, "all": 4}
    overall = report["rows"][-1]
    assert overall["questions"] == 4 and overall["identical"] == overall["compared"] == 6
    assert overall["mean_accepted_tokens"] >= 1
    assert "| embedded + embedded |" in (tmp_path / "out" / "table.md").read_text()


def test_an_interrupted_run_goes_on(run, tmp_path, monkeypatch):
    cli, file = part("cli"), tmp_path / "out" / "answers.jsonl"
    real, asked = cli.answer, []

    def answer(pair, chat, decoding, question, number):
        asked.append(question.question_id)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return real(pair, chat, decoding, question, number)

    monkeypatch.setattr(cli, "answer", answer)
    result = run()
    assert result.exit_code == 130 and asked == [7, 8, "t1"]
    assert "2 of 4 questions are answered" in result.stderr
    assert not json.loads((tmp_path / "out" / "table.json").read_text())["complete"]
    before = file.read_bytes()
    # the write was interrupted too
    file.write_bytes(before + b'{"question_id": "t1", "cate')
    result = run()
    assert result.exit_code == 0, result.stderr
    assert asked == [7, 8, "t1", "t1", 201]
    after = file.read_bytes()
    assert after.startswith(before)
    assert [json.loads(line)["question_id"] for line in after.splitlines()] == [7, 8, "t1", 201]
    # and a finished one asks nothing
    assert run().exit_code == 0 and len(asked) == 5


def test_a_larger_limit_goes_on(run, tmp_path):
    assert run("--limit", "1").exit_code == 0
    assert json.loads((tmp_path / "out" / "table.json").read_text())["questions"] == {"done": 3, "all": 3}
    assert run().exit_code == 0
    lines = (tmp_path / "out" / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["question_id"] for line in lines] == [7, "t1", 201, 8]


def test_other_settings_are_refused(run, tmp_path):
    assert run("--limit", "1").exit_code == 0
    result = run("--temperature", "0.5")
    assert result.exit_code == 1
    assert "temperature = 0.0, and now it is 0.5" in " ".join(result.stderr.split())
    settings = tmp_path / "out" / "settings.json"
    told = json.loads(settings.read_text())
    settings.write_text(json.dumps({**told, "processor": "another"}))
    result = run()
    assert result.exit_code == 1 and "processor" in result.stderr


def test_other_questions_are_refused(run, written):
    assert run("--limit", "1").exit_code == 0
    written([*QUESTIONS[:3], {**QUESTIONS[3], "turns": ["who is queen"]}])
    result = run()
    assert result.exit_code == 1 and "answers with questions" in result.stderr


def test_a_broken_line_in_the_middle_is_refused(run, tmp_path):
    assert run("--limit", "1").exit_code == 0
    file = tmp_path / "out" / "answers.jsonl"
    file.write_bytes(b"{broken\n" + file.read_bytes())
    result = run()
    assert result.exit_code == 1 and "Line 1 of" in result.stderr


def test_an_unknown_category_stops_before_the_models_are_loaded(run, written):
    written([{"question_id": 1, "category": "poetry", "turns": ["a"]}])
    result = run("--target", "/none", "--assistant", "/none")
    assert result.exit_code == 1 and "unknown category 'poetry'" in result.stderr


@pytest.mark.parametrize("options", [["--chat", "fancy"], ["--clock", "sun"], ["--target", "T"]])
def test_senseless_options_are_refused(run, options):
    assert run(*options).exit_code == 2


def test_the_script_runs_from_anywhere(tmp_path):
    run = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), "--help"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "question.jsonl" in run.stdout


@pytest.mark.parametrize(
    ("name", "content"),
    [("thesis.txt", "mine"), ("settings.json", '{"font": "serif"}'), ("settings.json", "[]"), ("settings.json", "{")],
)
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(UnusableData, match="holds something else than answers: give an empty or new folder"):
        part("results").Results(tmp_path, {"seed": 0})
    assert [file.name for file in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == content
    with pytest.raises(UnusableData, match="is no folder"):
        part("results").Results(tmp_path / name, {"seed": 0})
