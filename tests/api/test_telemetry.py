"""The acceptance log says of every reached decision what decided it (contract 0x06F, 0x04I, 0x06D)."""

import gc
import hashlib
import inspect
import json
import os
from pathlib import Path

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

import hf_exactassist
from hf_exactassist import acceptance_log, errors
from hf_exactassist import session as session_module
from hf_exactassist.randomness import ACCEPT, Noise
from hf_exactassist.verification.coupling import residual
from hf_exactassist.verification.distributions import probabilities
from tests.tiny import EVEN_NOISE, looping, noisy, prompts, tiny


SETTINGS = {"eos_token_id": [7, 23], "pad_token_id": 0, "max_new_tokens": 20}
WARPERS = {"temperature": 0.8, "top_k": 30, "repetition_penalty": 1.2}
MODES = {
    "greedy": {"do_sample": False, "repetition_penalty": 1.2},
    "maximal": {"do_sample": True, "seed": 28, **WARPERS},
    "shared_noise": {"do_sample": True, "seed": 28, "coupling": "shared_noise", **WARPERS},
}
LENGTHS = [[6], [9, 4, 6]]
LAWS = ["overlap", "divergence", "same_top"]
FIELDS = [
    [
        *("event", "round", "row", "position", "token", "q", "p", "ratio", "uniform", "accepted", "residual"),
        *("published", *LAWS),
    ],
    ["event", "round", "generation", "layout", "coupling", "coordinate", "rows", "seconds"],
]


@pytest.fixture(scope="module")
def models():
    target = tiny()
    return target, noisy(target, EVEN_NOISE["llama"])


@pytest.fixture(scope="module")
def loop():
    """A target whose text repeats, for prompt lookup."""
    return looping()


def assistance(models):
    return {"assistant_model": models[1], "num_assistant_tokens": 3}


def told(models, inputs, **settings):
    """The result and the records of a call."""
    records = []
    given = {**SETTINGS, **settings, "telemetry": records.append, "return_dict_in_generate": True}
    return hf_exactassist.generate(models[0], **inputs, **given), records


def split(records):
    decisions = [record for record in records if record["event"] == "decision"]
    rounds = [record for record in records if record["event"] == "round"]
    assert len(decisions) + len(rounds) == len(records)
    return decisions, rounds


def timeless(records):
    """Records without what differs between equal calls: the call's random name and the time."""
    return [
        {**record, "round": record["round"].rpartition("/")[2], "seconds": None} if "seconds" in record
        else {**record, "round": record["round"].rpartition("/")[2]}
        for record in records
    ]  # fmt: skip


def assert_alike(records, expected):
    """Equal but for rounding: a round made again reads tokens in blocks of another shape."""
    assert len(records) == len(expected)
    for one, other in zip(records, expected, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            if name in ("p", "q", "ratio", "overlap", "divergence"):
                assert value == pytest.approx(other[name], abs=1e-5)
            elif name == "residual":
                assert (value is None) == (other[name] is None)
            else:
                assert value == other[name], name


def processors(mode):
    if mode == "greedy":
        return LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.2)])
    warpers = [RepetitionPenaltyLogitsProcessor(1.2), TemperatureLogitsWarper(0.8), TopKLogitsWarper(30)]
    return LogitsProcessorList(warpers)


# older releases let the padding of a prompt count as text that is not to be repeated
PADDING_COUNTS = "Tensor" not in str(inspect.signature(RepetitionPenaltyLogitsProcessor.__init__))


@torch.no_grad()
def law(model, text, processors, padding=0):
    """The processed next-token law after a text, from one full forward."""
    ids = torch.tensor([text])
    seen = torch.tensor([[0] * padding * PADDING_COUNTS + text])
    return torch.softmax(processors(seen, model(ids).logits[:, -1].float())[0], dim=-1)


