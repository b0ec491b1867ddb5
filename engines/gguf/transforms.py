"""Ready-made transforms of slots: what converters did to a tensor, undone, or a part of it taken.

Each is (array, config) to an array, or makes such a function. They work on blocks as on floats, since they touch no axis but
the first, the rows; those under "of floats" are arithmetic, for norms and parameters. Free of MLX and NumPy: families name
them, and the gateway reads families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engines.gguf.names import Transform

__all__ = [
    "compose",
    "expert_rows",
    "item",
    "log_negative",
    "rows",
    "unsqueezed_last",
]

Size = Callable[[Mapping[str, Any]], int]
"""A number of rows, from the configuration."""


def compose(*transforms: Transform) -> Transform:
    """One after another, the first first."""

    def composed(array: Any, config: Mapping[str, Any]) -> Any:
        for transform in transforms:
            array = transform(array, config)
        return array

    return composed


def rows(start: Size, stop: Size, count: Size) -> Transform:
    """The rows from ``start`` up to ``stop`` of ``count``, of which the others are other slots'. ValueError where there are not
    just so many: some would be nobody's."""

    def part(array: Any, config: Mapping[str, Any]) -> Any:
        if array.shape[0] != count(config):
            raise ValueError(f"{array.shape[0]} rows where {count(config)} belong")
        return array[start(config) : stop(config)]

    return part


def item(index: int, count: int) -> Transform:
    """One of ``count`` matrices, or rows, that lie stacked; the others are other slots'. ValueError where there are not so many."""

    def taken(array: Any, config: Mapping[str, Any]) -> Any:
        if array.shape[0] != count:
            raise ValueError(f"{array.shape[0]} where {count} belong")
        return array[index]

    return taken


def expert_rows(start: Size, stop: Size, count: Size) -> Transform:
    """As :func:`rows`, of every expert's matrix: [experts, rows, …]."""

    def part(array: Any, config: Mapping[str, Any]) -> Any:
        if array.shape[1] != count(config):
            raise ValueError(f"{array.shape[1]} rows where {count(config)} belong")
        return array[:, start(config) : stop(config)]

    return part


def unsqueezed_last(array: Any, config: Mapping[str, Any]) -> Any:
    """[channels, kernel] to [channels, kernel, 1]: the weight of a depthwise ``nn.Conv1d``."""
    return array[..., None]


# --- of floats --------------------------------------------------------------------------------------------------------


def log_negative(array: Any, config: Mapping[str, Any]) -> Any:
    """State-space decays: the file holds A = -exp(A_log), the module A_log."""
    return (-array).log()
