"""JSON schemas of the Responses API, for ``/openapi.json``: what a body may hold, and what is answered."""

from __future__ import annotations

from gateway.protocols.openapi_options import CHAT, Schema, array, integer, record
from gateway.protocols.options import MAX_TOKENS
from gateway.protocols.reasoning_options import ALL_EFFORTS
from gateway.protocols.responses_options import (
    INCLUDES,
    MAX_METADATA,
    MAX_METADATA_KEY,
    MAX_METADATA_VALUE,
    SUMMARIES,
    VERBOSITIES,
)
from gateway.protocols.responses_request import OPTIONS
from gateway.protocols.tool_options import MAX_TOOLS, TOOL_NAME

__all__ = ["RESPONSES", "RESPONSES_ANSWERS"]

_BOOLEAN: Schema = {"type": "boolean"}
_STRING: Schema = {"type": "string"}
_OBJECT: Schema = {"type": "object"}
_NAME: Schema = {"type": "string", "minLength": 1}
_SCHEMA: Schema = {"type": ["object", "boolean"], "description": "A JSON Schema."}
_FUNCTION_NAME: Schema = {"type": "string", "pattern": TOOL_NAME}
_STATUS: Schema = {"enum": ["in_progress", "completed", "incomplete"]}
_HINT: Schema = {"description": "Accepted; changes nothing."}
_ECHOED: dict[str, Schema] = {"id": {"type": "string", "minLength": 1, "maxLength": 256}, "status": _STATUS}


def _text_part(*kinds: str) -> Schema:
    hints = {"annotations": _HINT, "logprobs": _HINT}
    return {
        "type": "object",
        "properties": {"type": {"enum": list(kinds)}, "text": _STRING, **hints},
        "required": ["type", "text"],
    }


_READ: Schema = _text_part("input_text", "text", "output_text")
_SAID: Schema = {
    "anyOf": [
        _READ,
        {
            "type": "object",
            "properties": {"type": {"const": "refusal"}, "refusal": _STRING},
            "required": ["type", "refusal"],
        },
    ]
}


def _message(roles: list[str], part: Schema) -> Schema:
    content: Schema = {"anyOf": [_STRING, array(part)]}
    kind: Schema = {"const": "message"}
    return record(
        {"type": kind, "role": {"enum": roles}, "content": content, "phase": _HINT, **_ECHOED}, ("role", "content")
    )


_ITEM: Schema = {
    "anyOf": [
        _message(["user", "system", "developer"], _READ),
        _message(["assistant"], _SAID),
        record(
            {"type": {"const": "function_call"}, "call_id": _NAME, "name": _NAME, "arguments": _STRING, **_ECHOED},
            ("type", "call_id", "name", "arguments"),
        ),
        record(
            {
                "type": {"const": "function_call_output"},
                "call_id": {**_NAME, "description": "Of a function_call before it."},
                "output": {"anyOf": [_STRING, array(_READ)]},
                **_ECHOED,
            },
            ("type", "call_id", "output"),
        ),
        record(
            {
                "type": {"const": "reasoning"},
                "summary": array(_text_part("summary_text", "text")),
                "content": array(_text_part("reasoning_text", "text")),
                "encrypted_content": _STRING,
                **_ECHOED,
            },
            ("type",),
        ),
        record({"type": {"const": "item_reference"}, "id": _NAME}, ("id",)),
    ]
}
_FORMAT: Schema = {
    "anyOf": [
        {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
        record(
            {
                "type": {"const": "json_schema"},
                "name": _NAME,
                "description": _STRING,
                "schema": _SCHEMA,
                "strict": _BOOLEAN,
            },
            ("type", "name", "schema"),
        ),
    ]
}
_TOOL: Schema = record(
    {
        "type": {"const": "function"},
        "name": _FUNCTION_NAME,
        "description": _STRING,
        "parameters": {"type": "object", "properties": {"type": {"const": "object"}}},
        "strict": _BOOLEAN,
    },
    ("type", "name"),
)
_ONE_FUNCTION: Schema = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "name": _FUNCTION_NAME},
    "required": ["type", "name"],
}
_CHOICE: Schema = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        _ONE_FUNCTION,
        {
            "type": "object",
            "properties": {
                "type": {"const": "allowed_tools"},
                "mode": {"enum": ["auto", "required"]},
                "tools": array(_ONE_FUNCTION, minItems=1),
            },
            "required": ["type", "mode", "tools"],
        },
    ]
}

RESPONSES: dict[str, Schema] = {
    "background": _BOOLEAN,
    "include": array({"enum": list(INCLUDES)}),
    "input": {"anyOf": [_STRING, array(_ITEM)]},
    "instructions": _STRING,
    "max_output_tokens": integer(1, MAX_TOKENS),
    "metadata": {
        "type": "object",
        "maxProperties": MAX_METADATA,
        "propertyNames": {"maxLength": MAX_METADATA_KEY},
        "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE},
    },
    "previous_response_id": _NAME,
    "reasoning": record(
        {
            "context": {"const": "auto"},
            "effort": {"enum": list(ALL_EFFORTS)},
            "enabled": _BOOLEAN,
            "generate_summary": {"enum": list(SUMMARIES)},
            "max_tokens": integer(0, MAX_TOKENS),
            "mode": {"const": "standard"},
            "summary": {"enum": list(SUMMARIES)},
        }
    ),
    "store": _BOOLEAN,
    "stream_options": record({"include_obfuscation": _BOOLEAN}),
    "text": record({"format": _FORMAT, "verbosity": {"enum": list(VERBOSITIES)}}),
    "tool_choice": _CHOICE,
    "tools": array(_TOOL, maxItems=MAX_TOOLS),
    "truncation": {"enum": ["auto", "disabled"]},
}
RESPONSES |= {name: CHAT[name] for name in OPTIONS.honoured - RESPONSES.keys()}

_COUNT: Schema = {"type": "integer", "minimum": 0}


def _answer(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


_ANSWER_ITEM = _answer({"id": _STRING, "type": _STRING})
RESPONSES_ANSWERS: dict[str, Schema] = {
    "Response": _answer(
        {
            "id": _STRING,
            "object": {"const": "response"},
            "created_at": _COUNT,
            "status": {"enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]},
            "error": {"type": ["object", "null"]},
            "incomplete_details": {"type": ["object", "null"]},
            "model": _STRING,
            "output": array(_ANSWER_ITEM),
            "usage": {
                "anyOf": [
                    {"type": "null"},
                    _answer(
                        {
                            "input_tokens": _COUNT,
                            "input_tokens_details": _answer({"cached_tokens": _COUNT}),
                            "output_tokens": _COUNT,
                            "output_tokens_details": _answer({"reasoning_tokens": _COUNT}),
                            "total_tokens": _COUNT,
                        }
                    ),
                ]
            },
            "metadata": _OBJECT,
            "store": _BOOLEAN,
        }
    ),
    "ResponseItems": _answer(
        {
            "object": {"const": "list"},
            "data": array(_ANSWER_ITEM),
            "first_id": {"type": ["string", "null"]},
            "last_id": {"type": ["string", "null"]},
            "has_more": _BOOLEAN,
        }
    ),
    "ResponseCount": _answer({"object": {"const": "response.input_tokens"}, "input_tokens": _COUNT}),
    "DeletedResponse": _answer({"id": _STRING, "object": {"const": "response"}, "deleted": {"const": True}}),
}
