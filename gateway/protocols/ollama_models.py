"""Models as Ollama's clients are told of them: ``/api/tags``, ``/api/ps`` and ``/api/show``.

Source of the shapes: Ollama's API documentation and its Go types ``ListModelResponse``, ``ProcessModelResponse`` and
``ShowResponse``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gateway.errors import InvalidRequest
from gateway.protocols.json_body import decode_object
from gateway.protocols.ollama_answer import timestamp
from gateway.protocols.ollama_duration import FOR_EVER_S
from gateway.protocols.options import Limits, OptionTables, read_boolean, read_string, sort_options
from gateway.registry.catalog import ResolvedModel
from gateway.registry.model_card import ModelCard, ModelDetails, digest_of, file_bytes_of, read_details
from gateway.residency.statistics import ModelStatistics

__all__ = ["SHOW_OPTIONS", "ShowRequest", "parse_show", "render_ps", "render_show", "render_tags"]

SHOW_OPTIONS = OptionTables(
    honoured=frozenset({"model", "name", "verbose"}),
    hints=frozenset(),
    refused={"options": ({},), "system": ("",), "template": ("",)},
)
_IN_MEMORY = ("loaded", "draining")
# Names of Ollama's parameters for settings of the registry.
_PARAMETERS = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}


class ShowRequest(msgspec.Struct, frozen=True):
    """``verbose`` asks for the whole vocabulary too."""

    model: str
    verbose: bool


def parse_show(body: bytes, limits: Limits = Limits()) -> ShowRequest:  # noqa: B008 (frozen)
    """The body of ``/api/show``; ``name`` is the older name of ``model``."""
    options, _ = sort_options(decode_object(body, limits.max_values), SHOW_OPTIONS)
    named = {field: read_string(options, field) for field in ("model", "name") if field in options}
    if len(set(named.values())) > 1:
        message = f"name is {named['name']!r} and model {named['model']!r}; give one of them"
        raise InvalidRequest(message, param="name")
    model = next(iter(named.values()), None) or read_string(options, "model")
    return ShowRequest(model, read_boolean(options, "verbose") or False)


def render_tags(models: Iterable[ResolvedModel]) -> bytes:
    """All models of the registry."""
    return _encode({"models": [_entry(model) | {"modified_at": timestamp(model.created)} for model in models]})


def render_ps(models: Iterable[ResolvedModel], rows: Iterable[ModelStatistics], *, on_gpu: bool) -> bytes:
    """Those in memory. Ids that share a resident each have its size; ``on_gpu``: all of it is there."""
    states = {row.id: row for row in rows}
    now = time.time()
    shown = []
    for model in models:
        row = states.get(model.id)
        if row is None or row.state not in _IN_MEMORY:
            continue
        size = states[row.shares].charged_bytes if row.shares in states else row.charged_bytes
        expires_s = FOR_EVER_S if row.expires_s is None else min(row.expires_s, FOR_EVER_S)
        shown.append(
            {
                **_entry(model),
                "size": size,
                "size_vram": size if on_gpu else 0,
                "expires_at": timestamp(now + expires_s),
                "context_length": model.footprint.context,
            }
        )
    return _encode({"models": shown})


def render_show(model: ResolvedModel, card: ModelCard) -> bytes:
    """One model at length."""
    body = {
        "modelfile": _modelfile(model, card),
        "parameters": "\n".join(f"{name:<30} {_literal(value)}" for name, value in _parameters(model)),
        "template": card.template,
        "details": _details(card.details),
        "model_info": card.metadata,
        "capabilities": card.capabilities,
        "modified_at": timestamp(model.created),
    }
    if card.license is not None:
        body["license"] = card.license
    if model.request.system is not None:
        body["system"] = model.request.system
    return _encode(body)


def _encode(body: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(body)


def _entry(model: ResolvedModel) -> dict[str, Any]:
    return {
        "name": model.id,
        "model": model.id,
        "size": file_bytes_of(model),
        "digest": digest_of(model),
        "details": _details(read_details(model)),
    }


def _details(details: ModelDetails) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": details.format,
        "family": details.family,
        "families": [details.family] if details.family else [],
        "parameter_size": details.parameter_size,
        "quantization_level": details.quantization_level,
    }


def _parameters(model: ResolvedModel) -> list[tuple[str, float | int]]:
    """The settings that requests get where they are silent."""
    settings = model.request
    found: dict[str, float | int] = dict(settings.sampling)
    if settings.max_tokens is not None:
        found["max_tokens"] = settings.max_tokens
    if model.footprint.context:
        found["num_ctx"] = model.footprint.context
    return sorted((_PARAMETERS.get(name, name), value) for name, value in found.items())


def _modelfile(model: ResolvedModel, card: ModelCard) -> str:
    lines = [f"# {model.id}, as its registry entry has it", f"FROM {card.file_name or model.id}"]
    if card.template:
        lines.append(f'TEMPLATE """{card.template}"""')
    if model.request.system is not None:
        lines.append(f'SYSTEM """{model.request.system}"""')
    lines += [f"PARAMETER {name} {_literal(value)}" for name, value in _parameters(model)]
    return "\n".join(lines) + "\n"


def _literal(value: float | int) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
