"""An evaluation from beginning to end: interrupted and gone on with, refused, shared by processes."""

import dataclasses
import json
import threading

import pytest

from hf_exactassist import resolve
from hf_exactassist.errors import (
    FolderInUse,
    NotReproducible,
    OtherEvaluation,
    UnsupportedArgument,
    UnsupportedDecodingMode,
)
from hf_exactassist.evaluation import pages
from hf_exactassist.evaluation.decoding import Decoded, Decoder
from hf_exactassist.evaluation.folder import Folder
from hf_exactassist.evaluation.plan import LOOK, Arm, Plan
from hf_exactassist.evaluation.processes import Processes
from hf_exactassist.evaluation.records import Call, Comparison, to_json
from hf_exactassist.evaluation.running import evaluate
from tests.evaluation.small import prompts, small_models, standing


PLAN = Plan(
    (Arm("small", 2), Arm("small"), Arm("small", 2, "shared_noise")), batch_size=2, repeats=2, max_new_tokens=6
)
PROMPTS = prompts("a b c", "d e f g h", "b")
# by mode: calls of all ways and repeats, looks of the first repeat, comparisons; times two batches
STEPS = 2 * (3 * 2 + 2 + 2) + 2 * (4 * 2 + 3 + 2)


@pytest.fixture(autouse=True, scope="module")
def no_pages():
    """Pictures take seconds, and have tests of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "html", lambda report: "<!doctype html>")
        yield


@pytest.fixture(scope="module")
def models():
    return small_models(initializer_range=0.1)


def run(models, folder, plan=PLAN, **more):
    return evaluate(models, PROMPTS, plan, folder, **{"timed": standing, **more})


def as_json(report):
    return json.loads(json.dumps(report))


def recorded(folder):
    """Records without what a clock says, in the order of their steps."""
    lines = []
    for file in folder.glob("records*.jsonl"):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            for part in (record.get("stats") or {}, *record.get("events", ())):
                for name in ("seconds", "costs", "timed"):
                    part.pop(name, None)
                if "round" in part:
                    # behind the name of the call, another one each time
                    part["round"] = part["round"].partition("/")[2]
            lines.append(json.dumps(record, sort_keys=True))
    return sorted(lines)


@pytest.fixture(scope="module")
def whole(models, tmp_path_factory):
    """A run without an interruption: its folder and its report."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        # as for every test, but those of a whole module come first
        patch.setattr(resolve, "DEFAULT_SCHEDULE", "constant")
        return folder, as_json(run(models, folder))


def test_what_is_recorded(models, whole):
    folder, report = whole
    records = Folder(folder).records()
    assert len(records) == len({record.step for record in records}) == STEPS
    assert report["complete"] and report["steps"] == {"done": STEPS, "all": STEPS}
    for record in records:
        unit = record.step.unit
        assert record.prompts == [[0, 1], [2]][unit.batch]
        if isinstance(record, Call):
            assert record.seconds == {"cpu": 1.0, "wall": 2.0}
            assert record.prompt_lengths == [[3, 5], [1]][unit.batch]
            assert (record.likelihoods is not None) == (unit.mode == "sampled")
            assert (record.stats is None) == (record.step.arm == "plain")
            assert record.ended == [text[-1] == 2 for text in record.texts]
        if isinstance(record, Comparison):
            wanted = ["small, K=2, shared noise"] if unit.mode == "sampled" else ["small, K=2", "small, default"]
            assert list(record.divergences) == wanted
            assert all(found == [None] * len(record.prompts) for found in record.divergences.values())
    assert json.loads((folder / "report.json").read_text()) == report
    for name in ("report.md", "report.html", "rounds.parquet"):
        assert (folder / name).stat().st_size
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        [".lock", "manifest.json", "records.jsonl", "report.html", "report.json", "report.md", "rounds.parquet"]
    )


