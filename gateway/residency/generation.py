"""One life of a resident's worker: what was granted to it, measured of it and asked by it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.residency.sizes import Measured

__all__ = ["Generation", "Growth"]


@dataclass(slots=True, eq=False)
class Growth:
    """A request that waits for more KV than the grant. ``promised``: models were evicted for it, or bytes are coming."""

    bytes: int
    request: int
    order: int
    promised: bool = False


@dataclass(slots=True, eq=False)
class Generation:
    """Number 0 is that of a resident which was never loaded. One writer: the residency core."""

    number: int
    began: float = 0.0
    grant: int = 0
    baseline: int = 0
    static_estimate: int = 0
    measured: Measured = field(default_factory=Measured)
    progress: float = 0.0
    pid: int | None = None
    loaded_grant: int = 0  # what it was loaded with: growth beyond that lasts as long as there are leases
    served: bool = False  # it began at least one request
    used: set[str] = field(default_factory=set)  # ids that leased it
    keep_alive_s: float | None = None  # the last wish; negative: for ever
    growth: Growth | None = None
    shed_asked: float | None = None  # when it was asked for caches in this overrun, until its next report
    shed_done: bool = False  # it has answered in this overrun

    @property
    def charge(self) -> int:
        """baseline + max(estimated, measured static) + max(grant, measured KV and caches), in bytes."""
        static = max(self.static_estimate, self.measured.static)
        return self.baseline + static + max(self.grant, self.measured.beside_static)