def texts(inputs, sequences):
    """Of every row its tokens without padding on the left: positions in the log count from there."""
    mask = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    skipped = (mask == 0).sum(dim=1).tolist()
    return [row[count:] for row, count in zip(sequences.tolist(), skipped, strict=True)]


def check_accounts(rounds, decisions, mode, inputs, sequences):
    """Every round told once, in order; numbers used are tests reached and one terminal draw; tokens add up."""
    width = inputs["input_ids"].shape[1]
    published, spent = {}, {}
    assert [record["generation"] for record in rounds] == list(range(len(rounds)))
    assert all(list(record) == FIELDS[1] and record["coupling"] == mode for record in rounds)
    assert all(list(record) == FIELDS[0] for record in decisions)
    assert len({record["coordinate"] for record in rounds}) == len(rounds)
    for record in rounds:
        assert record["round"].endswith(f"/{record['generation']}")
        assert all(value >= 0 for value in record["seconds"].values()) and "score" in record["seconds"]
        for row in record["rows"]:
            mine = [one for one in decisions if (one["round"], one["row"]) == (record["round"], row["row"])]
            assert [one["published"] for one in mine] == [len(row["published"])] * len(mine)
            before = spent.get(row["row"], dict.fromkeys(("draft", "accept", "terminal", "ordinary"), 0))
            used = {name: row["spent"][name] - before[name] for name in before}
            if mode == "greedy":
                assert not any(used.values())
            elif mode == "shared_noise":
                assert used == {"draft": 0, "accept": 0, "terminal": 0, "ordinary": len(row["published"])}
            else:
                # contract 0x06D: reached acceptance tests, and one draw unless a stop came before it
                assert used["accept"] == len(mine)
                assert used["ordinary"] == (row["drafted"] == 0)
                assert used["terminal"] == (row["drafted"] > 0 and row["terminal"] != "stop")
            assert sum(one["accepted"] for one in mine) == row["accepted"] <= row["drafted"]
            reached = min(row["accepted"] + 1, row["drafted"])
            assert len(mine) == (row["accepted"] if row["terminal"] == "stop" else reached)
            assert len(row["published"]) == row["accepted"] + (row["terminal"] != "stop")
            assert row["terminal"] == ("recovered" if mine and not mine[-1]["accepted"] else row["terminal"])
            published.setdefault(row["row"], []).extend(row["published"])
            spent[row["row"]] = row["spent"]
    for row, tokens in published.items():
        text = sequences[row, width:].tolist()
        assert text == tokens + [0] * (len(text) - len(tokens))
    assert len(published) == len(sequences)


def check_laws(record, p, q):
    """How the two laws differ, apart from how the log finds it (contract 0x03B)."""
    assert record["overlap"] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-4)
    excluded = bool(((p > 0) & (q == 0)).any())
    assert (record["divergence"] is None) == excluded
    if not excluded:
        kept = p > 0
        assert record["divergence"] == pytest.approx(float((p * (p / q).log())[kept].sum()), abs=1e-3)
    assert record["same_top"] == (int(p.argmax()) == int(q.argmax()))


def check_decisions(models, decisions, mode, inputs, sequences, seed=28, drawn=True):
    """Each record against laws recomputed from the text alone."""
    whole, pipeline = texts(inputs, sequences), processors(mode)
    noise = Noise(seed, range(len(sequences)))
    outcomes = set()
    for record in decisions:
        row, position, token = record["row"], record["position"], record["token"]
        text = whole[row]
        padding = sequences.shape[1] - len(text)
        p = law(models[0], text[:position], pipeline, padding)
        assert record["p"] == pytest.approx(float(p[token]), abs=2e-5)
        assert record["accepted"] == (text[position] == token)
        outcomes.add(record["accepted"])
        if mode != "maximal":
            assert record["q"] is record["ratio"] is record["uniform"] is record["residual"] is None
            assert [record[name] for name in LAWS] == [None] * 3
            if mode == "greedy":
                assert record["accepted"] == (int(p.argmax()) == token)
            continue
        q = law(models[1], text[:position], pipeline, padding) if drawn else torch.eye(len(p))[token]
        assert record["q"] == pytest.approx(float(q[token]), abs=2e-5)
        assert record["ratio"] == min(1.0, record["p"] / record["q"])
        assert record["uniform"] == float(noise.block(ACCEPT, [row], [position], 1))
        assert record["accepted"] == (record["uniform"] < record["ratio"])
        assert (record["residual"] is None) == record["accepted"]
        check_laws(record, p, q)
        if not record["accepted"]:
            # the token that came instead is one the target likes better than the draft does
            assert len(record["residual"]) == 16 and float(p[text[position]] - q[text[position]]) > -2e-5
    # single rows are accepted throughout in some modes
    assert outcomes == {False, True} or (len(sequences) == 1 and outcomes == {True})


