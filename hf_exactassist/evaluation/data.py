"""What a pair is evaluated on: prompts from a data set, or the few that come along."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, UnusableData
from .sources import Table, open_table
from .texts import check_chat_template, fill, in_chat, parse_template, short_text, whole_text


if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase


SHIPPED = Path(__file__).with_name("prompts.jsonl")
KINDS = ("prose", "code", "lists", "dialogue", "translation", "copying")
# the kind of prompts for which no column tells one
NO_KIND = "given"
# columns that are taken where none is named
USUAL = ("prompt", "text", "messages")


@dataclass(frozen=True)
class Prompt:
    """A text to be continued.

    Attributes:
        index (`int`): the number of its row in the data set, from 0.
        kind (`str`): what sort of text it is, or which domain it is from.
        text (`str`): the text, never blank.
        reference (`str`, *optional*): what a good continuation would be.
    """

    index: int
    kind: str
    text: str
    reference: str | None = None


@dataclass(frozen=True)
class PromptSet:
    """Prompts in the order in which they are evaluated.

    Attributes:
        prompts (`tuple[Prompt, ...]`): at least one.
        origin (`dict[str, Any]`): where they come from and how they were chosen, as JSON can write it.
        chat (`bool`): whether a chat template wrote them: then tokenize with `add_special_tokens=False`.
    """

    prompts: tuple[Prompt, ...]
    origin: dict[str, Any]
    chat: bool

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the texts in their order, as a JSON list in ASCII."""
        return hashlib.sha256(json.dumps([prompt.text for prompt in self.prompts]).encode()).hexdigest()

    def manifest(self) -> dict[str, Any]:
        """What a report says of its prompts: origin, rows in their order, fingerprint."""
        return {
            **self.origin,
            "chat": self.chat,
            "rows": [prompt.index for prompt in self.prompts],
            "sha256": self.fingerprint,
        }


@dataclass(frozen=True)
class Selection:
    """Which prompts of which data set.

    Attributes:
        dataset (`str`): a file (`.json`, `.jsonl`, `.parquet`, `.csv`, `.txt`), a folder of such files or one that
            `save_to_disk` wrote, or a Hub id, `owner/name`.
        config (`str`, *optional*): the configuration, of data sets that have several.
        split (`str`, *optional*): may be left out where there is but one.
        column (`str`, *optional*): texts, or lists of messages for a chat template; by default the only column or the
            one called `prompt`, `text` or `messages`.
        template (`str`, *optional*): makes the text of several columns instead: `"Translate: {source}"`.
        kind_column (`str`, *optional*): names the kind or domain of each prompt.
        reference_column (`str`, *optional*): what a good continuation would be, which may be missing in some rows.
        limit (`int`, *optional*): so many prompts at most.
        shuffle_seed (`int`, *optional*): takes rows in an order that depends on this number and the number of rows
            alone; without it, they stay as they are. A smaller limit takes the first of the same order.
    """

    dataset: str
    config: str | None = None
    split: str | None = None
    column: str | None = None
    template: str | None = None
    kind_column: str | None = None
    reference_column: str | None = None
    limit: int | None = None
    shuffle_seed: int | None = None


def dataset_prompts(selection: Selection, tokenizer: PreTrainedTokenizerBase | None = None) -> PromptSet:
    """Prompts of a data set.

    Args:
        selection (`Selection`): which.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): writes texts and messages in its chat template. Answers at
            the end of the messages are left out; the first is the reference where no column is named for it.

    Returns:
        `PromptSet`: its origin names the split and the column that were taken.

    Raises:
        InvalidArgument: a limit, seed, column or template that cannot be; no chat template; `datasets` is missing.
        UnusableData: the data set is not there, cannot be read, or has rows that give no prompt.
    """
    if selection.limit is not None and selection.limit < 1:
        raise InvalidArgument(f"The limit must be at least 1, got {selection.limit}: leave it out to take all rows.")
    if selection.column is not None and selection.template is not None:
        raise InvalidArgument("A column and a template both say what the prompts are: choose one.")
    if tokenizer is not None:
        check_chat_template(tokenizer)
    table = open_table(selection.dataset, selection.config, selection.split)
    reader = _Reader(selection, table.rows, tokenizer)
    chosen = _order(table, selection)
    rows = table.rows.select_columns(reader.needed).select(chosen)
    prompts = tuple(reader.prompt(index, row) for index, row in zip(chosen, rows, strict=True))
    taken = replace(selection, split=table.split, column=reader.column)
    return PromptSet(prompts, asdict(taken), tokenizer is not None)


