"""What a target would write for text that an assistant says.

They are drafts as certain as can be (point masses), and exact whatever they are; that they are the tokens which the
target's tokenizer would choose makes them likely.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from .pieces import Pieces
from .transcript import Encode, Joins, ends_of


class Respelling:
    """Text after a text, in target tokens.

    Args:
        pieces (`Pieces`): the target's vocabulary.
        encode (`Callable[[str], list[int]]`): the target's encoding of text, without special tokens.
    """

    def __init__(self, pieces: Pieces, encode: Encode) -> None:
        self._pieces, self._encode, self._joins = pieces, encode, Joins(pieces)

    def tokens(self, text: str, said: str, ended: bool = False) -> list[int]:
        """The target's tokens for `said` after `text`.

        What more text could still change is held back: an end inside a word may be the beginning of another token.

        Args:
            text (`str`): what is there.
            said (`str`): what comes next.
            ended (`bool`): whether nothing follows, so that nothing need be held back.

        Returns:
            `list[int]`: none where the target's tokenizer would not begin a token after `text`.
        """
        before = next(iter(self._joins.borders(text, 2)[1:]), 0)
        window, start = text[before:] + said, len(text[before:].encode())
        ids = self._encode(window)
        ends = ends_of(self._pieces, ids, window)
        if ends is None:
            return []
        first = bisect.bisect_left(ends, start) + 1 if start else 0
        if start and (first > len(ends) or ends[first - 1] != start):
            return []
        last = len(ids)
        if not ended:
            border = next(iter(self._joins.borders(window, 1)), 0)
            last = bisect.bisect_right(ends, len(window[:border].encode()))
        return list(ids[first:last])


def text_of(pieces: Pieces, tokens: Sequence[int], first: bool = False) -> str:
    """The text of ordinary tokens, without an unfinished character at the end; `first` if no text is before it."""
    said = b"".join(pieces.text.get(token, b"") for token in tokens)
    if first and pieces.strips_first_space:
        said = said.removeprefix(b" ")
    for size in range(min(4, len(said) + 1)):
        try:
            return said[: len(said) - size].decode()
        except UnicodeDecodeError:
            continue
    return ""
