"""A folder that answers are added to one by one, and that an interrupted run goes on in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hf_exactassist.errors import UnusableData


class Results:
    """Answers that are there, and where further ones go.

    Args:
        folder (`Path`): made if it is not there.
        settings (`dict[str, Any]`): all that answers and times depend on, as JSON can write it.

    Attributes:
        records (`dict[int | str, dict[str, Any]]`): answers by the number of their question.

    Raises:
        UnusableData: the folder holds something else, answers made with other settings, or a line that is no answer.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, settings
        self._file, self._settings_file = folder / "answers.jsonl", folder / "settings.json"
        if folder.exists() and not folder.is_dir():
            raise UnusableData(f"{folder} is no folder: give another name (--out).")
        folder.mkdir(parents=True, exist_ok=True)
        if self._settings_file.exists():
            self._compare(self._before())
        elif self._file.exists():
            raise UnusableData(f"{folder} has answers without their settings: give another folder.")
        elif any(folder.iterdir()):
            raise self._foreign()
        else:
            self._settings_file.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        self.records = self._read() if self._file.exists() else {}

    def add(self, record: dict[str, Any]) -> None:
        """Writes an answer down before the next question is asked."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[record["question_id"]] = record

    def _before(self) -> dict[str, Any]:
        try:
            before = json.loads(self._settings_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise self._foreign() from error
        if not isinstance(before, dict) or self.settings.keys().isdisjoint(before):
            raise self._foreign()
        return before

    def _foreign(self) -> UnusableData:
        return UnusableData(f"{self.folder} holds something else than answers: give an empty or new folder (--out).")

    def _compare(self, before: dict[str, Any]) -> None:
        for name in {**before, **self.settings}:
            there, now = before.get(name), self.settings.get(name)
            if there != now:
                raise UnusableData(
                    f"{self.folder} has answers with {name} = {there!r}, and now it is {now!r}: give another folder, "
                    "or the same settings."
                )

    def _read(self) -> dict[int | str, dict[str, Any]]:
        content = self._file.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            # an interrupted write
            os.truncate(self._file, len(whole))
        records = {}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
                records[record["question_id"]] = record
            except (ValueError, KeyError, TypeError) as error:
                raise UnusableData(
                    f"Line {number} of {self._file} is no answer: take it out, or give another folder."
                ) from error
        return records