# --- what is told


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lengths", LENGTHS, ids=len)
def test_every_decision_and_every_round(models, lengths, mode, layout):
    """Contract 0x06F: token, q, p, ratio, uniform, outcome and the law of the correction."""
    inputs = prompts(lengths)
    output, records = told(models, inputs, layout=layout, **assistance(models), **MODES[mode])
    decisions, rounds = split(records)
    check_accounts(rounds, decisions, mode, inputs, output.sequences)
    check_decisions(models, decisions, mode, inputs, output.sequences)
    assert {record["layout"] for record in rounds[1:]} == {layout}
    stats = output.assist_stats
    assert stats.rounds == len(rounds) - 1 and stats.accepted == sum(one["accepted"] for one in decisions)
    assert stats.drafted == sum(row["drafted"] for record in rounds for row in record["rows"])


@pytest.mark.parametrize("layout", ["replay", "retained"])
@pytest.mark.parametrize("mode", ["greedy", "maximal"])
@pytest.mark.parametrize("batch", [1, 3])
def test_prompt_lookup_drafts_with_certainty(loop, batch, mode, layout):
    """A copied draft has probability 1 under its own law: the ratio is the target's probability."""
    target, start = loop
    inputs = {"input_ids": start["input_ids"].repeat(batch, 1)}
    mine = {"do_sample": False} if mode == "greedy" else {"do_sample": True, "seed": 28, "temperature": 0.1}
    settings = {"layout": layout, "prompt_lookup_num_tokens": 3, "eos_token_id": None, **mine}
    output, records = told((target,), inputs, **settings)
    decisions, rounds = split(records)
    check_accounts(rounds, decisions, mode, inputs, output.sequences)
    pipeline = LogitsProcessorList([] if mode == "greedy" else [TemperatureLogitsWarper(0.1), TopKLogitsWarper(50)])
    noise = Noise(28, range(batch))
    for record in decisions:
        text = output.sequences[record["row"]].tolist()
        p = law(target, text[: record["position"]], pipeline)
        assert record["p"] == pytest.approx(float(p[record["token"]]), abs=2e-5)
        assert record["accepted"] == (text[record["position"]] == record["token"])
        if mode == "maximal":
            assert record["q"] == 1.0 and record["ratio"] == record["p"]
            check_laws(record, p, torch.eye(len(p))[record["token"]])
            assert record["uniform"] == float(noise.block(ACCEPT, [record["row"]], [record["position"]], 1))
            assert (record["residual"] is None) == record["accepted"] == (record["uniform"] < record["ratio"])
    assert any(record["accepted"] for record in decisions)
    if mode == "maximal":
        assert not all(record["accepted"] for record in decisions)
        assert any(row["drafted"] == 0 for record in rounds[1:] for row in record["rows"]) or batch == 1
    spent = [row["spent"] for row in rounds[-1]["rows"]]
    assert all(one["draft"] == 0 for one in spent)


