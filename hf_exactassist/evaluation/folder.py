"""The folder of a run: what is evaluated, and one line for every finished step, so that an interrupted run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from ..errors import DamagedRecords, ForeignFolder, OtherEvaluation, UnusableFolder
from .lock import LOCK, Lock
from .records import Record, from_json, to_json


MANIFEST = "manifest.json"
RESULTS = ("report.json", "report.md", "report.html", "rounds.parquet")
_RECORDS = "records*.jsonl"
_SHARED = "records-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].jsonl"
# what decides on parts of a manifest whose name does not say so
_OPTIONS = {
    "prompts.sha256": "the prompts: --dataset, --limit, ...",
    "prompts.chat": "--chat",
    "plan.arms": "--assistant, --num-assistant-tokens, ...",
    "plan.modes": "--mode",
    "plan.max_new_tokens": "--max-new-tokens",
    "plan.batch_size": "--batch-size",
    "plan.repeats": "--repeats",
    "plan.seed": "--seed",
    "threads": "--threads",
}
# says that a folder is ours
_KIND = "exactassist evaluation"


class Folder:
    """A folder that holds one evaluation.

    Args:
        path (`str` or `PathLike`): made if it is not there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = Lock(self.path / LOCK)
        self._file: TextIOWrapper | None = None

    def open(self, manifest: dict[str, Any], overwrite: bool = False) -> dict[str, Any]:
        """Takes the folder, for one process alone, and mends what a crash has left of a line.

        Args:
            manifest (`dict[str, Any]`): what is evaluated, as JSON can write it.
            overwrite (`bool`): whether an evaluation that is there goes, and not on.

        Returns:
            `dict[str, Any]`: the manifest in force; where a run goes on, its header is that of the beginning.

        Raises:
            ForeignFolder: it holds something else, which is never deleted.
            OtherEvaluation: it holds another evaluation.
            FolderInUse: another process has it.
            DamagedRecords: a line of its records is none.
            UnusableFolder: it cannot be written.
        """
        manifest = json.loads(json.dumps({"kind": _KIND, **manifest}))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            # nothing is written into what is not ours, not even a lock
            self._manifest()
            self._lock.take()
            there = self._manifest()
            if there is not None and overwrite:
                self._clear()
                there = None
            if there is not None:
                self._require_same(there, manifest)
                manifest["header"] = there["header"]
                for file in self._files():
                    _mend(file)
            self.write(MANIFEST, json.dumps(manifest, indent=1) + "\n")
        except OSError as error:
            self.close()
            raise UnusableFolder(
                f"Cannot write into {self.path}: {error.strerror or error}. Give a folder that can be written to."
            ) from error
        except BaseException:
            self.close()
            raise
        return manifest

    def require_ours(self) -> None:
        """Looks into the folder before anything else is done.

        Raises:
            ForeignFolder: it holds something else than an evaluation.
            UnusableFolder: it is none.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UnusableFolder(f"{self.path} is no folder: give another name (--out).")
        if self.path.exists():
            self._manifest()

    def records(self) -> list[Record]:
        """What is recorded, by whatever number of processes, in the order of the files.

        Raises:
            DamagedRecords: a line is none.
        """
        found = []
        for file in self._files():
            for number, line in enumerate(file.read_bytes().splitlines(), start=1):
                try:
                    found.append(from_json(json.loads(line.decode("utf-8"))))
                except ValueError as error:
                    raise DamagedRecords(
                        f"{file}, line {number}, is no record: take the line out, and its step is done again; or "
                        "start over with --overwrite (`overwrite=True`)."
                    ) from error
        return found

    def processes(self) -> int:
        """By how many processes its records were made; the most where it was gone on with by others."""
        return max((int(file.stem.rpartition("-of-")[2]) for file in self.path.glob(_SHARED)), default=1)

    def append(self, record: Record, process: int = 0, processes: int = 1) -> None:
        """Adds a record, which stays from here on.

        Args:
            record (`Record`): of a finished step.
            process (`int`): who has done it, from 0; always the same.
            processes (`int`): of so many.

        Raises:
            UnusableFolder: it cannot be written.
        """
        part = "" if processes == 1 else f"-{process + 1:05d}-of-{processes:05d}"
        name = f"records{part}.jsonl"
        with self._writing(name):
            if self._file is None:
                self._file = (self.path / name).open("a", encoding="utf-8")
            # one write, so that an interruption leaves no half of a line behind
            self._file.write(json.dumps(to_json(record)) + "\n")
            self._file.flush()

    def write(self, name: str, text: str) -> None:
        """Writes a file; see [`Folder.replacing`]."""
        with self.replacing(name) as new:
            new.write_text(text, encoding="utf-8")

    @contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """A file to write that then takes the place of another: whoever reads that meanwhile finds it whole.

        Raises:
            UnusableFolder: it cannot be written.
        """
        new = self.path / f".{name}.new"
        with self._writing(name):
            try:
                yield new
                new.replace(self.path / name)
            finally:
                new.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Deletes a file, if it is there.

        Raises:
            UnusableFolder: it cannot be deleted.
        """
        with self._writing(name):
            (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Lets the folder go."""
        file, self._file = self._file, None
        try:
            # only a record that could not be written, as has been told, is still to be written
            if file is not None:
                with suppress(OSError):
                    file.close()
        finally:
            self._lock.release()

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UnusableFolder(
                f"Cannot write {name} in {self.path}: {error.strerror or error}. Finished steps are kept: make "
                "room, or make the folder and that file writable, and the same command goes on."
            ) from error

    def _files(self) -> list[Path]:
        return sorted(self.path.glob(_RECORDS))

    def _manifest(self) -> dict[str, Any] | None:
        """The manifest that is there; `None` in an empty folder."""
        if not any(file.name not in (LOCK, f".{MANIFEST}.new") for file in self.path.iterdir()):
            return None
        try:
            there = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
            if there["kind"] == _KIND:
                return dict(there)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise ForeignFolder(
            f"{self.path} holds something else than an evaluation: give an empty or new folder (--out)."
        )

    def _require_same(self, there: dict[str, Any], wanted: dict[str, Any]) -> None:
        parts = _differences(_that_matters(there), _that_matters(wanted))
        if parts:
            parts = [f"{part} ({_OPTIONS[part]})" if part in _OPTIONS else part for part in parts]
            raise OtherEvaluation(
                f"{self.path} holds another evaluation, with other {', '.join(parts[:6])}: give another folder "
                "(--out), or start over with --overwrite (`overwrite=True`), which deletes it."
            )

    def _clear(self) -> None:
        for file in (*self._files(), *(self.path / name for name in (*RESULTS, MANIFEST))):
            file.unlink(missing_ok=True)


def _mend(file: Path) -> None:
    """Cuts off what a crash has left of a last line."""
    with file.open("r+b") as opened:
        whole = opened.read().rfind(b"\n") + 1
        opened.truncate(whole)


def _that_matters(manifest: dict[str, Any]) -> dict[str, Any]:
    """Without the time and the load of the machine, and of the prompts only what is decoded."""
    prompts = {name: manifest.get("prompts", {}).get(name) for name in ("sha256", "chat")}
    return {**manifest, "header": None, "prompts": prompts}


def _differences(there: Any, wanted: Any, path: str = "") -> list[str]:
    """Where two values differ."""
    if isinstance(there, dict) and isinstance(wanted, dict):
        return [
            found
            for name in sorted(there.keys() | wanted.keys())
            for found in _differences(there.get(name), wanted.get(name), f"{path}.{name}" if path else name)
        ]
    return [] if there == wanted else [path]
