"""Twenty schemas of the kinds that clients send, each bounded so that a model of random weights comes to an end."""

from __future__ import annotations

import ipaddress
import json
from datetime import date, datetime, time
from typing import Any
from uuid import UUID

import jsonschema  # type: ignore[import-untyped]

__all__ = ["SCHEMAS", "check"]

_WORD: dict[str, Any] = {"type": "string", "maxLength": 8}
_SMALL: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 9}


def _object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": _object(name=_WORD, age={"type": "integer", "minimum": 0, "maximum": 150}),
    "nested": _object(guest=_object(name=_WORD, room=_object(floor=_SMALL, key={"type": "boolean"}))),
    "optional": _object([], a=_SMALL, b=_WORD, c={"type": "null"}),
    "enum": _object(colour={"enum": ["red", "green", None, 7]}, kind={"const": "inn"}),
    "array": {"type": "array", "items": _SMALL, "minItems": 1, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [_WORD, {"type": "boolean"}],
        "items": _SMALL,
        "minItems": 2,
        "maxItems": 4,
    },
    "array of objects": _object(
        guests={"type": "array", "items": _object(name=_WORD, nights=_SMALL), "minItems": 1, "maxItems": 2}
    ),
    "recursive": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": _object(
                value=_SMALL, next={"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/node"}, {"type": "null"}]}
            ),
            "leaf": _object(leaf={"const": True}),
        },
    },
    "pattern": _object(plate={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "formats": _object(
        day={"type": "string", "format": "date"},
        at={"type": "string", "format": "date-time"},
        id={"type": "string", "format": "uuid"},
        host={"type": "string", "format": "ipv4"},
    ),
    "time": _object(at={"type": "string", "format": "time"}),
    "number bounds": _object(
        share={"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01},
        temperature={"type": "integer", "exclusiveMinimum": -40, "exclusiveMaximum": 60},
    ),
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 999},
    "additional properties": {
        "type": "object",
        "properties": {"a": _SMALL},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    },
    "map": {"type": "object", "additionalProperties": _SMALL, "minProperties": 1, "maxProperties": 2},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": _SMALL},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "any of": {"anyOf": [_object(kind={"const": "a"}, a=_SMALL), _object(kind={"const": "b"}, b=_WORD), _SMALL]},
    "one of": {"oneOf": [_object(kind={"const": "a"}, a=_SMALL), _object(kind={"const": "b"}, b=_WORD)]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": _SMALL}, "required": ["a"]},
            {"type": "object", "properties": {"b": _WORD}, "required": ["b"], "maxProperties": 2},
        ]
    },
    "references": _object(
        home={"$ref": "#/$defs/place"}, work={"$ref": "#/$defs/place"}, ü=_SMALL
    )
    | {"$defs": {"place": _object(city=_WORD, geo={"$ref": "#/$defs/geo"}), "geo": {"enum": ["N", "S"]}}},
}  # fmt: skip

_FORMATS = jsonschema.FormatChecker(formats=())
for _name, _read in {
    "date": date.fromisoformat,
    "date-time": lambda value: datetime.fromisoformat(value.upper().replace(":60", ":59")),  # a leap second is one
    "time": lambda value: time.fromisoformat(value.upper().replace(":60", ":59")),
    "uuid": UUID,
    "ipv4": ipaddress.IPv4Address,
}.items():

    def _checked(value: object, read: Any = _read) -> bool:
        return bool(read(value)) or True

    _FORMATS.checks(_name, raises=ValueError)(_checked)


def check(schema: dict[str, Any], text: str) -> None:
    """Raises unless ``text`` is JSON that the schema allows, by a judge that shares nothing with what enforces it."""
    jsonschema.Draft202012Validator(schema, format_checker=_FORMATS).validate(json.loads(text))
