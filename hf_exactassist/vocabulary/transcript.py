"""The text of a target's row, as an assistant with another tokenizer reads it.

What is published grows token by token; its text is encoded again only from where that can make a difference. How far
back that is follows from the vocabulary: no merge ever joins two bytes that stand side by side in no token, so an
encoding falls into independent parts there. Whatever the assistant is given to read changes its drafts and not the
law of what is published; a part that does not come out as the text it was made of is encoded as a whole and counted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from .pieces import Pieces


Encode = Callable[[str], list[int]]


class Joins:
    """Which bytes stand side by side inside some token.

    Args:
        pieces (`Pieces`): the vocabulary.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._joined = np.zeros((256, 256), dtype=bool)
        for piece in (*pieces.text.values(), *(content.encode() for content in pieces.special.values())):
            self._joined[list(piece[:-1]), list(piece[1:])] = True

    def borders(self, text: str, count: int) -> list[int]:
        """The last places of a text where it falls apart, whatever may follow it.

        At least one character that starts anew stands behind each: what follows may change the last one (combining
        marks), and may decide how a run of spaces at the end is split.

        Args:
            text (`str`): the text.
            count (`int`): how many places are wanted.

        Returns:
            `list[int]`: indices into the text, descending; fewer if there are not so many.
        """
        found: list[int] = []
        settled = len(text)
        while settled > 0 and (text[settled - 1].isspace() or unicodedata.combining(text[settled - 1])):
            settled -= 1
        for at in range(min(settled, len(text) - 1), 0, -1):
            if unicodedata.combining(text[at]):
                continue
            if not self._joined[text[at - 1].encode()[-1], text[at].encode()[0]]:
                found.append(at)
                if len(found) == count:
                    break
        return found


class Transcript:
    """A row's text in assistant tokens.

    Args:
        target (`Pieces`): the target's vocabulary.
        assistant (`Pieces`): the assistant's.
        joins (`Joins`): of the assistant's vocabulary.
        encode (`Callable[[str], list[int]]`): the assistant's encoding of text, without special tokens.
        opening (`Sequence[int]`): what the assistant's tokenizer puts before every text, such as its BOS.

    Attributes:
        tokens (`list[int]`): assistant tokens of all text so far.
        pending (`bytes`): the beginning of a character, not yet in `tokens`.
        whole_encodings (`int`): how often a whole text had to be encoded.
        lossy (`int`): how often an encoding did not stand for the text it was made of.
    """

    def __init__(
        self, target: Pieces, assistant: Pieces, joins: Joins, encode: Encode, opening: Sequence[int]
    ) -> None:
        self._target, self._assistant, self._joins, self._encode = target, assistant, joins, encode
        self.tokens = list(opening)
        self.pending = b""
        self.whole_encodings = self.lossy = 0
        # the part after the last special token: its text, and the first of its tokens
        self._text, self._first = "", len(self.tokens)
        self._begun = False

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds target tokens."""
        said = self.pending
        for token in tokens:
            piece = self._target.text.get(token)
            if piece is not None:
                if not self._begun and self._target.strips_first_space and piece.startswith(b" "):
                    piece = piece[1:]
                self._begun = True
                said += piece
                continue
            content = self._target.special.get(token)
            other = self._special(token)
            if other is not None:
                self._say(said, last=True)
                said = b""
                self.tokens.append(other)
                self._text, self._first = "", len(self.tokens)
            elif content is not None and token not in self._target.roles.values():
                # a marker that means nothing to the assistant is text to it
                said += content.encode()
        self._say(said)

    def _special(self, token: int) -> int | None:
        """The assistant's special token of the same content, or of the same role but for what it opens with itself."""
        content = self._target.special.get(token)
        role = next((role for role, other in self._target.roles.items() if other == token), None)
        if content is None or role in ("bos_token_id", "cls_token_id", "pad_token_id"):
            return None
        same = next((other for other, theirs in self._assistant.special.items() if theirs == content), None)
        return self._assistant.roles.get(role) if same is None and role is not None else same

    def _say(self, said: bytes, last: bool = False) -> None:
        """Appends bytes to the text; an unfinished character at the end waits for its rest."""
        new, self.pending = _decoded(said, last)
        if not new:
            return
        text = self._text + new
        places = self._joins.borders(self._text, 2)
        kept = self._kept(places[0]) if len(places) == 2 else None
        if kept is not None:
            window = text[places[1] :]
            ids = self._after(self._encode(window), window, places[0] - places[1])
            if ids is not None:
                self.tokens = self.tokens[: self._first + kept] + ids
                self._text = text
                return
        self.whole_encodings += 1
        ids = self._encode(text)
        self.lossy += self._skipped(ids, text.encode()) is None
        self.tokens = self.tokens[: self._first] + ids
        self._text = text

    def _kept(self, border: int) -> int | None:
        """How many tokens of the part stand for its text up to a border; `None` if none ends there."""
        wanted, ids = len(self._text[:border].encode()), self.tokens[self._first :]
        skipped = self._skipped(ids, self._text.encode())
        if skipped is None:
            return None
        reached = -skipped
        for i, token in enumerate(ids):
            if reached == wanted:
                return i
            reached += len(self._assistant.text.get(token, b""))
        return None

    def _after(self, ids: list[int], window: str, border: int) -> list[int] | None:
        """The tokens of a window from a border on; `None` if none begins there."""
        skipped = self._skipped(ids, window.encode())
        if skipped is None:
            return None
        wanted, reached = len(window[:border].encode()), -skipped
        for i, token in enumerate(ids):
            if reached == wanted:
                return ids[i:]
            reached += len(self._assistant.text.get(token, b""))
        return None

    def _skipped(self, ids: Sequence[int], text: bytes) -> int | None:
        """Bytes that an encoding puts before the text (a space of its own); `None` if it is not that text."""
        said = b"".join(self._assistant.text.get(token, b"") for token in ids)
        if said == text:
            return 0
        return 1 if said == b" " + text else None


def _decoded(said: bytes, last: bool) -> tuple[str, bytes]:
    """The text of bytes, and the unfinished character at their end; what is no text at all becomes a mark for it."""
    for size in range(0, 4):
        head = said[: len(said) - size] if size else said
        try:
            text = head.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data" and error.end < len(head):
                # bytes in the middle that are no text: nothing that follows makes them one
                break
            continue
        rest = said[len(head) :]
        return (text + "\N{REPLACEMENT CHARACTER}" * bool(rest), b"") if last else (text, rest)
    return said.decode(errors="replace"), b""