@pytest.mark.parametrize("at", [0, 1, 7, STEPS // 2, STEPS - 1])
def test_an_interrupted_run_goes_on_to_the_same_records(models, whole, tmp_path, at):
    folder, report = whole
    count = []

    def stops(done, all_steps, label):
        if all_steps:
            count.append(label)
            if len(count) == at + 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(models, tmp_path, progress=stops)
    partial = json.loads((tmp_path / "report.json").read_text())
    assert not partial["complete"] and partial["steps"] == {"done": at, "all": STEPS}
    # as a crash would leave it
    file = tmp_path / "records.jsonl"
    if at > 1:
        file.write_bytes(file.read_bytes()[:-30])
    seen = []
    again = run(models, tmp_path, progress=lambda done, all_steps, label: seen.append((done, all_steps, label)))
    first = next(one for one in seen if one[1])
    assert first[:2] == (at - (at > 1), STEPS)
    assert recorded(tmp_path) == recorded(folder)
    assert again["digest"] == report["digest"] and again["complete"]


def test_an_interruption_within_a_step(models, whole, tmp_path):
    class Stops(Decoder):
        left = 17

        def __call__(self, *arguments):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().__call__(*arguments)

    with pytest.raises(KeyboardInterrupt):
        run(models, tmp_path, decoder=Stops(models))
    assert 0 < len(recorded(tmp_path)) < STEPS
    assert run(models, tmp_path)["digest"] == whole[1]["digest"]
    assert recorded(tmp_path) == recorded(whole[0])


def test_a_finished_run_decodes_nothing_again(models, whole):
    class Never(Decoder):
        def __call__(self, *arguments):
            raise AssertionError("decoded again")

    assert as_json(run(models, whole[0], decoder=Never(models))) == whole[1]


def test_other_settings_or_models_are_refused(models, whole):
    with pytest.raises(OtherEvaluation, match=r"other plan\.max_new_tokens \(--max-new-tokens\)"):
        run(models, whole[0], dataclasses.replace(PLAN, max_new_tokens=7))
    with pytest.raises(OtherEvaluation, match=r"other models\.assistants\.small\.weights"):
        run(small_models(noise=0.2, initializer_range=0.1), whole[0])
    models.target.generation_config.temperature = 0.5
    try:
        with pytest.raises(OtherEvaluation, match=r"other models\.target\.generation\.temperature"):
            run(models, whole[0])
    finally:
        models.target.generation_config.temperature = None
    assert len(recorded(whole[0])) == STEPS


def test_every_way_is_warmed_up_before_the_first_step_also_on_resuming(models, tmp_path):
    class Notes(Decoder):
        calls = ()

        def __call__(self, arm, rows, *arguments):
            self.calls = (*self.calls, (arm.name, max(map(len, rows))))
            return super().__call__(arm, rows, *arguments)

    def stops(done, all_steps, label):
        if done == STEPS - 2:
            raise KeyboardInterrupt

    first, second = Notes(models), Notes(models)
    with pytest.raises(KeyboardInterrupt):
        run(models, tmp_path, decoder=first, progress=stops)
    greedy = [("plain", 5), ("small, K=2", 5), ("small, default", 5)]
    assert list(first.calls[:7]) == [*greedy, *greedy, ("small, K=2, shared noise", 5)]
    run(models, tmp_path, decoder=second)
    # of the mode that is left alone
    assert list(second.calls[:4]) == [*greedy, ("small, K=2, shared noise", 5)]


# --- what cannot be decoded ---


class Refuses(Decoder):
    """Some ways are refused, from a call on."""

    def __init__(self, models, *names, after=0):
        super().__init__(models)
        self.names, self.after = names, after

    def __call__(self, arm, *arguments):
        self.after -= 1
        if arm.name in self.names and self.after < 0:
            raise UnsupportedArgument("Not this way: take another.")
        return super().__call__(arm, *arguments)


def test_refused_ways_are_left_out_and_told(models, tmp_path):
    report = run(models, tmp_path, decoder=Refuses(models, "small, default"))
    refused = {arm["name"]: arm["refused"] for mode in report["modes"] for arm in mode["arms"]}
    assert refused.pop("small, default") == "Not this way: take another." and set(refused.values()) == {None}
    assert report["complete"] and report["steps"]["all"] == STEPS - 2 * (4 + 2)
    records = Folder(tmp_path).records()
    assert not any(record.step.arm == "small, default" for record in records)
    assert not any("small, default" in one.divergences for one in records if isinstance(one, Comparison))


def test_nothing_is_left_if_all_are_refused(models, tmp_path):
    names = [arm.name for arm in PLAN.arms]
    with pytest.raises(UnsupportedDecodingMode, match="No way .* can be evaluated: Not this way"):
        run(models, tmp_path, decoder=Refuses(models, *names))
    with pytest.raises(UnsupportedArgument, match="^Not this way"):
        run(models, tmp_path, decoder=Refuses(models, "plain"))


def test_a_refusal_in_the_middle_ends_the_run_and_keeps_what_is_done(models, whole, tmp_path):
    with pytest.raises(UnsupportedArgument):
        run(models, tmp_path, decoder=Refuses(models, "small, K=2", after=12))
    assert recorded(tmp_path)
    assert run(models, tmp_path)["digest"] == whole[1]["digest"]


def test_a_call_that_is_not_reproducible_is_an_error(models, tmp_path):
    class Wavers(Decoder):
        def __call__(self, arm, rows, arguments, seed=None, listener=None):
            made = super().__call__(arm, rows, arguments, seed, listener)
            return made if listener is None else Decoded([[9, *text] for text in made.texts])

    with pytest.raises(NotReproducible, match=r"greedy, small, K=2, batch 1.*use_deterministic_algorithms"):
        run(models, tmp_path, decoder=Wavers(models))
    assert not any(record.step.kind == LOOK for record in Folder(tmp_path).records())


def test_draft_lengths_by_the_clock_may_differ(models):
    greedy, sampled = "greedy", "sampled"
    assert Arm("small").follows_clock(greedy) and not Arm("small").follows_clock(sampled)
    assert Arm("small", None, "shared_noise").follows_clock(sampled)
    assert not Arm("small", 2, "shared_noise").follows_clock(sampled) and not Arm().follows_clock(greedy)


def test_texts_that_part_are_told_with_their_margin(models, tmp_path):
    class Errs(Decoder):
        """Begins each assisted text with another token."""

        def __call__(self, arm, *arguments):
            made = super().__call__(arm, *arguments)
            if arm.drafter is None:
                return made
            return Decoded([[3 if text[0] != 3 else 4, *text[1:]] for text in made.texts], made.stats)

    run(models, tmp_path, dataclasses.replace(PLAN, repeats=1), decoder=Errs(models))
    found = [
        one
        for record in Folder(tmp_path).records()
        if isinstance(record, Comparison)
        for row in record.divergences.values()
        for one in row
    ]
    assert len(found) == 3 * 3
    for one in found:
        assert one["position"] == 0 and one["assisted"] in (3, 4) and one["margin"] > 0 and not one["tie"]


# --- several processes ---


class Met:
    """Stands for the connection of processes."""

    def __init__(self, barrier):
        self.wait_for_everyone = barrier.wait
        self.device = "cpu"


def test_processes_share_the_units(whole, tmp_path):
    # models of their own, as processes have them; sampled calls would seed the one torch there is
    models = [small_models(initializer_range=0.1) for _ in range(2)]
    greedy = dataclasses.replace(PLAN, modes=("greedy",))
    barrier, reports = threading.Barrier(2), {}

    def work(rank):
        reports[rank] = run(models[rank], tmp_path, greedy, processes=Processes(rank, 2, Met(barrier)))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert reports[1] is None and reports[0]["processes"] == 2 and reports[0]["complete"]
    files = sorted(file.name for file in tmp_path.glob("records*"))
    assert files == ["records-00001-of-00002.jsonl", "records-00002-of-00002.jsonl"]
    assert recorded(tmp_path) == [line for line in recorded(whole[0]) if '"mode": "greedy"' in line]
    # one process alone goes on with what two have begun
    (tmp_path / files[1]).unlink()
    alone = run(models[0], tmp_path, greedy)
    assert alone["digest"] == reports[0]["digest"] and alone["processes"] == 2
    assert (tmp_path / "records.jsonl").exists()


def test_the_folder_is_free_afterwards_and_taken_meanwhile(models, tmp_path):
    def intrudes(done, all_steps, label):
        if done == 3:
            with pytest.raises(FolderInUse):
                run(models, tmp_path)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(models, tmp_path, progress=intrudes)
    assert run(models, tmp_path)["complete"]


def test_records_can_be_written(whole):
    for record in Folder(whole[0]).records():
        json.dumps(to_json(record), allow_nan=False)
