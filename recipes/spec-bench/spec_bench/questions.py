"""The benchmark's questions and the six tasks they belong to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from hf_exactassist.errors import UnusableData
from hf_exactassist.evaluation.sources import open_table


# in the order and by the names of published tables; the first one's categories are those of MT-bench
TASKS = {
    "Multi-turn Conversation": (
        "writing",
        "roleplay",
        "reasoning",
        "math",
        "coding",
        "extraction",
        "stem",
        "humanities",
    ),
    "Translation": ("translation",),
    "Summarization": ("summarization",),
    "Question Answering": ("qa",),
    "Mathematical Reasoning": ("math_reasoning",),
    "Retrieval-aug. Generation": ("rag",),
}
TASK_OF = {category: task for task, categories in TASKS.items() for category in categories}


@dataclass(frozen=True)
class Question:
    """What a user says, turn by turn.

    Attributes:
        question_id (`int | str`): its name in the file.
        category (`str`): one of those in `TASKS`.
        turns (`tuple[str, ...]`): at least one.
    """

    question_id: int | str
    category: str
    turns: tuple[str, ...]

    @property
    def task(self) -> str:
        """The task the category belongs to."""
        return TASK_OF[self.category]


def read_questions(source: str, split: str | None = None) -> list[Question]:
    """All questions of a local copy or a data set.

    Args:
        source (`str`): a JSON lines file as the benchmark's `question.jsonl`, another file or folder, or a Hub id.
        split (`str`, *optional*): of a data set.

    Raises:
        UnusableData: it cannot be read, or has something that is no question of this benchmark.
    """
    questions = []
    numbers: dict[int | str, str] = {}
    for where, entry in _entries(source, split):
        question = _question(where, entry)
        if question.question_id in numbers:
            before = numbers[question.question_id]
            raise UnusableData(f"{where} has the question_id {question.question_id} of {before}: number them apart.")
        numbers[question.question_id] = where
        questions.append(question)
    if not questions:
        raise UnusableData(f"{source} has no questions: give a copy of the benchmark's question.jsonl.")
    return questions


def choose(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """The first questions of each task, in their order."""
    taken = dict.fromkeys(TASKS, 0)
    chosen = []
    for question in questions:
        taken[question.task] += 1
        if limit is None or taken[question.task] <= limit:
            chosen.append(question)
    return chosen


def fingerprint(questions: Sequence[Question]) -> str:
    """SHA-256 of all that is asked."""
    return hashlib.sha256(json.dumps([astuple(question) for question in questions]).encode()).hexdigest()


def _entries(source: str, split: str | None) -> Iterator[tuple[str, Any]]:
    path = Path(source).expanduser()
    if path.is_file() and path.suffix.lower() in (".jsonl", ".json"):
        # `datasets` wants fields to be of one type everywhere, which references are not
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UnusableData(f"Cannot read {path} ({error}): give a text file in UTF-8.") from error
        for number, line in enumerate(lines, 1):
            if line.strip():
                where = f"Line {number} of {path}"
                try:
                    yield where, json.loads(line)
                except ValueError as error:
                    raise UnusableData(f"{where} is no JSON ({error}): give one object a line.") from error
        return
    table = open_table(source, None, split)
    for number in table.used:
        yield f"Row {number} of {source} (counted from 0)", table.rows[number]


def _question(where: str, entry: Any) -> Question:
    if not isinstance(entry, dict):
        raise UnusableData(f"{where} is no object: a question has question_id, category and turns.")
    missing = [name for name in ("question_id", "category", "turns") if entry.get(name) is None]
    if missing:
        raise UnusableData(f"{where} lacks {' and '.join(missing)}: a question has question_id, category and turns.")
    number, category, turns = entry["question_id"], entry["category"], entry["turns"]
    if isinstance(number, bool) or not isinstance(number, (int, str)):
        raise UnusableData(f"{where} has the question_id {number!r}: give a number or a name.")
    if category not in TASK_OF:
        raise UnusableData(f"{where} has the unknown category {category!r}: known are {', '.join(TASK_OF)}.")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise UnusableData(f"{where} must have `turns`, a list of at least one text, none of them blank.")
    return Question(number, category, tuple(turns))
