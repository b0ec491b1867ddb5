"""How many bytes a load needs, and how far its KV grant may shrink.

The grant is the entry's ``kv_grant``, else the KV of min(context, 8192) tokens × 4 rows. A computed one may shrink to one
such row to fit beside what is loaded, and to one row of 2048 tokens when unloading every idle model would not do.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.footprint import Footprint

__all__ = ["Measured", "Sizes"]

ROW_TOKENS = 8192
ROWS = 4
SHORTEST_ROW_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a load needs, in bytes: static (an empty worker's baseline included), and grants from ``full`` to ``floor``."""

    static: int
    full: int  # the grant where there is room
    row: int  # one row: idle models go before it shrinks below this
    floor: int  # never less

    @classmethod
    def of(cls, footprint: Footprint, kv_grant_bytes: int | None, baseline_bytes: int = 0) -> Sizes:
        """The sizes of a model with this footprint; an entry's own grant does not shrink."""
        static = footprint.static_bytes + baseline_bytes
        if kv_grant_bytes is not None:
            return cls(static, kv_grant_bytes, kv_grant_bytes, kv_grant_bytes)
        row = footprint.kv_bytes(min(footprint.context, ROW_TOKENS))
        return cls(static, ROWS * row, row, footprint.kv_bytes(min(footprint.context, SHORTEST_ROW_TOKENS)))

    @property
    def least(self) -> int:
        """Below this the model cannot be loaded at all."""
        return self.static + self.floor


@dataclass(frozen=True, slots=True)
class Measured:
    """The last reading of a worker, in bytes; ``static`` without its baseline."""

    static: int = 0
    kv: int = 0
    prompt_cache: int = 0
    mlx_cache: int = 0
    peak: int = 0

    @property
    def caches(self) -> int:
        """What ``Shed`` can give back."""
        return self.prompt_cache + self.mlx_cache

    @property
    def beside_static(self) -> int:
        """KV and caches: what the grant bounds."""
        return self.kv + self.caches

    @property
    def total(self) -> int:
        return self.static + self.beside_static
