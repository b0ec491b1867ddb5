"""The models a registry offers: names to :class:`ResolvedModel`, with what their files' headers say.

A model whose files are missing, damaged or unsupported stays in the catalog with its ``error``, so that the other models
serve and a request for this one says what is wrong. Files are looked at again when their size or time changed, so that a
repaired file works without a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engines.detect import Checkpoint, detect
from engines.errors import EngineError
from engines.footprint import Footprint, estimate
from engines.header import content_key
from engines.wire import ModelSpec, SimulateSpec, Task
from gateway.errors import GatewayError, ModelLoadFailed, ModelNotFound
from gateway.registry.load import Registry
from gateway.registry.schema import ModelEntry, Policy, SimulateSection
from gateway.registry.sources import resolve_source

__all__ = ["Catalog", "RequestSettings", "ResolvedModel"]

_UNLIMITED_CONTEXT = 2**31 - 1  # of a simulated model without a context of its own


@dataclass(frozen=True)
class RequestSettings:
    """What a request gets where it is silent."""

    sampling: Mapping[str, float | int] = field(default_factory=dict)
    system: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ResolvedModel:
    """One model as a request finds it. ``error`` is what a use of it is answered with, None when it can be loaded."""

    id: str
    aliases: tuple[str, ...]
    task: Task
    profile: str | None
    spec: ModelSpec
    content_key: str
    resident_key: str  # ids with the same one share a resident
    footprint: Footprint
    policy: Policy
    kv_grant_bytes: int | None
    request: RequestSettings
    created: int  # seconds since the epoch: the newest file's time, 0 for a simulated model
    checkpoint: Checkpoint | None = None  # None for a simulated model and where there is an error
    error: GatewayError | None = None


class Catalog:
    """Names to models. One writer: ``replace``; files are re-read inside ``resolve`` and ``models``."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._entries = {entry.id: entry for entry in registry.models}
        self._names = {name: entry.id for entry in registry.models for name in (entry.id, *entry.aliases)}
        self._resolved: dict[str, tuple[_Stamp, ResolvedModel]] = {}

    @property
    def registry(self) -> Registry:
        """What it was made from."""
        return self._registry

    def successor(self, registry: Registry) -> Catalog:
        """The catalog of a changed registry, its files read; what is the same and unchanged on disk is not read again.

        This catalog stays as it is, so that another thread than the one that serves it may do the reading.
        """
        other = Catalog(registry)
        if registry.directory == self._registry.directory and registry.defaults == self._registry.defaults:
            other._resolved = {
                model_id: resolved
                for model_id, resolved in self._resolved.copy().items()
                if other._entries.get(model_id) == self._entries.get(model_id)
            }
        _ = other.models
        return other

    def replace(self, other: Catalog) -> None:
        """Takes the other's registry and models: whoever has this catalog finds them from now on."""
        self._registry, self._entries, self._names = other._registry, other._entries, other._names
        self._resolved = other._resolved

    @property
    def models(self) -> tuple[ResolvedModel, ...]:
        """All of them, in the registry's order."""
        return tuple(self._current(entry) for entry in self._entries.values())

    def ids(self, task: Task | None = None) -> list[str]:
        """The ids, of one task or of all."""
        return [model.id for model in self.models if task is None or model.task == task]

    def resolve(self, name: str) -> ResolvedModel:
        """The model of this id, alias or ``id@profile``. ModelNotFound lists what there is."""
        base, at, profile = name.partition("@")
        model_id = self._names.get(base)
        if model_id is None:
            raise ModelNotFound(f"there is no model {name[:100]!r}; {self._offer()}", param="model")
        if at:
            raise ModelNotFound(f"model {model_id!r} has no profile {profile[:100]!r}", param="model")
        return self._current(self._entries[model_id])

    def _offer(self) -> str:
        ids = list(self._entries)
        return f"the registry has: {', '.join(ids)}" if ids else "the registry is empty"

    def _current(self, entry: ModelEntry) -> ResolvedModel:
        known = self._resolved.get(entry.id)
        if known is not None and known[0] == _stamp(known[0].paths) and known[1].error is None:
            return known[1]
        resolved = _resolve(entry, self._registry)
        self._resolved[entry.id] = (_stamp(resolved.spec.paths), resolved)
        return resolved


@dataclass(frozen=True)
class _Stamp:
    """Which files were read, and as they were then."""

    paths: tuple[str, ...]
    files: tuple[tuple[int, int], ...]  # size and mtime_ns each; (-1, 0) where there is none


def _stamp(paths: Sequence[str]) -> _Stamp:
    files = []
    for path in paths:
        try:
            stat = Path(path).stat()
        except OSError:
            files.append((-1, 0))
        else:
            files.append((stat.st_size, stat.st_mtime_ns))
    return _Stamp(tuple(paths), tuple(files))


