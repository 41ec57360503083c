"""What is continued: a few prompts of each kind, and how they make batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..demo import PROMPTS as PLAYS


# how much a pair agrees on depends on the text more than on anything else
BUILT_IN: dict[str, tuple[str, ...]] = {
    "prose": (
        "The ferry left an hour late, and by the time the island came into sight the sky behind it had",
        "My grandmother kept her letters in a biscuit tin on top of the wardrobe. When we finally opened it,",
        "Rivers carry more than water. In spring, when the snow in the mountains melts,",
        "There are two ways to repair an old clock. The first is to",
    ),
    "code": (
        'def is_palindrome(text: str) -> bool:\n    """Whether a text reads the same backwards."""\n',
        'import csv\n\n\ndef read_rows(path):\n    with open(path, newline="") as file:\n',
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
        "for (let i = 0; i < rows.length; i++) {\n  const row = rows[i];\n",
    ),
    "lists": (
        "The months of the year and their days:\n1. January: 31\n2. February: 28\n3. March:",
        "Packing list for a week of hiking:\n- a tent\n- a sleeping bag\n-",
        "| number | square |\n|---|---|\n| 1 | 1 |\n| 2 | 4 |\n| 3 |",
        "Recipe for pancakes\n\nIngredients:\n* 200 g of flour\n* 2 eggs\n*",
    ),
    # what the embedded pair can write
    "plays": PLAYS[:4],
}


@dataclass(frozen=True)
class Prompt:
    """A text to be continued.

    Attributes:
        kind (`str`): what sort of text it is.
        text (`str`): the text.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Batch:
    """Prompts that are decoded in one call.

    Attributes:
        kind (`str`): that of its prompts, `"mixed"` if they differ.
        rows (`tuple[int, ...]`): their numbers.
    """

    kind: str
    rows: tuple[int, ...]


def built_in(kinds: Sequence[str], each: int) -> list[Prompt]:
    """The first prompts of some kinds.

    Args:
        kinds (`Sequence[str]`): keys of [`BUILT_IN`].
        each (`int`): prompts per kind at most.
    """
    return [Prompt(kind, text) for kind in kinds for text in BUILT_IN[kind][:each]]


def batches(prompts: Sequence[Prompt], size: int) -> list[Batch]:
    """All prompts in order, `size` to a batch; the last batch is filled up from the beginning.

    Args:
        prompts (`Sequence[Prompt]`): at least one.
        size (`int`): rows of each batch.
    """
    made = []
    for start in range(0, len(prompts), size):
        rows = tuple(place % len(prompts) for place in range(start, start + size))
        kinds = {prompts[row].kind for row in rows}
        made.append(Batch(kinds.pop() if len(kinds) == 1 else "mixed", rows))
    return made
