"""The machine's memory and cores, read without MLX: what the budget is worked out from.

=======  ==========================================================================================
device   memory budget ``auto``
=======  ==========================================================================================
metal    min(0.95 × the GPU's working-set limit, RAM − max(2 GiB, 10 %))
cuda     0.9 × the card's memory
cpu      0.7 × min(RAM, the cgroup's limit)
=======  ==========================================================================================

Without MLX the working-set limit is ``sysctl iogpu.wired_limit_mb`` where it is set, and else macOS's default share of RAM
(two thirds up to 36 GiB, three quarters above). Nothing here was run on a Mac.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

__all__ = ["Machine", "cgroup_memory_limit", "free_memory", "read_machine", "usable_cores"]

GIB = 1024**3
_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """One device and its host. ``device_bytes`` is what models can be given at most, before any share is kept back."""

    device: Literal["metal", "cuda", "cpu"]
    ram_bytes: int  # the cgroup's limit counts as RAM
    device_bytes: int
    cores: int

    @property
    def auto_budget_bytes(self) -> int:
        """The budget where the registry says ``auto``."""
        if self.device == "cuda":
            return int(0.9 * self.device_bytes)
        if self.device == "metal":
            return min(int(0.95 * self.device_bytes), self.ram_bytes - max(2 * GIB, self.ram_bytes // 10))
        return int(0.7 * self.device_bytes)


def read_machine() -> Machine:
    """Reads it now. Never raises for a missing tool: then the CPU is the device."""
    cores = usable_cores()
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup_memory_limit()
    if limit is not None:
        ram = min(ram, limit)
    if sys.platform == "darwin" and os.uname().machine == "arm64":
        return Machine("metal", ram, _metal_working_set(ram), cores)
    if _mlx_cuda_installed():
        card = _cuda_total_bytes()
        if card is not None:
            return Machine("cuda", ram, card, cores)
    return Machine("cpu", ram, ram, cores)


def usable_cores() -> int:
    """Cores this process may run on: its affinity where the platform has one, bounded by a cgroup v2 CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for directory in _cgroup_directories():
        quota, _, period = _read(directory / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            cores = min(cores, max(1, int(quota) // int(period)))
    return max(1, cores)


def cgroup_memory_limit(root: Path = _CGROUP_ROOT, membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """The smallest memory limit in bytes from this process's cgroup up to the root (v2 and v1); None without one.

    v1 writes "no limit" as a number near 2**63, which min() with RAM makes harmless.
    """
    limits = [
        int(text)
        for directory in _cgroup_directories(root, membership)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _read(directory / name)).isdigit()
    ]
    return min(limits, default=None)


def free_memory(
    root: Path = _CGROUP_ROOT, membership: Path = Path("/proc/self/cgroup"), meminfo: Path = Path("/proc/meminfo")
) -> int | None:
    """Bytes of RAM a new process could have now, within every cgroup limit; None where Linux's files are missing.

    File pages that nobody used lately count as free, since they give way.
    """
    available = re.search(r"^MemAvailable:\s+(\d+) kB", _read(meminfo), re.MULTILINE)
    if available is None:
        return None
    free = int(available[1]) * 1024
    names = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
    for directory in _cgroup_directories(root, membership):
        for limit_name, usage_name in names:
            limit, usage = _read(directory / limit_name), _read(directory / usage_name)
            if limit.isdigit() and usage.isdigit():
                idle = re.findall(r"^(?:total_)?inactive_file (\d+)", _read(directory / "memory.stat"), re.MULTILINE)
                free = min(free, int(limit) - int(usage) + max(map(int, idle), default=0))
    return max(0, free)


def _cgroup_directories(root: Path = _CGROUP_ROOT, membership: Path = Path("/proc/self/cgroup")) -> list[Path]:
    directories: list[Path] = []
    for line in _read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "memory" if controllers else root
        directory = base / path.lstrip("/")
        while True:
            directories.append(directory)
            if directory == base or base not in directory.parents:
                break
            directory = directory.parent
    return directories


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _metal_working_set(ram: int) -> int:
    try:
        output = subprocess.run(["sysctl", "-n", "iogpu.wired_limit_mb"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        output = None
    if output is not None and output.stdout.strip().isdigit() and int(output.stdout) > 0:
        return int(output.stdout) * 1024**2
    return ram * 2 // 3 if ram <= 36 * GIB else ram * 3 // 4


def _mlx_cuda_installed() -> bool:
    for name in ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda"):
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        return True
    return False


def _cuda_total_bytes() -> int | None:
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(query, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    first = output.stdout.strip().partition("\n")[0].strip()
    return int(first) * 1024**2 if output.returncode == 0 and first.isdigit() else None
