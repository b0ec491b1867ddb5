"""JSON schemas of request options, by name: what ``/openapi.json`` says a body may hold.

The option tables of each protocol say which names there are; these say what values they take. A hint takes any value, a refused
option only those that ask for nothing. ``null`` counts as absent throughout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from engines.wire import Priority
from gateway.protocols.grammar_options import MAX_ALTERNATIVES
from gateway.protocols.options import MAX_STOP_CHARS, MAX_STOPS, MAX_TOKEN_ID, MAX_TOKENS, OptionTables
from gateway.protocols.reasoning_options import ALL_EFFORTS, REASONING_FORMATS
from gateway.protocols.tool_options import MAX_TOOLS, TOOL_NAME

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "DETOKENIZE",
    "TOKENIZE",
    "UNLOAD",
    "Schema",
    "array",
    "body_schema",
    "integer",
    "record",
]

Schema = dict[str, Any]

_BOOLEAN: Schema = {"type": "boolean"}
_STRING: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1}
_OBJECT: Schema = {"type": "object"}


def integer(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def record(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    """An object of these properties only; the others than ``required`` may be null."""
    needed = sorted(required)
    schema: Schema = {
        "type": "object",
        "properties": {
            name: value if name in needed else _or_null(value) for name, value in sorted(properties.items())
        },
        "additionalProperties": False,
    }
    return {**schema, "required": needed} if needed else schema


def _or_null(schema: Schema) -> Schema:
    if not schema or schema.get("type") == "null":
        return schema
    if "enum" in schema:
        return {**schema, "enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


_MODEL: Schema = {**_NAME, "description": "An id or alias of the registry, or id@profile."}
_STOP_TEXT: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_TOKEN: Schema = integer(0, MAX_TOKEN_ID)
_TOKENS: Schema = array(_TOKEN, minItems=1)

_PART: Schema = {
    "anyOf": [
        record({"type": {"enum": ["text", "input_text"]}, "text": _STRING}, ("type", "text")),
        record({"type": {"const": "refusal"}, "refusal": _STRING}, ("type", "refusal")),
    ]
}
_CALL: Schema = {
    "type": "object",
    "properties": {
        "id": _NAME,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": _NAME, "arguments": _STRING},
            "required": ["arguments", "name"],
        },
    },
    "required": ["function", "id", "type"],
}
_CONTENT: Schema = {"anyOf": [_STRING, array(_PART, minItems=1)]}
_MESSAGES: Schema = array(
    {
        "anyOf": [
            record(
                {"role": {"enum": ["system", "developer", "user"]}, "content": _CONTENT, "name": _STRING},
                ("role", "content"),
            ),
            record(
                {
                    "role": {"const": "assistant"},
                    "content": _CONTENT,
                    "name": _STRING,
                    "reasoning": _STRING,
                    "reasoning_content": _STRING,
                    "refusal": _STRING,
                },
                ("role", "content"),
            ),
            record(
                {
                    "role": {"const": "assistant"},
                    "content": _CONTENT,
                    "reasoning": _STRING,
                    "reasoning_content": _STRING,
                    "tool_calls": array(_CALL, minItems=1),
                },
                ("role", "tool_calls"),
            ),
            record(
                {
                    "role": {"const": "tool"},
                    "content": _CONTENT,
                    "tool_call_id": {**_NAME, "description": "Of a tool call in an assistant's message before."},
                },
                ("role", "content", "tool_call_id"),
            ),
        ]
    },
    minItems=1,
)

_TEXT_OPTIONS: dict[str, Schema] = {
    "frequency_penalty": _number(-2, 2),
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": _number(-100, 100),
        "maxProperties": 10_000,
    },
    "min_p": _number(0, 1),
    "model": _MODEL,
    "n": integer(1, 128),
    "presence_penalty": _number(-2, 2),
    "priority": {"enum": list(get_args(Priority))},
    "repetition_penalty": _number(0.01, 10),
    "seed": integer(-(2**63), 2**63 - 1),
    "stop": {"anyOf": [_STOP_TEXT, array(_STOP_TEXT, maxItems=MAX_STOPS)]},
    "stream": _BOOLEAN,
    "stream_options": record({"include_usage": _BOOLEAN, "include_obfuscation": _BOOLEAN}),
    "temperature": _number(0, 2),
    "top_k": integer(0, MAX_TOKENS),
    "top_p": _number(0, 1),
}

_TOOL_NAME: Schema = {"type": "string", "pattern": TOOL_NAME}
_ONE_FUNCTION: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": _TOOL_NAME}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
_ALLOWED: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "allowed_tools": {
            "type": "object",
            "properties": {"mode": {"enum": ["auto", "required"]}, "tools": array(_ONE_FUNCTION, minItems=1)},
            "required": ["mode", "tools"],
        },
    },
    "required": ["type", "allowed_tools"],
}
_ARGUMENTS: Schema = {"type": ["object", "null"], "properties": {"type": {"const": "object"}}}
_TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": _TOOL_NAME,
                "description": {"type": ["string", "null"]},
                "parameters": _ARGUMENTS,
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["name"],
        },
    },
    "required": ["type", "function"],
}
_TOOL_OPTIONS: dict[str, Schema] = {
    "parallel_tool_calls": _BOOLEAN,
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, _ONE_FUNCTION, _ALLOWED]},
    "tools": array(_TOOL, maxItems=MAX_TOOLS),
}

_SCHEMA: Schema = {"type": ["object", "boolean"], "description": "A JSON Schema."}
_SCHEMA_OR_TEXT: Schema = {"anyOf": [_SCHEMA, {**_NAME, "description": "A JSON Schema's text."}]}
_LARK: Schema = {**_NAME, "description": "A grammar in Lark or GBNF."}
_REGEX: Schema = {**_NAME, "description": "A regular expression for the whole text."}
_ALTERNATIVES: Schema = array(_NAME, minItems=1, maxItems=MAX_ALTERNATIVES)
_NAMED_SCHEMA = record(
    {"name": _TOOL_NAME, "description": _STRING, "schema": _SCHEMA, "strict": _BOOLEAN}, ("name", "schema")
)
_GRAMMAR_OPTIONS: dict[str, Schema] = {
    "grammar": _LARK,
    "guided_choice": _ALTERNATIVES,
    "guided_grammar": _LARK,
    "guided_json": _SCHEMA_OR_TEXT,
    "guided_regex": _REGEX,
    "json_schema": _SCHEMA_OR_TEXT,
    "response_format": {
        "anyOf": [
            {"type": "object", "properties": {"type": {"const": "text"}}, "required": ["type"]},
            {
                "type": "object",
                "properties": {"type": {"const": "json_object"}, "schema": _or_null(_SCHEMA)},
                "required": ["type"],
            },
            {
                "type": "object",
                "properties": {"type": {"const": "json_schema"}, "json_schema": _NAMED_SCHEMA},
                "required": ["type", "json_schema"],
            },
        ]
    },
    "structured_outputs": {
        **record(
            {
                "choice": _ALTERNATIVES,
                "grammar": _LARK,
                "json": _SCHEMA_OR_TEXT,
                "json_object": _BOOLEAN,
                "regex": _REGEX,
            }
        ),
        "maxProperties": 1,
    },
}

_BUDGET: Schema = integer(0, MAX_TOKENS)
_EFFORT: Schema = {"enum": list(ALL_EFFORTS)}
_REASONING_OPTIONS: dict[str, Schema] = {
    "include_reasoning": _BOOLEAN,
    "reasoning": record({"effort": _EFFORT, "enabled": _BOOLEAN, "exclude": _BOOLEAN, "max_tokens": _BUDGET}),
    "reasoning_effort": _EFFORT,
    "reasoning_format": {"enum": list(REASONING_FORMATS)},
    "thinking_budget": _BUDGET,
    "thinking_budget_tokens": _BUDGET,
}

CHAT: dict[str, Schema] = {
    **_TEXT_OPTIONS,
    **_TOOL_OPTIONS,
    **_GRAMMAR_OPTIONS,
    **_REASONING_OPTIONS,
    "add_generation_prompt": _BOOLEAN,
    "chat_template_kwargs": _OBJECT,
    "continue_final_message": _BOOLEAN,
    "logprobs": _BOOLEAN,
    "max_completion_tokens": integer(1, MAX_TOKENS),
    "max_tokens": integer(1, MAX_TOKENS),
    "messages": _MESSAGES,
    "top_logprobs": integer(0, 20),
}

COMPLETIONS: dict[str, Schema] = {
    **_TEXT_OPTIONS,
    **_GRAMMAR_OPTIONS,
    "best_of": integer(1, 20),
    "echo": _BOOLEAN,
    "logprobs": {"anyOf": [integer(0, 5), {"const": False}]},
    "max_tokens": {**integer(0, MAX_TOKENS), "description": "0 beside echo only."},
    "prompt": {"anyOf": [_STRING, _TOKENS, array({"anyOf": [_STRING, _TOKENS]}, minItems=1)]},
    "suffix": _STRING,
}

TOKENIZE: dict[str, Schema] = {
    "add_generation_prompt": _BOOLEAN,
    "add_special": _BOOLEAN,
    "add_special_tokens": _BOOLEAN,
    "chat_template": _NAME,
    "chat_template_kwargs": _OBJECT,
    "content": _STRING,
    "continue_final_message": _BOOLEAN,
    "messages": _MESSAGES,
    "model": {**_MODEL, "description": "May be left out where the registry has one text model."},
    "parse_special": _BOOLEAN,
    "prompt": _STRING,
    "return_token_strs": _BOOLEAN,
    "tools": _TOOL_OPTIONS["tools"],
    "with_pieces": _BOOLEAN,
}

DETOKENIZE: dict[str, Schema] = {"model": TOKENIZE["model"], "tokens": array(_TOKEN)}

UNLOAD: dict[str, Schema] = {"mode": {"enum": ["drain", "abort", "force"]}, "deadline_s": _number(0, 86_400)}


def body_schema(
    tables: OptionTables, schemas: Mapping[str, Schema], required: Iterable[str], names: Iterable[str] | None = None
) -> Schema:
    """The body of a route with these tables; ``names`` leaves only some of the honoured options."""
    honoured = tables.honoured if names is None else tables.honoured & set(names)
    properties = {name: schemas.get(name, {}) for name in honoured}
    properties |= {name: {"description": "Accepted; changes nothing."} for name in tables.hints}
    for name, neutral in tables.refused.items():
        if neutral:
            properties[name] = {"enum": list(neutral), "description": "Refused, but for what asks for nothing."}
    return record(properties, required)
