"""Log lines: one event a line, whatever is in it."""

from __future__ import annotations

import logging
import sys

from gateway.logs import LineFormatter, log_event, note, notes_of


def line_of(**fields: object) -> str:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    logger = logging.Logger("innkeeper.test")
    handler = Keep()
    handler.setFormatter(LineFormatter())
    logger.addHandler(handler)
    log_event(logger, logging.INFO, "request", **fields)
    return lines[0]


def test_line_has_time_level_name_event_and_fields() -> None:
    line = line_of(status=200, seconds=0.12345, path="/v1/models", nothing=None)
    at, rest = line.split(" ", 1)
    assert at.endswith("Z")
    assert rest == "info innkeeper.test request status=200 seconds=0.123 path=/v1/models"


def test_line_quotes_what_could_forge_one() -> None:
    line = line_of(path="/a b\nerror forged=1", name='x"y', empty="")
    assert "\n" not in line
    assert line.endswith(r'path="/a b\nerror forged=1" name="x\"y" empty=""')


def test_line_shows_a_trace_below() -> None:
    try:
        raise KeyError("k")
    except KeyError:
        record = logging.LogRecord("n", logging.ERROR, "", 1, "failed", None, sys.exc_info())
    first, *trace = LineFormatter().format(record).split("\n")
    assert first.endswith("error n failed")
    assert trace[-1] == "KeyError: 'k'"


def test_notes_gather_in_the_scope() -> None:
    scope: dict[str, object] = {"type": "http"}
    note(scope, a=1)
    note(scope, b=2)
    assert notes_of(scope) == {"a": 1, "b": 2}
