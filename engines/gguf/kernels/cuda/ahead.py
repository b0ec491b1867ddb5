"""Kernels compiled before MLX needs them: all that a model takes at once, on every core, and none twice on a machine.

MLX compiles a custom kernel when it is first launched, on the thread that launches it, and anew in each process. Here the same text
goes to the same compiler earlier, and what comes of it to where MLX looks first (``mlx_module.py``) and into a store of our own
(``image_store.py``), since the other is a temporary folder. Where any of it fails, MLX compiles the kernel itself, as ever.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Protocol

import mlx.core as mx

from engines.gguf.kernels.cuda.image_store import ImageStore, read_whole, write_whole
from engines.gguf.kernels.cuda.mlx_module import STAND_INS, Module, module_folder
from engines.gguf.kernels.cuda.nvrtc import Compiled, CompileError, Nvrtc, loaded_library

__all__ = ["Compiler", "Precompiler", "compile_ahead", "gathered", "gathering", "includes", "made_by", "precompiler"]

_MOST_THREADS = 16  # each takes some hundred MiB of the host's memory for a large kernel
_TOOLKIT = Path("/usr/local/cuda")

logger = logging.getLogger("innkeeper.worker")


class Compiler(Protocol):
    """See :class:`~engines.gguf.kernels.cuda.nvrtc.Nvrtc`."""

    def version(self) -> str: ...

    def compile(self, text: str, function: str, options: Sequence[str], headers: Mapping[str, str]) -> Compiled: ...


class Precompiler:
    """Puts modules where MLX looks for them: into ``folder``. Methods may be called from any thread."""

    def __init__(self, compiler: Compiler, options: Sequence[str], store: ImageStore, folder: Path) -> None:
        self._compiler = compiler
        self._options = tuple(options)
        self._store = store
        self._folder = folder
        self._made_by = "\0".join((compiler.version(), *options, *STAND_INS.values()))
        self.tag = hashlib.sha256(self._made_by.encode()).hexdigest()[:8]
        self._lock = threading.Lock()
        self._seen: set[str] = set()  # names of modules that were put there or could not be: once a process is enough

    def ensure(self, module: Module) -> bool:
        """Puts the module there, out of the store if it has it; whether it had to be compiled."""
        with self._lock:
            if module.name in self._seen:
                return False
            self._seen.add(module.name)
        key = hashlib.sha256(f"{self._made_by}\0{module.text}".encode()).hexdigest()
        compiled, missing = self._store.get(key), False
        if compiled is None:
            missing = True
            try:
                compiled = self._compiler.compile(module.text, module.function, self._options, STAND_INS)
            except CompileError as error:
                logger.warning("%s is left to MLX to compile: %s", module.function, error)
                return missing
            self._store.put(key, compiled)
        self._publish(module, compiled)
        return missing

    def ensure_all(self, modules: Sequence[Module], threads: int, report: Callable[[float], None]) -> None:
        """``report`` is told the fraction that is done, on the calling thread."""
        started, compiled = time.monotonic(), 0
        with ThreadPoolExecutor(max(1, min(threads, _MOST_THREADS)), thread_name_prefix="compile") as pool:
            futures = []
            for module in modules:
                with contextlib.suppress(
                    RuntimeError
                ):  # no thread to be had: those there are take it, or its first launch
                    futures.append(pool.submit(self.ensure, module))
            for done, future in enumerate(as_completed(futures), start=1):
                compiled += future.result()
                report(done / len(modules))
        took = time.monotonic() - started
        logger.info("%d kernels, of which %d were compiled: %.1f s, %d threads", len(modules), compiled, took, threads)

    def _publish(self, module: Module, compiled: Compiled) -> None:
        # In this order: MLX takes a module for complete when it sees its image.
        for suffix, content in ((".txt", f"{module.function}\t{compiled.symbol}\n".encode()), (".ptx", compiled.image)):
            path = self._folder / f"{module.name}{suffix}"
            if read_whole(path, len(content)) != content:
                write_whole(path, content)


@cache
def precompiler() -> Precompiler | None:
    """That of this process and its GPU; None where MLX has no run-time compiler, or one that cannot be called here."""
    compiler_path, mlx_path = loaded_library("libnvrtc.so"), loaded_library("libmlx.so")
    if compiler_path is None or mlx_path is None or not mx.cuda.is_available():
        return None
    info = mx.device_info()
    major, minor = info.get("compute_capability_major"), info.get("compute_capability_minor")
    try:
        compiler = Nvrtc(compiler_path)
        options = [
            "--device-as-default-execution-space",
            f"--gpu-architecture=sm_{major}{minor}{'a' if major == 9 else ''}",
            *(f"--include-path={include}" for include in includes(Path(mlx_path), compiler.version())),
        ]
        folder = module_folder()
        if not _is_writable(folder):
            logger.warning(
                "MLX compiles each kernel anew: %s cannot be written; MLX_PTX_CACHE_DIR names another", folder
            )
            return None
        return Precompiler(compiler, options, ImageStore(_store_folder()), folder)
    except (OSError, AttributeError, RuntimeError, CompileError) as error:  # RuntimeError: nobody's home
        logger.info("kernels are left to MLX to compile: %s", error)
        return None


def made_by() -> str:
    """A part of kernels' names that tells GPUs and compilers apart, since MLX's names of modules do not."""
    compiles = precompiler()
    return "" if compiles is None else compiles.tag


def includes(mlx: Path, version: str) -> list[Path]:
    """Where headers lie for the compiler of this version: beside the library ``mlx``, then CUDA's, wheels before a toolkit, as MLX
    takes them. FileNotFoundError where there are none of CUDA."""
    root = mlx.parent.parent
    wheels = root.parent / "nvidia"
    toolkits = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), _TOOLKIT)
    candidates = [
        wheels / f"cu{version.partition('.')[0]}" / "include",
        wheels / "cuda_runtime" / "include",
        *(Path(toolkit) / "include" for toolkit in toolkits if toolkit),
    ]
    for cuda in candidates:
        if (cuda / "cuda_fp16.h").is_file():
            return [root / "include" / "cccl", cuda, cuda / "cccl"]
    raise FileNotFoundError("there are no CUDA headers")


def _is_writable(folder: Path) -> bool:
    """Makes it where it lacks. Of another user it is not, since MLX's folder is the same for all."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return os.access(folder, os.W_OK | os.X_OK)


