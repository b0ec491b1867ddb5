"""What loads have shown about a model's size, kept by content key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engines.footprint import Footprint
from gateway.residency.values import LearnedValue

__all__ = ["LearnedValues"]

LOADS_TO_LOWER = 3
AGREE = 0.01  # measurements within this fraction of each other are equal


class LearnedValues:
    """A measurement above the value raises it at once; three loads in a row below it that agree lower it.

    Static bytes and KV bytes per token are kept apart. One writer: the residency core.
    """

    def __init__(self, values: Mapping[str, LearnedValue] | None = None) -> None:
        self._values = dict(values or {})

    @property
    def values(self) -> Mapping[str, LearnedValue]:
        return dict(self._values)

    def footprint(self, content_key: str, estimate: Footprint) -> Footprint:
        """The header's estimate, corrected by what has been measured."""
        value = self._values.get(content_key)
        if value is None:
            return estimate
        return replace(estimate, static_bytes=value.static_bytes, kv_bytes_per_token=value.kv_bytes_per_token)

    def observe(
        self, content_key: str, estimate: Footprint, static_bytes: int, kv_bytes_per_token: int
    ) -> LearnedValue | None:
        """A load was measured; the new value, when it differs from the one kept (None: nothing to persist).

        ``kv_bytes_per_token`` 0 means not measured.
        """
        old = self._values.get(content_key) or LearnedValue(estimate.static_bytes, estimate.kv_bytes_per_token)
        static, lower_static = _settle(old.static_bytes, old.lower_static, static_bytes)
        if kv_bytes_per_token:
            kv, lower_kv = _settle(old.kv_bytes_per_token, old.lower_kv, kv_bytes_per_token)
        else:
            kv, lower_kv = old.kv_bytes_per_token, old.lower_kv
        new = LearnedValue(static, kv, lower_static, lower_kv)
        if new == old:
            return None
        self._values[content_key] = new
        return new


def _settle(value: int, lower: tuple[int, ...], measured: int) -> tuple[int, tuple[int, ...]]:
    """The value and the loads in a row below it, after one more measurement."""
    if measured >= value:
        return measured, ()
    in_a_row = all(abs(earlier - measured) <= AGREE * max(earlier, measured) for earlier in lower)
    agreeing = (*lower, measured) if in_a_row else (measured,)
    if len(agreeing) < LOADS_TO_LOWER:
        return value, agreeing
    return max(agreeing), ()
