"""Prompts of data sets and the ones that ship."""

import hashlib
import json
import sys
from dataclasses import asdict

import datasets
import pytest
from transformers import AutoTokenizer

from hf_exactassist.benchmark.prompts import BUILT_IN
from hf_exactassist.demo import target_path
from hf_exactassist.errors import InvalidArgument, UnusableData
from hf_exactassist.evaluation.data import KINDS, SHIPPED, Prompt, Selection, dataset_prompts, shipped_prompts


ROWS = [
    {"prompt": "Once upon", "topic": "tales", "answer": "a time", "number": 1},
    {"prompt": "The sea\nis {blue}", "topic": "nature", "answer": None, "number": 2},
    {"prompt": "NA", "topic": "tales", "answer": "x", "number": 3},
    {"prompt": "Größe, \u2028 ½", "topic": "nature", "answer": "y", "number": 4},
    {"prompt": "To be,", "topic": "plays", "answer": "or not", "number": 5},
]
TEXTS = [row["prompt"] for row in ROWS]
TEMPLATE = (
    "<|bos|>{% for message in messages %}"
    "{% if message.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def chatty():
    tokenizer = AutoTokenizer.from_pretrained(target_path())
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def written(path, rows):
    """A file of rows, in the format that its name tells."""
    table = datasets.Dataset.from_list(rows)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        table.to_csv(path)
    elif path.suffix == ".parquet":
        table.to_parquet(path)
    else:
        table.save_to_disk(path)
    return str(path)


@pytest.fixture
def rows_file(tmp_path):
    return written(tmp_path / "rows.jsonl", ROWS)


def texts(prompts):
    return [prompt.text for prompt in prompts.prompts]


# --- formats ---


# the name of a file is not a pattern
@pytest.mark.parametrize("name", ["a.json", "a[1]*.jsonl", "a.csv", "a b.parquet", "saved"])
def test_formats(tmp_path, name):
    file = written(tmp_path / name, ROWS)
    prompts = dataset_prompts(Selection(file, kind_column="topic", reference_column="number"))
    assert prompts.prompts == tuple(
        Prompt(index, row["topic"], row["prompt"], str(row["number"])) for index, row in enumerate(ROWS)
    )
    assert not prompts.chat
    assert prompts.origin["column"] == "prompt"


def test_text_files_have_a_prompt_a_line(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n  \ntwo {x}\n", encoding="utf-8")
    prompts = dataset_prompts(Selection(str(tmp_path / "a.txt")))
    assert prompts.prompts == (Prompt(0, "given", "one"), Prompt(3, "given", "two {x}"))


def test_a_folder_of_files_has_splits(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    written(folder / "train.jsonl", ROWS[:2])
    written(folder / "test.jsonl", ROWS[2:])
    prompts = dataset_prompts(Selection(str(folder), split="test"))
    assert texts(prompts) == TEXTS[2:]
    assert prompts.origin["split"] == "test"
    for split in (None, "dev"):
        with pytest.raises(UnusableData, match="choose one of test, train"):
            dataset_prompts(Selection(str(folder), split=split))


def test_saved_splits(tmp_path):
    table = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": table, "dev": table.select([4])}).save_to_disk(tmp_path / "saved")
    assert texts(dataset_prompts(Selection(str(tmp_path / "saved"), split="dev"))) == TEXTS[4:]


def test_saved_formats_and_class_names_do_not_matter(tmp_path):
    labels = datasets.ClassLabel(names=["up", "down"])
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": labels, "number": datasets.Value("int64")}
    )
    columns = {"text": ["a", "b", "c"], "label": [1, 0, -1], "number": [7, 8, 9]}
    table = datasets.Dataset.from_dict(columns, features=features)
    table.with_format("numpy").save_to_disk(tmp_path / "saved")
    selection = Selection(str(tmp_path / "saved"), kind_column="label", reference_column="number", limit=2)
    assert dataset_prompts(selection).prompts == (Prompt(0, "down", "a", "7"), Prompt(1, "up", "b", "8"))
    with pytest.raises(UnusableData, match="Row 2 .* 'label'"):
        dataset_prompts(Selection(str(tmp_path / "saved"), kind_column="label"))


def test_files_are_read_anew_when_they_change(tmp_path):
    file = written(tmp_path / "a.jsonl", ROWS)
    assert len(dataset_prompts(Selection(file)).prompts) == 5
    written(tmp_path / "a.jsonl", ROWS[:2])
    assert len(dataset_prompts(Selection(file)).prompts) == 2


# --- which rows, in which order ---


def test_shuffled_orders_are_fixed_and_limits_take_their_beginning(rows_file):
    whole = dataset_prompts(Selection(rows_file, shuffle_seed=1))
    # this order is for all times and versions
    assert whole.manifest()["rows"] == [1, 3, 0, 4, 2]
    assert texts(whole) == [TEXTS[prompt.index] for prompt in whole.prompts]
    assert dataset_prompts(Selection(rows_file, shuffle_seed=1, limit=2)).prompts == whole.prompts[:2]
    assert dataset_prompts(Selection(rows_file, shuffle_seed=2)).manifest()["rows"] != [1, 3, 0, 4, 2]
    assert dataset_prompts(Selection(rows_file, limit=9)).manifest()["rows"] == [0, 1, 2, 3, 4]


def test_only_chosen_rows_are_read(tmp_path):
    file = written(tmp_path / "a.jsonl", [*ROWS, {**ROWS[0], "prompt": " "}])
    assert len(dataset_prompts(Selection(file, limit=5)).prompts) == 5


def test_fingerprints_tell_texts_and_their_order(rows_file):
    prompts = dataset_prompts(Selection(rows_file))
    assert prompts.fingerprint == hashlib.sha256(json.dumps(TEXTS).encode("ascii")).hexdigest()
    others = [
        Selection(rows_file, limit=4),
        Selection(rows_file, shuffle_seed=1),
        Selection(rows_file, template="{prompt} "),
    ]
    assert len({prompts.fingerprint, *(dataset_prompts(other).fingerprint for other in others)}) == 4
    assert dataset_prompts(Selection(rows_file, kind_column="topic")).fingerprint == prompts.fingerprint


def test_manifests_are_json_and_say_what_was_taken(rows_file):
    selection = Selection(rows_file, limit=2, kind_column="topic")
    manifest = dataset_prompts(selection).manifest()
    assert json.loads(json.dumps(manifest)) == manifest
    expected = {**asdict(selection), "split": "train", "column": "prompt", "chat": False, "rows": [0, 1]}
    assert manifest == {**expected, "sha256": manifest["sha256"]}


# --- columns and templates ---


def test_templates_take_texts_and_numbers(rows_file):
    prompts = dataset_prompts(Selection(rows_file, template="{{{number}}} {prompt}:", reference_column="answer"))
    assert texts(prompts) == [f"{{{row['number']}}} {row['prompt']}:" for row in ROWS]
    assert [prompt.reference for prompt in prompts.prompts] == [row["answer"] for row in ROWS]
    assert prompts.origin["column"] is None


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{nothing}", "is no column: use prompt, topic, answer, number"),
        ("{prompt.__class__}", "is no column"),
        ("{prompt[0]}", "is no column"),
        ("{}", "is no column"),
        ("{prompt!r}", "more than a name"),
        ("{prompt:>9}", "more than a name"),
        ("{prompt", "not well-formed"),
        ("prompt}", "not well-formed"),
        ("prompt {{x}}", "no field"),
        ("", "no field"),
    ],
)
def test_templates_that_cannot_be_filled(rows_file, template, says):
    with pytest.raises(InvalidArgument, match=says):
        dataset_prompts(Selection(rows_file, template=template))


