"""The registry file's shape: every key, its type, its range and its default.

These Structs are what YAML is checked against (``shape.py``), strictly: a key that is not a field here is an error. Keys that
are part of the format but not built yet are in :data:`NOT_BUILT`, and are refused by name. Request settings have their own
Structs (``request_schema.py``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from engines.scheduling.settings import SchedulingSettings
from engines.wire import Task
from gateway.registry.request_schema import (
    Kwargs,
    ProfileSection,
    ReasoningSection,
    RuleSection,
    SamplingSection,
    SettingsSection,
    Template,
    Text,
    ToolSyntaxName,
)
from gateway.registry.values import ByteSize

__all__ = [
    "NOT_BUILT",
    "PATTERNS",
    "ApiKeyEntry",
    "DefaultsSection",
    "MemorySection",
    "ModelEntry",
    "Policy",
    "RegistryFile",
    "ResponsesSection",
    "SchedulingSection",
    "ServerSection",
    "SimulateSection",
    "WorkersSection",
]

NOT_BUILT: dict[str, frozenset[str]] = {
    "server": frozenset({"media_urls"}),
    "models[]": frozenset({"kv_bits", "mmproj", "adapter", "dtype"}),
}
"""Section, with ``[]`` for every index or name in its path → keys the format knows and this version refuses."""

_NAME = r"^[A-Za-z0-9._:-]+(/[A-Za-z0-9._:-]+)*\Z"
_KEY = r"^[^\s\x00-\x1f\x7f]+\Z"  # what an Authorization header can carry
PATTERNS = {
    _NAME: "a name of letters, digits and ._:-, whose parts / divides",
    _KEY: "a text of at least one character, without spaces",
}
"""What a pattern asks for, in words."""

Name = Annotated[str, Meta(pattern=_NAME, max_length=256)]
Key = Annotated[str, Meta(pattern=_KEY)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=1e9)]
Count = Annotated[int, Meta(ge=1, le=2**53)]
Priority = Literal["interactive", "normal", "batch"]


class ApiKeyEntry(msgspec.Struct, kw_only=True, frozen=True):
    """A key with what it may do."""

    key: Key
    scopes: Annotated[tuple[Literal["infer", "admin"], ...], Meta(min_length=1)] = ("infer", "admin")
    concurrency: Count | None = None


class ResponsesSection(msgspec.Struct, kw_only=True, frozen=True):
    """``server.responses``: the caps of the stored responses."""

    max_count: Annotated[int, Meta(ge=0, le=2**53)] = 10_000
    max_bytes: ByteSize = ByteSize(1024**3)
    max_age_s: PositiveSeconds = 30 * 86400.0


class ServerSection(msgspec.Struct, kw_only=True, frozen=True):
    """``server``: where to listen, for whom, and what a request may hold. A change needs a restart."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    api_keys: tuple[Key | ApiKeyEntry, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    shutdown_grace_s: Seconds = 30.0
    keepalive_s: PositiveSeconds = 5.0
    client_stall_s: PositiveSeconds = 60.0
    max_body: ByteSize | None = None  # None: 64 MiB, 1 GiB on audio routes
    max_inputs: Count = 2048
    max_chars: Count = 1_000_000
    responses: ResponsesSection = ResponsesSection()


class MemorySection(msgspec.Struct, kw_only=True, frozen=True):
    """``memory``: the one budget all models share."""

    budget: int | str = "auto"  # auto, a percentage or a size: values.parse_budget
    device: ByteSize | None = None
    policy: Literal["lru", "largest", "priority"] = "lru"


class WorkersSection(msgspec.Struct, kw_only=True, frozen=True):
    """``workers``: the processes models run in."""

    spare: Annotated[int, Meta(ge=0, le=1)] = 1
    cancel_timeout_s: PositiveSeconds = 10.0
    unload_timeout_s: PositiveSeconds = 20.0


