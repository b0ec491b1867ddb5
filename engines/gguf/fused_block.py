"""A decoder's layer in two primitives around its attention, in the place of mlx-lm's own block.

    q, k, v = rope(norm(split(norm(x) @ qkv.T)))             one primitive
    keys, values = cache                                     mlx-lm's, whatever its kind
    attended = attention(q, k, v)                            mx.fast.scaled_dot_product_attention, as stock code reaches it
    h = x + attended @ o.T, out = h + down(act(gate(norm(h))) * up(norm(h)))      one primitive

A step of SmolLM2 otherwise takes some 700 nodes of MLX's graph and 2 ms of Python. The answer has the same bits.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.base import scaled_dot_product_attention

from engines.gguf.block_parts import known_block, watch
from engines.gguf.compiled_block import compiled_blocks
from engines.gguf.fused import ACTIVATIONS, FusedRMSNorm, FusedRoPE, can_fuse
from engines.gguf.kernels import backend
from engines.gguf.kernels.cpu import Extension, extension
from engines.gguf.kernels.gathering import FusingBackend, LayerBackend
from engines.gguf.layers import KQuantLinear

__all__ = ["FusedBlock", "fuse_blocks", "fused_block"]

_Matrix = tuple[mx.array, int, mx.array | None]  # blocks, GGML id, bias
_Norm = tuple[mx.array, float]


class FusedBlock(Module):
    """The stock block's children under their names, and its answer. A leaf that is replaced later (by one with an adapter, say)
    is seen: the stock block then computes."""

    def __init__(self, stock: Any, compiled: Any, leaves: list[tuple[Any, str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, child in stock.items():
            self[name] = child
        self.use_sliding = getattr(stock, "use_sliding", False)  # mlx-lm's llama chooses a layer's mask by it
        self._call_stock = stock.__call__  # bound: as a module it would be a child, and its parameters twice there
        self._project = compiled.project
        self._finish = compiled.finish
        self._scale = stock.self_attn.scale
        # A function, since a list would be taken for children of this module.
        self._replaced = watch([(stock, "self_attn"), (stock, "mlp"), *leaves])

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        if self._replaced():
            return self._call_stock(x, mask, cache)
        if cache is None:
            queries, keys, values = self._project(x, 0)
        else:
            queries, keys, values = self._project(x, cache.offset)
            keys, values = cache.update_and_fetch(keys, values)
        attended = scaled_dot_product_attention(queries, keys, values, cache=cache, scale=self._scale, mask=mask)
        return self._finish(attended, x)


def fuse_blocks(model: Any) -> None:
    """Replaces the blocks of a model whose leaves have been fused, where :func:`fused_block` knows them, on GPUs where
    :mod:`~engines.gguf.compiled_block` does. Does nothing where neither serves."""
    # The list itself: ``model.layers`` is a copy of it in some classes. Known blocks are of classes that have it here.
    layers = getattr(getattr(model, "model", None), "layers", [])
    chosen = backend()
    if isinstance(chosen, FusingBackend):
        layers[:] = compiled_blocks(layers, chosen if isinstance(chosen, LayerBackend) else None)
        return
    compiled = extension()
    if compiled is None or not can_fuse():
        return
    for index, layer in enumerate(layers):
        block = fused_block(layer, compiled)
        if block is not None:
            layers[index] = block


def fused_block(stock: Any, compiled: Extension) -> FusedBlock | None:
    """The block in two primitives; None for a block that is not known or has other leaves than those of a K-quant model.

    ``stock`` has its leaves already, norms and rotary embedding fused.
    """
    known = known_block(stock)
    if known is None:
        return None
    norm_names, activation = known.norms, known.activation
    attention, mlp = stock.self_attn, stock.mlp
    owned = [(attention, "q_norm"), (attention, "k_norm"), *((stock, name) for name in norm_names if name)]
    norms = {name: owner[name] for owner, name in owned if name in owner}
    linear = [(attention, name) for name in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj") if name in attention]
    linear += [(mlp, name) for name in ("gate_proj", "up_proj", "gate_up_proj", "down_proj") if name in mlp]
    whole = all(isinstance(owner[name], KQuantLinear) for owner, name in linear)
    whole &= all(isinstance(norm, FusedRMSNorm) and norm.weight.dtype == mx.float32 for norm in norms.values())
    if not whole or not isinstance(attention.rope, FusedRoPE):
        return None
    heads, kv_heads, rope = attention.n_heads, attention.n_kv_heads, attention.rope
    before_attention, after_attention, before_mlp, after_mlp = (_norm(norms.get(str(name))) for name in norm_names)
    q, k, v = _parts(attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj", (heads, kv_heads, kv_heads))
    gate, up = _parts(mlp, ("gate_proj", "up_proj"), "gate_up_proj", (1, 1))
    layer = compiled.Layer(
        input_norm=before_attention,
        q=q,
        k=k,
        v=v,
        o=_matrix(attention.o_proj),
        q_norm=_norm(norms.get("q_norm")),
        k_norm=_norm(norms.get("k_norm")),
        heads=heads,
        kv_heads=kv_heads,
        rope_dims=rope.dims,
        rope_traditional=rope.traditional,
        rope_base=rope.base,
        rope_scale=rope.scale,
        rope_magnitude=rope.magnitude,
        rope_wavelengths=rope._wavelengths,
        after_attention=after_attention,
        mlp_norm=before_mlp,
        gate=gate,
        up=up,
        down=_matrix(mlp.down_proj),
        activation=ACTIVATIONS.index(activation),
        after_mlp=after_mlp,
    )
    leaves = [*linear, (attention, "rope"), *((owner, name) for owner, name in owned if name in owner)]
    return FusedBlock(stock, layer, leaves)


def _norm(norm: Any) -> _Norm | None:
    return None if norm is None else (norm.weight, norm.eps)


def _matrix(linear: Any) -> _Matrix:
    return linear.blocks, linear.quant.ggml_id, linear.bias if "bias" in linear else None


def _parts(owner: Any, names: tuple[str, ...], together: str, shares: tuple[int, ...]) -> list[_Matrix]:
    """The matrices of these names, or the rows of the one that holds them together, which are cut in these proportions."""
    if together not in owner:
        return [_matrix(owner[name]) for name in names]
    blocks, type_id, bias = _matrix(owner[together])
    unit, start = blocks.shape[0] // sum(shares), 0
    parts: list[_Matrix] = []
    for share in shares:
        rows = slice(start, start + share * unit)
        part = blocks[rows]
        mx.eval(part)  # a view; what is not evaluated would be copied
        parts.append((part, type_id, None if bias is None else bias[rows]))
        start = rows.stop
    return parts
