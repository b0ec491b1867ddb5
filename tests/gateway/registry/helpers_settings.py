"""Registries of request settings, and what a name resolves to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.machine import Machine
from gateway.registry.catalog import Catalog
from gateway.registry.load import RegistryError, parse_registry

__all__ = ["MACHINE", "SIM", "catalog_of", "origins", "problems_of"]

MACHINE = Machine("cpu", ram_bytes=16 << 30, device_bytes=16 << 30, cores=2)
SIM: dict[str, Any] = {"id": "m", "source": "sim:", "simulate": {"weights": 1}}


def catalog_of(path: Path = Path("/nowhere/registry.yaml"), **sections: Any) -> Catalog:
    """Of these sections; one simulated model ``m`` where they name none."""
    text = json.dumps({"models": [SIM], **sections})  # JSON is YAML
    return Catalog(parse_registry(text, path, machine=MACHINE))


def problems_of(path: Path = Path("/nowhere/registry.yaml"), **sections: Any) -> dict[str | None, str]:
    """What is wrong with them, by key."""
    with pytest.raises(RegistryError) as caught:
        catalog_of(path, **sections)
    assert caught.value.problems
    assert caught.value.key == caught.value.problems[0].key
    assert str(caught.value).startswith(f"{path}: {caught.value.problems[0]}")
    return {problem.key: problem.message for problem in caught.value.problems}


def origins(catalog: Catalog, name: str) -> dict[str, tuple[Any, str]]:
    """Each setting's value and where it comes from."""
    return {setting.key: (setting.value, setting.origin) for setting in catalog.explain(name)}