@pytest.mark.parametrize("role", ["text", "kind", "reference"])
def test_columns_that_are_not_there(rows_file, role):
    field = {"text": "column", "kind": "kind_column", "reference": "reference_column"}[role]
    with pytest.raises(InvalidArgument, match=f"no {role} column 'x': the columns are prompt, topic, answer, number"):
        dataset_prompts(Selection(rows_file, **{field: "x"}))


def test_the_column_is_asked_for_where_several_may_be_meant(tmp_path):
    for rows in ([{"a": "x", "b": "y"}], [{"prompt": "x", "text": "y"}]):
        file = written(tmp_path / "a.jsonl", rows)
        with pytest.raises(InvalidArgument, match=f"Name one of {', '.join(rows[0])}"):
            dataset_prompts(Selection(file))
    assert texts(dataset_prompts(Selection(written(tmp_path / "b.jsonl", [{"a": "x"}])))) == ["x"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["x", ""], "Row 1 .* is blank"),
        (["x", " \n"], "Row 1 .* is blank"),
        (["x", None], "Row 1 .* has nothing in the column 'text'"),
        ([1, 2], "Row 0 .* has no text in the column 'text' but a number"),
        ([True], "a truth value"),
        ([{"a": "b"}], "an object"),
        ([["a"]], "a list in the column 'text'"),
    ],
)
def test_values_that_are_no_prompts(tmp_path, values, says):
    file = written(tmp_path / "a.parquet", [{"text": value} for value in values])
    with pytest.raises(UnusableData, match=says):
        dataset_prompts(Selection(file))


