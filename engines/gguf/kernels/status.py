"""Which kernels run, why not better ones, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx

from engines.gguf.kernels.cpu import extension, why_missing
from engines.gguf.kernels.table import backend_name

__all__ = ["KernelStatus", "status"]

_BUILD = "`make kernels`, or `python -m engines.gguf.kernels.cpu.build` in the environment of Innkeeper"


@dataclass(frozen=True)
class KernelStatus:
    """What :func:`status` found."""

    backend: str  # a name of the table of back ends
    variant: str | None  # the instruction set of compiled kernels; None for other back ends
    threads: int | None  # of compiled kernels
    reason: str | None  # why no better back end runs; None where none is better
    remedy: str | None  # how to get it

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def status() -> KernelStatus:
    """The kernels that serve MLX's default device in this process."""
    name = backend_name()
    compiled = extension()
    if name == "cpu" and compiled is not None:
        slow = compiled.variant() == "generic"
        reason = "this CPU has no instructions that the compiled kernels are made for" if slow else None
        return KernelStatus(name, compiled.variant(), compiled.threads(), reason, None)
    if mx.default_device().type != mx.DeviceType.cpu:
        reason = "no kernels of this device can run; MLX operations serve" if name == "portable" else None
        return KernelStatus(name, None, None, reason, None)
    return KernelStatus(name, None, None, why_missing(), _BUILD)
