"""Linear layers that take the same activations, in one kernel instead of one each.

On a GPU a decoded token is some hundreds of kernels, and each costs the host about as long as the device: the query, key and
value projections become one where their types are the same, and so do an MLP's gate, up projection and activation. Modules are
told by their exact types, so that whatever a model does differently stays as it is.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from engines.gguf.kernels.gathering import FusingBackend
from engines.gguf.layers import KQuantLinear
from engines.gguf.quants import QuantType

__all__ = ["JoinedLinear", "OneKernelMLP", "gated_mlps", "join"]

_SHARED = ("shared_experts", "shared_expert")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


def join(model: Any, activation: str | None, fusing: FusingBackend) -> None:
    """Puts together what a model's layers do with the same activations. ``activation`` is that of its gated MLPs, ``silu``,
    ``gelu`` or ``gelu_tanh``; None: it has none of the usual form."""
    for layer in model.layers:
        for owner, name in gated_mlps(layer) if activation is not None else ():
            setattr(owner, name, OneKernelMLP(getattr(owner, name), str(activation), fusing))
        attention = getattr(layer, "self_attn", None)
        if isinstance(attention, Module):
            _join_projections(attention, fusing)


def gated_mlps(layer: Any) -> list[tuple[Any, str]]:
    """A layer's MLP, or the one that all tokens share beside their experts: its owner and its name there."""
    mlp = getattr(layer, "mlp", None)
    places = [(layer, "mlp"), *((mlp, name) for name in _SHARED if isinstance(mlp, Module))]
    return [(owner, name) for owner, name in places if is_gated(getattr(owner, name, None))]


def is_gated(mlp: Any) -> bool:
    """Whether this is gate, up and down projections on K-quant blocks, and nothing else."""
    if not isinstance(mlp, Module):
        return False
    children: Any = mlp.children()  # type: ignore[no-untyped-call]
    names = {"gate_proj", "up_proj", "down_proj"}
    return set(children) == names and all(isinstance(children[name], KQuantLinear) for name in names)


def _join_projections(attention: Any, fusing: FusingBackend) -> None:
    """Joins those of the first one's type."""
    found = [(name, attention[name]) for name in _PROJECTIONS if type(attention.get(name)) is KQuantLinear]
    alike = [(name, linear) for name, linear in found if linear.quant is found[0][1].quant]
    if len(alike) > 1:
        group = _Group([linear.blocks for _, linear in alike], alike[0][1].quant, fusing)
        for index, (name, linear) in enumerate(alike):
            attention[name] = JoinedLinear(linear, group, index)


class _Group:
    """Matrices that take the same activations one after the other: the first asks for all products, the others find theirs."""

    def __init__(self, blocks: list[mx.array], quant: QuantType, fusing: FusingBackend) -> None:
        self._blocks = blocks
        self._quant = quant
        self._fusing = fusing
        self._x: mx.array | None = None  # whose products are waiting, by index
        self._waiting: dict[int, mx.array] = {}

    def take(self, index: int, x: mx.array) -> mx.array | None:
        """The product of ``x`` with a matrix; None when there is none to be had here. Each is handed out once, so that none
        outlives its use."""
        if index == 0:
            products = self._fusing.multiply_joined(x, self._blocks, self._quant)
            if products is None:
                return None
            self._x, self._waiting = x, dict(enumerate(products))
        if self._x is not x:
            return None
        product = self._waiting.pop(index, None)
        if not self._waiting:
            self._x = None
        return product


class JoinedLinear(KQuantLinear):
    """A linear layer whose product comes out of the same kernel as its neighbours', where they are given the same array.

    A neighbour that is replaced later goes its own way: the first then computes a product that nobody takes, or the others
    find none and compute their own.
    """

    def __init__(self, linear: KQuantLinear, group: _Group, index: int) -> None:
        super().__init__(linear.blocks, linear.quant, linear.get("bias"))
        self._group = group
        self._index = index

    def __call__(self, x: mx.array) -> mx.array:
        out = self._group.take(self._index, x)
        if out is None:
            return super().__call__(x)
        return out + self.bias.astype(x.dtype) if "bias" in self else out


class OneKernelMLP(Module):
    """An MLP as the model has it, but gate, up projection and activation in one kernel where the back end has such a one.

    A projection that is replaced later, by one with an adapter, say, is seen: the model's own way is then taken.
    """

    def __init__(self, mlp: Any, activation: str, fusing: FusingBackend) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, value in vars(mlp).items():
            setattr(self, name, value)
        for name, child in mlp.items():
            self[name] = child
        self._activation = activation
        self._fusing = fusing
        self._stock_call = type(mlp).__call__  # given this module, whose children may have been replaced

    def __call__(self, x: mx.array) -> Any:
        gate, up = self["gate_proj"], self["up_proj"]
        if type(gate) is type(up) is KQuantLinear and gate.quant is up.quant and not ("bias" in gate or "bias" in up):
            hidden = self._fusing.multiply_gated(x, gate["blocks"], up["blocks"], gate.quant, self._activation)
            if hidden is not None:
                return self["down_proj"](hidden)
        return self._stock_call(self, x)
