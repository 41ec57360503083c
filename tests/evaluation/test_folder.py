"""The run folder: whose it is, what goes on, and what a crash leaves behind."""

import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest

from hf_exactassist.errors import DamagedRecords, FolderInUse, ForeignFolder, OtherEvaluation, UnusableFolder
from hf_exactassist.evaluation import pages
from hf_exactassist.evaluation.finishing import write_results
from hf_exactassist.evaluation.folder import Folder
from hf_exactassist.evaluation.plan import CALL, COMPARE, Step, Unit
from hf_exactassist.evaluation.records import Call, Comparison
from tests.evaluation.made_reports import made_report


def manifest(**changes):
    prompts = {"sha256": "a", "chat": False, "dataset": "here", **changes.pop("prompts", {})}
    return {"header": {"date": "today"}, "plan": {"seed": 0}, "prompts": prompts, **changes}


def record(batch=0):
    unit = Unit("greedy", 0, batch)
    return Call(Step(CALL, unit, "plain"), [batch], [3], [[5, 2]], [True], {"cpu": 1.0, "wall": 2.0})


@pytest.fixture
def started(tmp_path):
    """A folder with two records, closed."""
    folder = Folder(tmp_path / "run")
    folder.open(manifest())
    folder.append(record(0))
    folder.append(record(1))
    folder.close()
    return folder.path


def opened(path, *arguments):
    folder = Folder(path)
    folder.open(*arguments or (manifest(),))
    found = folder.records()
    folder.close()
    return found


def test_records_come_back(started):
    assert opened(started) == [record(0), record(1)]
    comparison = Comparison(Step(COMPARE, Unit("greedy", 0, 0)), [0], {"small, K=2": [None]})
    folder = Folder(started)
    folder.open(manifest())
    folder.append(comparison)
    folder.close()
    assert opened(started) == [record(0), record(1), comparison]


def test_the_header_and_where_prompts_lie_may_differ(started):
    folder = Folder(started)
    there = folder.open(manifest(header={"date": "tomorrow"}, prompts={"dataset": "elsewhere"}))
    folder.close()
    assert there["header"] == {"date": "today"} and there["prompts"]["dataset"] == "elsewhere"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"plan": {"seed": 1}}, r"other plan.seed \(--seed\):"),
        ({"prompts": {"sha256": "b"}}, r"other prompts.sha256 \(the prompts: --dataset, --limit, ...\):"),
        ({"models": {"target": {"weights": "c"}}}, "other models:"),
    ],
)
def test_another_evaluation_is_refused_by_name(started, changes, says):
    with pytest.raises(OtherEvaluation, match=says) as caught:
        opened(started, manifest(**changes))
    assert "--out" in str(caught.value) and "--overwrite" in str(caught.value)
    # nothing has happened to it, and nobody holds it
    assert len(opened(started)) == 2


def test_overwriting_deletes_what_is_ours_alone(started):
    (started / "notes.txt").write_text("mine")
    (started / "report.json").write_text("{}")
    assert opened(started, manifest(plan={"seed": 1}), True) == []
    assert (started / "notes.txt").read_text() == "mine" and not (started / "report.json").exists()