def test_layouts_tell_the_same_decisions(models):
    inputs = prompts([9, 4, 6])
    logs = [
        told(models, inputs, layout=x, **assistance(models), **MODES["maximal"])[1] for x in ("replay", "retained")
    ]
    assert_alike(*(timeless(split(log)[0]) for log in logs))


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_inside_a_draft_ends_what_is_told(models, mode):
    """Contract 0x06D: tests behind the stop were not reached, and there was no terminal draw."""
    same = (models[0], models[0])
    inputs = prompts([6])
    free, _ = told(
        same, inputs, **{**assistance(same), **MODES[mode], "eos_token_id": None, "num_assistant_tokens": 5}
    )
    # the first round gives one token, the second drafts five
    new = free.sequences[0, 6:].tolist()
    place = next(place for place in (3, 2, 4) if new[place] not in new[:place])
    settings = {**assistance(same), **MODES[mode], "eos_token_id": None, "num_assistant_tokens": 5}
    settings["stopping_criteria"] = [lambda ids, scores: ids[:, -1] == new[place]]
    output, records = told(same, inputs, **settings)
    decisions, rounds = split(records)
    check_accounts(rounds, decisions, mode, inputs, output.sequences)
    (row,) = rounds[-1]["rows"]
    assert (row["terminal"], row["stopped"], row["drafted"], row["accepted"]) == ("stop", True, 5, place)
    assert len(decisions) == place and all(record["accepted"] for record in decisions)
    if mode == "maximal":
        assert row["spent"] == {"draft": 5, "accept": place, "terminal": 0, "ordinary": 1}


def test_equal_laws_have_equal_names(models, monkeypatch):
    """A correction's law is known by a hash of its weights: the same rows and calls name it alike."""
    seen, judge = [], session_module.Session.judge

    def watched(self, processed, draft):
        verdict, scores = judge(self, processed, draft), processed.scores
        for i, row in enumerate(self.rows.active):
            at = int(verdict.accepted[i])
            if at < draft.lengths[i]:
                left = residual(probabilities(scores[i, at])[None], draft.probs[i, at][None])
                seen.append((row, hashlib.sha256(left.float().numpy().tobytes()).hexdigest()[:16]))
        return verdict

    monkeypatch.setattr(session_module.Session, "judge", watched)
    inputs = {name: tensor.repeat(2, 1) for name, tensor in prompts([6]).items()}
    settings = {**assistance(models), **MODES["maximal"], "row_ids": [4, 4], "eos_token_id": None}
    logs = [split(told(models, inputs, **settings)[1])[0] for _ in range(2)]
    names = [[(one["row"], one["residual"]) for one in log if not one["accepted"]] for log in logs]
    assert names[0] == names[1] == seen[: len(names[0])] and len(seen) == 2 * len(names[0])
    by_row = [[name for row, name in names[0] if row == mine] for mine in (0, 1)]
    assert by_row[0] == by_row[1] and len(set(by_row[0])) == len(by_row[0]) > 2


@pytest.mark.parametrize("q", [[0.0, 0.0], [float("nan"), 0.5]], ids=["nothing", "nan"])
def test_a_drafter_without_a_law_is_told_without_one(q):
    """Its processors may leave it nothing to draw from: the call goes on, and so does the log."""
    assert acceptance_log._compared(torch.tensor([0.5, 0.5]), torch.tensor(q)) == {}


# --- how it is told


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_added_to_as_json_lines(models, tmp_path, kind):
    inputs, path = prompts([9, 4, 6]), tmp_path / "ünd.jsonl"
    settings = {**SETTINGS, **assistance(models), **MODES["maximal"]}
    _, expected = told(models, inputs, **settings)
    for calls in (1, 2):
        hf_exactassist.generate(models[0], **inputs, **settings, telemetry=kind(path))
        lines = path.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        assert timeless(records) == json.loads(json.dumps(timeless(expected))) * calls
        assert not held_open(path)


