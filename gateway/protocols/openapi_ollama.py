"""JSON schemas of Ollama's routes, for ``/openapi.json``: what a body may hold, and what is answered."""

from __future__ import annotations

from gateway.protocols.ollama_messages import ROLES
from gateway.protocols.ollama_options import (
    LEAST_PREDICT,
    MAX_TOP_LOGPROBS,
    MODEL_OPTIONS,
    THINK_LEVELS,
)
from gateway.protocols.openapi_options import CHAT, Schema, array, body_schema, integer, record
from gateway.protocols.options import MAX_TOKENS
from gateway.protocols.tool_options import MAX_TOOLS, TOOL_NAME

__all__ = ["OLLAMA_ANSWERS", "OLLAMA_CHAT", "OLLAMA_GENERATE", "OLLAMA_OPTIONS", "OLLAMA_SHOW"]

_BOOLEAN: Schema = {"type": "boolean"}
_STRING: Schema = {"type": "string"}
_NAME: Schema = {"type": "string", "minLength": 1}
_OBJECT: Schema = {"type": "object"}
_IMAGES: Schema = array(_STRING, maxItems=0)
_SEEDS: Schema = CHAT["seed"]

OLLAMA_OPTIONS: dict[str, Schema] = {
    **{name: CHAT[name] for name in ("frequency_penalty", "min_p", "presence_penalty", "temperature", "top_p")},
    "num_ctx": {**integer(1, MAX_TOKENS), "description": "Not above the model's context."},
    "num_predict": integer(LEAST_PREDICT, MAX_TOKENS),
    "repeat_last_n": {**integer(-1, MAX_TOKENS), "description": "-1 or 0 beside a penalty."},
    "repeat_penalty": CHAT["repetition_penalty"],
    "seed": _SEEDS,
    "stop": CHAT["stop"],
    "top_k": integer(-1, MAX_TOKENS),
}

_CALL: Schema = record(
    {
        "function": record(
            {"name": _NAME, "arguments": _OBJECT, "description": _STRING, "index": integer(0, MAX_TOKENS)}, ("name",)
        ),
        "id": _STRING,
        "index": integer(0, MAX_TOKENS),
        "type": _STRING,
    },
    ("function",),
)
_MESSAGE: Schema = record(
    {
        "role": {"enum": list(ROLES)},
        "content": _STRING,
        "images": _IMAGES,
        "name": _STRING,
        "thinking": _STRING,
        "tool_call_id": _STRING,
        "tool_calls": array(_CALL),
        "tool_name": _STRING,
    },
    ("role",),
)
_TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": {"enum": ["function", None]},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": TOOL_NAME},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"], "properties": {"type": {"const": "object"}}},
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["name"],
        },
    },
    "required": ["function"],
}

_BOTH: dict[str, Schema] = {
    "format": {"anyOf": [{"enum": ["", "json"]}, {"type": "object", "description": "A JSON Schema."}]},
    "keep_alive": {
        "anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^[+-]?[0-9.]+(ns|us|µs|ms|s|m|h)?$"}],
        "description": "Seconds, or a duration such as 5m; negative: for ever; 0: until the request ends.",
    },
    "logprobs": _BOOLEAN,
    "model": CHAT["model"],
    "options": body_schema(MODEL_OPTIONS, OLLAMA_OPTIONS, ()),
    "priority": CHAT["priority"],
    "stream": {**_BOOLEAN, "description": "True without it."},
    "think": {"anyOf": [_BOOLEAN, {"enum": list(THINK_LEVELS)}]},
    "top_logprobs": integer(0, MAX_TOP_LOGPROBS),
}
OLLAMA_CHAT: dict[str, Schema] = {
    **_BOTH,
    "messages": array(_MESSAGE),
    "tools": array(_TOOL, maxItems=MAX_TOOLS),
}
OLLAMA_GENERATE: dict[str, Schema] = {
    **_BOTH,
    "images": _IMAGES,
    "prompt": _STRING,
    "raw": _BOOLEAN,
    "suffix": _STRING,
    "system": _STRING,
}
OLLAMA_SHOW: dict[str, Schema] = {"model": CHAT["model"], "name": CHAT["model"], "verbose": _BOOLEAN}


_COUNT: Schema = {"type": "integer", "minimum": 0}


def _answer(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }


_TIMES = {"total_duration": _COUNT, "load_duration": _COUNT}
_COUNTS = {
    "prompt_eval_count": _COUNT,
    "prompt_eval_duration": _COUNT,
    "eval_count": _COUNT,
    "eval_duration": _COUNT,
}
_END: dict[str, Schema] = {
    "model": _STRING,
    "created_at": _STRING,
    "done": {"const": True},
    "done_reason": {"enum": ["stop", "length", "load", "unload"]},
    **_TIMES,
    **_COUNTS,
    "logprobs": array(_OBJECT),
}
_SOMETIMES = (*_COUNTS, "logprobs", "thinking")  # nothing was evaluated for a load
_DETAILS = _answer(
    {
        "parent_model": _STRING,
        "format": _STRING,
        "family": _STRING,
        "families": array(_STRING),
        "parameter_size": _STRING,
        "quantization_level": _STRING,
    }
)
_ENTRY: dict[str, Schema] = {
    "name": _STRING,
    "model": _STRING,
    "size": _COUNT,
    "digest": _STRING,
    "details": _DETAILS,
}

OLLAMA_ANSWERS: dict[str, Schema] = {
    "OllamaChat": _answer(
        {
            **_END,
            "message": _answer(
                {
                    "role": {"const": "assistant"},
                    "content": _STRING,
                    "thinking": _STRING,
                    "tool_calls": array(
                        _answer({"function": _answer({"index": _COUNT, "name": _STRING, "arguments": _OBJECT})})
                    ),
                },
                ("thinking", "tool_calls"),
            ),
        },
        _SOMETIMES,
    ),
    "OllamaGenerated": _answer({**_END, "response": _STRING, "thinking": _STRING}, _SOMETIMES),
    "OllamaVersion": _answer({"version": _STRING, "innkeeper": _STRING}),
    "OllamaTags": _answer({"models": array(_answer({**_ENTRY, "modified_at": _STRING}))}),
    "OllamaPs": _answer(
        {"models": array(_answer({**_ENTRY, "expires_at": _STRING, "size_vram": _COUNT, "context_length": _COUNT}))}
    ),
    "OllamaShown": _answer(
        {
            "modelfile": _STRING,
            "parameters": _STRING,
            "template": _STRING,
            "details": _DETAILS,
            "model_info": _OBJECT,
            "capabilities": array(_STRING),
            "modified_at": _STRING,
            "license": _STRING,
            "system": _STRING,
        },
        ("license", "system"),
    ),
}
