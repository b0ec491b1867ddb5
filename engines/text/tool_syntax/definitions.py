"""The definitions of a JSON Schema, and which of them a part of it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ["DEFINITIONS", "only_needed", "references"]

DEFINITIONS = ("$defs", "definitions")
_TARGETS = tuple(f"#/{key}/" for key in DEFINITIONS)


def references(schema: Any) -> Iterator[str]:
    """Every ``$ref`` in a schema, as it is written."""
    if isinstance(schema, Mapping):
        if isinstance(target := schema.get("$ref"), str):
            yield target
        for value in schema.values():
            yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def only_needed(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without definitions that nothing in it leads to; as it is where a reference leads elsewhere.

    A function's arguments are written each with the definitions of all: many of both would be their product.
    """
    known = {key: schema[key] for key in DEFINITIONS if isinstance(schema.get(key), Mapping)}
    needed: dict[str, dict[str, Any]] = {key: {} for key in known}
    waiting = [{key: value for key, value in schema.items() if key not in known}]
    for node in waiting:  # grows while it is read
        for target in references(node):
            if not target.startswith(_TARGETS):
                return schema
            _, key, name, *_ = target.split("/")
            name = unquote(name).replace("~1", "/").replace("~0", "~")
            if key in known and name in known[key] and name not in needed[key]:
                needed[key][name] = known[key][name]
                waiting.append(known[key][name])
    return {**waiting[0], **{key: found for key, found in needed.items() if found}}
