"""Settings of the gateway, frozen and checked once, when the registry is loaded.

They come from the registry file's ``server``, ``memory`` and ``workers`` sections (``registry/load.py``); the command line
replaces host and port. Environment variables that are read, all of them:

===============================  ==========================================================================
variable                         meaning
===============================  ==========================================================================
``INNKEEPER_URL``                the gateway that client commands talk to (default ``http://127.0.0.1:8000``)
``INNKEEPER_API_KEY``            the key they send
``XDG_STATE_HOME``               parent of the state directory
``XDG_CACHE_HOME``               parent of the cache directory
``HF_HUB_CACHE``, ``HF_HOME``    where ``hf:`` sources are looked up (Hugging Face's own cache)
===============================  ==========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["ApiKey", "MemorySettings", "ResponsesSettings", "ServerSettings", "Settings", "WorkerSettings"]

Scope = Literal["infer", "admin"]
Policy = Literal["lru", "largest", "priority"]


@dataclass(frozen=True)
class ApiKey:
    """One key. ``concurrency`` bounds its requests under way at a time; None leaves them unbounded."""

    key: str = field(repr=False)  # never in a log or a traceback
    scopes: frozenset[str] = frozenset({"infer", "admin"})
    concurrency: int | None = None


@dataclass(frozen=True)
class ResponsesSettings:
    """``server.responses``: how many stored responses there may be (0: none), what they may take and how old they get."""

    max_count: int = 10_000
    max_bytes: int = 1024**3
    max_age_s: float = 30 * 86400.0


@dataclass(frozen=True)
class ServerSettings:
    """The ``server`` section; sizes in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[ApiKey, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    media_urls: tuple[str, ...] = ()  # empty: off; ("public",); or host names
    shutdown_grace_s: float = 30.0
    keepalive_s: float = 5.0
    client_stall_s: float = 60.0
    max_body_bytes: int = 64 * 1024**2
    max_audio_body_bytes: int = 1024**3
    max_inputs: int = 2048
    max_chars: int = 1_000_000
    responses: ResponsesSettings = ResponsesSettings()


@dataclass(frozen=True)
class MemorySettings:
    """The ``memory`` section, resolved against the machine.

    ``budget_bytes`` is already clamped to what the device can give; each clamp left a sentence in ``warnings``.
    ``device_bytes`` is set in a rehearsal only (every model simulated): the memory of the device being rehearsed.
    """

    budget_bytes: int
    device_bytes: int | None = None
    policy: Policy = "lru"
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerSettings:
    """The ``workers`` section; times in seconds."""

    spare: int = 1
    cancel_timeout_s: float = 10.0
    unload_timeout_s: float = 20.0


@dataclass(frozen=True)
class Settings:
    """All of them."""

    memory: MemorySettings
    server: ServerSettings = ServerSettings()
    workers: WorkerSettings = WorkerSettings()
