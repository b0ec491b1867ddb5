"""Log lines: structured, one event a line, never with prompt text.

``time level logger event key=value …``; a value with spaces is quoted as JSON. Events of requests are collected in the scope
by :func:`note` and written by the access log when the request ends.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from starlette.types import Scope

__all__ = ["LineFormatter", "configure_logging", "log_event", "note", "notes_of"]

_FIELDS = "innkeeper_fields"
_NOTES = "log"
_OFTEN_CHARACTERS = 32
_QUOTED = re.compile('[ "=]')


def log_event(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
    """Writes one event with its fields; None values are left out."""
    if not logger.isEnabledFor(level):
        return
    # Made here, since the logger would look the caller up in the stack, which no line shows.
    record = logging.LogRecord(logger.name, level, "", 0, event, None, None)
    setattr(record, _FIELDS, {name: value for name, value in fields.items() if value is not None})
    logger.handle(record)


def note(scope: Scope, **fields: Any) -> None:
    """Adds fields to the line that the access log will write for this request."""
    notes_of(scope).update(fields)


def notes_of(scope: Scope) -> dict[str, Any]:
    """The fields noted so far."""
    notes: dict[str, Any] = scope.setdefault("state", {}).setdefault(_NOTES, {})
    return notes


class LineFormatter(logging.Formatter):
    """One record a line; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = getattr(record, _FIELDS, {})
        words = [_shown_time(record.created), record.levelname.lower(), record.name, record.getMessage()]
        words += [f"{name}={_shown(value)}" for name, value in fields.items()]
        line = " ".join(words).replace("\n", "\\n")
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return _quoted_often(text) if len(text) < _OFTEN_CHARACTERS else _quoted(text)


def _quoted(text: str) -> str:
    return text if text.isprintable() and not _QUOTED.search(text) and text else json.dumps(text)


_quoted_often = lru_cache(maxsize=256)(
    _quoted
)  # methods, paths, models and clients come again and again, request ids do not


def _shown_time(seconds: float) -> str:
    """ISO 8601 in UTC, with milliseconds."""
    milliseconds = int(seconds * 1000)
    return f"{_shown_second(milliseconds // 1000)}.{milliseconds % 1000:03}Z"


@lru_cache(maxsize=2)
def _shown_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def configure_logging(level: int = logging.INFO) -> None:
    """Sends every logger's lines to stderr. Called once, by the server."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Looked up for every record otherwise, and in no line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # the server says itself what it does
