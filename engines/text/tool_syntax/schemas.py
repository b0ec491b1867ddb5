"""Schemas of arguments, for syntaxes that write each argument on its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.text.tool_syntax.definitions import DEFINITIONS, references
from engines.text.tool_syntax.lark import argument_schema
from engines.wire import Tool

__all__ = ["Argument", "arguments_of", "choices_of", "schema_of", "types_of"]

_SPLIT = {"type", "properties", "required", "additionalProperties", "x-guidance", *DEFINITIONS}
_MOST_READ = 200  # schemas for the types of one argument, each of which may lead to all the others
_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_REMARKS = {"$schema", "$id", "$comment", "title", "description", "default", "examples", "strict"}


@dataclass(frozen=True)
class Argument:
    """One argument of a function; ``schema`` has the definitions that it refers to."""

    key: str
    schema: dict[str, Any]
    required: bool


def arguments_of(tool: Tool) -> tuple[Argument, ...] | None:
    """A function's arguments in their order, or None where its schema does not say of each on its own what it may be."""
    schema = argument_schema(tool)
    properties = schema.get("properties", {})
    if schema["type"] != "object" or not isinstance(properties, dict) or schema.keys() - _SPLIT - _REMARKS:
        return None
    if not properties and schema.get("additionalProperties", True) is not False:
        return None
    if any(not target.startswith(("#/$defs/", "#/definitions/")) for target in references(schema)):
        return None
    definitions = {key: schema[key] for key in DEFINITIONS if key in schema}
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(key, str) for key in required):
        return None
    every = {**properties, **{key: {} for key in required if key not in properties}}
    return tuple(
        Argument(key, {**(value if isinstance(value, dict) else {}), **definitions}, key in required)
        for key, value in every.items()
    )


def schema_of(tools: Sequence[Tool], name: str, key: str) -> dict[str, Any] | None:
    """What is known of the argument ``key`` of the function ``name``; None if nothing."""
    parameters = next((tool.parameters for tool in tools if tool.name == name), None) or {}
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, dict) else None
    if not isinstance(schema, dict):
        return None
    return {**schema, **{key: parameters[key] for key in DEFINITIONS if key in parameters}}


def choices_of(schema: Mapping[str, Any]) -> list[Any]:
    """The values that a schema lists as the only ones; none if it lists none."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return values if isinstance(values, list) else []


def types_of(schema: Mapping[str, Any] | None) -> frozenset[str]:
    """The JSON types that a schema names, also by its values, choices and references; empty if it names none, or leads to more
    schemas than are read for that.
    """
    types = set[str]()
    reached = [schema]  # grows while it is read
    seen = set[int]()  # each once: references may lead round, and to as many more as there are choices
    for node in reached:
        if not isinstance(node, Mapping) or id(node) in seen:
            continue
        if len(seen) == _MOST_READ:
            return frozenset()
        seen.add(id(node))
        types.update(_own_types(node))
        for choice in ("anyOf", "oneOf", "allOf"):
            if isinstance(options := node.get(choice), list):
                reached += options
        if isinstance(target := node.get("$ref"), str) and target.startswith("#/"):
            found: Any = schema
            for step in target[2:].split("/"):
                found = found.get(step) if isinstance(found, Mapping) else None
            reached.append(found)
    return frozenset(types)


def _own_types(schema: Mapping[str, Any]) -> Iterator[str]:
    named = schema.get("type")
    if isinstance(named, str):
        yield named
    elif isinstance(named, list):
        yield from (kind for kind in named if isinstance(kind, str))
    else:
        if isinstance(values := schema.get("enum"), list):
            yield from (_TYPES.get(kind, "null") for kind in set(map(type, values)))
        if "const" in schema:
            yield _TYPES.get(type(schema["const"]), "null")