def held_open(path):
    """Whether this process has the file open."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("open files cannot be listed here")
    links = [os.readlink(folder / number) for number in os.listdir(folder) if (folder / number).is_symlink()]
    return str(path) in links


def test_what_is_written_is_there_at_once(models, tmp_path):
    """A session that is stepped: the round's lines are complete when the step returns."""
    path = tmp_path / "log.jsonl"
    settings = {**SETTINGS, **assistance(models), **MODES["greedy"], "telemetry": path, "eos_token_id": None}
    session = hf_exactassist.start(models[0], **prompts([6]), **settings)
    assert path.read_text() == ""
    for number in range(1, 4):
        session.step()
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert [record["generation"] for record in split(records)[1]] == list(range(number))
    assert held_open(path)
    session.result()
    assert not held_open(path)


def test_a_session_that_is_given_up_lets_go_of_its_file(models, tmp_path):
    path = tmp_path / "log.jsonl"
    settings = {**SETTINGS, **assistance(models), **MODES["greedy"], "telemetry": path}
    session = hf_exactassist.start(models[0], **prompts([6]), **settings)
    session.step()
    del session
    gc.collect()
    assert not held_open(path)


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("name", ["missing/log.jsonl", "", "\0"], ids=["missing", "folder", "null"])
def test_a_path_that_cannot_be_written_is_refused_before_anything_is_drawn(
    models, monkeypatch, tmp_path, name, seeded
):
    def read(self):
        raise AssertionError("the prompts were read")

    monkeypatch.setattr(session_module.Session, "prefill", read)
    settings = {**SETTINGS, **assistance(models), "do_sample": True, **({"seed": 1} if seeded else {})}
    before = torch.get_rng_state()
    with pytest.raises(errors.InvalidArgument, match="`telemetry` cannot be written: .*Give a path in a folder"):
        hf_exactassist.generate(models[0], **prompts([6]), **settings, telemetry=str(tmp_path / name))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("telemetry", [3, b"x", ["x"], True])
