"""Apps for tests: a registry of simulated models, and a client that speaks to the app without a socket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from gateway.app import create_app
from gateway.registry.catalog import Catalog
from gateway.registry.load import Registry, parse_registry
from gateway.responses import Database, ResponseStore
from gateway.settings import ApiKey, ResponsesSettings, ServerSettings, Settings
from tests.gateway.helpers_residency import FakeResidency

__all__ = [
    "JSON",
    "KEY",
    "chat_body",
    "client_of",
    "make_app",
    "make_catalog",
    "make_settings",
    "registry_of",
    "unused_store",
]

JSON = {"content-type": "application/json"}
KEY = "sk-one"

REGISTRY = """
models:
  - {id: a, source: "sim:", aliases: [gpt-4o], simulate: {weights: 1MiB}}
  - {id: b, source: "sim:", simulate: {weights: 1MiB}}
  - {id: embedder, source: "sim:", simulate: {weights: 1MiB, task: embedding}}
  - {id: broken, source: ./nowhere.gguf}
"""


def registry_of(text: str = REGISTRY) -> Registry:
    return parse_registry(text, Path("/nowhere/registry.yaml"))


def make_catalog(text: str = REGISTRY) -> Catalog:
    return Catalog(registry_of(text))


def make_settings(**server: Any) -> Settings:
    """Settings with these ``server`` values over the defaults."""
    return replace(registry_of().settings, server=ServerSettings(**server))


def unused_store() -> ResponseStore:
    """A store in memory that nobody asks."""
    return ResponseStore(Database(None, ResponsesSettings()), lambda problem: None)


def make_app(residency: FakeResidency | None = None, *, keys: Sequence[ApiKey] = (), **server: Any) -> Starlette:
    settings = make_settings(api_keys=tuple(keys), **server)
    return create_app(settings, make_catalog(), residency or FakeResidency())


def client_of(app: Starlette, base_url: str = "http://127.0.0.1:8000") -> httpx.AsyncClient:
    # Errors of the app must come out as answers, so none may be raised through the transport.
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url=base_url)


def chat_body(**options: Any) -> dict[str, Any]:
    return {"model": "a", "messages": [{"role": "user", "content": "hello"}], **options}
