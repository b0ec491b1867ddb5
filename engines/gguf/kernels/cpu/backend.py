"""The compiled back end, behind ``qmatmul``."""

from __future__ import annotations

import mlx.core as mx

from engines.gguf.kernels.cpu.extension import extension
from engines.gguf.quants import QuantType

__all__ = ["CpuBackend"]


class CpuBackend:
    """Lazy. Activations are quantised to 8 bits a group of 32, sums are float32; see ``docs/gguf.md``."""

    name = "cpu"
    lazy = True
    checks = True

    def available(self) -> bool:
        return extension() is not None and mx.default_device().type == mx.DeviceType.cpu

    def set_cores(self, count: int) -> None:
        compiled = extension()
        if compiled is not None:
            compiled.set_threads(count)

    def multiply(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        compiled = extension()
        assert compiled is not None
        return compiled.product(x, blocks, quant.ggml_id, transpose)

    def rows(self, blocks: mx.array, ids: mx.array, quant: QuantType, dtype: mx.Dtype) -> mx.array:
        """Zeros for an id that does not exist."""
        compiled = extension()
        assert compiled is not None
        return compiled.embedding_rows(blocks, ids, quant.ggml_id).astype(dtype)

    def weights(self, blocks: mx.array, quant: QuantType, dtype: mx.Dtype) -> mx.array:
        return self.rows(blocks, mx.arange(blocks.shape[0]), quant, dtype)

    def multiply_experts(
        self, x: mx.array, blocks: mx.array, quant: QuantType, experts: mx.array, share: int
    ) -> mx.array:
        """Zeros for an expert that does not exist."""
        compiled = extension()
        assert compiled is not None
        return compiled.expert_product(x, blocks, experts, quant.ggml_id, share)

    def multiply_heads(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        compiled = extension()
        assert compiled is not None
        return compiled.head_product(x, blocks, quant.ggml_id, transpose)
