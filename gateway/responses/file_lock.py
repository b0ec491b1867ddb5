"""Who may have a file: one process at a time, by a lock on a file beside it that ends with the process, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

__all__ = ["FileLock", "LockHeld"]


class LockHeld(Exception):
    """Another process has it; ``process`` is its id where it said so."""

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self.process = process


class FileLock:
    """Held from ``acquire`` to ``release``, or to the end of this process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Idempotent. LockHeld, or OSError where there can be no lock."""
        if self._descriptor is not None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            process = os.read(descriptor, 20).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise LockHeld(process) from error
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Idempotent. The file stays: whoever removed it could remove another's."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
