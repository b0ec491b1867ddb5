"""Pins of the registry that the budget cannot hold together: an error before anything is loaded."""

from __future__ import annotations

from gateway.registry.catalog import Catalog
from gateway.registry.load import RegistryError
from gateway.registry.values import format_bytes
from gateway.residency.sizes import Sizes

__all__ = ["check_pins"]


def check_pins(catalog: Catalog, budget_bytes: int) -> None:
    """RegistryError, naming pins and bytes, when the pinned models need more than the budget even with the smallest grants.

    Ids that share a resident count once; a model that cannot be used needs nothing.
    """
    needs: dict[str, int] = {}
    names: dict[str, list[str]] = {}
    keys: list[str] = []
    for index, model in enumerate(catalog.models):
        if model.policy.pin and model.error is None:
            needs[model.resident_key] = Sizes.of(model.footprint, model.kv_grant_bytes).least
            names.setdefault(model.resident_key, []).append(model.id)
            keys.append(f"models[{index}].pin")
    total = sum(needs.values())
    if total <= budget_bytes:
        return
    pins = ", ".join(f"{'/'.join(names[key])} {format_bytes(need)} ({need} bytes)" for key, need in needs.items())
    where = f"{catalog.registry.path}: " if catalog.registry.path else ""
    raise RegistryError(
        f"{where}{', '.join(keys)}: the pinned models need at least {format_bytes(total)} ({total} bytes) together, the budget "
        f"is {format_bytes(budget_bytes)} ({budget_bytes} bytes): {pins}; unpin one, or raise memory.budget",
        key=keys[-1],
    )
