"""Writes a GGUF checkpoint, on gguf-py's writer. For tests, tools and tiny models; conventions of names are the caller's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

__all__ = ["CheckpointTensor", "CheckpointValue", "write_checkpoint"]

CheckpointValue = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
"""A metadata value: int is written as UINT32 (INT32 if negative, UINT64 above 32 bits), float as FLOAT32."""

CheckpointTensor = tuple[str, NDArray[np.float32] | NDArray[np.uint8]]
"""A quant type's name and either the uint8 rows of its blocks ``[..., row bytes]``, or float32 weights for ``F32``."""

_QUANTIZATION_VERSION = 2  # of ggml's block layouts, as gguf-py's ``GGML_QUANT_VERSION``


def write_checkpoint(
    path: str | Path,
    architecture: str,
    metadata: Mapping[str, CheckpointValue],
    tensors: Mapping[str, CheckpointTensor],
    tokenizer: Mapping[str, CheckpointValue] | None = None,
) -> Path:
    """Writes one GGUF v3 file and returns its path.

    ``metadata`` and ``tokenizer`` have full keys (``llama.block_count``, ``tokenizer.ggml.tokens``); ``general.architecture``
    and ``general.quantization_version`` are added. ``tensors`` are in row-major order (out, in) under their GGUF names.
    """
    writer = gguf.GGUFWriter(path, architecture)
    try:
        for key, value in {**metadata, **(tokenizer or {})}.items():
            _add_value(writer, key, value)
        writer.add_quantization_version(_QUANTIZATION_VERSION)
        for name, (quant, data) in tensors.items():
            writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=gguf.GGMLQuantizationType[quant])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return Path(path)


def _add_value(writer: gguf.GGUFWriter, key: str, value: CheckpointValue) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int() if value < 0:
            writer.add_int32(key, value)
        case int() if value > 0xFFFF_FFFF:
            writer.add_uint64(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, list(value))
