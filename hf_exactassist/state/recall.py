"""What processors and criteria remember, saved after every round (contract 0x06D, 0x06F)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .forks import fork, put_back
from .reach import digest_or_unreadable
from .transactional import TransactionalLogitsProcessor


@dataclass(frozen=True)
class Memory:
    """What the objects of a call remember at one time.

    Attributes:
        digest (`str`): SHA-256 over it and over the tokens it came from.
        copies (`tuple`): independent copies of the objects, never called.
        snapshots (`tuple`): of those that save themselves.
    """

    digest: str
    copies: tuple[Any, ...] = field(default=(), repr=False)
    snapshots: tuple[Any, ...] = field(default=(), repr=False)


class Recall:
    """Saves what objects remember, and brings them back to what was saved.

    Args:
        objects (`Sequence`): what is called in the loop and remembers; each is a [`TransactionalLogitsProcessor`] or
            can be copied.
        read (`Sequence`): those whose memory is worth reading for the digest; that of others follows from the tokens.
    """

    def __init__(self, objects: Sequence[Any], read: Sequence[Any] = ()) -> None:
        self._saving = [part for part in objects if isinstance(part, TransactionalLogitsProcessor)]
        self._copied = [part for part in objects if not isinstance(part, TransactionalLogitsProcessor)]
        self._read = [any(part is other for other in read) for part in self._copied]
        # what the objects are known to remember just now
        self._present: Memory | None = None

    def take(self, tokens: Callable[[], Sequence[str]]) -> Memory:
        """Saves what the objects remember.

        Args:
            tokens (`Callable`): gives digests of the text of each row.
        """
        if not self._saving and not self._copied:
            return _NOTHING
        copies = fork(tuple(self._copied))
        snapshots = tuple(part.snapshot() for part in self._saving)
        read = [digest_or_unreadable(part) for part, wanted in zip(copies, self._read, strict=True) if wanted]
        read += [digest_or_unreadable(snapshot) for snapshot in snapshots]
        digest = hashlib.sha256("\n".join([*tokens(), *read]).encode()).hexdigest()
        self._present = Memory(digest, copies, snapshots)
        return self._present

    def settle(self, memory: Memory) -> None:
        """Brings the objects to what was saved, if they are not there; they will be called now."""
        if self._present is not memory and memory is not _NOTHING:
            # a failure half way leaves it unknown
            self._present = None
            for part, snapshot in zip(self._saving, memory.snapshots, strict=True):
                part.restore(snapshot)
            put_back(self._copied, memory.copies)
        self._present = memory

    def leave(self) -> None:
        """The objects are called from here on: what they remember is not known any more."""
        self._present = None

    def copies(self, memory: Memory) -> dict[int, Any]:
        """New copies of the objects as they were, by the id of the original; what only saves itself is left out."""
        found = dict(zip(map(id, self._copied), fork(memory.copies), strict=True))
        for part, snapshot in zip(self._saving, memory.snapshots, strict=True):
            try:
                theirs = fork(part)
                # what the snapshot holds may be what the original goes on with
                theirs.restore(fork(snapshot))
            except Exception:  # whatever a foreign object says of being copied
                continue
            found[id(part)] = theirs
        return found


# no objects: nothing to save, and the digest of no bytes
_NOTHING = Memory(hashlib.sha256().hexdigest())
