"""What an answer must match: OpenAI's ``response_format``, and what clients of vLLM and llama.cpp send in its place.

=======================  ==========  =====================================================================
option                   from        value
=======================  ==========  =====================================================================
``response_format``      OpenAI      ``text``, ``json_object`` (llama.cpp's ``schema`` beside it), ``json_schema``
``json_schema``          llama.cpp   a JSON Schema
``grammar``              llama.cpp   a grammar in GBNF or Lark
``guided_json``          vLLM        a JSON Schema, or its JSON text
``guided_regex``         vLLM        a regular expression for the whole text
``guided_choice``        vLLM        texts, of which the answer is one
``guided_grammar``       vLLM        the same
``structured_outputs``   vLLM        an object with one of ``json``, ``json_object``, ``regex``, ``choice``, ``grammar``
=======================  ==========  =====================================================================

One of them at most may ask for something. Whether a schema can be kept is judged by the worker, before it generates anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from engines.wire import Grammar
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.protocols.json_body import decode_object
from gateway.protocols.options import read_boolean, read_object, shown

__all__ = ["GRAMMAR_OPTIONS", "MAX_ALTERNATIVES", "json_schema_grammar", "read_grammar", "read_response_format"]

MAX_ALTERNATIVES = 1000
_FORMATS = "'text', 'json_object' or 'json_schema'"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_grammar(options: Mapping[str, Any]) -> Grammar | None:
    """The one that the options ask for, None where all are silent. InvalidRequest names the field, or the second of two."""
    found: dict[str, Grammar] = {}
    for name, read in _READERS.items():
        if (value := options.get(name)) is not None and (grammar := read(value, name)) is not None:
            found[name] = msgspec.structs.replace(grammar, field=name)
    if len(found) > 1:
        first, second = list(found)[:2]
        raise InvalidRequest(f"{second} cannot be given together with {first}; give one of them", param=second)
    return next(iter(found.values()), None)


def json_schema_grammar(value: Any, field: str) -> Grammar:
    """JSON that matches this schema."""
    if not isinstance(value, dict | bool):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be a JSON Schema", param=field)
    return Grammar(kind="json_schema", source=msgspec.json.encode(value).decode())


def read_response_format(value: Any, field: str) -> Grammar | None:
    """OpenAI's object; text asks for nothing."""
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            schema = value.get("schema")
            return Grammar(kind="json_object") if schema is None else json_schema_grammar(schema, f"{field}.schema")
        case "json_schema":
            return _named_schema(value.get("json_schema"), f"{field}.json_schema")
    if isinstance(kind, str):
        message = f"{field}.type is {shown(kind)}, which is not supported; it must be {_FORMATS}"
        raise UnsupportedParameter(message, param=f"{field}.type")
    raise InvalidRequest(f"{field} is {shown(value)}; it must be an object whose type is {_FORMATS}", param=field)


def _named_schema(value: Any, field: str) -> Grammar:
    """``name``, ``schema`` and what goes with them. The grammar is kept whether it is ``strict`` or not."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an object with a name and a schema", param=field)
    read_object({field: value}, field, ("name", "description", "schema", "strict"))
    name, description = value.get("name"), value.get("description")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        message = f"{field}.name is {shown(name)}; it must be 1 to 64 letters, digits, underscores or hyphens"
        raise InvalidRequest(message, param=f"{field}.name")
    if description is not None and not isinstance(description, str):
        message = f"{field}.description is {shown(description)}; it must be a string"
        raise InvalidRequest(message, param=f"{field}.description")
    read_boolean({f"{field}.strict": value.get("strict")}, f"{field}.strict")
    return json_schema_grammar(value.get("schema"), f"{field}.schema")


def _schema(value: Any, field: str) -> Grammar:
    if not isinstance(value, str):
        return json_schema_grammar(value, field)
    try:
        return json_schema_grammar(decode_object(value.encode()), field)
    except InvalidRequest as error:
        raise InvalidRequest(
            f"{field} is {shown(value)}; it must be a JSON Schema, or its text", param=field
        ) from error


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{field} is {shown(value)}; it must be a string of at least one character", param=field)
    return value


def _regex(value: Any, field: str) -> Grammar:
    return Grammar(kind="regex", source=_text(value, field))


def _lark(value: Any, field: str) -> Grammar:
    return Grammar(kind="lark", source=_text(value, field))


def _choice(value: Any, field: str) -> Grammar:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ALTERNATIVES:
        message = f"{field} is {shown(value)}; it must be an array of 1 to {MAX_ALTERNATIVES} strings"
        raise InvalidRequest(message, param=field)
    texts = [_text(text, f"{field}[{i}]") for i, text in enumerate(value)]
    # Lark's strings are JSON's.
    return Grammar(kind="lark", source="start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts))


def _json_object(value: Any, field: str) -> Grammar | None:
    return Grammar(kind="json_object") if read_boolean({field: value}, field) else None


_STRUCTURED: Mapping[str, Callable[[Any, str], Grammar | None]] = {
    "json": _schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}


def _structured(value: Any, field: str) -> Grammar | None:
    given = read_object({field: value}, field, tuple(_STRUCTURED))
    read = {
        name: grammar
        for name, item in given.items()
        if item is not None and (grammar := _STRUCTURED[name](item, f"{field}.{name}")) is not None
    }
    if len(read) > 1:
        second = f"{field}.{list(read)[1]}"
        raise InvalidRequest(
            f"{second} is a second one; {field} must hold one of {', '.join(_STRUCTURED)}", param=second
        )
    return next(iter(read.values()), None)


_READERS: Mapping[str, Callable[[Any, str], Grammar | None]] = {
    "response_format": read_response_format,
    "json_schema": _schema,
    "grammar": _lark,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _lark,
    "structured_outputs": _structured,
}
GRAMMAR_OPTIONS = frozenset(_READERS)
