"""Memory limits and free memory from written-down control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.machine import Machine, cgroup_memory_limit, free_memory, read_machine

GIB = 1024**3


def write(path: Path, text: str | int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def v2(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Root, membership and meminfo of a process in /a/b, whose parent has the tighter limit."""
    root = tmp_path / "cgroup"
    write(root / "a" / "memory.max", 4 * GIB)
    write(root / "a" / "memory.current", 3 * GIB)
    write(root / "a" / "memory.stat", f"anon 1\ninactive_file {GIB}\n")
    write(root / "a" / "b" / "memory.max", "max")
    write(root / "a" / "b" / "memory.current", 1)
    write(tmp_path / "membership", "0::/a/b")
    write(tmp_path / "meminfo", f"MemTotal: 1 kB\nMemAvailable:   {8 * GIB // 1024} kB")
    return root, tmp_path / "membership", tmp_path / "meminfo"


def test_machine_limit_is_the_smallest_up_to_the_root(v2: tuple[Path, Path, Path]) -> None:
    root, membership, _ = v2
    assert cgroup_memory_limit(root, membership) == 4 * GIB


def test_machine_limit_in_version_one(tmp_path: Path) -> None:
    write(tmp_path / "cgroup" / "memory" / "x" / "memory.limit_in_bytes", 2 * GIB)
    write(tmp_path / "cgroup" / "cpu" / "x" / "memory.limit_in_bytes", 1)
    write(tmp_path / "membership", "4:memory:/x\n2:cpu:/x")
    assert cgroup_memory_limit(tmp_path / "cgroup", tmp_path / "membership") == 2 * GIB


def test_machine_without_a_control_group_has_no_limit(tmp_path: Path) -> None:
    assert cgroup_memory_limit(tmp_path, tmp_path / "membership") is None


def test_machine_free_memory_is_bounded_by_the_control_group(v2: tuple[Path, Path, Path]) -> None:
    assert free_memory(*v2) == 2 * GIB  # 4 - 3, and the file pages that give way


def test_machine_free_memory_is_what_the_system_says_without_one(v2: tuple[Path, Path, Path], tmp_path: Path) -> None:
    assert free_memory(tmp_path / "none", tmp_path / "none", v2[2]) == 8 * GIB
    assert free_memory(tmp_path / "none", tmp_path / "none", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("machine", "budget"),
    [
        (Machine("cpu", ram_bytes=10 * GIB, device_bytes=10 * GIB, cores=2), 7 * GIB),
        (Machine("cuda", ram_bytes=10 * GIB, device_bytes=80 * GIB, cores=2), 72 * GIB),
        (Machine("metal", ram_bytes=64 * GIB, device_bytes=48 * GIB, cores=2), int(0.95 * 48 * GIB)),
        (Machine("metal", ram_bytes=16 * GIB, device_bytes=16 * GIB, cores=2), 14 * GIB),
    ],
)
def test_machine_auto_budget(machine: Machine, budget: int) -> None:
    assert machine.auto_budget_bytes == budget


def test_machine_that_runs_this_can_be_read() -> None:
    machine = read_machine()
    assert machine.cores >= 1 and 0 < machine.auto_budget_bytes < machine.device_bytes
