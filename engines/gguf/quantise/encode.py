"""Weights to blocks: every type's encoder, and the threads that share the work."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engines.errors import UnsupportedModel
from engines.gguf.quantise import k_quants, legacy
from engines.gguf.quants import quant_type

__all__ = ["ENCODERS", "Encoder", "quantise", "usable_threads"]

Encoder = Callable[[NDArray[np.float32]], NDArray[np.uint8]]
"""float32 ``[blocks, block size]`` to uint8 ``[blocks, block bytes]``."""

ENCODERS: Final[Mapping[str, Encoder]] = MappingProxyType(
    {
        "Q2_K": k_quants.encode_q2_k,
        "Q3_K": k_quants.encode_q3_k,
        "Q4_K": k_quants.encode_q4_k,
        "Q5_K": k_quants.encode_q5_k,
        "Q6_K": k_quants.encode_q6_k,
        "Q4_0": legacy.encode_q4_0,
        "Q4_1": legacy.encode_q4_1,
        "Q5_0": legacy.encode_q5_0,
        "Q5_1": legacy.encode_q5_1,
        "Q8_0": legacy.encode_q8_0,
        "F16": legacy.encode_f16,
        "BF16": legacy.encode_bf16,
        "F32": legacy.encode_f32,
    }
)
"""The types that can be written."""

# Weights a task: many enough that NumPy's own time is small, few enough for a core's caches. A search makes many calls.
SEARCHED_CHUNK: Final = 1 << 17
CHUNK: Final = 1 << 15


def quantise(array: NDArray[np.floating], type_name: str, *, threads: int | None = None) -> NDArray[np.uint8]:
    """Weights ``[..., columns]`` as uint8 blocks ``[..., row bytes]`` of the type named (``"Q4_K"``).

    Computes in float32, on ``threads`` threads (default: as many as there are cores to use); their number does not change
    the result. UnsupportedModel for a type that cannot be written; ValueError for rows that are not whole blocks, and for
    weights that the type cannot hold: NaN, infinities, and what overflows its float16 factors.
    """
    encoder = ENCODERS.get(type_name)
    if encoder is None:
        raise UnsupportedModel(f"quant type {type_name} cannot be written; these can: {', '.join(ENCODERS)}")
    quant = quant_type(type_name)
    row_bytes = quant.row_bytes(array.shape[-1])
    blocks = array.reshape(-1, quant.block_size)
    result = np.empty((len(blocks), quant.block_bytes), np.uint8)
    step = (SEARCHED_CHUNK if quant.block_size == 256 else CHUNK) // quant.block_size

    def encode(start: int) -> None:
        part = blocks[start : start + step].astype(np.float32, copy=False)
        if not np.isfinite(part).all():
            raise ValueError("there are weights that are not finite")
        with np.errstate(all="ignore"):  # groups of zeros divide by zero; what they get is put right behind it
            result[start : start + step] = encoder(part)

    starts = range(0, len(blocks), step)
    count = min(threads or usable_threads(), len(starts))
    if count <= 1:
        for start in starts:
            encode(start)
    else:
        with ThreadPoolExecutor(count, thread_name_prefix="quantise") as pool:
            for _ in pool.map(encode, starts):
                pass
    return result.reshape(*array.shape[:-1], row_bytes)


def usable_threads() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
