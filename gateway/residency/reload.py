"""A changed registry file, read and checked as a whole before anything of it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from gateway.registry.catalog import Catalog, RequestSettings, ResolvedModel
from gateway.registry.load import RegistryError, load_registry
from gateway.residency.pins import check_pins
from gateway.settings import Settings

__all__ = ["Reload", "needs_restart", "read_changes"]

_KEYS = {"max_body_bytes": "max_body", "budget_bytes": "budget", "device_bytes": "device"}  # where field and key differ
_NO_KEYS = frozenset({"max_audio_body_bytes", "warnings"})  # follow from other keys


@dataclass(frozen=True, slots=True)
class Reload:
    """What a reload does: ids by what changed, and keys that are not applied before a restart.

    ``reloaded`` have other load keys, so that what is loaded drains and is loaded anew; ``updated`` have others at once.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    reloaded: tuple[str, ...]
    updated: tuple[str, ...]
    needs_restart: tuple[str, ...]


async def read_changes(catalog: Catalog, started: Settings, budget_bytes: int) -> tuple[Catalog, Reload]:
    """The catalog's registry file as it is now, and what it changes. RegistryError when it is not valid; nothing is changed.

    ``started``: the file's settings at the start. Files are read in another thread.
    """
    old = catalog.registry
    if old.path is None:
        raise RegistryError("this gateway serves one model file (--model): there is no registry file to read again")
    registry = await asyncio.to_thread(load_registry, old.path, machine=old.machine)
    if started.memory.device_bytes is not None:
        real = next((entry.id for entry in registry.models if entry.simulate is None), None)
        if real is not None:
            raise RegistryError(
                f"{old.path}: memory.device: this gateway rehearses a device and cannot take the real model {real!r} before a "
                "restart",
                key="memory.device",
            )
    successor = await asyncio.to_thread(catalog.successor, registry)
    check_pins(successor, budget_bytes)
    models = catalog.models
    before = await asyncio.to_thread(_known, catalog, models)
    after = await asyncio.to_thread(_known, successor, successor.models)
    reloaded, updated = _changed(before, after)
    return successor, Reload(
        added=tuple(id for id in after if id not in before),
        removed=tuple(id for id in before if id not in after),
        reloaded=reloaded,
        updated=updated,
        needs_restart=needs_restart(started, registry.settings),
    )


@dataclass(frozen=True, slots=True)
class _Known:
    """A model, and what requests get from it, by the profile they name."""

    model: ResolvedModel
    settings: Mapping[str | None, RequestSettings]

    @property
    def told(self) -> tuple[object, ...]:
        """What applies at once."""
        model = self.model
        return model.aliases, model.task, model.profile, model.policy, self.settings


def _known(catalog: Catalog, models: Sequence[ResolvedModel]) -> dict[str, _Known]:
    return {model.id: _Known(model, catalog.settings(model.id)) for model in models}


def _changed(before: Mapping[str, _Known], after: Mapping[str, _Known]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Ids in both: those with other load keys, and those with others."""
    both = [id for id in after if id in before]
    reloaded = tuple(id for id in both if before[id].model.resident_key != after[id].model.resident_key)
    updated = tuple(id for id in both if id not in reloaded and before[id].told != after[id].told)
    return reloaded, updated


def needs_restart(running: Settings, read: Settings) -> tuple[str, ...]:
    """The keys of ``server``, ``memory`` and ``workers`` whose value differs."""
    changed = []
    for section in ("server", "memory", "workers"):
        old, new = getattr(running, section), getattr(read, section)
        for field in fields(old):
            if field.name not in _NO_KEYS and getattr(old, field.name) != getattr(new, field.name):
                changed.append(f"{section}.{_KEYS.get(field.name, field.name)}")
    return tuple(changed)