class SchedulingSection(msgspec.Struct, kw_only=True, frozen=True):
    """``scheduling``: how a model's worker divides its time and memory among requests; of ``defaults`` and of each model.

    A load parameter. UNSET leaves a key to the level below; what none says is :class:`SchedulingSettings`' own.
    """

    retention: Annotated[float, Meta(gt=0, lt=1)] | UnsetType = UNSET
    # auto, or None: worked out from retention
    prefill_ratio: Annotated[float, Meta(ge=0, le=1000)] | Literal["auto"] | UnsetType | None = UNSET
    prefill_tick_ms: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    prefill_deadline_s: Seconds | UnsetType = UNSET
    defer_ceiling_s: Seconds | UnsetType = UNSET

    @property
    def given(self) -> dict[str, Any]:
        """The keys that are set."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}

    def over(self, below: SchedulingSection) -> SchedulingSection:
        """These keys, and those of the level below where they are silent."""
        return SchedulingSection(**(below.given | self.given))

    @property
    def settings(self) -> SchedulingSettings:
        """What a worker is told."""
        given = self.given
        if given.get("prefill_ratio") == "auto":
            given["prefill_ratio"] = None
        return SchedulingSettings(**given)


class Policy(msgspec.Struct, kw_only=True, frozen=True):
    """How long a model stays and how long its callers wait: in ``defaults`` and in each model."""

    ttl_s: Seconds = 900.0  # idle time after which it is unloaded; 0: at its last release
    preload: bool = False
    pin: bool = False
    priority: Priority = "normal"
    queue_limit: Count | None = None  # None: auto
    queue_timeout_s: PositiveSeconds = 120.0
    load_timeout_s: PositiveSeconds = 300.0
    abandon_grace_s: Seconds = 10.0
    fairness_wait_s: PositiveSeconds = 10.0
    drain_timeout_s: PositiveSeconds = 60.0


class DefaultsSection(Policy, kw_only=True, frozen=True):
    """``defaults``: a policy, scheduling, and the lowest level of request settings that the file has (``SettingsSection``)."""

    scheduling: SchedulingSection = SchedulingSection()
    sampling: SamplingSection | UnsetType = UNSET
    system: Text | UnsetType | None = UNSET
    chat_template: Template | UnsetType | None = UNSET
    chat_template_kwargs: Kwargs | UnsetType = UNSET
    reasoning: ReasoningSection | UnsetType = UNSET
    tool_syntax: ToolSyntaxName | UnsetType | None = UNSET

    @property
    def policy(self) -> Policy:
        """Without scheduling and the request settings."""
        return Policy(**{name: getattr(self, name) for name in Policy.__struct_fields__})

    @property
    def settings(self) -> SettingsSection:
        """Without scheduling and the policy."""
        return SettingsSection(**{name: getattr(self, name) for name in SettingsSection.__struct_fields__})


class SimulateSection(msgspec.Struct, kw_only=True, frozen=True):
    """``simulate``: what a ``sim:`` model pretends to be, and its faults."""

    weights: ByteSize
    kv_per_token: ByteSize | None = None
    load_s: Seconds = 0.0
    ttft_s: Seconds = 0.0
    tokens_per_s: Annotated[float, Meta(ge=0)] = 0.0
    task: Task = "text"
    content: Name | None = None
    fail_load: str | None = None
    abort_after_tokens: Annotated[int, Meta(ge=0)] | None = None
    abort_times: Count | None = None
    hang_after_tokens: Annotated[int, Meta(ge=0)] | None = None
    hold_memory: Seconds = 0.0


class ModelEntry(msgspec.Struct, kw_only=True, frozen=True):
    """One of ``models``. Fields that stand in ``defaults`` too are UNSET where the entry is silent."""

    id: Name
    source: Annotated[str, Meta(min_length=1)]
    aliases: tuple[Name, ...] = ()
    task: Task | None = None
    context: Count | None = None
    concurrency: Annotated[int, Meta(ge=1, le=1024)] | None = None
    kv_grant: ByteSize | None = None
    scheduling: SchedulingSection = SchedulingSection()
    simulate: SimulateSection | None = None
    profile: str | None = None
    profiles: tuple[str, ...] | None = None  # that a request may name; None: all
    overrides: SettingsSection = SettingsSection()
    ttl_s: Seconds | UnsetType = UNSET
    preload: bool | UnsetType = UNSET
    pin: bool | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    queue_limit: Count | UnsetType | None = UNSET
    queue_timeout_s: PositiveSeconds | UnsetType = UNSET
    load_timeout_s: PositiveSeconds | UnsetType = UNSET
    abandon_grace_s: Seconds | UnsetType = UNSET
    fairness_wait_s: PositiveSeconds | UnsetType = UNSET
    drain_timeout_s: PositiveSeconds | UnsetType = UNSET

    def policy(self, defaults: Policy) -> Policy:
        """This entry's policy: its own values over the file's defaults."""
        own = {name: value for name in Policy.__struct_fields__ if (value := getattr(self, name)) is not UNSET}
        return msgspec.structs.replace(defaults, **own)

    def scheduled(self, defaults: SchedulingSection) -> ModelEntry:
        """This entry with the file's defaults where its own ``scheduling`` is silent."""
        return msgspec.structs.replace(self, scheduling=self.scheduling.over(defaults))

    @property
    def load_keys(self) -> tuple[object, ...]:
        """What decides which files are read, and how the model is loaded; of an entry with its defaults."""
        return (
            self.id,
            self.source,
            self.task,
            self.context,
            self.concurrency,
            self.kv_grant,
            self.scheduling,
            self.simulate,
        )


class RegistryFile(msgspec.Struct, kw_only=True, frozen=True):
    """The whole file."""

    models: tuple[ModelEntry, ...] = ()
    server: ServerSection = ServerSection()
    memory: MemorySection = MemorySection()
    workers: WorkersSection = WorkersSection()
    defaults: DefaultsSection = DefaultsSection()
    profiles: dict[str, ProfileSection] = {}
    rules: tuple[RuleSection, ...] = ()
