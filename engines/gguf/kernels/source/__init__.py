"""Source that CUDA and Metal share, and in part the CPU: weights read one by one (``scalar.h``) or by eights (``octets.h``)."""

from __future__ import annotations

import re
from importlib.resources import files

__all__ = ["inlined"]

_INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)


def inlined(package: str, name: str) -> str:
    """The file of this package as one text, each file that it includes in place of the include: there is no search path."""
    source = files(package).joinpath(name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: inlined(*_found(package, match[1])), source)


def _found(package: str, include: str) -> tuple[str, str]:
    """Package and name of a file that one of ``package`` includes by a relative path."""
    *folders, name = include.split("/")
    parts = package.split(".")
    for folder in folders:
        parts = parts[:-1] if folder == ".." else [*parts, folder]
    return ".".join(parts), name
