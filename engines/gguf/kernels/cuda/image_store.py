"""Compiled kernels on disk, by key. Any number of processes may read and write at once.

A file is a line that says what it is, the SHA-256 of the rest, and the rest: the kernel's symbol, a zero byte and its image. It is
written under another name and renamed, so that nobody sees half of it; what is damaged nevertheless is not taken, and deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import time
from pathlib import Path

from engines.gguf.kernels.cuda.nvrtc import Compiled

__all__ = ["LIMIT_BYTES", "ImageStore", "read_whole", "write_whole"]

LIMIT_BYTES = 256 << 20

_MAGIC = b"innkeeper kernel 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size
_PART = ".part"  # of a file that is being written
_ABANDONED_S = 3600.0  # a part so old has nobody who writes it

logger = logging.getLogger("innkeeper.worker")


class ImageStore:
    """A folder of at most ``limit_bytes``: files that were used longest ago go first. What cannot be read is not there, and what
    cannot be written is not kept: nothing is raised."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def get(self, key: str) -> Compiled | None:
        path = self._folder / key
        held = read_whole(path, self._limit_bytes)
        if held is None:
            return None
        begin = len(_MAGIC) + _DIGEST_BYTES
        rest = held[begin:]
        symbol, zero, image = rest.partition(b"\0")
        if held[:begin] != _MAGIC + hashlib.sha256(rest).digest() or not zero or not symbol.isascii():
            logger.warning("a stored kernel is damaged and will be compiled anew: %s", path)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return Compiled(symbol.decode(), image)

    def put(self, key: str, compiled: Compiled) -> None:
        rest = compiled.symbol.encode() + b"\0" + compiled.image
        if write_whole(self._folder / key, _MAGIC + hashlib.sha256(rest).digest() + rest):
            self._trim()

    def _trim(self) -> None:
        now, total = time.time(), 0
        files: list[tuple[float, int, Path]] = []
        try:
            for entry in os.scandir(self._folder):
                with contextlib.suppress(OSError):  # another process was faster
                    status = entry.stat()
                    # What was used in the future was so before the clock was set back: that long ago.
                    age = abs(now - status.st_mtime)
                    files.append((age, status.st_size, Path(entry)))
        except OSError:
            return
        for age, size, path in sorted(files):
            total += size
            if total > self._limit_bytes or (path.suffix == _PART and age > _ABANDONED_S):
                with contextlib.suppress(OSError):
                    path.unlink()


def read_whole(path: Path, most_bytes: int) -> bytes | None:
    """None for what is no file, larger, or cannot be read. Never waits, as for a pipe's other end."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_size <= most_bytes:
                with os.fdopen(descriptor, "rb", closefd=False) as file:
                    return file.read()
        finally:
            os.close(descriptor)
    return None


def write_whole(path: Path, content: bytes) -> bool:
    """Puts a file of this content there, all of it or none, and its folder where it lacks; whether that could be done."""
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(suffix=_PART, dir=path.parent)
        part = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        part.replace(path)
    except OSError as error:
        logger.info("a compiled kernel cannot be kept: %s", error)
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink()
        return False
    return True