def _resolve(entry: ModelEntry, registry: Registry) -> ResolvedModel:
    policy = entry.policy(registry.defaults)
    if entry.simulate is not None:
        return _resolve_simulated(entry, entry.simulate, policy)
    path: Path | None = None
    try:
        path = resolve_source(entry.source, registry.directory)
        _check_encodable(path)
        checkpoint = detect(path)
        if checkpoint.unsupported is not None:
            raise ModelLoadFailed(f"{path}: {checkpoint.unsupported}", retry=False)
        spec = ModelSpec(
            id=entry.id,
            task=entry.task or checkpoint.task,
            format=checkpoint.format,
            paths=tuple(str(part) for part in checkpoint.paths),
            context=entry.context,
            concurrency=entry.concurrency,
        )
        key = content_key(checkpoint.header)
        float_bytes = 4 if registry.machine.device == "cpu" else 2  # MLX computes in float32 on the CPU
        footprint = estimate(checkpoint, context=entry.context, float_bytes=float_bytes)
    except (GatewayError, EngineError, OSError) as problem:
        return _unusable(entry, path, policy, problem)
    return ResolvedModel(
        id=entry.id,
        aliases=entry.aliases,
        task=spec.task,
        profile=None,
        spec=spec,
        content_key=key,
        resident_key=_resident_key(key, spec, entry),
        footprint=footprint,
        policy=policy,
        kv_grant_bytes=_plain(entry.kv_grant),
        request=RequestSettings(),
        created=int(max(Path(part).stat().st_mtime for part in spec.paths)),
        checkpoint=checkpoint,
    )


def _resolve_simulated(entry: ModelEntry, simulate: SimulateSection, policy: Policy) -> ResolvedModel:
    spec = ModelSpec(
        id=entry.id,
        task=simulate.task,
        format="sim",
        paths=(),
        context=entry.context,
        concurrency=entry.concurrency,
        simulate=SimulateSpec(
            weights_bytes=int(simulate.weights),
            kv_bytes_per_token=int(simulate.kv_per_token or 0),
            load_s=simulate.load_s,
            ttft_s=simulate.ttft_s,
            tokens_per_s=simulate.tokens_per_s,
            fail_load=simulate.fail_load,
            abort_after_tokens=simulate.abort_after_tokens,
            abort_times=simulate.abort_times,
            hang_after_tokens=simulate.hang_after_tokens,
            hold_memory_s=simulate.hold_memory,
        ),
    )
    key = f"sim:{simulate.content or entry.id}"
    return ResolvedModel(
        id=entry.id,
        aliases=entry.aliases,
        task=spec.task,
        profile=None,
        spec=spec,
        content_key=key,
        resident_key=_resident_key(key, spec, entry),
        footprint=Footprint(
            static_bytes=int(simulate.weights),
            kv_bytes_per_token=int(simulate.kv_per_token or 0),
            transient_bytes=0,
            context=entry.context or _UNLIMITED_CONTEXT,
        ),
        policy=policy,
        kv_grant_bytes=_plain(entry.kv_grant),
        request=RequestSettings(),
        created=0,
    )


def _check_encodable(path: Path) -> None:
    """ModelLoadFailed for a path that cannot cross to a worker or stand in an answer, which are UTF-8."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise ModelLoadFailed(f"{path.absolute()}: the path is not UTF-8; rename the file or its directory") from None


def _unusable(entry: ModelEntry, path: Path | None, policy: Policy, problem: Exception) -> ResolvedModel:
    if isinstance(problem, GatewayError):
        error = problem
    else:
        message = problem.message if isinstance(problem, EngineError) else f"{path or entry.source[:200]}: {problem}"
        error = ModelLoadFailed(message)
    paths = () if path is None else (str(path),)
    spec = ModelSpec(id=entry.id, task=entry.task or "text", format="gguf", paths=paths)
    return ResolvedModel(
        id=entry.id,
        aliases=entry.aliases,
        task=spec.task,
        profile=None,
        spec=spec,
        content_key="",
        resident_key=f"unusable:{entry.id}",
        footprint=Footprint(static_bytes=0, kv_bytes_per_token=0, transient_bytes=0, context=0),
        policy=policy,
        kv_grant_bytes=_plain(entry.kv_grant),
        request=RequestSettings(),
        created=0,
        error=error,
    )


def _resident_key(content: str, spec: ModelSpec, entry: ModelEntry) -> str:
    """Content and load parameters; not the id, so that ids which differ only in request settings share a resident."""
    parameters = msgspec.structs.replace(spec, id="", paths=())
    body = msgspec.json.encode([content, parameters, _plain(entry.kv_grant)])
    return hashlib.sha256(body).hexdigest()


def _plain(size: int | None) -> int | None:
    """The registry's ByteSize as the int that msgspec can encode."""
    return None if size is None else int(size)
