"""Finds and loads the compiled extension, or says why there is none."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Protocol, cast

import mlx.core as mx

from engines.gguf.kernels.blas.row_pool import usable_cores

__all__ = [
    "MODULE",
    "SOURCES",
    "STAMP",
    "Extension",
    "FileMapping",
    "build_directory",
    "extension",
    "sources_digest",
    "why_missing",
]

MODULE: Final = "_innkeeper_cpu"
SOURCES: Final = Path(__file__).parent / "src"
_GGUF: Final = Path(__file__).parents[2]
_INCLUDED: Final = (*sorted((_GGUF / "kernels" / "source").glob("*.h")), _GGUF / "quants" / "grids.h")
STAMP: Final = "sources.sha256"  # beside the module: what it was compiled from


class FileMapping(Protocol):
    """A file in memory, read only, for as long as an array over it lives."""

    @property
    def size(self) -> int: ...

    def bytes(self, offset: int, shape: list[int]) -> mx.array:
        """uint8 over the file's own pages, never copied. ValueError where that is not within the file."""
        ...


class Extension(Protocol):
    """The functions of the compiled module. Each adds a primitive to MLX's graph, on the default stream.

    Floats are computed in float32 whatever the dtype of the input, which the answer has. ValueError when shapes or dtypes do
    not fit. ``type`` is a quant type's GGML id, ``activation`` an index into :data:`engines.gguf.fused.ACTIVATIONS`.
    """

    mlx_version: str
    # A decoder layer of keyword arguments that ``src/layer.h`` lists, matrices as (blocks, type, bias or None), norms as
    # (weight, epsilon): .project(x, offset) -> [queries, keys, values] and .finish(attended, x) -> the layer's output.
    Layer: Any
    Mapping: Any  # .of_file(descriptor) -> FileMapping

    def variants(self) -> list[str]:
        """Instruction sets that this machine can run, best first."""
        ...

    def variant(self) -> str: ...

    def choose_variant(self, name: str) -> bool:
        """False where this machine cannot run it, and nothing changes."""
        ...

    def set_threads(self, count: int) -> None: ...

    def threads(self) -> int: ...

    def product(self, x: mx.array, blocks: mx.array, type: int, transpose: bool = True) -> mx.array: ...

    def expert_product(self, x: mx.array, blocks: mx.array, experts: mx.array, type: int, share: int = 1) -> mx.array:
        """As :meth:`~engines.gguf.kernels.gathering.GatheringBackend.multiply_experts`; zeros for an expert that does not
        exist."""
        ...

    def head_product(self, x: mx.array, blocks: mx.array, type: int, transpose: bool = True) -> mx.array:
        """As :meth:`~engines.gguf.kernels.gathering.HeadsBackend.multiply_heads`."""
        ...

    def gated_product(
        self, x: mx.array, gate: mx.array, up: mx.array, gate_type: int, up_type: int, activation: int
    ) -> mx.array:
        """activation(x @ gate.T) * (x @ up.T)"""
        ...

    def dense(
        self, x: mx.array, blocks: mx.array, type: int, bias: mx.array | None = None, activation: int = -1
    ) -> mx.array:
        """activation(x @ weights.T + bias); -1: no activation."""
        ...

    def embedding_rows(self, blocks: mx.array, ids: mx.array, type: int) -> mx.array:
        """float32 [..., columns]; zeros for an id that does not exist."""
        ...

    def rms_norm(self, x: mx.array, weight: mx.array | None, eps: float) -> mx.array: ...

    def layer_norm(
        self, x: mx.array, added: mx.array | None, weight: mx.array, bias: mx.array | None, eps: float
    ) -> mx.array:
        """The layer norm of x + added."""
        ...

    def rope(
        self,
        x: mx.array,
        dims: int,
        traditional: bool,
        base: float,
        scale: float,
        offset: int | mx.array,
        freqs: mx.array | None = None,
    ) -> mx.array: ...

    def gated(self, gate: mx.array, up: mx.array, activation: int) -> mx.array: ...

    def attention(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        scale: float,
        causal: bool,
        mask: mx.array | None = None,
        cap: float = 0.0,
    ) -> mx.array:
        """float32 only. Scores are ``cap * tanh(score / cap)`` before they are masked, if ``cap`` is not 0. A query that may see no
        key gets zeros."""
        ...

    def log_sum_exp(self, x: mx.array) -> mx.array:
        """Over the last axis, which stays as 1."""
        ...

    def softmax(self, x: mx.array) -> mx.array: ...

    def draw(
        self,
        logits: mx.array,
        temperature: mx.array,
        top_k: mx.array,
        top_p: mx.array,
        min_p: mx.array,
        numbers: mx.array,
    ) -> mx.array:
        """The next token of each row, as :mod:`engines.text.sampling` defines it: uint32 [rows]. All but the logits are
        [rows], and ``numbers``, the uniform ones, [rows, 3]; temperature 0 is greedy."""
        ...


def build_directory() -> Path:
    """Where a module for this Python, machine and MLX lies once it is compiled."""
    name = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}-mlx-{version('mlx')}"
    return Path(__file__).parent / "build" / name


def sources_digest() -> str:
    """Of all that is compiled."""
    digest = hashlib.sha256()
    for path in (*sorted(SOURCES.iterdir()), *_INCLUDED):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def extension() -> Extension | None:
    """The loaded module; None where there is none that fits."""
    return _load()[0]


def why_missing() -> str | None:
    """What keeps the module from being used, in words; None where it is."""
    return _load()[1]


@cache
def _load() -> tuple[Extension | None, str | None]:
    directory = build_directory()
    path = directory / f"{MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not path.exists():
        return None, "the compiled kernels have not been built for this Python and MLX"
    stamp = directory / STAMP
    if not stamp.exists() or stamp.read_text(encoding="ascii").strip() != sources_digest():
        return None, "the compiled kernels were built from other sources than are installed"
    try:
        module = _module(path)
    except ImportError as error:
        return None, f"the compiled kernels cannot be loaded: {error}"
    # The headers' version against that of the library that is running, whatever the package's metadata say.
    running = getattr(mx, "__version__")  # noqa: B009 - its stub does not know it
    if module.mlx_version != running:
        return None, f"the compiled kernels were built for MLX {module.mlx_version}, {running} is installed"
    compiled = cast(Extension, module)
    compiled.set_threads(usable_cores())
    return compiled, None


def _module(path: Path) -> Any:
    """The module at this path, which can be initialised once in a process."""
    if MODULE not in sys.modules:
        spec = importlib.util.spec_from_file_location(MODULE, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[MODULE] = module
    return sys.modules[MODULE]
