"""Back end detection, memory readings, limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engines.device import SmapsProbe, check_backend, installed_backends, memory_probe, read_device
from engines.errors import BackendError


def test_device_no_back_end_names_the_command() -> None:
    with pytest.raises(BackendError, match=r"pip install 'mlx-innkeeper\[cpu\]'"):
        check_backend((), "linux")


def test_device_two_back_ends_name_the_commands_that_keep_the_card() -> None:
    with pytest.raises(BackendError, match=r"pip uninstall -y mlx-cpu && pip install --force-reinstall .*mlx-cuda-13"):
        check_backend(("mlx-cpu", "mlx-cuda-13"), "linux")


def test_device_one_back_end_is_right_and_macs_need_none() -> None:
    check_backend(("mlx-cuda-12",), "linux")
    check_backend((), "darwin")


def test_device_installed_back_ends_are_the_installed_distributions() -> None:
    if sys.platform == "linux":
        assert len(installed_backends()) == 1


def test_device_smaps_reading_is_anonymous_and_file_share(tmp_path: Path) -> None:
    rollup = tmp_path / "smaps_rollup"
    rollup.write_text(
        "55-7f ---p 0 00:00 0   [rollup]\nRss:  900 kB\nPss_File:  20 kB\nAnonymous:  300 kB\nSwap: 7 kB\n"
    )
    assert SmapsProbe(rollup).read() == 320 * 1024


def test_device_smaps_of_an_old_kernel_falls_back_to_rss(tmp_path: Path) -> None:
    rollup = tmp_path / "smaps_rollup"
    rollup.write_text("Rss:  900 kB\nAnonymous:  300 kB\n")
    assert SmapsProbe(rollup).read() == 900 * 1024


def test_device_probe_sees_an_array_come_and_go() -> None:
    import mlx.core as mx

    probe = memory_probe()
    before = probe.read()
    array = mx.full((16, 1024, 1024), 1.5)
    mx.eval(array)
    grown = probe.read() - before
    del array
    mx.clear_cache()
    assert grown >= 60 * 1024**2 and probe.read() - before < 32 * 1024**2


def test_device_command_prints_what_was_found() -> None:
    done = subprocess.run([sys.executable, "-m", "engines.device"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == read_device().kind