def test_mixed_types(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "x"}\n{"text": 3}\n')
    # older releases of `datasets` refuse the file
    with pytest.raises(UnusableData, match="Row 1 .* a number|Cannot read"):
        dataset_prompts(Selection(str(file)))


def test_kinds_and_references_that_cannot_be(tmp_path):
    file = written(tmp_path / "a.parquet", [{"text": "x", "none": None, "blank": " ", "half": 0.5, "true": True}])
    for column, says in (
        ("none", "has nothing"),
        ("blank", "no kind"),
        ("half", "a number"),
        ("true", "a truth value"),
    ):
        with pytest.raises(UnusableData, match=says):
            dataset_prompts(Selection(file, kind_column=column))
        if column != "blank":
            with pytest.raises(UnusableData, match=says):
                dataset_prompts(Selection(file, template=f"{{{column}}}"))
    with pytest.raises(UnusableData, match="a number"):
        dataset_prompts(Selection(file, reference_column="half"))


# --- chat templates ---


def test_texts_are_said_by_the_user(rows_file, chatty):
    prompts = dataset_prompts(Selection(rows_file, limit=1, reference_column="answer"), chatty)
    assert prompts.prompts == (Prompt(0, "given", "<|bos|><user>Once upon\n<assistant>", "a time"),)
    assert prompts.chat and prompts.manifest()["chat"]
    filled = dataset_prompts(Selection(rows_file, limit=1, template="Go on: {prompt}"), chatty)
    assert texts(filled) == ["<|bos|><user>Go on: Once upon\n<assistant>"]


def test_messages_end_before_the_last_answer(tmp_path, chatty):
    def said(*turns):
        return [dict(zip(("role", "content"), turn, strict=True)) for turn in turns]

    asked = said(("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"))
    rows = [{"messages": asked + said(("assistant", "So long"), ("assistant", "!"))}, {"messages": asked}]
    file = written(tmp_path / "a.jsonl", rows)
    prompts = dataset_prompts(Selection(file), chatty)
    text = "<|bos|><system>Be kind.\n<user>Hi\n<assistant>Hello\n<user>Bye\n<assistant>"
    assert prompts.prompts == (Prompt(0, "given", text, "So long"), Prompt(1, "given", text))
    with pytest.raises(UnusableData, match="ask for the chat template"):
        dataset_prompts(Selection(file))


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "no message to answer"),
        ([{"role": "assistant", "content": "x"}], "no message to answer"),
        ([{"role": "user", "content": ""}], "no message to answer"),
        ([{"from": "human", "value": "x"}], "something else than messages"),
        ([{"role": "user", "content": 3}], "something else than messages"),
        (["x"], "something else than messages"),
        ([{"role": "robot", "content": "x"}], "cannot be written .* no robots"),
        (3, "no text .* but a number"),
    ],
)
def test_values_that_are_no_messages(tmp_path, chatty, messages, says):
    file = written(tmp_path / "a.json", [{"messages": messages}])
    with pytest.raises(UnusableData, match=says):
        dataset_prompts(Selection(file), chatty)


def test_a_chat_template_is_needed_first(chatty):
    plain = AutoTokenizer.from_pretrained(target_path())
    for read in (lambda: dataset_prompts(Selection("not/there.txt"), plain), lambda: shipped_prompts(tokenizer=plain)):
        with pytest.raises(InvalidArgument, match="no chat template"):
            read()


