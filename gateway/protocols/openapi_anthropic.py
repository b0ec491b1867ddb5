"""JSON schemas of Anthropic's Messages, for ``/openapi.json``: what a body may hold, and what is answered."""

from __future__ import annotations

from gateway.protocols.anthropic_blocks import HINTS, READ
from gateway.protocols.anthropic_request import COUNT_OPTIONS, OPTIONS
from gateway.protocols.anthropic_thinking import DISPLAYS, EFFORTS, THINKING_FIELDS
from gateway.protocols.anthropic_tools import MAX_TOOLS, TOOL_HINTS, TOOL_NAME
from gateway.protocols.openapi_options import CHAT, Schema, array, integer, record
from gateway.protocols.options import MAX_STOP_CHARS, MAX_STOPS, MAX_TOKENS

__all__ = ["COUNT", "MESSAGES", "MESSAGES_ANSWERS"]

_BOOLEAN: Schema = {"type": "boolean"}
_STRING: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_SCHEMA: Schema = {"type": "object", "description": "A JSON Schema."}
_HINT: Schema = {"description": "Accepted; changes nothing."}


def _block(kind: str, fields: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    assert {*fields, *(optional or {})} == READ[kind]
    hints = dict.fromkeys(HINTS, _HINT)
    return record({"type": {"const": kind}, **fields, **(optional or {}), **hints}, ("type", *fields))


_TEXT = _block("text", {"text": _STRING})
_TEXTS: Schema = {"anyOf": [_STRING, array(_TEXT)]}
_SOURCE: Schema = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"type": {"const": "text"}, "data": _STRING},
            "required": ["type", "data"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "content"}, "content": _TEXTS},
            "required": ["type", "content"],
        },
    ]
}
_DOCUMENT = _block("document", {"source": _SOURCE}, {"title": _STRING, "context": _STRING})
_SEARCH_RESULT = _block("search_result", {"content": _TEXTS, "source": _STRING, "title": _STRING})
_REFERENCE = _block("tool_reference", {"tool_name": _STRING})
_RESULT = _block(
    "tool_result",
    {"tool_use_id": {**_STRING, "description": "Of a tool_use block in an assistant's message before."}},
    {
        "content": {"anyOf": [_STRING, array({"anyOf": [_TEXT, _DOCUMENT, _SEARCH_RESULT, _REFERENCE]})]},
        "is_error": _BOOLEAN,
    },
)
_USER: Schema = {"anyOf": [_TEXT, _DOCUMENT, _SEARCH_RESULT, _RESULT]}
_ASSISTANT: Schema = {
    "anyOf": [
        _TEXT,
        _block("thinking", {"thinking": _STRING}, {"signature": _STRING}),
        _block("redacted_thinking", {"data": _STRING}),
        _block("tool_use", {"id": _STRING, "name": _STRING, "input": _OBJECT}),
    ]
}


def _turn(role: str, block: Schema, **limits: int) -> Schema:
    content: Schema = {"anyOf": [_STRING, array(block, **limits)]}
    return record({"role": {"const": role}, "content": content}, ("role", "content"))


_TURNS = [_turn("user", _USER, minItems=1), _turn("assistant", _ASSISTANT), _turn("system", _TEXT, minItems=1)]
_NAME: Schema = {"type": "string", "pattern": TOOL_NAME}
_TOOL = record(
    {
        "type": {"const": "custom"},
        "name": _NAME,
        "description": _STRING,
        "input_schema": {**_SCHEMA, "description": "A JSON Schema of an object."},
        "strict": _BOOLEAN,
        "defer_loading": {**_BOOLEAN, "description": "Shown once a tool_result has a tool_reference to it."},
        "allowed_callers": {"type": "array", "contains": {"const": "direct"}},
        **dict.fromkeys(TOOL_HINTS, _HINT),
    },
    ("name", "input_schema"),
)
_PARALLEL = {"disable_parallel_tool_use": _BOOLEAN}
_CHOICE: Schema = {
    "anyOf": [
        record({"type": {"enum": ["auto", "any", "none"]}, **_PARALLEL}, ("type",)),
        record({"type": {"const": "tool"}, "name": _NAME, **_PARALLEL}, ("type", "name")),
    ]
}
_THINKING_VALUES: dict[str, Schema] = {
    "budget_tokens": integer(1, MAX_TOKENS),
    "display": {"enum": list(DISPLAYS)},
}
_THINKING: Schema = {
    "anyOf": [
        record({"type": {"const": kind}} | {name: _THINKING_VALUES[name] for name in names[1:]}, ("type",))
        for kind, names in THINKING_FIELDS.items()
    ]
}
_FORMAT = record({"type": {"const": "json_schema"}, "schema": _SCHEMA}, ("type", "schema"))

MESSAGES: dict[str, Schema] = {
    "max_tokens": integer(1, MAX_TOKENS),
    "messages": array({"anyOf": _TURNS}, minItems=1),
    "output_config": record({"effort": {"enum": list(EFFORTS)}, "format": _FORMAT, "task_budget": _HINT}),
    "output_format": _FORMAT,
    "stop_sequences": array({"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}, maxItems=MAX_STOPS),
    "stream": _BOOLEAN,
    "system": _TEXTS,
    "thinking": _THINKING,
    "tool_choice": _CHOICE,
    "tools": array(_TOOL, maxItems=MAX_TOOLS),
}
MESSAGES |= {name: CHAT[name] for name in OPTIONS.honoured - MESSAGES.keys()}
COUNT: dict[str, Schema] = {name: MESSAGES[name] for name in COUNT_OPTIONS.honoured}

_COUNT: Schema = {"type": "integer", "minimum": 0}


def _answer(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


MESSAGES_ANSWERS: dict[str, Schema] = {
    "Message": _answer(
        {
            "id": _STRING,
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": _STRING,
            "content": array(
                {
                    "anyOf": [
                        _answer({"type": {"const": "text"}, "text": _STRING}),
                        _answer({"type": {"const": "thinking"}, "thinking": _STRING, "signature": _STRING}),
                        _answer({"type": {"const": "tool_use"}, "id": _STRING, "name": _STRING, "input": _OBJECT}),
                    ]
                }
            ),
            "stop_reason": _STRING,
            "stop_sequence": {"type": ["string", "null"]},
            "usage": _answer(
                {
                    "input_tokens": _COUNT,
                    "cache_creation_input_tokens": _COUNT,
                    "cache_read_input_tokens": _COUNT,
                    "output_tokens": _COUNT,
                }
            ),
        }
    ),
    "TokenCount": _answer({"input_tokens": _COUNT}),
}
