"""What commands print: aligned plain text for pipes and files, tables with rich on a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["CliError", "print_fields", "print_json", "print_table", "printable", "seconds", "user_path"]


# C0 and C1 controls, and surrogates, which stand for the bytes of a file name that is not UTF-8 and cannot be printed.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class CliError(Exception):
    """A command cannot do what was asked; the message says why and what to do. ``main`` prints it and exits with 1."""


def user_path(text: str | Path) -> Path:
    """A path as it was typed, ``~`` and ``~user`` expanded. CliError for a user who is not known."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise CliError(f"{text}: there is no such home directory") from error


def print_json(value: object) -> None:
    """One JSON document, for programs. Surrogates, which stand for bytes that are not UTF-8, are replaced."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    print(text.encode(errors="replace").decode())


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Names and values, one pair a line."""
    width = max((len(name) for name, _ in fields), default=0)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        for name, value in fields:
            console.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", printable(value)))
        return
    for name, value in fields:
        print(f"{name:<{width}}  {printable(value)}")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; numbers are the caller's to format."""
    rows = [[printable(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns, box=box.SIMPLE_HEAD)
        for row in rows:
            table.add_row(*map(Text, row))
        Console(highlight=False).print(table)
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in [columns, *rows]:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def printable(text: str, keep: str = "") -> str:
    """``text`` without control characters but those in ``keep``: a terminal obeys escape sequences, wherever they come from."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in keep else "�", text)


def seconds(value: float | None) -> str:
    """A length of time for people: ``0.4 s``, ``12 s``, ``3 min``, ``2.5 h``; nothing for None."""
    if value is None:
        return ""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
