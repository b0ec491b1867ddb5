"""``GET /openapi.json``: an OpenAPI 3.1 document of the routes there are, made of the option tables that the parsers use.

A route without an entry in :data:`OPERATIONS` is described as one that is not built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.metrics import CONTENT_TYPE
from gateway.protocols import (
    admin,
    anthropic_request,
    embeddings,
    ollama_chat,
    ollama_embed,
    ollama_generate,
    ollama_models,
    openai_chat,
    openai_completions,
    rerank,
    responses_request,
    score,
    text_tools,
)
from gateway.protocols.ollama_answer import NDJSON
from gateway.protocols.openapi_answers import ERRORS, SCHEMAS, error_content, ref
from gateway.protocols.openapi_anthropic import COUNT, MESSAGES
from gateway.protocols.openapi_ollama import OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_SHOW
from gateway.protocols.openapi_options import CHAT, COMPLETIONS, DETOKENIZE, TOKENIZE, UNLOAD, Schema, body_schema
from gateway.protocols.openapi_responses import RESPONSES
from gateway.protocols.openapi_texts import EMBEDDINGS, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, RERANK, SCORE

__all__ = ["OPERATIONS", "Endpoint", "Operation", "document"]

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_EVENTS = "text/event-stream; charset=utf-8"
# No type: readers of OpenAPI 3.1 differ on whether it is of the whole stream or of each event.
_STREAM: Schema = {
    "description": "Server-sent events, each with JSON data; of a text's stream the last data is [DONE]."
}
_MESSAGE_STREAM: Schema = {
    "description": "Server-sent events, each with JSON data; the last is message_stop, or an error."
}
_LINES: Schema = {"description": "Objects as of the whole answer, one a line; the last has done true, or is an error."}
_RESPONSE_STREAM: Schema = {
    "description": "Server-sent events, each with JSON data and a sequence number; the last has the whole response."
}
_CONVERTOR = re.compile(r"\{(\w+)(?::\w+)?\}")


@dataclass(frozen=True)
class Endpoint:
    """One route: its path as Starlette writes it, and who may call it. ``open`` needs no key."""

    path: str
    methods: frozenset[str]
    open: bool = False
    takes: str | None = None  # the media type of the body, where it is not built and needs one


@dataclass(frozen=True)
class Operation:
    """What one method of a path does. ``answers`` are its 200s by media type, none where it only ever refuses; ``unready`` is the
    schema of a 503 of its own.
    """

    summary: str
    answers: Mapping[str, Schema]
    body: Schema | None = None
    body_required: bool = True
    errors: tuple[int, ...] = ()
    query: Mapping[str, bool] = field(default_factory=dict)  # name → whether it must be there
    unready: Schema | None = None


_INFER = (400, 404, 413, 415, 501, 503, 507)
_STORED = (400, 404, 503)
_TOOL = (400, 404, 413, 415, 503)
_VERB = (400, 404, 409, 413, 415, 503, 507)
_GUARDED = (401, 403, 429, 500)  # what any route with a key may be answered with


def _json(name: str) -> dict[str, Schema]:
    return {_JSON: ref(name)}


def _of_registry(what: str) -> Operation:
    return Operation(f"{what}: refused, since models are entries of the registry", {}, errors=(501,))


def _kind(name: str) -> Schema:
    names = {name, "model", *text_tools.OPTIONS_OF[name]}
    return body_schema(text_tools.TOKENIZE_OPTIONS, TOKENIZE, (name,), names)


_RERANK = Operation(
    "Documents by how well they answer a query, best first",
    _json("Reranked"),
    body=body_schema(rerank.OPTIONS, RERANK, ("model", "query", "documents")),
    errors=_INFER,
)
_NOTHING: Schema = {"type": "object", "additionalProperties": False}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "OpenAI's chat, whole or streamed",
        {**_json("ChatCompletion"), _EVENTS: _STREAM},
        body=body_schema(openai_chat.OPTIONS, CHAT, ("model", "messages")),
        errors=_INFER,
    ),
    ("POST", "/v1/completions"): Operation(
        "OpenAI's older text completion, whole or streamed",
        {**_json("Completion"), _EVENTS: _STREAM},
        body=body_schema(openai_completions.OPTIONS, COMPLETIONS, ("model", "prompt")),
        errors=_INFER,
    ),
    ("POST", "/v1/embeddings"): Operation(
        "OpenAI's embeddings",
        _json("Embeddings"),
        body=body_schema(embeddings.OPTIONS, EMBEDDINGS, ("model", "input")),
        errors=_INFER,
    ),
    **{("POST", path): _RERANK for path in ("/v1/rerank", "/v2/rerank", "/rerank")},
    ("POST", "/v1/score"): Operation(
        "How well each of some texts goes with another, in their order",
        _json("Scored"),
        body={
            "anyOf": [
                body_schema(score.OPTIONS, SCORE, ("model", *pair), score.OPTIONS.honoured - set(other))
                for pair, other in zip(score.PAIRS, reversed(score.PAIRS), strict=True)
            ]
        },
        errors=_INFER,
    ),
    ("POST", "/v1/responses"): Operation(
        "OpenAI's responses, whole, streamed or in the background",
        {**_json("Response"), _EVENTS: _RESPONSE_STREAM},
        body=body_schema(responses_request.OPTIONS, RESPONSES, ("model",)),
        errors=_INFER,
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "The tokens that a response would read; loads nothing",
        _json("ResponseCount"),
        body=body_schema(responses_request.OPTIONS, RESPONSES, ("model",)),
        errors=_TOOL,
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "A stored response; the events of one made in the background",
        {**_json("Response"), _EVENTS: _RESPONSE_STREAM},
        errors=_STORED,
        query={"stream": False, "starting_after": False, "include": False, "include_obfuscation": False},
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        "Deletes a stored response, and cancels one that is made", _json("DeletedResponse"), errors=(404, 503)
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        "Cancels a response that is made in the background", _json("Response"), errors=_STORED
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "What a stored response was made of",
        _json("ResponseItems"),
        errors=_STORED,
        query={"limit": False, "order": False, "after": False, "include": False},
    ),
    ("POST", "/v1/messages"): Operation(
        "Anthropic's messages, whole or streamed",
        {**_json("Message"), _EVENTS: _MESSAGE_STREAM},
        body=body_schema(anthropic_request.OPTIONS, MESSAGES, ("model", "messages", "max_tokens")),
        errors=_INFER,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "The tokens of a prompt; loads nothing",
        _json("TokenCount"),
        body=body_schema(anthropic_request.COUNT_OPTIONS, COUNT, ("model", "messages")),
        errors=_TOOL,
    ),
    ("GET", "/api/version"): Operation("The release of Ollama's API, and this server's own", _json("OllamaVersion")),
    ("GET", "/api/tags"): Operation("The models of the registry", _json("OllamaTags")),
    ("GET", "/api/ps"): Operation("The models in memory", _json("OllamaPs")),
    ("POST", "/api/show"): Operation(
        "One model at length; loads nothing",
        _json("OllamaShown"),
        body={**body_schema(ollama_models.SHOW_OPTIONS, OLLAMA_SHOW, ()), "minProperties": 1},
        errors=_TOOL,
    ),
    ("POST", "/api/chat"): Operation(
        "Ollama's chat, streamed or whole; loads or unloads where it has no messages",
        {**_json("OllamaChat"), NDJSON: _LINES},
        body=body_schema(ollama_chat.OPTIONS, OLLAMA_CHAT, ("model",)),
        errors=_INFER,
    ),
    ("POST", "/api/generate"): Operation(
        "Ollama's answer to a prompt, streamed or whole; loads or unloads where it has none",
        {**_json("OllamaGenerated"), NDJSON: _LINES},
        body=body_schema(ollama_generate.OPTIONS, OLLAMA_GENERATE, ("model",)),
        errors=_INFER,
    ),
    ("POST", "/api/embed"): Operation(
        "Ollama's embeddings; loads or unloads where there is no input",
        _json("OllamaEmbedded"),
        body=body_schema(ollama_embed.EMBED_OPTIONS, OLLAMA_EMBED, ("model",)),
        errors=_INFER,
    ),
    ("POST", "/api/embeddings"): Operation(
        "Ollama's older embeddings, of one text",
        _json("OllamaEmbedding"),
        body=body_schema(ollama_embed.EMBEDDINGS_OPTIONS, OLLAMA_EMBEDDINGS, ("model",)),
        errors=_INFER,
    ),
    ("POST", "/api/pull"): _of_registry("Fetch a model"),
    ("POST", "/api/push"): _of_registry("Publish a model"),
    ("POST", "/api/create"): _of_registry("Make a model"),
    ("POST", "/api/copy"): _of_registry("Copy a model"),
    ("DELETE", "/api/delete"): _of_registry("Remove a model"),
    ("POST", "/api/blobs/{digest}"): _of_registry("Send a file"),
    ("GET", "/v1/models"): Operation(
        "The models of the registry",
        _json("Models"),
        errors=(400,),
        query={"limit": False, "after_id": False, "before_id": False},
    ),
    ("GET", "/v1/models/{id:path}"): Operation("One of them, by id or alias", _json("Model"), errors=(404,)),
    ("POST", "/tokenize"): Operation(
        "Token ids of a text or a chat; loads nothing",
        {_JSON: {"anyOf": [ref("Tokenized"), ref("TokenizedContent")]}},
        body={"anyOf": [_kind(name) for name in text_tools.OPTIONS_OF]},
        errors=_TOOL,
    ),
    ("POST", "/detokenize"): Operation(
        "The text of token ids; loads nothing",
        _json("Detokenized"),
        body=body_schema(text_tools.DETOKENIZE_OPTIONS, DETOKENIZE, ("tokens",)),
        errors=_TOOL,
    ),
    ("GET", "/"): Operation("The words by which Ollama's clients know a server", {_TEXT: {"type": "string"}}),
    ("GET", "/health"): Operation("The process is up", _json("Health"), unready=ref("Health")),
    ("GET", "/ready"): Operation("A request sent now would be worked on", _json("Health"), unready=ref("Health")),
    ("GET", "/metrics"): Operation("Prometheus' text format", {CONTENT_TYPE: {"type": "string"}}),
    ("GET", "/v1/metrics"): Operation("The same as JSON", _json("Metrics")),
    ("GET", "/openapi.json"): Operation("This document", {_JSON: {"type": "object"}}),
    ("GET", "/admin/status"): Operation("Budget, models, queue, leases and workers", _json("Status")),
    ("GET", "/admin/models"): Operation("What the residency knows of each model", _json("AdminModels")),
    ("GET", "/admin/models/{id:path}"): Operation(
        "The same of one, with its capacity and scheduling", _json("AdminModelDetail"), errors=(404, 405)
    ),
    ("GET", "/admin/leases"): Operation("The leases that are out", _json("Leases")),
    ("DELETE", "/admin/leases/{id}"): Operation("Ends a lease's requests", _json("Cancelled"), errors=(404,)),
    ("GET", "/admin/queue"): Operation("Who waits for a model", _json("Queue")),
    ("GET", "/admin/plan"): Operation(
        "What a request would lead to; nothing is done", _json("Plan"), errors=(400, 404), query={"model": True}
    ),
    ("GET", "/admin/events"): Operation("Every transition as it happens", {_EVENTS: _STREAM}, errors=(503,)),
    ("POST", "/admin/models/{id:path}/load"): Operation(
        "Loads; answers when it is done", _json("Loaded"), body=_NOTHING, body_required=False, errors=_VERB
    ),
    ("POST", "/admin/models/{id:path}/unload"): Operation(
        "Unloads; answers when its bytes are free",
        _json("Unloaded"),
        body=body_schema(admin.UNLOAD_OPTIONS, UNLOAD, ()),
        body_required=False,
        errors=_VERB,
    ),
    ("POST", "/admin/models/{id:path}/pin"): Operation(
        "Keeps it once it is loaded", _json("Pinned"), body=_NOTHING, body_required=False, errors=_VERB
    ),
    ("POST", "/admin/models/{id:path}/unpin"): Operation(
        "Takes a pin away", _json("Pinned"), body=_NOTHING, body_required=False, errors=_VERB
    ),
    ("POST", "/admin/registry/reload"): Operation(
        "Reads the registry file again",
        _json("Reloaded"),
        body=_NOTHING,
        body_required=False,
        errors=(400, 413, 415, 503),
    ),
}


def document(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    """The document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        methods = {method.lower(): _described(endpoint, method) for method in sorted(endpoint.methods)}
        paths.setdefault(_CONVERTOR.sub(r"{\1}", endpoint.path), {}).update(methods)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Innkeeper",
            "version": version,
            "description": "Many local models, one memory budget, one endpoint.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        # The empty one: a server without configured keys asks for none.
        "security": [{"bearer": []}, {"key": []}, {}],
    }


