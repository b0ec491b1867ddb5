"""``docs/api.md`` says what the code does: every route, option, field, error code and metric, and none that is not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.routing import Route

from gateway import errors
from gateway.errors import GatewayError
from gateway.metrics import Metrics
from gateway.protocols import (
    admin,
    anthropic_request,
    embeddings,
    ollama_chat,
    ollama_embed,
    ollama_generate,
    openai_chat,
    openai_completions,
    rerank,
    responses_request,
    score,
)
from gateway.protocols import text_tools as text_tools_protocol
from gateway.protocols.ollama_options import MODEL_OPTIONS
from gateway.protocols.options import OptionTables
from gateway.protocols.scheduling import CAPACITY, SCHEDULING
from gateway.residency_metrics import ResidencyMetrics
from gateway.routes import admin as admin_routes
from gateway.routes import anthropic, ollama, openai, openapi, operations, responses, text_tools, unbuilt
from gateway.routes import embeddings as embeddings_routes
from gateway.routes import ollama_embed as ollama_embed_routes
from gateway.routes import rerank as rerank_routes
from tests.gateway.helpers_scheduling import report, resident

DOCUMENT = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
SETTLED_ELSEWHERE = {
    "insufficient_scope",
    "origin_not_allowed",
    "host_not_allowed",
    "model_pinned",
    "model_busy",
    "previous_response_not_found",
}


def section(title: str) -> str:
    """From this heading to the next of its level or above."""
    level = title.split(" ")[0]
    rest = DOCUMENT.split(f"\n{title}\n", 1)[1]
    return re.split(rf"\n#{{1,{len(level)}}} ", rest)[0]


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def test_routes_are_exactly_those_that_are_built() -> None:
    built = {
        (method, route.path)
        for routes in (
            operations,
            openapi,
            openai,
            embeddings_routes,
            rerank_routes,
            responses,
            anthropic,
            ollama,
            ollama_embed_routes,
            text_tools,
            admin_routes,
        )
        for route in routes.ROUTES
        for method in (route.methods or set()) - {"HEAD"}
    }
    told = set()
    for cell, _what in rows(section("## Routes"))[1:]:
        method, _, paths = cell.partition(" ")
        told |= {(method, path) for path in quoted(paths)}
    assert told == built


def test_routes_that_are_not_built_are_named() -> None:
    text = section("## Routes").split("Known and not built")[1]
    for route in unbuilt.ROUTES:
        assert isinstance(route, Route)
        assert f"`{route.path}`" in text, route.path


@pytest.mark.parametrize(
    ("title", "tables"),
    [
        ("### `POST /v1/chat/completions`", openai_chat.OPTIONS),
        ("### `POST /v1/completions`", openai_completions.OPTIONS),
        ("### `POST /v1/responses`", responses_request.OPTIONS),
        ("### `POST /v1/messages`", anthropic_request.OPTIONS),
        ("### `POST /api/chat`", ollama_chat.OPTIONS),
        ("### `POST /api/generate`", ollama_generate.OPTIONS),
        ("### `options` of Ollama", MODEL_OPTIONS),
        ("### `POST /v1/embeddings`", embeddings.OPTIONS),
        ("### `POST /v1/rerank`", rerank.OPTIONS),
        ("### `POST /v1/score`", score.OPTIONS),
        ("### `POST /api/embed`", ollama_embed.EMBED_OPTIONS),
        ("### `POST /api/embeddings`", ollama_embed.EMBEDDINGS_OPTIONS),
    ],
)
def test_options_are_exactly_the_tables(title: str, tables: OptionTables) -> None:
    told: Mapping[str, str] = {cells[0]: cells[1] for cells in rows(section(title))[1:]}
    assert set(told) == {"honoured", "hints", "refused, unless"}
    assert quoted(told["honoured"]) == sorted(tables.honoured)
    assert quoted(told["hints"]) == sorted(tables.hints)
    refused = re.findall(r"`([^`]+)`(?: \(([^)]*)\))?", told["refused, unless"])
    assert [name for name, _ in refused] == sorted(tables.refused)
    for name, neutral in refused:
        assert len(tables.refused[name]) == (neutral.count(" or ") + 1 if neutral else 0), name


def test_options_of_text_tools_are_exactly_the_table() -> None:
    told = {quoted(cells[0])[0]: set(quoted(cells[1])) for cells in rows(section("### `POST /tokenize`"))[1:]}
    told["messages"] |= told["prompt"]
    assert told == {kind: set(names) for kind, names in text_tools_protocol.OPTIONS_OF.items()}


def test_status_fields_are_exactly_those_of_the_snapshot() -> None:
    told = {quoted(cells[0])[0]: quoted(cells[1]) for cells in rows(section("## Admin"))[1:6]}
    one = SimpleNamespace()
    status: dict[str, Any] = admin.status_object(
        SimpleNamespace(budget=one, models=[one], queue=[one], leases=[one], workers=[one])
    )
    for key, value in status.items():
        assert told[key] == list(value if isinstance(value, dict) else value[0]), key


def test_fields_of_a_model_are_all_told() -> None:
    text = section("## Admin").split("two more, null where")[1].split("| verb |")[0]
    assert {"capacity", "scheduling", "tokens", *CAPACITY, *SCHEDULING} <= set(quoted(text))


def kinds(root: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield root
    for kind in root.__subclasses__():
        yield from kinds(kind)


def test_error_codes_are_exactly_those_of_the_tree() -> None:
    told = {
        (int(status), code)
        for status, codes in rows(section("## Errors"))[1:]
        for code in quoted(codes)
        if re.fullmatch("[a-z_]+", code)
    }
    tree = {(kind.status, kind.default_code) for kind in kinds(GatewayError) if kind.__module__ == errors.__name__}
    others = {(status, code) for status, code in told if code in SETTLED_ELSEWHERE}
    assert {code for _, code in others} == SETTLED_ELSEWHERE
    assert told == tree | others


def test_metrics_are_exactly_those_that_are_counted() -> None:
    metrics = Metrics()
    worker = SimpleNamespace(pid=1, model="a", kernels="k", rss_bytes=1, device_bytes=1, load_s=1.0)
    model = SimpleNamespace(id="a", state="loaded", charged_bytes=1, leases=1, waiting=1, loads=1, evictions=1)
    scheduling = [resident("a", report())]
    snapshot = SimpleNamespace(
        budget=SimpleNamespace(total_bytes=1), models=[model], workers=[worker], scheduling=scheduling
    )
    metrics.add(ResidencyMetrics(lambda: snapshot))
    metrics.requested("/", "GET", 200)
    metrics.admitted("a", 0.1)
    metrics.answered("a", "ok", prompt_tokens=1, completion_tokens=1, first_text_s=0.1, inputs=1)
    counted = set()
    for name, family in metrics.as_json().items():
        samples = {sample["name"] for sample in family["samples"]}
        counted |= {name} if family["kind"] == "histogram" else {s for s in samples if not s.endswith("_created")}
    told = {name for cells in rows(section("## Metrics"))[1:] for name in quoted(cells[0])}
    assert told == counted
