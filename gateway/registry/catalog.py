"""The models a registry offers: names to :class:`ResolvedModel`, with what their files' headers say and what a request gets.

A name is an id, an alias, or either with a profile: ``id@profile``. All names of an id share its resident. Files are looked at
again when their size or time changed, so that a repaired file works without a restart; what a name resolves to is kept until
then, or until the registry is another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engines.detect import Checkpoint
from engines.footprint import Footprint
from engines.wire import ModelSpec, Task
from gateway.errors import GatewayError, ModelNotFound
from gateway.registry.load import Registry
from gateway.registry.model_files import ModelFiles, read_files
from gateway.registry.request_layers import (
    Layer,
    RequestSettings,
    Setting,
    explain_settings,
    resolve_settings,
)
from gateway.registry.schema import ModelEntry, Policy

__all__ = ["Catalog", "RequestSettings", "ResolvedModel"]

_Stamp = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ResolvedModel:
    """One model as a request finds it. ``error`` is what a use of it is answered with, None when it can be loaded."""

    id: str
    aliases: tuple[str, ...]
    task: Task
    profile: str | None  # the one asked for, else the model's own
    profiles: tuple[str, ...]  # that may be asked for
    spec: ModelSpec
    content_key: str
    resident_key: str  # ids with the same one share a resident
    footprint: Footprint
    policy: Policy
    kv_grant_bytes: int | None
    request: RequestSettings
    created: int  # seconds since the epoch: the newest file's time, 0 for a simulated model
    checkpoint: Checkpoint | None = None  # None for a simulated model, and where the headers cannot be read
    error: GatewayError | None = None
    task_known: bool = True  # False: its files cannot be read and its entry is silent, so that it may be of any kind


class Catalog:
    """Names to models. One writer: ``replace``; files are re-read inside ``resolve`` and ``models``."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._entries = {entry.id: entry.scheduled(registry.scheduling) for entry in registry.models}
        self._names = {name: entry.id for entry in registry.models for name in (entry.id, *entry.aliases)}
        self._files: dict[str, tuple[_Stamp, ModelFiles]] = {}
        # By id and profile, with the files it was made of. As many at most as the registry has pairs of them.
        self._resolved: dict[tuple[str, str | None], tuple[ModelFiles, ResolvedModel]] = {}

    @property
    def registry(self) -> Registry:
        """What it was made from."""
        return self._registry

    def successor(self, registry: Registry) -> Catalog:
        """The catalog of a changed registry, its files read; those of unchanged load keys, unchanged on disk, not again.

        This catalog stays as it is, so that another thread than the one that serves it may do the reading.
        """
        other = Catalog(registry)
        if registry.directory == self._registry.directory:
            other._files = {
                model_id: files
                for model_id, files in self._files.copy().items()
                if (entry := other._entries.get(model_id)) and entry.load_keys == self._entries[model_id].load_keys
            }
        _ = other.models
        return other

    def replace(self, other: Catalog) -> None:
        """Takes the other's registry and models: whoever has this catalog finds them from now on."""
        self._registry, self._entries, self._names = other._registry, other._entries, other._names
        self._files, self._resolved = other._files, other._resolved

    @property
    def models(self) -> tuple[ResolvedModel, ...]:
        """All of them with their own profiles, in the registry's order."""
        return tuple(self._current(entry, entry.profile) for entry in self._entries.values())

    def ids(self, task: Task | None = None) -> list[str]:
        """The ids, of one task or of all."""
        return [model.id for model in self.models if task is None or model.task == task]

    def resolve(self, name: str) -> ResolvedModel:
        """The model of this id, alias or ``id@profile``. ModelNotFound lists what there is."""
        entry, profile = self._find(name)
        return self._current(entry, profile)

    def settings(self, model_id: str) -> Mapping[str | None, RequestSettings]:
        """What requests get from a model: under None without a profile, else by the profile they name.

        Of its files as they were last read; nothing is kept, so that another thread than the one that serves may ask.
        """
        entry = self._entries[model_id]
        known = self._files.get(model_id)
        files = known[1] if known is not None else read_files(entry, self._registry.directory, self._registry.machine)
        own = {None: self._requests(entry, entry.profile, files)}
        offered = self._registry.requests.offered(entry)
        return own | {name: self._requests(entry, name, files) for name in offered}

    def explain(self, name: str) -> tuple[Setting, ...]:
        """Where each setting of a name comes from. ModelNotFound as ``resolve``."""
        entry, profile = self._find(name)
        return explain_settings(self._layers(entry, profile, self._read(entry)))

    def _find(self, name: str) -> tuple[ModelEntry, str | None]:
        base, at, profile = name.partition("@")
        model_id = self._names.get(base)
        if model_id is None:
            raise ModelNotFound(f"there is no model {name[:100]!r}; {self._offer()}", param="model")
        entry = self._entries[model_id]
        if not at:
            return entry, entry.profile
        # What was resolved is looked up first: `offered` makes a list.
        if (model_id, profile) not in self._resolved:
            offered = self._registry.requests.offered(entry)
            if profile not in offered:
                has = f"it has: {', '.join(offered)}" if offered else "it has none"
                raise ModelNotFound(f"model {model_id!r} has no profile {profile[:100]!r}; {has}", param="model")
        return entry, profile

    def _offer(self) -> str:
        ids = list(self._entries)
        return f"the registry has: {', '.join(ids)}" if ids else "the registry is empty"

    def _current(self, entry: ModelEntry, profile: str | None) -> ResolvedModel:
        files = self._read(entry)
        known = self._resolved.get((entry.id, profile))
        if known is not None and known[0] is files:
            return known[1]
        resolved = self._resolve(entry, profile, files)
        self._resolved[entry.id, profile] = files, resolved
        return resolved

    def _read(self, entry: ModelEntry) -> ModelFiles:
        known = self._files.get(entry.id)
        if known is not None and known[0] == _stamp(known[1].watched) and known[1].error is None:
            return known[1]
        files = read_files(entry, self._registry.directory, self._registry.machine)
        self._files[entry.id] = _stamp(files.watched), files
        return files

    def _layers(self, entry: ModelEntry, profile: str | None, files: ModelFiles) -> tuple[Layer, ...]:
        return self._registry.requests.layers(entry, profile, files.family)

    def _requests(self, entry: ModelEntry, profile: str | None, files: ModelFiles) -> RequestSettings:
        settings = resolve_settings(self._layers(entry, profile, files))
        return replace(settings, priority=entry.policy(self._registry.defaults).priority)

    def _resolve(self, entry: ModelEntry, profile: str | None, files: ModelFiles) -> ResolvedModel:
        return ResolvedModel(
            id=entry.id,
            aliases=entry.aliases,
            task=files.spec.task,
            profile=profile,
            profiles=self._registry.requests.offered(entry),
            spec=files.spec,
            content_key=files.content_key,
            resident_key=files.resident_key,
            footprint=files.footprint,
            policy=entry.policy(self._registry.defaults),
            kv_grant_bytes=None if entry.kv_grant is None else int(entry.kv_grant),
            request=self._requests(entry, profile, files),
            created=files.created,
            checkpoint=files.checkpoint,
            error=files.error,
            task_known=files.task_known,
        )


def _stamp(paths: Sequence[str]) -> _Stamp:
    """Size and mtime_ns of each file; (-1, 0) where there is none."""
    return tuple(map(_look, paths))


def _look(path: str) -> tuple[int, int]:
    try:
        stat = os.stat(path)  # noqa: PTH116 - every request looks, and a Path takes longer than the look
    except OSError:
        return -1, 0
    return stat.st_size, stat.st_mtime_ns