# --- what is no data set ---


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", "hello\n", r"Cannot read .* as .jsonl \(JSON parse error"),
        ("a.json", '{"text": ', "Cannot read"),
        ("a.jsonl", '"x"\n"y"\n', "Cannot read"),
        ("a.parquet", "hello", "Cannot read .* as .parquet"),
        ("a.csv", "a,b\n1,2\n1,2,3,4\n", "Cannot read .* as .csv .* line 3"),
        ("a.txt", b"\xff\xfe\xfa", "Cannot read .* as .txt .*utf-8"),
        ("a.xml", "<a/>", "ends in one of .json, .jsonl, .parquet, .csv, .txt"),
        ("a", "x", "ends in one of"),
        ("a.txt", "", "is empty"),
        ("a.txt", "\n \n", "has no rows"),
        ("a.jsonl", "", "is empty"),
        ("a.json", "[]", "no data|no rows"),
        ("a.csv", "a,b\n", "no data|no rows"),
        ("a.csv", "\n", "Cannot read"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UnusableData, match=says):
        dataset_prompts(Selection(str(tmp_path / name)))


def test_folders_that_cannot_be_read(tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(UnusableData, match="Cannot read the folder .*data files"):
        dataset_prompts(Selection(str(tmp_path / "none")))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "state.json").write_text("{}")
    with pytest.raises(UnusableData, match="Cannot read the folder"):
        dataset_prompts(Selection(str(tmp_path / "broken")))
    datasets.Dataset.from_dict({"text": []}).save_to_disk(tmp_path / "empty")
    # some releases of `datasets` stumble over it
    with pytest.raises(UnusableData, match="has no rows|with at least one row"):
        dataset_prompts(Selection(str(tmp_path / "empty")))


# `json` alone would make the library read whatever lies about
@pytest.mark.parametrize("name", ["json", "a.jsonl", "./a", "/no/where", "~no/a", "no/where.txt", "a/b/c", ""])
def test_paths_that_are_not_there(tmp_path, monkeypatch, name):
    written(tmp_path / "lies about.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnusableData, match="is not there"):
        dataset_prompts(Selection(name))


def test_hub_names_offline():
    with pytest.raises(UnusableData, match="someone/something is no file .* the Hub cannot be reached"):
        dataset_prompts(Selection("someone/something"))


def test_hub_names_online(monkeypatch, tmp_path):
    """As far as this library goes: what the Hub gives, and what it may say."""
    answers = {"someone/small": datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})}

    def load(name, config):
        assert config == "main"
        if name not in answers:
            raise datasets.exceptions.DatasetNotFoundError(f"Dataset '{name}' doesn't exist on the Hub")
        return answers[name]

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert texts(dataset_prompts(Selection("someone/small", config="main"))) == TEXTS
    with pytest.raises(UnusableData, match="cannot be read from the Hub .*doesn't exist"):
        dataset_prompts(Selection("someone/else", config="main"))


def test_splits_and_configurations_of_single_tables(tmp_path, rows_file):
    saved = written(tmp_path / "saved", ROWS)
    with pytest.raises(UnusableData, match="one table"):
        dataset_prompts(Selection(saved, split="train"))
    with pytest.raises(UnusableData, match="choose one of train"):
        dataset_prompts(Selection(rows_file, split="test"))
    for file in (saved, rows_file):
        with pytest.raises(UnusableData, match="no configurations"):
            dataset_prompts(Selection(file, config="main"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"limit": 0}, "at least 1"), ({"limit": -1}, "at least 1"), ({"column": "a", "template": "{a}"}, "choose one")],
)
def test_settings_that_make_no_sense(rows_file, settings, says):
    with pytest.raises(InvalidArgument, match=says):
        dataset_prompts(Selection(rows_file, **settings))


def test_the_extra_is_named(rows_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InvalidArgument, match=r"pip install 'hf-exactassist\[eval\]'"):
        dataset_prompts(Selection(rows_file))
    # the shipped ones do without
    assert shipped_prompts().prompts


# --- the prompts that ship ---


def test_shipped_prompts_are_complete():
    entries = [json.loads(line) for line in SHIPPED.read_text(encoding="utf-8").splitlines()]
    assert all(set(entry) == {"id", "kind", "text", "source"} for entry in entries)
    assert all(isinstance(value, str) and value.strip() for entry in entries for value in entry.values())
    assert len({entry["id"] for entry in entries}) == len({entry["text"] for entry in entries}) == len(entries)
    counts = {kind: sum(entry["kind"] == kind for entry in entries) for kind in KINDS}
    assert counts == dict.fromkeys(KINDS, 8) and len(entries) == 48
    assert all(entry["source"] == "our own" or "public domain" in entry["source"] for entry in entries)
    assert not {entry["text"] for entry in entries} & {text for texts in BUILT_IN.values() for text in texts}


def test_shipped_prompts_by_kind(chatty):
    everything = shipped_prompts()
    assert [prompt.index for prompt in everything.prompts] == list(range(48))
    some = shipped_prompts(["code", "prose", "code"], each=2)
    assert [prompt.kind for prompt in some.prompts] == ["code", "code", "prose", "prose"]
    expected = {"dataset": "shipped", "chat": False, "rows": [8, 9, 0, 1], "sha256": some.fingerprint}
    assert some.manifest() == expected
    chat = shipped_prompts(["lists"], each=1, tokenizer=chatty)
    assert chat.chat and chat.prompts[0].text.startswith("<|bos|><user>Planets")
    for wrong in ({"kinds": ["verse"]}, {"kinds": []}, {"each": 0}):
        with pytest.raises(InvalidArgument):
            shipped_prompts(**wrong)


def test_shipped_prompts_are_a_data_set_like_any(chatty):
    read = dataset_prompts(Selection(str(SHIPPED), kind_column="kind"))
    assert read.prompts == shipped_prompts().prompts
    assert read.fingerprint == shipped_prompts().fingerprint
