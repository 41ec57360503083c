"""Where prompts come from: arguments, a file, or stdin."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .console import UsageError


def read_prompts(arguments: Sequence[str], file: Path | None) -> list[str]:
    """The prompts of a call.

    Args:
        arguments (`Sequence[str]`): prompts on the command line.
        file (`Path`, *optional*): one prompt a line, or JSON objects with a field `prompt` if its name ends in
            `.jsonl`; `-` is stdin. Blank lines are skipped.

    Returns:
        `list[str]`: at least one prompt, none empty.

    Raises:
        UsageError: no prompts, an empty one, a file that cannot be read, a line that is no JSON.
    """
    if arguments and file is not None:
        raise UsageError("Give prompts as arguments or with --file, not both.")
    if arguments:
        for number, prompt in enumerate(arguments, start=1):
            if not prompt:
                raise UsageError(f"Prompt {number} is empty: give it at least one character.")
        return list(arguments)
    if file is None and sys.stdin.isatty():
        raise UsageError("No prompts: give them as arguments, with --file, or on stdin (one a line).")
    source = "stdin" if file is None or str(file) == "-" else str(file)
    text = read_text(None if source == "stdin" else Path(source))
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    prompts = _from_json(lines, source) if source.endswith(".jsonl") else [line.rstrip("\r") for _, line in lines]
    if not prompts:
        raise UsageError(f"No prompts in {source}: it has no line with text.")
    return prompts


def read_text(file: Path | None, longest: int = -1) -> str:
    """The text of a file, or of stdin, or its first characters.

    Args:
        file (`Path`, *optional*): a UTF-8 file; stdin by default.
        longest (`int`): characters to read at most; all by default.

    Raises:
        UsageError: it cannot be read or is not UTF-8.
    """
    try:
        if file is None:
            return sys.stdin.read(longest)
        with file.open(encoding="utf-8-sig") as opened:
            return opened.read(longest)
    except UnicodeDecodeError as error:
        where = "stdin" if file is None else str(file)
        raise UsageError(f"{where} is not UTF-8 text (byte {error.start}): convert it first.") from error
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.") from error


def _from_json(lines: Iterable[tuple[int, str]], source: str) -> list[str]:
    prompts = []
    for number, line in lines:
        where = f"{source}, line {number}"
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{where} is not JSON: {error.msg} at column {error.colno}.") from error
        prompt = entry.get("prompt") if isinstance(entry, dict) else None
        if not isinstance(prompt, str) or not prompt:
            raise UsageError(f'{where} has no prompt: each line must be an object like {{"prompt": "Once upon"}}.')
        prompts.append(prompt)
    return prompts
