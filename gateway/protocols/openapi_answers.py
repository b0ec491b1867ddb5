"""JSON schemas of answers and errors, for ``/openapi.json``. What a client may rely on is required; more may be there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

import msgspec

from engines.wire import Band, Priority
from gateway.errors import InvalidRequest
from gateway.protocols import admin
from gateway.protocols.envelopes import render
from gateway.protocols.openapi_anthropic import MESSAGES_ANSWERS
from gateway.protocols.openapi_ollama import OLLAMA_ANSWERS
from gateway.protocols.openapi_options import Schema
from gateway.protocols.openapi_responses import RESPONSES_ANSWERS
from gateway.protocols.openapi_texts import TEXTS_ANSWERS
from gateway.protocols.scheduling import HISTOGRAMS, SCHEDULING
from gateway.residency.explain import Explanation
from gateway.residency.reload import Reload
from gateway.residency.statistics import BudgetStatistics, LeaseStatistics, ModelStatistics, QueueStatistics
from gateway.residency.values import AdminAnswer
from gateway.residency.worker_fleet import ProcessStatistics

__all__ = ["ERRORS", "SCHEMAS", "error_content", "ref"]


def ref(name: str) -> Schema:
    """A reference to one of the document's schemas."""
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: dict[str, Schema], optional: Iterable[str] = ()) -> Schema:
    required = [name for name in properties if name not in set(optional)]
    return {"type": "object", "properties": properties, "required": required}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _fields(kind: type, names: Iterable[str]) -> Schema:
    """An object with these fields of a dataclass, under the same names and types."""
    hints = get_type_hints(kind)
    return _object({name: msgspec.json.schema(hints[name]) for name in names})


_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FINISH: Schema = {"type": ["string", "null"]}
_LOGPROBS: Schema = {"type": ["object", "null"]}

_CALL = _object(
    {
        "id": _STRING,
        "type": {"const": "function"},
        "function": _object({"name": _STRING, "arguments": _STRING}),
    }
)
_TOKENS: Schema = {"type": ["integer", "null"], "minimum": 0}
_CAPACITY = _object(
    {
        "estimate": {"type": "boolean"},
        "context": _TOKENS,
        "grant_bytes": _COUNT,
        "width": _TOKENS,
        "queue_limit": _COUNT,
        "rows": _array(_object({"rows": _COUNT, "tokens": _TOKENS})),
    }
)
_NUMBER: Schema = {"type": "number"}
_HISTOGRAM = _object(
    {"count": _COUNT, "sum_s": _NUMBER, "buckets": _array(_object({"le_s": _NUMBER, "count": _COUNT}))}
)
_SCHEDULING = _object(
    {
        **dict.fromkeys(SCHEDULING, _NUMBER),
        "band": {"enum": list(get_args(Band))},
        "by_priority": _object(dict.fromkeys(get_args(Priority), _COUNT)),
        "headroom_bytes": {"type": ["integer", "null"]},
        **dict.fromkeys(HISTOGRAMS, _HISTOGRAM),
    }
)
_MESSAGE = _object(
    {
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "reasoning_content": _STRING,
        "tool_calls": _array(_CALL),
    },
    ("reasoning_content", "tool_calls"),
)
_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
        "completion_tokens_details": _object({"reasoning_tokens": _COUNT}),
    }
)
_ANSWER = {"id": _STRING, "created": _COUNT, "model": _STRING, "usage": ref("Usage")}
_ERROR = _object({"message": _STRING, "type": _STRING, "param": {"type": ["string", "null"]}, "code": _STRING})
_MODEL = _object(
    {
        "id": _STRING,
        "object": {"const": "model"},
        "created": _COUNT,
        "owned_by": _STRING,
        "type": {"const": "model"},
        "display_name": _STRING,
        "created_at": _STRING,
        "aliases": _array(_STRING),
        "task": _STRING,
        "state": {"type": ["string", "null"]},
        "context": {"type": ["integer", "null"]},
        "footprint_bytes": {"type": ["integer", "null"]},
        "error": _or_null(_object({"code": _STRING, "message": _STRING})),
    }
)
_PLAN = _fields(Explanation, [name for name in Explanation.__dataclass_fields__ if name != "error"])
_ADMIN = ("model", "state", "generation")

