"""What is told of models, and the body that asks for one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from ollama import ListResponse, ProcessResponse, ShowResponse

from gateway.errors import InvalidRequest
from gateway.protocols.ollama_models import ShowRequest, parse_show, render_ps, render_show, render_tags
from gateway.registry.model_card import read_card
from gateway.residency.statistics import ModelStatistics
from tests.gateway.registry.helpers_settings import catalog_of

CATALOG = catalog_of(
    models=[
        {
            "id": "a",
            "source": "sim:",
            "context": 64,
            "simulate": {"weights": "1MiB", "content": "x"},
            "overrides": {
                "system": "Be brief.",
                "sampling": {"temperature": 0.5, "max_tokens": 9, "repetition_penalty": 1.1},
            },
        },
        {"id": "b", "source": "sim:", "context": 64, "simulate": {"weights": "1MiB", "content": "x"}},
        {"id": "c", "source": "sim:", "simulate": {"weights": "1MiB"}},
        {"id": "d", "source": "sim:", "simulate": {"weights": "1MiB"}},
    ]
)


def row(
    id: str, state: str, charged: int = 0, shares: str | None = None, expires: float | None = None
) -> ModelStatistics:
    return ModelStatistics(
        *(id, "text", state, None, charged, 0, 0, 0, 0, False, 1, 1, 0, None, None, shares, None), expires_s=expires
    )


ROWS = (
    row("a", "loaded", 5000, expires=60.0),
    row("b", "draining", 0, "a", expires=60.0),
    row("c", "loading", 7000),
    row("d", "loaded", 3000),
)


def test_tags_are_the_registry_in_its_order() -> None:
    listed = ListResponse(**json.loads(render_tags(CATALOG.models)))
    assert [model.model for model in listed.models] == ["a", "b", "c", "d"]
    first, second, third, _ = listed.models
    assert first.size == 1024**2 and first.modified_at == datetime.fromtimestamp(0, UTC)
    assert first.digest == second.digest != third.digest
    assert first.details is not None and first.details.families == ["simulated"]


@pytest.mark.parametrize(("on_gpu", "vram"), [(True, [5000, 5000, 3000]), (False, [0, 0, 0])])
def test_ps_is_what_is_in_memory_and_until_when(on_gpu: bool, vram: list[int]) -> None:
    before = datetime.now(UTC)
    shown = ProcessResponse(**json.loads(render_ps(CATALOG.models, ROWS, on_gpu=on_gpu))).models
    assert [(model.name, model.size) for model in shown] == [("a", 5000), ("b", 5000), ("d", 3000)]
    assert [model.size_vram for model in shown] == vram
    assert [model.context_length for model in shown[:2]] == [64, 64]
    soon, _, never = [model.expires_at for model in shown]
    assert soon is not None and never is not None
    assert 59 <= (soon - before).total_seconds() <= 90
    assert (never - before).days > 290 * 365


def test_show_has_what_requests_get_that_leave_it_out() -> None:
    model = CATALOG.resolve("a")
    body = json.loads(render_show(model, read_card(model)))
    shown = ShowResponse(**body)
    told = " ".join((shown.parameters or "").split())
    assert told == "num_ctx 64 num_predict 9 repeat_penalty 1.1 temperature 0.5"
    assert body["system"] == "Be brief."
    assert (shown.modelfile or "").splitlines()[1:4] == ["FROM a", 'SYSTEM """Be brief."""', "PARAMETER num_ctx 64"]
    assert shown.capabilities == ["completion", "tools", "thinking", "insert"]
    assert shown.modelinfo == {"general.architecture": "simulated", "simulated.context_length": 64}
    assert "license" not in body


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ({"model": "a"}, ShowRequest("a", False)),
        ({"name": "a", "verbose": True}, ShowRequest("a", True)),
        ({"name": "a", "model": "a", "system": "", "options": {}}, ShowRequest("a", False)),
    ],
)
def test_show_takes_either_name(body: dict[str, Any], read: ShowRequest) -> None:
    assert parse_show(json.dumps(body).encode()) == read


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "model"),
        ({"model": "a", "name": "b"}, "name"),
        ({"model": 1}, "model"),
        ({"model": "a", "verbose": "yes"}, "verbose"),
        ({"model": "a", "system": "x"}, "system"),
        ({"model": "a", "nonsense": 1}, "nonsense"),
    ],
)
def test_show_refuses_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_show(json.dumps(body).encode())
    assert refusal.value.param == param
