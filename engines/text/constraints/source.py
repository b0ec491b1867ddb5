"""From what a request asks for to what llguidance reads: named grammars that refer to each other.

JSON is compact, with at most one space behind a comma or colon: small models lose themselves in whitespace that may go on.
Sources: llguidance's documentation of its grammar format, its Lark dialect and its options for JSON Schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from engines.errors import InvalidField
from engines.text.constraints.productive import is_productive
from engines.wire import Grammar

__all__ = ["LONGEST", "Source", "json_source", "lark_source", "source_of", "written"]

LONGEST = (
    131_072  # characters of a grammar or schema: compiling thousands of properties takes the square of their number
)

Source = Mapping[str, Any]
"""One grammar in llguidance's form, without a name: ``{"json_schema": …}`` or ``{"lark_grammar": …}``."""

# No more than one line's whitespace is looked at from its beginning: else many empty lines take the square of their number.
_GBNF_RULE = re.compile(r"^[^\S\n]*[A-Za-z][\w-]*\s*::=", re.MULTILINE)
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?", "lenient": False}


def source_of(grammar: Grammar) -> Source:
    """InvalidField for what is too long, no JSON, no schema, or a schema that nothing matches as far as is seen here."""
    field = grammar.field
    check_length(grammar.source, field)
    if grammar.kind == "json_object":
        return json_source({"type": "object"}, field)
    if grammar.kind == "json_schema":
        try:
            schema = msgspec.json.decode(grammar.source)
        except (ValueError, RecursionError) as error:
            raise InvalidField(f"{field}: the schema is no JSON that can be read: {error}", param=field) from error
        return json_source(schema, field)
    if grammar.kind == "regex":
        (source,) = msgspec.json.decode(LLMatcher.grammar_from_regex(grammar.source))["grammars"]
        return {"lark_grammar": source["lark_grammar"]}
    return lark_source(_as_lark(grammar.source, field))


def _as_lark(text: str, field: str) -> str:
    """A grammar in Lark as it is, and one in llama.cpp's GBNF, whose rules are written with ``::=``, in Lark."""
    if _GBNF_RULE.search(text) is None:
        return text
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # which is what the converter itself raises for a rule that is missing, or there twice
        raise InvalidField(f"{field}: the grammar is no GBNF that can be read: {error}", param=field) from error


def lark_source(text: str) -> Source:
    """A grammar in llguidance's dialect of Lark."""
    return {"lark_grammar": text}


def json_source(schema: Any, field: str) -> Source:
    """JSON that a schema allows. InvalidField as for :func:`source_of`."""
    mapping = {} if schema is True else schema
    if schema is not False and not isinstance(mapping, Mapping):
        raise InvalidField(f"{field}: a JSON Schema is an object, true or false", param=field)
    try:
        productive = is_productive(schema)
    except RecursionError as error:
        raise InvalidField(f"{field}: the schema is nested too deeply", param=field) from error
    if not productive:
        raise InvalidField(f"{field}: nothing can match this schema", param=field)
    return {"json_schema": {**mapping, "x-guidance": _JSON_OPTIONS}}


def check_length(text: str, field: str) -> None:
    """InvalidField for a grammar that is too long."""
    if len(text) > LONGEST:
        raise InvalidField(
            f"{field}: the grammar has {len(text)} characters; at most {LONGEST} are allowed", param=field
        )


def written(start: Source, named: Mapping[str, Source] | None = None) -> str:
    """Grammars as llguidance takes them: ``start`` may name the others with an ``@``."""
    grammars = [start, *({"name": name, **source} for name, source in (named or {}).items())]
    return json.dumps({"grammars": grammars})
