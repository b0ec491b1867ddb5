"""Files of a checkpoint, opened by nobody's word: only regular ones, recognised when they are opened again.

A file's names and values reach people in error messages; :func:`short` makes them fit for that.
"""

from __future__ import annotations

import os
import reprlib
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from engines.errors import GgufFormatError

__all__ = ["FileIdentity", "open_regular", "short"]

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 80


@dataclass(frozen=True)
class FileIdentity:
    """A file as it was when its header was read: a later read of other bytes under the same name is refused."""

    path: str
    size: int  # bytes
    mtime_ns: int


def short(value: object) -> str:
    """``repr`` cut to what a message can carry: names and values come from the file, and may be megabytes long."""
    return _repr.repr(value)


def open_regular(path: str | Path) -> tuple[BinaryIO, FileIdentity]:
    """Opens a regular file (symlinks are followed). GgufFormatError when it is missing, a directory, a pipe or unreadable."""
    name = os.fspath(path)
    try:
        # Asked before opening, since opening a pipe waits for a writer.
        if not stat.S_ISREG(os.stat(name).st_mode):  # noqa: PTH116 - Path.stat would turn the name's errors into others
            kind = "is a directory, not a file" if Path(name).is_dir() else "is not a regular file"
            raise GgufFormatError(name, kind)
        file = Path(name).open("rb", buffering=0)  # noqa: SIM115 - the caller closes it
    except FileNotFoundError as error:
        raise GgufFormatError(name, "no such file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise GgufFormatError(name, f"cannot be read: {reason}") from error
    status = os.fstat(file.fileno())
    return file, FileIdentity(name, status.st_size, status.st_mtime_ns)
