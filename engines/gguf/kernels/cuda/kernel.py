"""A kernel of one's own: what MLX is told of it, and its module for each kind of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from engines.gguf.kernels.cuda.ahead import gathered, precompiler
from engines.gguf.kernels.cuda.mlx_module import Argument, Module, module_of

__all__ = ["Kernel"]


class Kernel:
    """Called as what ``mx.fast.cuda_kernel`` makes is called."""

    def __init__(
        self, name: str, header: str, body: str, inputs: tuple[str, ...], outputs: tuple[str, ...], shared: int
    ) -> None:
        """``shared``: bytes of dynamic shared memory of a thread block."""
        self._name, self._header, self._body = name, header, body
        self._inputs, self._outputs = inputs, outputs
        self._modules: dict[tuple[Any, ...], Module | None] = {}  # by dtypes, and by which arrays have axes
        self._call: Any = mx.fast.cuda_kernel(
            name=name,
            input_names=list(inputs),
            output_names=list(outputs),
            source=body,
            header=header,
            shared_memory=shared,
        )

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        """Zeros while kernels are only gathered."""
        module = self._module(inputs, output_dtypes)
        if module is not None and gathered(module):
            return [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]
        return self.launch(
            inputs=inputs,
            grid=grid,
            threadgroup=threadgroup,
            output_shapes=output_shapes,
            output_dtypes=output_dtypes,
        )

    def launch(
        self,
        *,
        inputs: Sequence[mx.array],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[tuple[int, ...]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        """Whether kernels are being gathered or not."""
        compiles = precompiler()
        module = None if compiles is None else self._module(inputs, output_dtypes)
        if compiles is not None and module is not None:
            compiles.ensure(module)
        outputs: list[mx.array] = self._call(
            inputs=list(inputs),
            grid=grid,
            threadgroup=threadgroup,
            output_shapes=list(output_shapes),
            output_dtypes=list(output_dtypes),
        )
        return outputs

    def _module(self, inputs: Sequence[mx.array], output_dtypes: Sequence[mx.Dtype]) -> Module | None:
        key = (*((each.dtype, each.ndim == 0) for each in inputs), *output_dtypes)
        if key not in self._modules:
            arguments = [
                Argument(name, each.dtype, each.ndim == 0) for name, each in zip(self._inputs, inputs, strict=True)
            ]
            outputs = list(zip(self._outputs, output_dtypes, strict=True))
            self._modules[key] = module_of(self._name, self._header, self._body, arguments, outputs)
        return self._modules[key]
