"""A file that one process at a time holds, by a lock of the operating system."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path

from ..errors import FolderInUse


LOCK = ".lock"
_IN_USE = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)


class Lock:
    """Taken by one process at a time, and free as soon as that has ended, however it ended.

    The file stays, since one that is deleted may still be locked by who opened it before. What it says serves
    messages, and is all there is where the file system has no locks.

    Args:
        path (`Path`): the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BufferedRandom | None = None

    def take(self) -> None:
        """Takes it.

        Raises:
            FolderInUse: another process has it, or this one has it already.
            OSError: the file cannot be written.
        """
        file = self.path.open("a+b")
        try:
            self._require_free(file)
            file.truncate(0)
            file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
            file.flush()
        except BaseException:
            file.close()
            raise
        self._file = file

    def release(self) -> None:
        """Lets it go, if it is held."""
        file, self._file = self._file, None
        if file is not None:
            # free once it is closed, even if what it says cannot be taken back
            with suppress(OSError), file:
                file.truncate(0)

    def _require_free(self, file: BufferedRandom) -> None:
        try:
            _lock(file)
        except OSError as error:
            file.seek(0)
            held = file.read()
            if error.errno in _IN_USE:
                raise FolderInUse(
                    f"{self.path.parent} is in use by {_holder(held)}: wait for it, or give another folder (--out)."
                ) from None
            if held:
                raise FolderInUse(
                    f"{self.path.parent} is in use by {_holder(held)}, as far as can be told on a file system without "
                    f"locks: wait for it, or give another folder (--out); if it has ended, delete {self.path}."
                ) from None


if sys.platform == "win32":
    import msvcrt

    # others cannot read a locked byte, so it is one behind all that is written
    _BEHIND = 1 << 20

    def _lock(file: BufferedRandom) -> None:
        file.seek(_BEHIND)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: BufferedRandom) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(held: bytes) -> str:
    try:
        named = json.loads(held)
        return f"process {named['pid']} on {named['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
