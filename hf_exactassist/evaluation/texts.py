"""From a row of a data set to the text of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from string import Formatter
from typing import Any

from ..errors import InvalidArgument, UnusableData


def parse_template(template: str, columns: Sequence[str]) -> list[tuple[str, str | None]]:
    """Takes a template apart.

    A field is the name of a column and nothing else, so that a template cannot reach into objects.

    Args:
        template (`str`): such as `"Translate: {source}"`; `{{` and `}}` are braces.
        columns (`Sequence[str]`): which fields there are.

    Returns:
        `list[tuple[str, str | None]]`: pieces of text, each with the field after it, if there is one.

    Raises:
        InvalidArgument: unbalanced braces, a field that is no column, a field with more than a name, no field.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise InvalidArgument(f"The template {template!r} is not well-formed ({error}): write {{{{ for {{.") from error
    for _, field, form, conversion in parts:
        if field is None:
            continue
        if form or conversion:
            raise InvalidArgument(f"The template's field {{{field}}} has more than a name: write {{column}} alone.")
        if field not in columns:
            raise InvalidArgument(
                f"The template's field {{{field}}} is no column: use {', '.join(columns)}, and write {{{{ for {{."
            )
    if not any(field for _, field, _, _ in parts):
        raise InvalidArgument(f"The template {template!r} has no field, so all prompts would be the same: name one.")
    return [(text, field) for text, field, _, _ in parts]


def fill(parts: Sequence[tuple[str, str | None]], row: dict[str, Any], where: str) -> str:
    """Puts a row into a template.

    Args:
        parts (`Sequence[tuple[str, str | None]]`): from [`parse_template`].
        row (`dict[str, Any]`): texts or whole numbers.
        where (`str`): what the row is called in messages.
    """
    return "".join(text + (short_text(row[field], field, where) if field else "") for text, field in parts)


def short_text(value: Any, column: str, where: str) -> str:
    """A text, or a whole number as text.

    Raises:
        UnusableData: anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return whole_text(value, column, where)


def whole_text(value: Any, column: str, where: str) -> str:
    """A text.

    Raises:
        UnusableData: anything else.
    """
    if isinstance(value, str):
        return value
    if value is None:
        raise UnusableData(f"{where} has nothing in the column {column!r}: fill it in, or take the row out.")
    if isinstance(value, list):
        raise UnusableData(
            f"{where} has a list in the column {column!r}: choose a column of texts, or ask for the chat template if "
            "these are messages."
        )
    raise UnusableData(f"{where} has no text in the column {column!r} but {_kind(value)}: choose a column of texts.")


def check_chat_template(tokenizer: Any) -> None:
    """Whether a tokenizer can write messages.

    Raises:
        InvalidArgument: it has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidArgument("The tokenizer has no chat template: use a chat model, or do without the template.")


def in_chat(value: Any, tokenizer: Any, column: str, where: str) -> tuple[str, str | None]:
    """Writes a conversation as the model is to see it before it answers.

    Args:
        value (`Any`): what a user says, or messages with `role` and `content`. The model is to write the last answer:
            messages of the assistant at the end are left out.
        tokenizer (`PreTrainedTokenizerBase`): with a chat template.
        column (`str`): where the value comes from, for messages of errors.
        where (`str`): what the row is called in them.

    Returns:
        `tuple[str, str | None]`: the text, special tokens included, and the first answer left out.

    Raises:
        UnusableData: other values, no message to answer, or messages that the template does not take.
    """
    if isinstance(value, list):
        turns = [_message(turn, column, where) for turn in value]
    else:
        turns = [{"role": "user", "content": whole_text(value, column, where)}]
    answer = None
    while turns and turns[-1]["role"] == "assistant":
        answer = turns.pop()["content"]
    if not turns or not turns[-1]["content"].strip():
        raise UnusableData(f"{where} has no message to answer in the column {column!r}: take the row out.")
    try:
        return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True), answer
    except Exception as error:
        # templates raise what they like, mostly for roles in an order that the model does not know
        reason = " ".join(str(error).split())
        raise UnusableData(
            f"{where} cannot be written in the tokenizer's chat template: {reason}. Change or take out the row."
        ) from error


def _message(turn: Any, column: str, where: str) -> dict[str, str]:
    if isinstance(turn, dict) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str):
        return {"role": turn["role"], "content": turn["content"]}
    raise UnusableData(
        f"{where} has something else than messages in the column {column!r}: each must be like "
        '{"role": "user", "content": "text"}.'
    )


def _kind(value: Any) -> str:
    kinds = {bool: "a truth value", int: "a number", float: "a number", dict: "an object"}
    return kinds.get(type(value), f"a {type(value).__name__}")