SCHEMAS: dict[str, Schema] = {
    "Usage": _USAGE,
    "ChatCompletion": _object(
        {
            **_ANSWER,
            "object": {"const": "chat.completion"},
            "choices": _array(
                _object(
                    {
                        "index": _COUNT,
                        "message": _MESSAGE,
                        "logprobs": _LOGPROBS,
                        "finish_reason": _FINISH,
                    }
                )
            ),
        }
    ),
    "Completion": _object(
        {
            **_ANSWER,
            "object": {"const": "text_completion"},
            "choices": _array(
                _object({"index": _COUNT, "text": _STRING, "logprobs": _LOGPROBS, "finish_reason": _FINISH})
            ),
        }
    ),
    **RESPONSES_ANSWERS,
    **MESSAGES_ANSWERS,
    **OLLAMA_ANSWERS,
    **TEXTS_ANSWERS,
    "Model": _MODEL,
    "Models": _object(
        {
            "object": {"const": "list"},
            "data": _array(ref("Model")),
            "has_more": {"type": "boolean"},
            "first_id": {"type": ["string", "null"]},
            "last_id": {"type": ["string", "null"]},
        }
    ),
    "Tokenized": _object(
        {
            "count": _COUNT,
            "max_model_len": {"type": ["integer", "null"]},
            "tokens": _array(_COUNT),
            "token_strs": _or_null(_array(_STRING)),
        }
    ),
    "TokenizedContent": _object(
        {
            "tokens": {
                "anyOf": [
                    _array(_COUNT),
                    _array(_object({"id": _COUNT, "piece": {"anyOf": [_STRING, _array(_COUNT)]}})),
                ]
            }
        }
    ),
    "Detokenized": _object({"prompt": _STRING, "content": _STRING}),
    "Health": _object({"status": _STRING, "reason": _STRING}, ("reason",)),
    "Metrics": {"type": "object", "additionalProperties": {"type": "object"}},
    "Status": _object(
        {
            "budget": _fields(BudgetStatistics, admin.BUDGET),
            "models": _array(ref("AdminModel")),
            "queue": _array(ref("QueueEntry")),
            "leases": _array(ref("Lease")),
            "workers": _array(_fields(ProcessStatistics, admin.WORKER)),
        }
    ),
    "AdminModel": _fields(ModelStatistics, admin.MODEL),
    "AdminModelDetail": _object(
        {
            **_fields(ModelStatistics, admin.MODEL)["properties"],
            "capacity": _or_null(_CAPACITY),
            "scheduling": _or_null(_SCHEDULING),
        }
    ),
    "AdminModels": _object({"models": _array(ref("AdminModel"))}),
    "QueueEntry": _fields(QueueStatistics, admin.QUEUE),
    "Queue": _object({"queue": _array(ref("QueueEntry"))}),
    "Lease": _fields(LeaseStatistics, admin.LEASE),
    "Leases": _object({"leases": _array(ref("Lease"))}),
    "Plan": {**_PLAN, "properties": {**_PLAN["properties"], "error": _or_null(_ERROR)}},
    "Loaded": _fields(AdminAnswer, _ADMIN),
    "Unloaded": _fields(AdminAnswer, (*_ADMIN, "waited_for")),
    "Pinned": _object({**_fields(AdminAnswer, _ADMIN)["properties"], "pinned": {"type": "boolean"}}),
    "Cancelled": _object({"id": _STRING, "model": _STRING, "cancelled": {"const": True}}),
    "Reloaded": _fields(Reload, Reload.__dataclass_fields__),
    "OpenAIError": _object({"error": _ERROR}),
    "AnthropicError": _object(
        {"type": {"const": "error"}, "error": _object({"type": _STRING, "message": _STRING}), "request_id": _STRING}
    ),
    "OllamaError": _object({"error": _STRING}),
}

ERRORS: dict[int, str] = {
    400: "The request names a field, its value and what is allowed.",
    401: "There is no key, or not one of this server's.",
    403: "The key has not the scope, or another site's page asked.",
    404: "There is no such model, lease or path.",
    409: "A pin or a lease is in the way.",
    413: "The request is larger than a limit, which is named.",
    415: "The body does not say that it is JSON.",
    429: "The key has as many requests under way as it may.",
    500: "A defect of the server's; its log has the trace.",
    501: "Not built, or an optional dependency is missing.",
    503: "Not now: Retry-After says when.",
    507: "The model does not fit the memory budget.",
}


def error_content(path: str) -> dict[str, Any]:
    """The media type and schema of this path's errors, as its protocol's envelope has them."""
    sample = render(InvalidRequest("x"), path, "")
    if not sample.media_type.startswith("application/json"):
        return {sample.media_type: {"schema": _STRING}}
    body: dict[str, Any] = msgspec.json.decode(sample.body)
    name = "AnthropicError" if "type" in body else "OllamaError" if isinstance(body["error"], str) else "OpenAIError"
    return {sample.media_type: {"schema": ref(name)}}
