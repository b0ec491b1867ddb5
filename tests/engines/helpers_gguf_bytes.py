"""GGUF files byte by byte, so that a test can get any of them wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from engines.ggml_types import GgmlType
from engines.header import GgufValueType

_FORMATS = {
    GgufValueType.UINT8: "<B",
    GgufValueType.INT8: "<b",
    GgufValueType.UINT16: "<H",
    GgufValueType.INT16: "<h",
    GgufValueType.UINT32: "<I",
    GgufValueType.INT32: "<i",
    GgufValueType.FLOAT32: "<f",
    GgufValueType.BOOL: "<B",
    GgufValueType.UINT64: "<Q",
    GgufValueType.INT64: "<q",
    GgufValueType.FLOAT64: "<d",
}


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return u64(len(raw)) + raw


def scalar(kind: GgufValueType, value: object) -> bytes:
    """A value without its type."""
    if isinstance(value, str | bytes):
        return string(value)
    return struct.pack(_FORMATS[kind], value)


def pair(key: str | bytes, kind: GgufValueType, value: object) -> bytes:
    """A metadata pair of a scalar."""
    return string(key) + u32(kind) + scalar(kind, value)


def array(kind: GgufValueType, values: Sequence[object]) -> bytes:
    """Element type, count and elements; ``bytes`` elements of ARRAY kind are arrays made by this function."""
    elements = [
        value if kind is GgufValueType.ARRAY and isinstance(value, bytes) else scalar(kind, value) for value in values
    ]
    return u32(kind) + u64(len(values)) + b"".join(elements)


def array_pair(key: str | bytes, kind: GgufValueType, values: Sequence[object]) -> bytes:
    return string(key) + u32(GgufValueType.ARRAY) + array(kind, values)


@dataclass(frozen=True)
class Tensor:
    """A tensor of zeros; ``dims`` in ggml's order, fastest first. ``offset`` None: right behind the one before."""

    name: str | bytes
    dims: tuple[int, ...]
    type: int = GgmlType.F32
    offset: int | None = None

    @property
    def nbytes(self) -> int:
        count = 1
        for size in self.dims:
            count *= size
        kind = GgmlType(self.type)
        return count // kind.block_size * kind.block_bytes


def gguf(
    pairs: Sequence[bytes] = (),
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    pair_count: int | None = None,
    alignment: int = 32,
    data: bytes | None = None,
) -> bytes:
    """A whole file. ``data`` replaces the zeros of the tensors."""
    head = magic + u32(version)
    head += u64(len(tensors) if tensor_count is None else tensor_count)
    head += u64(len(pairs) if pair_count is None else pair_count)
    head += b"".join(pairs)
    end = 0
    for tensor in tensors:
        at = end if tensor.offset is None else tensor.offset
        head += (
            string(tensor.name) + u32(len(tensor.dims)) + b"".join(map(u64, tensor.dims)) + u32(tensor.type) + u64(at)
        )
        if data is None:
            end = -(-(at + tensor.nbytes) // alignment) * alignment
    head += bytes(-len(head) % alignment)
    return head + (bytes(end) if data is None else data)


ARCHITECTURE = pair("general.architecture", GgufValueType.STRING, "llama")


WHOLE_LLAMA = [
    Tensor("token_embd.weight", (64, 4), GgmlType.Q8_0),
    Tensor("output_norm.weight", (64,)),
    *(
        Tensor(f"blk.{layer}.{name}.weight", dims, kind)
        for layer in range(2)
        for name, dims, kind in (
            ("attn_norm", (64,), GgmlType.F32),
            ("attn_q", (64, 64), GgmlType.Q4_0),
            ("attn_k", (64, 32), GgmlType.Q4_0),
            ("attn_v", (64, 32), GgmlType.Q8_0),
            ("attn_output", (64, 64), GgmlType.Q4_0),
            ("ffn_norm", (64,), GgmlType.F32),
            ("ffn_gate", (64, 128), GgmlType.Q4_0),
            ("ffn_up", (64, 128), GgmlType.Q4_0),
            ("ffn_down", (128, 64), GgmlType.F16 if layer else GgmlType.Q4_0),
        )
    ),
]
"""All tensors that the model of :func:`small_llama` needs to run."""


def small_llama(extra: Sequence[bytes] = (), tensors: Sequence[Tensor] = WHOLE_LLAMA) -> bytes:
    """A well-formed little model file: two layers, a vocabulary of four, quantised and plain tensors."""
    kinds = GgufValueType
    pairs = [
        ARCHITECTURE,
        pair("general.name", kinds.STRING, "Tiny Llama"),
        pair("llama.block_count", kinds.UINT32, 2),
        pair("llama.context_length", kinds.UINT32, 2048),
        pair("llama.embedding_length", kinds.UINT32, 64),
        pair("llama.feed_forward_length", kinds.UINT32, 128),
        pair("llama.attention.head_count", kinds.UINT32, 4),
        pair("llama.attention.head_count_kv", kinds.UINT32, 2),
        pair("llama.attention.layer_norm_rms_epsilon", kinds.FLOAT32, 1e-5),
        pair("tokenizer.ggml.model", kinds.STRING, "gpt2"),
        pair("tokenizer.ggml.pre", kinds.STRING, "smollm"),
        pair("tokenizer.ggml.add_bos_token", kinds.BOOL, 1),
        array_pair("tokenizer.ggml.tokens", kinds.STRING, ["a", "b", "", "é"]),
        array_pair("tokenizer.ggml.token_type", kinds.INT32, [1, 1, 3, -1]),
        *extra,
    ]
    return gguf(pairs, tensors)
