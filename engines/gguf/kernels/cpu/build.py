"""Compiles the extension: ``python -m engines.gguf.kernels.cpu.build``.

Needed are a C++20 compiler (GCC 11 or Clang 15), CMake 3.20 or newer (Debian's, or PyPI's ``cmake``), Python's headers and
``nanobind`` (``pip install --group kernels``). MLX's headers and library come with MLX itself. Nothing is written but the
``build`` folder beside this file, and there only what has loaded and multiplied.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx

from engines.gguf.kernels.cpu.extension import MODULE, SOURCES, STAMP, build_directory, sources_digest

__all__ = ["BuildError", "build", "main"]

# Loads the module in a process of its own, since one that does not fit may end it, and multiplies ones.
_TRIAL = f"""
import sys; sys.path.insert(0, sys.argv[1])
import mlx.core as mx, {MODULE} as compiled
mx.set_default_device(mx.cpu)
blocks = mx.ones((8, 64)).view(mx.uint8)
for variant in compiled.variants():
    compiled.choose_variant(variant)
    assert compiled.product(mx.ones((1, 64)), blocks, 0).tolist() == [[64.0] * 8], variant
"""


class BuildError(Exception):
    """The extension cannot be compiled here; says what is missing."""


def build() -> Path:
    """Compiles, tries and installs the extension; the folder it is in. BuildError when any of that fails."""
    cmake, nanobind = _cmake(), _package("nanobind")
    directory = build_directory()
    digest = sources_digest()  # before: sources that change meanwhile make the result stale
    with tempfile.TemporaryDirectory(prefix="innkeeper-kernels-") as name:
        work = Path(name)
        configure = [
            str(cmake),
            *("-S", str(SOURCES), "-B", name, "-DCMAKE_BUILD_TYPE=Release"),
            f"-DMLX_ROOT={Path(next(iter(mlx.__path__)))}",
            f"-DNANOBIND_ROOT={nanobind}",
            f"-DPython_EXECUTABLE={sys.executable}",
        ]
        if shutil.which("ninja"):
            configure += ["-G", "Ninja"]
        _run(configure)
        _run([str(cmake), "--build", name, "--parallel", str(os.cpu_count() or 1)])
        modules = list(work.glob(f"{MODULE}.*"))
        if len(modules) != 1:
            raise BuildError(f"the compiler left no module named {MODULE}")
        _run([sys.executable, "-c", _TRIAL, name])
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / STAMP).unlink(missing_ok=True)
            # Renamed into place: a running process keeps the file that it has mapped.
            copied = directory / f"{modules[0].name}.new"
            shutil.copyfile(modules[0], copied)
            copied.replace(directory / modules[0].name)
            (directory / STAMP).write_text(digest + "\n", encoding="ascii")
        except OSError as error:
            raise BuildError(f"{directory} cannot be written: {error.strerror}") from error
    return directory


def _cmake() -> Path:
    """The system's CMake, or that of PyPI's package."""
    found = shutil.which("cmake")
    if found:
        return Path(found)
    try:
        return _package("cmake") / "data" / "bin" / "cmake"
    except BuildError as error:
        raise BuildError(
            "CMake is missing: install it (Debian: apt-get install cmake; or pip install cmake)"
        ) from error


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BuildError(f"{name} is missing: pip install --group kernels")
    return Path(spec.origin).parent


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip().splitlines()
        raise BuildError("\n".join([f"this step failed: {' '.join(command[:6])} …", *output[-30:]]))


def main() -> int:
    try:
        directory = build()
    except BuildError as error:
        sys.stderr.write(f"kernels: {error}\nInnkeeper runs without them, more slowly.\n")
        return 1
    sys.stdout.write(f"kernels: built in {directory}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
