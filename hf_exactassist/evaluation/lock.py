"""A file that says which process a folder belongs to."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from ..errors import FolderInUse


LOCK = ".lock"


class Lock:
    """Taken by one process at a time. That of a process that is gone is taken over.

    Args:
        path (`Path`): the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = False

    def take(self) -> None:
        """Takes it.

        Raises:
            FolderInUse: another process has it, or has had it on another machine, where nobody can look from here.
        """
        holder = self._holder()
        if holder is not None and not _is_gone(*holder):
            raise self._refusal(holder)
        if holder is not None:
            self._put_aside(holder)
        try:
            with self.path.open("x", encoding="utf-8") as file:
                json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
        except FileExistsError:
            raise self._refusal(self._holder()) from None
        self._held = True

    def release(self) -> None:
        """Lets it go, if it is held."""
        if self._held:
            self.path.unlink(missing_ok=True)
            self._held = False

    def _put_aside(self, gone: tuple[str, int]) -> None:
        """Removes the file of a process that is gone, and not the one that somebody else has put there since."""
        aside = self.path.with_name(f"{LOCK}.{os.getpid()}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return
        found = Lock(aside)._holder()
        if found != gone:
            aside.rename(self.path)
            raise self._refusal(found)
        aside.unlink()

    def _holder(self) -> tuple[str, int] | None:
        """Host and process; a file that a crash has left empty belongs to nobody that is known."""
        try:
            held = json.loads(self.path.read_text(encoding="utf-8"))
            return str(held["host"]), int(held["pid"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return "", 0

    def _refusal(self, holder: tuple[str, int] | None) -> FolderInUse:
        host, pid = holder or ("", 0)
        who = f"process {pid} on {host}" if pid else "another process"
        return FolderInUse(
            f"{self.path.parent} is in use by {who}: wait for it, or give another folder (--out); if it has ended, "
            f"delete {self.path}."
        )


def _is_gone(host: str, pid: int) -> bool:
    # elsewhere than on POSIX systems the signal 0 is a real one
    if host != socket.gethostname() or pid <= 0 or os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False