def _store_folder() -> Path:
    """In the cache directory of Innkeeper (``XDG_CACHE_HOME``); CUDA means Linux."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    parent = Path(cache_home) if cache_home.startswith("/") else Path.home() / ".cache"
    return parent / "innkeeper" / "kernels"


_noted: dict[str, Module] | None = None  # modules by name, while they are gathered; the device thread's


@contextlib.contextmanager
def gathering() -> Iterator[dict[str, Module]]:
    """While this lasts kernels note themselves in what it gives, and answer zeros; on the device thread. No graph is kept, since it
    would have the zeros in it."""
    global _noted
    kept = "MLX_DISABLE_COMPILE" not in os.environ  # to which MLX would not come back
    noted: dict[str, Module] = {}
    _noted = noted
    if kept:
        mx.disable_compile()
    try:
        yield noted
    finally:
        if kept:
            mx.enable_compile()
        _noted = None


def gathered(module: Module) -> bool:
    """Notes the module, if modules are being gathered; whether they are."""
    if _noted is None:
        return False
    _noted[module.name] = module
    return True


def compile_ahead(run: Callable[[], None], threads: int, report: Callable[[float], None]) -> None:
    """Compiles what ``run`` takes, whose answers mean nothing. Does nothing where MLX is to compile."""
    compiles = precompiler()
    if compiles is None:
        return
    with gathering() as modules:
        run()
    # The last are for the most rows and take the longest to compile: they begin first.
    compiles.ensure_all(list(reversed(modules.values())), threads, report)
