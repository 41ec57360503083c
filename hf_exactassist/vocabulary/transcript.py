"""The text of a target's row, as an assistant with another tokenizer reads it.

What is published grows token by token; its text is encoded again only from where that can make a difference. How far
back that is follows from the vocabulary: no merge ever joins two bytes that stand side by side in no token, so an
encoding falls into independent parts there. Whatever the assistant is given to read changes its drafts and not the
law of what is published; a part that does not come out as the text it was made of is encoded as a whole and counted.
"""

from __future__ import annotations

import bisect
import itertools
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
        # the part after the last special token: its text, the first of its tokens, and where each ends in bytes
        self._text, self._first = "", len(self.tokens)
        self._ends: list[int] = []
        self._begun = False

    @property
    def text(self) -> str:
        """The text after the last special token."""
        return self._text

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
                self._text, self._first, self._ends = "", len(self.tokens), []
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
        if len(places) < 2 or not self._read_from(text, *places):
            self.whole_encodings += 1
            self._ends = []
            ids = self._encode(text)
            ends = ends_of(self._assistant, ids, text)
            self.lossy += ends is None
            # without ends nothing is ever kept, and the whole is encoded again
            self.tokens[self._first :], self._ends = ids, ends or []
        self._text = text

    def _read_from(self, text: str, border: int, before: int) -> bool:
        """Encodes a text again from `before` on, and takes the tokens from `border` on; `False` if none begins there.

        What the encoding of a part begins with (a space of its own) may differ from what it would be in the whole, but
        not beyond the next border.
        """
        window, kept = text[before:], len(text[:border].encode())
        # a token ends where the kept part ends
        count = bisect.bisect_left(self._ends, kept) + 1
        if count > len(self._ends) or self._ends[count - 1] != kept:
            return False
        ids = self._encode(window)
        ends = ends_of(self._assistant, ids, window)
        if ends is None:
            return False
        offset = len(text[:before].encode())
        new = bisect.bisect_left(ends, kept - offset) + 1
        if new > len(ends) or ends[new - 1] != kept - offset:
            return False
        self.tokens[self._first + count :] = ids[new:]
        self._ends[count:] = [end + offset for end in ends[new:]]
        return True


def ends_of(pieces: Pieces, ids: Sequence[int], text: str) -> list[int] | None:
    """Where each token of an encoding ends in its text, in bytes; `None` if they do not stand for it."""
    parts = [pieces.text.get(token, b"") for token in ids]
    said = b"".join(parts)
    # an encoding may put a space of its own in front
    own = 0 if said == text.encode() else 1
    if own and said != b" " + text.encode():
        return None
    return [end - own for end in itertools.accumulate(map(len, parts))]


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


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