def shipped_prompts(
    kinds: Sequence[str] = KINDS, each: int | None = None, tokenizer: PreTrainedTokenizerBase | None = None
) -> PromptSet:
    """The prompts that come with the package; `README.md` beside this file says what they are.

    Args:
        kinds (`Sequence[str]`): some of `KINDS`.
        each (`int`, *optional*): prompts per kind at most; all by default.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): writes each in its chat template, as said by the user.

    Raises:
        InvalidArgument: an unknown kind or none, `each` below 1, no chat template.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidArgument(f"Unknown kind {kind!r}: choose one of {', '.join(KINDS)}.")
    if not kinds or (each is not None and each < 1):
        raise InvalidArgument("No prompts are asked for: give at least one kind, and at least 1 of each.")
    if tokenizer is not None:
        check_chat_template(tokenizer)
    entries = [json.loads(line) for line in SHIPPED.read_text(encoding="utf-8").splitlines()]
    numbered = list(enumerate(entries))
    prompts = []
    for kind in dict.fromkeys(kinds):
        for index, entry in [(index, entry) for index, entry in numbered if entry["kind"] == kind][:each]:
            text = entry["text"]
            if tokenizer is not None:
                text, _ = in_chat(text, tokenizer, "text", entry["id"])
            prompts.append(Prompt(index, kind, text))
    return PromptSet(tuple(prompts), {"dataset": "shipped"}, tokenizer is not None)


def _order(table: Table, selection: Selection) -> list[int]:
    order = list(table.used)
    seed = selection.shuffle_seed
    if seed is not None:
        # the same order everywhere and always, which the shufflers of libraries do not promise
        order.sort(key=lambda index: hashlib.sha256(f"{seed} {index}".encode()).digest())
    return order[: selection.limit]


class _Reader:
    """Makes prompts of rows."""

    def __init__(self, selection: Selection, rows: Dataset, tokenizer: PreTrainedTokenizerBase | None) -> None:
        columns = rows.column_names
        self.name, self.tokenizer = selection.dataset, tokenizer
        self.parts = [] if selection.template is None else parse_template(selection.template, columns)
        self.column = _text_column(selection.column, columns) if not self.parts else None
        self.kind, self.reference = selection.kind_column, selection.reference_column
        for role, column in (("text", self.column), ("kind", self.kind), ("reference", self.reference)):
            if column is not None and column not in columns:
                raise InvalidArgument(f"There is no {role} column {column!r}: the columns are {', '.join(columns)}.")
        # numbers that stand for names
        self.kinds = getattr(rows.features[self.kind], "names", None) if self.kind else None
        fields = [field for _, field in self.parts]
        wanted = [*fields, self.column, self.kind, self.reference]
        self.needed = list(dict.fromkeys(column for column in wanted if column is not None))

    def prompt(self, index: int, row: dict[str, Any]) -> Prompt:
        where = f"Row {index} of {self.name} (counted from 0)"
        value = fill(self.parts, row, where) if self.column is None else row[self.column]
        column = self.column or "template"
        answer = None
        if self.tokenizer is None:
            text = whole_text(value, column, where)
        else:
            text, answer = in_chat(value, self.tokenizer, column, where)
        if not text.strip():
            raise UnusableData(f"{where} is blank: give it some text, or take it out.")
        if self.reference is not None:
            answer = row[self.reference]
            answer = None if answer is None else short_text(answer, self.reference, where)
        return Prompt(index, self._kind(row, where), text, answer)

    def _kind(self, row: dict[str, Any], where: str) -> str:
        if self.kind is None:
            return NO_KIND
        value = row[self.kind]
        if self.kinds and value is not None:
            # -1 is no name
            value = self.kinds[value] if value >= 0 else None
        kind = short_text(value, self.kind, where)
        if not kind.strip():
            raise UnusableData(f"{where} has no kind in the column {self.kind!r}: fill it in, or take the row out.")
        return kind


def _text_column(column: str | None, columns: Sequence[str]) -> str:
    if column is not None:
        return column
    usual = [name for name in USUAL if name in columns] if len(columns) > 1 else list(columns)
    if len(usual) != 1:
        raise InvalidArgument(f"Which column has the prompts? Name one of {', '.join(columns)}, or give a template.")
    return usual[0]
