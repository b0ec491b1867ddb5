"""The whole gateway in one test: real workers with simulated models, behind a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from gateway.app import create_app
from gateway.registry.catalog import Catalog
from gateway.registry.load import parse_registry
from gateway.residency.shell import Residency
from tests.gateway.helpers_residency import BOUND_S
from tests.gateway.helpers_server import Served, serving

__all__ = ["House", "house", "rewrite"]

REGISTRY = """
memory: {budget: 10GiB, device: 16GiB}
models:
  - {id: a, source: "sim:", aliases: [gpt-4o], simulate: {weights: 4GiB}}
  - {id: slow, source: "sim:", simulate: {weights: 1GiB, tokens_per_s: 20}}
  - {id: quiet, source: "sim:", simulate: {weights: 1GiB, ttft_s: 1000}}
  - {id: dies, source: "sim:", simulate: {weights: 1GiB, tokens_per_s: 50, abort_after_tokens: 3}}
  - {id: fails, source: "sim:", simulate: {weights: 1GiB, fail_load: "the file is torn"}}
  - {id: huge, source: "sim:", simulate: {weights: 64GiB}}
"""


@dataclass(frozen=True)
class House:
    """A running gateway and a client of it."""

    served: Served
    residency: Residency
    http: httpx.AsyncClient

    async def status(self) -> dict[str, Any]:
        status: dict[str, Any] = (await self.http.get("/admin/status")).json()
        return status

    async def until_no_lease(self) -> None:
        """Until every lease is back. Bounded by the client's timeout only through the worker's own."""
        while (await self.status())["leases"]:
            pass  # each round trip lets the workers go on


def rewrite(path: Path, registry: str) -> None:
    """The registry file has changed."""
    path.write_text(registry)


@asynccontextmanager
async def house(registry: str = REGISTRY, *, path: Path | None = None, **server: Any) -> AsyncIterator[House]:
    """Starts it, and closes every worker at the end. With ``path`` the registry is written there, and can be reloaded."""
    if path is not None:
        rewrite(path, registry)
    parsed = parse_registry(registry, path or Path("/nowhere/registry.yaml"))
    settings = replace(parsed.settings, server=replace(parsed.settings.server, **server))
    catalog = Catalog(parsed)
    residency = Residency(settings, catalog)
    app = create_app(settings, catalog, residency)
    await residency.start()
    try:
        async with serving(app) as served, httpx.AsyncClient(base_url=served.url, timeout=3 * BOUND_S) as client:
            yield House(served, residency, client)
    finally:
        await residency.shutdown(grace_s=0)