def _described(endpoint: Endpoint, method: str) -> dict[str, Any]:
    get = "GET" if method == "HEAD" else method
    operation = OPERATIONS.get((get, endpoint.path))
    described = _unbuilt(endpoint, method) if operation is None else _built(operation, endpoint, method)
    parameters = [_path_parameter(name) for name in _CONVERTOR.findall(endpoint.path)]
    parameters += described.pop("parameters", [])
    name = re.sub(r"\W+", "_", f"{method.lower()}{endpoint.path.removesuffix('/')}").strip("_")
    described = {"operationId": name, **described}
    if parameters:
        described["parameters"] = parameters
    if endpoint.open:
        described["security"] = []
    if method == "HEAD":
        for response in described["responses"].values():
            response.pop("content", None)
    return described


def _built(operation: Operation, endpoint: Endpoint, method: str) -> dict[str, Any]:
    content = {media: {"schema": schema} for media, schema in operation.answers.items()}
    headers = {"x-request-id": {"schema": {"type": "string"}}}
    done = {"200": {"description": "Done.", "content": content, "headers": headers}}
    responses: dict[str, Any] = done if content else {}
    responses |= _errors(endpoint, operation.errors)
    if operation.unready is not None:
        responses["503"] = {"description": "Not now.", "content": {_JSON: {"schema": operation.unready}}}
    described: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {_JSON: {"schema": operation.body}},
        }
    if operation.query:
        described["parameters"] = [
            {"name": name, "in": "query", "required": required, "schema": {"type": "string", "minLength": 1}}
            for name, required in operation.query.items()
        ]
    return described


def _unbuilt(endpoint: Endpoint, method: str) -> dict[str, Any]:
    """A route that answers 501, some after a look at the model that is named."""
    described: dict[str, Any] = {
        "summary": "Not built yet",
        "responses": _errors(endpoint, (501,) if endpoint.takes is None else (400, 404, 413, 415, 501, 503)),
    }
    if endpoint.takes is not None:
        body = {"type": "object", "properties": {"model": {"type": "string"}}, "required": ["model"]}
        described["requestBody"] = {"required": True, "content": {endpoint.takes: {"schema": body}}}
    return described


def _errors(endpoint: Endpoint, statuses: Iterable[int]) -> dict[str, Any]:
    every = {*statuses, *((500, 403) if endpoint.open else _GUARDED)}
    content = error_content(endpoint.path)
    return {str(status): {"description": ERRORS.get(status, ""), "content": dict(content)} for status in sorted(every)}


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": "May hold slashes, written as they are, where it is a model's id.",
        "schema": {"type": "string", "minLength": 1},
    }
