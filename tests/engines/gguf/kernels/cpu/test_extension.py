"""What is built, what is loaded, and what is said when it is not."""

from __future__ import annotations

import importlib.util
import json
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from engines.gguf import kernels
from engines.gguf.kernels.cpu import Extension, build, extension, why_missing
from engines.gguf.kernels.cpu.build import BuildError

loader = sys.modules["engines.gguf.kernels.cpu.extension"]


@pytest.fixture
def reloaded() -> Iterator[None]:
    """Loads anew within the test and after it."""
    loader._load.cache_clear()
    yield
    loader._load.cache_clear()


def test_kernels_are_built_where_they_can_be() -> None:
    """Whoever has the tools, on the platform they are proven on, runs this folder's tests: a build that fails is no secret."""
    proven = sys.platform == "linux" and platform.machine() == "x86_64"
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    if proven and headers and shutil.which("cmake") and shutil.which("c++") and importlib.util.find_spec("nanobind"):
        assert extension() is not None, why_missing()


def test_missing_module_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reloaded: None) -> None:
    monkeypatch.setattr(loader, "build_directory", lambda: tmp_path)
    assert extension() is None
    assert "not been built" in str(why_missing())


def test_module_of_other_sources_is_not_loaded(
    compiled: Extension, monkeypatch: pytest.MonkeyPatch, reloaded: None
) -> None:
    monkeypatch.setattr(loader, "sources_digest", lambda: "0" * 64)
    assert extension() is None
    assert "other sources" in str(why_missing())


def test_module_for_another_mlx_is_not_used(
    compiled: Extension, monkeypatch: pytest.MonkeyPatch, reloaded: None
) -> None:
    monkeypatch.setattr(mx, "__version__", "9.9.9")
    assert extension() is None
    assert "9.9.9 is installed" in str(why_missing())


def test_module_that_cannot_be_loaded_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reloaded: None
) -> None:
    monkeypatch.setattr(loader, "build_directory", lambda: tmp_path)
    monkeypatch.delitem(sys.modules, loader.MODULE, raising=False)
    suffix = loader.sysconfig.get_config_var("EXT_SUFFIX")
    (tmp_path / f"{loader.MODULE}{suffix}").write_bytes(b"not a library")
    (tmp_path / loader.STAMP).write_text(loader.sources_digest())
    assert extension() is None
    assert "cannot be loaded" in str(why_missing())


def test_without_it_another_back_end_serves_and_status_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reloaded: None
) -> None:
    monkeypatch.setattr(loader, "build_directory", lambda: tmp_path)
    if mx.default_device().type != mx.DeviceType.cpu:
        pytest.skip("the default device is not the CPU")
    status = kernels.status()
    assert (status.backend, status.variant) == ("blas", None)
    assert "not been built" in str(status.reason)
    assert "make kernels" in str(status.remedy)


def test_status_names_the_instruction_set(compiled: Extension) -> None:
    status = kernels.status()
    assert (status.backend, status.variant) == ("cpu", compiled.variants()[0])
    assert status.threads == compiled.threads()
    assert status.remedy is None


def test_status_is_told_to_those_without_mlx(compiled: Extension) -> None:
    told = subprocess.run([sys.executable, "-m", "engines.gguf.kernels"], capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["backend"] == "cpu"


def test_variants_end_with_the_one_for_any_processor(compiled: Extension) -> None:
    assert compiled.variants()[-1] == "generic"
    assert not compiled.choose_variant("no such thing")
    assert compiled.variant() == compiled.variants()[0]


def test_build_names_a_missing_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"nanobind is missing|CMake is missing"):
        build.build()


def test_build_shows_what_a_failed_step_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cmake = tmp_path / "cmake"
    cmake.write_text("#!/bin/sh\necho 'no compiler here' >&2\nexit 1\n")
    cmake.chmod(0o755)
    monkeypatch.setattr(build, "_cmake", lambda: cmake)
    monkeypatch.setattr(build, "_package", lambda name: tmp_path)
    assert build.main() == 1
    assert "no compiler here" in capsys.readouterr().err


def test_threads_are_set_for_all_primitives(compiled: Extension) -> None:
    kernels.set_cores(3)
    assert compiled.threads() == 3
    kernels.set_cores(0)
    assert compiled.threads() == 1
