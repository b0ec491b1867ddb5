"""Pins of a registry against the budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.registry.catalog import Catalog
from gateway.registry.load import RegistryError, parse_registry
from gateway.residency.pins import check_pins
from tests.gateway.residency.helpers_residency import GIB, MACHINE, registry, sim


def catalog(*models: str) -> Catalog:
    return Catalog(parse_registry(registry("\n".join(models)), Path("registry.yaml"), machine=MACHINE))


def test_pins_that_exceed_the_budget_are_named_with_their_bytes() -> None:
    offered = catalog(sim("a", keys="pin: true"), sim("b"), sim("c", simulate="weights: 7GiB", keys="pin: true"))
    with pytest.raises(RegistryError) as caught:
        check_pins(offered, 10 * GIB)
    message = str(caught.value)
    assert message.startswith("registry.yaml: models[0].pin, models[2].pin: ")
    for part in ("a 4.0 GiB (4294967296 bytes)", "c 7.0 GiB (7516192768 bytes)", "11.0 GiB", "10.0 GiB (10737418240"):
        assert part in message
    assert caught.value.key == "models[2].pin"


def test_pins_fit_exactly() -> None:
    check_pins(catalog(sim("a", keys="pin: true"), sim("b", simulate="weights: 6GiB", keys="pin: true")), 10 * GIB)


def test_pins_need_their_smallest_grant_too() -> None:
    rows = "weights: 4GiB, kv_per_token: 1MiB"  # 2 GiB for the shortest row
    check_pins(catalog(sim("a", simulate=rows, keys="pin: true")), 6 * GIB)
    with pytest.raises(RegistryError, match="6442450944 bytes"):
        check_pins(catalog(sim("a", simulate=rows, keys="pin: true")), 6 * GIB - 1)


def test_pins_of_one_resident_count_once() -> None:
    shared = "weights: 6GiB, content: one"
    check_pins(
        catalog(sim("a", simulate=shared, keys="pin: true"), sim("b", simulate=shared, keys="pin: true")), 10 * GIB
    )


def test_pins_of_what_cannot_be_used_need_nothing() -> None:
    check_pins(catalog("  - {id: gone, source: ./gone.gguf, pin: true}", sim("a", keys="pin: true")), 4 * GIB)
