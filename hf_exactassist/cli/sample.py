"""The text that `exactassist check` lets both models read: a short one of its own, or the user's."""

from __future__ import annotations

from pathlib import Path

from .console import UsageError
from .prompts import read_text


# prose, dialogue, code, a list, figures, and scripts beyond the Latin one
SAMPLE = """\
The old bridge had been closed for eleven years when the council finally voted, 7 to 2, to repair it.
"Who'll pay?" asked the mayor. Nobody answered.

def mean(values: list[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)  # fails if empty

Shopping list:
- 2 kg of flour (£3.50)
- olive oil, 500 ml
- café au lait, crème brûlée

Мост закрыт. 桥已经关闭了。 Η γέφυρα είναι κλειστή.
"""
_LONGEST = 2000


def read_sample(file: Path | None) -> str:
    """The text to read.

    Args:
        file (`Path`, *optional*): a UTF-8 file, of which the first 2000 characters count; [`SAMPLE`] by default.

    Raises:
        UsageError: the file cannot be read, is not UTF-8 or holds no text.
    """
    text = SAMPLE if file is None else read_text(file, _LONGEST)
    if not text.strip():
        raise UsageError(f"{file} has no text in its first {_LONGEST} characters: --text needs some to read.")
    return text