@pytest.mark.parametrize("name", ["thesis.txt", "manifest.json", "records.jsonl"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_foreign_folder_is_refused_and_left_alone(tmp_path, name, overwrite):
    (tmp_path / name).write_text('{"kind": "a thesis"}')
    with pytest.raises(ForeignFolder, match="something else than an evaluation"):
        opened(tmp_path, manifest(), overwrite)
    with pytest.raises(ForeignFolder):
        Folder(tmp_path).require_ours()
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableFolder, match="is no folder"):
        Folder(tmp_path / "file").require_ours()
    with pytest.raises(UnusableFolder, match="Cannot write into"):
        opened(tmp_path / "file")


def test_a_torn_line_is_cut_off(started):
    file = started / "records.jsonl"
    whole = file.read_bytes()
    for cut in (1, 20, len(whole) // 2 - 1):
        file.write_bytes(whole[:-cut])
        assert opened(started) == [record(0)]
        assert file.read_bytes() == whole[: len(whole) // 2]
    # a line that was whole but for its end is done again, and does not run into the next
    folder = Folder(started)
    folder.open(manifest())
    folder.append(record(1))
    folder.close()
    assert file.read_bytes() == whole


@pytest.mark.parametrize("line", [b'{"half": ', b"\xff\xfe\x00", b"", b'{"kind": "call\xe2\x80\xa8"}', b"\x85"])
def test_a_damaged_line_is_told(started, line):
    file = started / "records.jsonl"
    first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(first + line + b"\n" + second)
    with pytest.raises(DamagedRecords, match="records.jsonl, line 2, is no record"):
        opened(started)


def test_records_of_any_number_of_processes_are_read(started):
    folder = Folder(started)
    folder.open(manifest())
    folder.append(record(2), process=1, processes=2)
    folder.close()
    assert (started / "records-00002-of-00002.jsonl").exists()
    assert Folder(started).processes() == 2 and Folder(started / "none").processes() == 1
    assert sorted(one.prompts[0] for one in opened(started)) == [0, 1, 2]


@contextmanager
def room(size):
    """Lets no file grow beyond a size, as a full disk would; Python ignores the signal that comes with it."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_record_for_which_there_is_no_room_is_told_and_the_folder_let_go(started):
    folder = Folder(started)
    folder.open(manifest())
    with room((started / "records.jsonl").stat().st_size + 5):
        with pytest.raises(UnusableFolder, match="Cannot write records.jsonl in .*steps are kept: make room"):
            folder.append(record(2))
        # as long as there is none
        folder.close()
    assert opened(started) == [record(0), record(1)]


def test_a_result_that_cannot_be_written_is_told_and_leaves_nothing(started, monkeypatch):
    monkeypatch.setattr(pages, "html", lambda report: "<!doctype html>")
    folder = Folder(started)
    folder.write("report.json", "before")
    with room(10), pytest.raises(UnusableFolder, match="Cannot write report.json in .*File too large"):
        folder.write("report.json", "a" * 11)
    assert (started / "report.json").read_text() == "before"
    for name in ("report.md", "rounds.parquet"):
        (started / name).mkdir()
    with pytest.raises(UnusableFolder, match="Cannot write report.md"):
        write_results(folder, made_report(), [])
    (started / "report.md").rmdir()
    for rows in ([], [{"round": 0}]):
        with pytest.raises(UnusableFolder, match="Cannot write rounds.parquet"):
            write_results(folder, made_report(), rows)
    assert not list(started.glob(".*.new"))


def test_two_at_a_time_are_refused(started):
    first, second = Folder(started), Folder(started)
    first.open(manifest())
    with pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}"):
        second.open(manifest())
    # the one that was refused does not free it
    second.close()
    with pytest.raises(FolderInUse):
        second.open(manifest(), True)
    first.close()
    second.open(manifest())
    second.close()


def test_what_a_killed_process_held_is_free(started):
    code = f"""
import os, signal
from pathlib import Path
from hf_exactassist.evaluation.lock import Lock
Lock(Path({str(started / ".lock")!r})).take()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert (started / ".lock").read_text()
    assert len(opened(started)) == 2


@pytest.mark.parametrize("held", ["", "{", '{"host": "another", "pid": 1}', '{"host": "HERE", "pid": 1}'])
def test_a_lock_file_that_nobody_holds_is_free_whatever_it_says(tmp_path, held):
    """A job that is queued again may find itself on another node, and in a container any process may be 1."""
    (tmp_path / ".lock").write_text(held.replace("HERE", socket.gethostname()))
    assert opened(tmp_path) == []


def test_a_file_system_without_locks_goes_by_what_is_written(started, monkeypatch):
    def none(file):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("hf_exactassist.evaluation.lock._lock", none)
    first = Folder(started)
    first.open(manifest())
    with pytest.raises(FolderInUse, match=f"in use by process {os.getpid()} on .*without locks.*delete .*lock"):
        opened(started)
    first.close()
    assert len(opened(started)) == 2
