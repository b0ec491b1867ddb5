"""``/openapi.json`` held against the routes, the option tables and the parsers it describes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest
from starlette.routing import Route

from gateway.app import ROUTES
from gateway.errors import InvalidRequest
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
from gateway.protocols.ollama_options import MODEL_OPTIONS
from gateway.protocols.openapi import OPERATIONS, document
from gateway.protocols.openapi_anthropic import COUNT, MESSAGES
from gateway.protocols.openapi_ollama import OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_OPTIONS, OLLAMA_SHOW
from gateway.protocols.openapi_options import CHAT, COMPLETIONS, DETOKENIZE, TOKENIZE, UNLOAD
from gateway.protocols.openapi_responses import RESPONSES
from gateway.protocols.openapi_texts import EMBEDDINGS, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, RERANK, SCORE
from gateway.protocols.options import OptionTables
from gateway.routes import unbuilt
from gateway.routes.openapi import endpoints
from tests.gateway.helpers_app import client_of, make_app

DOCUMENT = document(endpoints(ROUTES), "1.2.3")
SCHEMAS = DOCUMENT["components"]["schemas"]


def walk(value: Any) -> Iterator[Any]:
    yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(item)


def body_of(path: str, method: str = "post") -> Any:
    schema: Any = DOCUMENT["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
    return schema


def test_paths_are_exactly_the_routes() -> None:
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    routes = {
        (method, route.path.replace(":path}", "}"))
        for route in ROUTES
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    assert described == routes


def test_operations_are_exactly_the_routes_that_are_built() -> None:
    built = {
        (method, route.path)
        for route in ROUTES
        if isinstance(route, Route) and route not in unbuilt.ROUTES
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert set(OPERATIONS) == built


def test_operation_ids_are_unique() -> None:
    ids = [operation["operationId"] for methods in DOCUMENT["paths"].values() for operation in methods.values()]
    assert len(ids) == len(set(ids))


def test_every_schema_is_valid_and_every_reference_leads_somewhere() -> None:
    for value in walk(DOCUMENT):
        if isinstance(value, dict) and "schema" in value and isinstance(value["schema"], dict):
            assert jsonschema_rs.meta.is_valid(value["schema"]), value["schema"]
        if isinstance(value, dict) and "$ref" in value:
            assert value["$ref"].removeprefix("#/components/schemas/") in SCHEMAS
    for schema in SCHEMAS.values():
        jsonschema_rs.meta.validate(schema)


@pytest.mark.parametrize(
    ("tables", "schemas"),
    [
        (openai_chat.OPTIONS, CHAT),
        (openai_completions.OPTIONS, COMPLETIONS),
        (responses_request.OPTIONS, RESPONSES),
        (anthropic_request.OPTIONS, MESSAGES),
        (anthropic_request.COUNT_OPTIONS, COUNT),
        (ollama_chat.OPTIONS, OLLAMA_CHAT),
        (ollama_generate.OPTIONS, OLLAMA_GENERATE),
        (MODEL_OPTIONS, OLLAMA_OPTIONS),
        (ollama_models.SHOW_OPTIONS, OLLAMA_SHOW),
        (text_tools.TOKENIZE_OPTIONS, TOKENIZE),
        (text_tools.DETOKENIZE_OPTIONS, DETOKENIZE),
        (admin.UNLOAD_OPTIONS, UNLOAD),
        (embeddings.OPTIONS, EMBEDDINGS),
        (rerank.OPTIONS, RERANK),
        (score.OPTIONS, SCORE),
        (ollama_embed.EMBED_OPTIONS, OLLAMA_EMBED),
        (ollama_embed.EMBEDDINGS_OPTIONS, OLLAMA_EMBEDDINGS),
    ],
    ids=[
        "chat",
        "completions",
        "responses",
        "messages",
        "count_tokens",
        "api_chat",
        "api_generate",
        "options",
        "show",
        "tokenize",
        "detokenize",
        "unload",
        "embeddings",
        "rerank",
        "score",
        "api_embed",
        "api_embeddings",
    ],
)
def test_schemas_are_exactly_of_the_honoured_options(tables: OptionTables, schemas: Mapping[str, Any]) -> None:
    assert set(schemas) == tables.honoured


@pytest.mark.parametrize(
    ("path", "tables"),
    [
        ("/v1/chat/completions", openai_chat.OPTIONS),
        ("/v1/completions", openai_completions.OPTIONS),
        ("/v1/responses", responses_request.OPTIONS),
        ("/v1/messages", anthropic_request.OPTIONS),
        ("/v1/messages/count_tokens", anthropic_request.COUNT_OPTIONS),
        ("/api/chat", ollama_chat.OPTIONS),
        ("/api/generate", ollama_generate.OPTIONS),
        ("/api/show", ollama_models.SHOW_OPTIONS),
        ("/v1/embeddings", embeddings.OPTIONS),
        ("/v2/rerank", rerank.OPTIONS),
        ("/api/embed", ollama_embed.EMBED_OPTIONS),
        ("/api/embeddings", ollama_embed.EMBEDDINGS_OPTIONS),
    ],
)
def test_bodies_hold_every_option_that_is_taken_and_no_other(path: str, tables: OptionTables) -> None:
    body = body_of(path)
    neutral = {name for name, values in tables.refused.items() if values}
    assert set(body["properties"]) == tables.honoured | tables.hints | neutral
    assert body["additionalProperties"] is False


CHAT_BODY = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
MESSAGES_BODY = {**CHAT_BODY, "max_tokens": 9}
RERANK_BODY = {"model": "a", "query": "q", "documents": ["x"]}


def parse_ollama_options(body: bytes) -> None:
    """The ``options`` alone; errors name them without where they stand."""
    try:
        ollama_chat.parse(json.dumps({"model": "a", "options": json.loads(body)}).encode())
    except InvalidRequest as refusal:
        refusal.param = (refusal.param or "").removeprefix("options.")
        raise


BESIDE: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}, "stream_options": {"stream": True}}


def ranged(schemas: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    return sorted((name, it["minimum"], it["maximum"]) for name, it in schemas.items() if "minimum" in it)


@pytest.mark.parametrize(
    ("parse", "base", "name", "low", "high"),
    [
        *((openai_chat.parse, CHAT_BODY, *limits) for limits in ranged(CHAT)),
        *(
            (openai_completions.parse, {"model": "a", "prompt": "x", "echo": True}, *limits)
            for limits in ranged(COMPLETIONS)
        ),
        *((anthropic_request.parse, MESSAGES_BODY, *limits) for limits in ranged(MESSAGES)),
        *(
            (responses_request.parse, {"model": "a", "input": "x"}, *limits)
            for limits in ranged(RESPONSES)
            if limits[0] not in BESIDE
        ),
        *((parse_ollama_options, {}, *limits) for limits in ranged(OLLAMA_OPTIONS)),
        *((ollama_generate.parse, {"model": "a"}, *limits) for limits in ranged(OLLAMA_GENERATE)),
        *((embeddings.parse, {"model": "a", "input": "x"}, *limits) for limits in ranged(EMBEDDINGS)),
        *((rerank.parse, RERANK_BODY, *limits) for limits in ranged(RERANK)),
        *((ollama_embed.parse_embed, {"model": "a"}, *limits) for limits in ranged(OLLAMA_EMBED)),
        *((admin.parse_unload, {}, *limits) for limits in ranged(UNLOAD)),
    ],
)
def test_ranges_are_those_of_the_parsers(
    parse: Callable[[bytes], Any], base: dict[str, Any], name: str, low: float, high: float
) -> None:
    def send(value: float) -> None:
        beside = BESIDE.get(name, {}) if "model" in base else {}
        parse(json.dumps({**base, **beside, name: value}).encode())

    send(low)
    if name != "n" or "prompt" not in base:
        send(high)
    step = 1 if isinstance(low, int) and isinstance(high, int) else 0.001
    for outside in (low - step, high + step):
        with pytest.raises(InvalidRequest) as refusal:
            send(outside)
        if abs(outside) < 2**63:  # else the body's reader is before the option's
            assert refusal.value.param == name


@pytest.mark.parametrize(
    "body",
    [
        CHAT_BODY,
        {**CHAT_BODY, "stop": ["a"], "stream": True, "stream_options": {"include_usage": True}, "temperature": None},
        {**CHAT_BODY, "logit_bias": {"42": -100}, "metadata": {"a": 1}},
        {"model": "a", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ],
)
def test_chat_bodies_that_are_served_are_described(body: dict[str, Any]) -> None:
    openai_chat.parse(json.dumps(body).encode())
    jsonschema_rs.validate(body_of("/v1/chat/completions"), body)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 2.5},
        {"temperature": "hot"},
        {"messages": []},
        {"messages": [{"role": "nobody", "content": "x"}]},
        {"stop": [""]},
        {"logit_bias": {"x": 1}},
        {"nonsense": 1},
        {"prediction": {"type": "content"}},
        {"stream_options": {"include_all": True}},
        {"model": None},
    ],
)
def test_chat_bodies_that_are_refused_are_not_described(change: dict[str, Any]) -> None:
    body = {**CHAT_BODY, **change}
    with pytest.raises(InvalidRequest):
        openai_chat.parse(json.dumps(body).encode())
    assert not jsonschema_rs.is_valid(body_of("/v1/chat/completions"), body)


@pytest.mark.parametrize(
    ("body", "described"),
    [
        ({"prompt": "x"}, True),
        ({"messages": CHAT_BODY["messages"], "chat_template": "t"}, True),
        ({"content": "x", "with_pieces": True}, True),
        ({"content": "x", "prompt": "x"}, False),
        ({"prompt": "x", "with_pieces": True}, False),
        ({}, False),
    ],
)
def test_tokenize_bodies_are_described_by_their_kind(body: dict[str, Any], described: bool) -> None:
    assert jsonschema_rs.is_valid(body_of("/tokenize"), body) is described


@pytest.mark.parametrize(
    ("body", "described"),
    [
        ({"model": "a", "text_1": "x", "text_2": ["x", "y"]}, True),
        ({"model": "a", "queries": ["x"], "documents": "y", "truncate": "END"}, True),
        ({"model": "a", "text_1": "x", "documents": "y"}, False),
        ({"model": "a", "text_1": "x"}, False),
    ],
)
def test_score_bodies_are_described_by_their_pair(body: dict[str, Any], described: bool) -> None:
    assert jsonschema_rs.is_valid(body_of("/v1/score"), body) is described
    if described:
        score.parse(json.dumps(body).encode())
    else:
        with pytest.raises(InvalidRequest):
            score.parse(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/models", "OpenAIError"), ("/v1/messages", "AnthropicError"), ("/api/tags", "OllamaError")],
)
def test_errors_are_in_the_envelope_of_the_path(path: str, name: str) -> None:
    (operation, *_) = DOCUMENT["paths"][path].values()
    content = operation["responses"]["401"]["content"]
    assert content == {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}
    assert DOCUMENT["paths"]["/metrics"]["get"]["responses"]["401"]["content"].keys() == {"text/plain; charset=utf-8"}


def test_open_paths_need_no_key_and_others_one_where_keys_are_configured() -> None:
    open_paths = {path for path, methods in DOCUMENT["paths"].items() for op in methods.values() if "security" in op}
    assert open_paths == {"/health", "/ready"}
    assert DOCUMENT["security"] == [{"bearer": []}, {"key": []}, {}]


async def test_route_serves_the_document_of_its_own_app() -> None:
    async with client_of(make_app()) as client:
        answer = await client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["paths"] == json.loads(json.dumps(DOCUMENT["paths"]))
    assert answer.json()["openapi"] == "3.1.0"
