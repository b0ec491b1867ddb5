"""Calls written as JSON objects: ``{"name": …, "arguments": {…}}`` and its kin."""

from __future__ import annotations

import json
from collections.abc import Collection

from engines.text.output.calls import CallStream, object_arguments
from engines.text.output.reader import Malformed, Read
from engines.text.tool_syntax.syntax import ReadCalls

__all__ = ["read_array", "read_object"]

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("type", "id", "tool_call_id", "index")


def read_object(calls: CallStream, *, only: Collection[str] | None = None, silent: Collection[str] = ()) -> ReadCalls:
    """Reads one call. Its arguments are handed on as they come, once its name is known.

    The OpenAI form, with name and arguments inside ``function``, is read too. Where no mark says that this is a call at all,
    ``only`` has the names of the functions that there are: any other, any other key and a call without arguments is
    Malformed. Calls of ``silent`` functions are passed over.
    """
    reader = calls.reader
    name: str | None = None
    early: str | None = None  # arguments that came before the name
    told = False
    nested = 0
    yield from reader.expect("{")
    yield from reader.space()
    more = (yield from reader.peek()) != "}"
    while True:
        while more:
            key = json.loads((yield from _string(calls)))
            yield from reader.space()
            yield from reader.expect(":")
            yield from reader.space()
            first = yield from reader.peek()
            if key == "function" and first == "{" and not nested and name is None:
                nested = 1
                yield from reader.expect("{")
                yield from reader.space()
                continue
            if (key in _NAMES or key == "function") and first == '"' and name is None:
                name = json.loads((yield from _string(calls)))
                if only is not None and name not in only:
                    raise Malformed
                if early is not None and name not in silent:
                    calls.start(str(name))
                    calls.arguments(early)
                    told = True
            elif key in _ARGUMENTS and not told and early is None:
                if name is None or name in silent:
                    early = object_arguments((yield from reader.json_value()))
                else:
                    yield from calls.json_arguments(name)
                    told = True
            else:
                if only is not None and key not in _OTHERS:
                    raise Malformed
                yield from reader.json_value()
            yield from reader.space()
            if not (yield from reader.accept(",")):
                break
            yield from reader.space()
        yield from reader.expect("}")
        if not nested:
            break
        nested -= 1
        yield from reader.space()
        more = bool((yield from reader.accept(",")))
        yield from reader.space()
    if name is None or (only is not None and not told):
        raise Malformed
    if name in silent:
        calls.mark()
        return
    if not told:
        calls.start(name)
        calls.arguments("{}")
    calls.end()


def _string(calls: CallStream) -> Read:
    if (yield from calls.reader.peek()) not in ('"', ""):
        raise Malformed
    return (yield from calls.reader.json_value())


def read_array(calls: CallStream, *, silent: Collection[str] = ()) -> ReadCalls:
    """Reads ``[call, call, …]``. Malformed if there is none in it."""
    reader = calls.reader
    yield from reader.expect("[")
    while True:
        yield from reader.space()
        yield from read_object(calls, silent=silent)
        yield from reader.space()
        if not (yield from reader.accept(",")):
            break
    yield from reader.expect("]")
