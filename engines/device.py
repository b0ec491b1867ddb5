"""What a worker can say about its device: which back end MLX has, the bytes in use, and the limits it sets itself.

=======  ===========================================================================================
device   bytes in use
=======  ===========================================================================================
metal    MLX's active and cache memory (not run)
cuda     the same
cpu      Linux: ``Anonymous`` + ``Pss_File`` of ``/proc/self/smaps_rollup``, so that pages of a mapped
         checkpoint count once they are in memory; elsewhere MLX's active and cache memory
=======  ===========================================================================================

``mlx.core`` is imported inside the functions that need it: a worker of a simulated model imports none of it.
``python -m engines.device`` prints what is found as JSON, for ``innkeeper doctor``.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol

from engines.errors import BackendError
from engines.heap import trim_heap

__all__ = [
    "DeviceInfo",
    "MemoryProbe",
    "check_backend",
    "installed_backends",
    "memory_probe",
    "read_device",
    "release_unused",
    "set_limits",
]

_BACKENDS = ("mlx-cpu", "mlx-cuda-12", "mlx-cuda-13")
_ROLLUP = Path("/proc/self/smaps_rollup")
_MIN_CACHE_BYTES = 64 * 1024**2


def installed_backends() -> tuple[str, ...]:
    """The distributions that bring ``libmlx.so`` on Linux, of those installed here; nothing is imported."""
    found: list[str] = []
    for name in _BACKENDS:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found.append(name)
    return tuple(found)


def check_backend(installed: tuple[str, ...] | None = None, platform: str = sys.platform) -> None:
    """BackendError when Linux has no back end, or two that overwrote each other's library; it names the command."""
    if platform != "linux":
        return
    found = installed_backends() if installed is None else installed
    if not found:
        raise BackendError(
            "MLX has no back end: pip install 'mlx-innkeeper[cpu]' (or 'mlx-innkeeper[cuda13]' for a CUDA card)"
        )
    if len(found) > 1:
        keep = next(name for name in found if name != "mlx-cpu")
        drop = " ".join(name for name in found if name != keep)
        raise BackendError(
            f"{' and '.join(found)} are both installed and overwrite each other: "
            f"pip uninstall -y {drop} && pip install --force-reinstall --no-deps {keep}"
        )


@dataclass(frozen=True)
class DeviceInfo:
    """The device MLX computes on. ``total_bytes`` is None where MLX does not say (CPU)."""

    kind: Literal["metal", "cuda", "cpu"]
    name: str
    total_bytes: int | None
    backends: tuple[str, ...]
    mlx_version: str


def read_device() -> DeviceInfo:
    """Imports MLX and asks it. BackendError when it cannot be imported."""
    check_backend()
    try:
        import mlx.core as mx
    except ImportError as error:
        raise BackendError(f"MLX cannot be imported ({error}): reinstall it with `make install`") from error
    facts = mx.device_info()
    total = facts.get("max_recommended_working_set_size") or facts.get("total_memory") or facts.get("memory_size")
    if mx.metal.is_available():
        kind: Literal["metal", "cuda", "cpu"] = "metal"
    elif mx.cuda.is_available():
        kind = "cuda"
    else:
        kind = "cpu"
    return DeviceInfo(
        kind=kind,
        name=str(facts.get("device_name", "unknown")),
        total_bytes=int(total) if total else None,
        backends=installed_backends(),
        mlx_version=metadata.version("mlx"),
    )


class MemoryProbe(Protocol):
    """Reads this process's bytes on its device."""

    def read(self) -> int:
        """Bytes in use now: weights, KV, caches and, on CPU, the interpreter itself."""
        ...


class SmapsProbe:
    """CPU on Linux. A reading costs 12 ms a GiB of mapped file (4 KiB pages), a tenth of that where pages are huge."""

    def __init__(self, path: Path = _ROLLUP) -> None:
        self._path = path

    def read(self) -> int:
        kilobytes: dict[str, int] = {}
        for line in self._path.read_text().splitlines():
            name, _, rest = line.partition(":")
            amount = rest.strip().removesuffix(" kB").strip()
            if amount.isdigit():
                kilobytes[name] = int(amount)
        if "Pss_File" in kilobytes:
            return (kilobytes.get("Anonymous", 0) + kilobytes["Pss_File"]) * 1024
        return kilobytes.get("Rss", 0) * 1024  # kernels before 5.9 do not split Pss


class MlxProbe:
    """Metal and CUDA, and CPU where there is no smaps. MLX's counters are about arrays only: other memory is not seen."""

    def read(self) -> int:
        import mlx.core as mx

        return int(mx.get_active_memory() + mx.get_cache_memory())


def memory_probe() -> MemoryProbe:
    """The probe for the device MLX computes on."""
    import mlx.core as mx

    on_gpu = mx.metal.is_available() or mx.cuda.is_available()
    return SmapsProbe() if not on_gpu and _ROLLUP.exists() else MlxProbe()


def release_unused() -> None:
    """Gives back MLX's unused buffers and the heap's: for an engine that has nothing to do."""
    import mlx.core as mx

    mx.clear_cache()
    trim_heap()


def set_limits(static_bytes: int, grant_bytes: int) -> None:
    """Sets MLX's memory, cache and (Metal) wired limits from what this worker was given, not from what the device has.

    The cache may hold an eighth of the grant: freed buffers beyond that go back to the system, where other workers find
    them. The CPU back end ignores the memory limit.
    """
    import mlx.core as mx

    total = static_bytes + grant_bytes
    mx.set_memory_limit(total)
    mx.set_cache_limit(max(_MIN_CACHE_BYTES, grant_bytes // 8))
    if mx.metal.is_available():
        recommended = int(mx.device_info()["max_recommended_working_set_size"])
        mx.set_wired_limit(min(total, recommended))


def main() -> int:
    """Prints one JSON object: the device, or ``{"error": sentence}`` with status 1."""
    try:
        facts = asdict(read_device())
    except BackendError as error:
        sys.stdout.write(json.dumps({"error": error.message}) + "\n")
        return 1
    sys.stdout.write(json.dumps(facts) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