def test_other_things_are_refused(models, telemetry):
    with pytest.raises(errors.InvalidArgument, match="`telemetry` must be a path or a function of one record"):
        hf_exactassist.generate(models[0], **prompts([6]), **SETTINGS, **assistance(models), telemetry=telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_without_telemetry_there_is_no_log_and_nothing_is_computed_for_it(models, monkeypatch, mode):
    expected, _ = told(models, prompts([9, 4, 6]), **assistance(models), **MODES[mode])

    def fail(*args, **kwargs):
        raise AssertionError("computed for nobody")

    monkeypatch.setattr(acceptance_log.AcceptanceLog, "__init__", fail)
    monkeypatch.setattr(acceptance_log.AcceptanceLog, "records", fail)
    for name in ("probabilities", "residual", "coordinate_digest"):
        monkeypatch.setattr(acceptance_log, name, fail)
    settings = {**SETTINGS, **assistance(models), **MODES[mode]}
    assert torch.equal(hf_exactassist.generate(models[0], **prompts([9, 4, 6]), **settings), expected.sequences)


@pytest.mark.parametrize("mode", MODES)
def test_telling_changes_nothing(models, mode):
    settings = {**SETTINGS, **assistance(models), **MODES[mode]}
    silent = hf_exactassist.generate(models[0], **prompts([9, 4, 6]), **settings)
    assert torch.equal(told(models, prompts([9, 4, 6]), **settings)[0].sequences, silent)


# --- failures


class Broken(Exception):
    pass


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("method", ["propose", "score", "process", "judge", "stage", "publish"])
@pytest.mark.parametrize("mode", MODES)
def test_a_failed_round_is_not_told_and_its_repetition_once(models, monkeypatch, mode, method, error):
    """Contract 0x06E: what was not published did not happen."""
    inputs = prompts([9, 4, 6])
    expected, log = told(models, inputs, **assistance(models), **MODES[mode])
    original, count = getattr(session_module.Session, method), [0]

    def failing(self, *args, **kwargs):
        count[0] += 1
        if count[0] == 3:
            raise error
        return original(self, *args, **kwargs)

    monkeypatch.setattr(session_module.Session, method, failing)
    records, failures = [], 0
    settings = {**SETTINGS, **assistance(models), **MODES[mode], "telemetry": records.append}
    session = hf_exactassist.start(models[0], **inputs, **settings)
    while not session.finished:
        before = len(records)
        try:
            session.step()
        except error:
            failures += 1
            assert len(records) == before
    assert failures == 1 and torch.equal(session.result(), expected.sequences)
    assert_alike(timeless(records), timeless(log))


@pytest.mark.parametrize("place", [0, 4, 7])
@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@torch.no_grad()
def test_a_listener_that_fails_is_told_the_rest_and_nothing_twice(models, place, error):
    """It comes after publication: the tokens are there, and the session goes on."""
    inputs = prompts([9, 4, 6])
    expected, log = told(models, inputs, **assistance(models), **MODES["maximal"])
    records = []

    def listen(record):
        records.append(record)
        if len(records) == place + 1:
            raise error

    settings = {**SETTINGS, **assistance(models), **MODES["maximal"], "telemetry": listen}
    session = hf_exactassist.start(models[0], **inputs, **settings)
    failed = timeless(log)[place]["round"]
    for number in range(int(failed)):
        assert session.step().expected_generation == number
    before = session.sequences_so_far()
    with pytest.raises(error):
        session.step()
    assert session.coordinate().generation == int(failed) + 1
    assert sum(map(len, session.sequences_so_far())) > sum(map(len, before))
    assert torch.equal(session.result(), expected.sequences)
    assert timeless(records) == timeless(log)


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_after_a_failed_call_the_file_holds_complete_lines_of_what_was_published(models, tmp_path, error):
    path, calls = tmp_path / "log.jsonl", [0]

    def criterion(ids, scores):
        calls[0] += 1
        if calls[0] == 9:
            raise error
        return torch.zeros(len(ids), dtype=torch.bool)

    settings = {**SETTINGS, **assistance(models), **MODES["maximal"], "eos_token_id": None}
    _, log = told(models, prompts([6]), **settings)
    with pytest.raises(error) as caught:
        hf_exactassist.generate(models[0], **prompts([6]), **settings, telemetry=path, stopping_criteria=[criterion])
    text = path.read_text()
    assert text.endswith("\n")
    records = timeless([json.loads(line) for line in text.splitlines()])
    # the criterion is part of the coordinate
    ours, theirs = ([{**one, "coordinate": None} for one in some] for some in (records, timeless(log)))
    assert records[-1]["event"] == "round" and 2 < len(records) < len(log)
    assert [{k: v for k, v in one.items()} for one in ours] == theirs[: len(ours)]
    del caught
    gc.collect()
    assert not held_open(path)


def test_an_interruption_while_writing_leaves_no_half_of_a_line(models, tmp_path, monkeypatch):
    """Lines reach the file a round at a time; an encoder that is interrupted has written nothing."""
    path, dumps, count = tmp_path / "log.jsonl", json.dumps, [0]

    def interrupted(record, **settings):
        count[0] += "event" in record
        if count[0] == 6:
            raise KeyboardInterrupt
        return dumps(record, **settings)

    settings = {**SETTINGS, **assistance(models), **MODES["maximal"]}
    expected, log = told(models, prompts([6]), **settings)
    session = hf_exactassist.start(models[0], **prompts([6]), **settings, telemetry=path)
    with monkeypatch.context() as patch:
        patch.setattr(acceptance_log.json, "dumps", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.result()
    assert torch.equal(session.result(), expected.sequences)
    records = timeless([json.loads(line) for line in path.read_text().splitlines()])
    lost = timeless(log)[5]["round"]
    assert records == json.loads(json.dumps([one for one in timeless(log) if one["round"] != lost]))
