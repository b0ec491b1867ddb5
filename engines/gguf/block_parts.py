"""The two halves of a decoder's layer, before and after its attention, for the blocks of mlx-lm that are known to be no more.

A block's module, its norms and their order are named here once; what replaces blocks (``fused_block``, ``compiled_block``) asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.layers.positional_encoding import RoPE

from engines.gguf.kernels.gathering import LayerBackend, Rotation
from engines.gguf.rope import FactoredRoPE

__all__ = ["BlockParts", "KnownBlock", "block_parts", "known_block", "watch"]


@dataclass(frozen=True)
class KnownBlock:
    """The names of a block's norms (before attention, after it, before the MLP, after it; None: there is none), what the gate of
    its MLP goes through, and whether its residual sums are bounded in float16."""

    norms: tuple[str, str | None, str, str | None]
    activation: str
    bounded: bool = False


_PRE_NORMS: Final = ("input_layernorm", None, "post_attention_layernorm", None)
_ALL_NORMS: Final = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
# By the module of mlx-lm that defines the block: blocks that compute what ``block_parts`` does and nothing else.
_BLOCKS: Final = {
    "mlx_lm.models.llama": KnownBlock(_PRE_NORMS, "silu"),
    "mlx_lm.models.qwen2": KnownBlock(_PRE_NORMS, "silu"),
    "mlx_lm.models.qwen3": KnownBlock(_PRE_NORMS, "silu"),
    "mlx_lm.models.phi3": KnownBlock(_PRE_NORMS, "silu"),
    "mlx_lm.models.gemma3_text": KnownBlock(_ALL_NORMS, "gelu_tanh", bounded=True),
}


@dataclass(frozen=True)
class BlockParts:
    """``before_attention(normed, offset)``: from the normed x [rows, 1, width] and an int32 offset, of all rows or of each, to the
    queries, keys and values, [rows, heads, 1, features], rotated. ``after_attention(attended, x)``: to the layer's answer [rows,
    1, width], and what the next layer's norm makes of it where that norm is known. ``norm``: of what comes in. ``leaves``: what
    they call, as owner and name."""

    norm: Any
    before_attention: Callable[[mx.array, mx.array], tuple[mx.array, mx.array, mx.array]]
    after_attention: Callable[[mx.array, mx.array], tuple[mx.array, ...]]
    leaves: list[tuple[Any, str]]


def known_block(block: Any) -> KnownBlock | None:
    """What is known of a stock block, told by its exact type; None for any other."""
    known = _BLOCKS.get(type(block).__module__)
    return known if known is not None and type(block).__name__ == "TransformerBlock" else None


def block_parts(block: Any, following: Any, device: LayerBackend | None) -> BlockParts | None:
    """The halves of a stock block, which call its leaves as they are now; None for a block that is not known, or whose residual
    sums are bounded in what it computes in. ``following`` is the block behind it, or None; ``device`` has kernels for what stands
    between products, or is None."""
    known = known_block(block)
    if known is None or (known.bounded and block[known.norms[0]].weight.dtype == mx.float16):
        return None
    attention, mlp = block.self_attn, block.mlp
    norms: list[Any] = [None if name is None else block[name] for name in known.norms]
    before, after, before_mlp, after_mlp = norms
    next_norm = following[known.norms[0]] if following is not None and known_block(following) is known else None
    project = _projections(attention, device)
    out_projection = attention.o_proj

    def after_attention(attended: mx.array, x: mx.array) -> tuple[mx.array, ...]:
        out = out_projection(attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))
        h, normed = _sum_norm(x, out, before_mlp, after, device)
        out = mlp(normed)
        if next_norm is not None:
            return _sum_norm(h, out, next_norm, after_mlp, device)
        return (h + (out if after_mlp is None else after_mlp(out)),)

    owned = [(attention, "q_norm"), (attention, "k_norm"), (attention, "rope")]
    owned += [(attention, name) for name in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")]
    owned += [(mlp, name) for name in ("gate_proj", "up_proj", "gate_up_proj", "down_proj")]
    owned += [(block, name) for name in (*known.norms, "self_attn", "mlp") if name is not None]
    leaves = [(owner, name) for owner, name in owned if name in owner]
    if next_norm is not None:
        leaves.append((following, known.norms[0]))
    return BlockParts(before, project, after_attention, leaves)


def watch(leaves: list[tuple[Any, str]]) -> Callable[[], bool]:
    """Tells whether one of these modules, each an owner and a name, has been replaced since."""
    known = [(owner, name, owner[name]) for owner, name in leaves]

    def replaced() -> bool:
        for owner, name, leaf in known:  # noqa: SIM110 - any() takes three times as long
            if owner[name] is not leaf:
                return True
        return False

    return replaced


def _projections(
    attention: Any, device: LayerBackend | None
) -> Callable[[mx.array, mx.array], tuple[mx.array, mx.array, mx.array]]:
    heads, kv_heads = attention.n_heads, attention.n_kv_heads
    q_norm, k_norm = attention.get("q_norm"), attention.get("k_norm")
    together = "qkv_proj" in attention
    projections = [attention[name] for name in (("qkv_proj",) if together else ("q_proj", "k_proj", "v_proj"))]
    rope = attention.rope
    rotation = _rotation(rope)

    def before_attention(normed: mx.array, offset: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        rows, tokens, _ = normed.shape
        parts: Any = [projection(normed) for projection in projections]
        if together:
            features = parts[0].shape[-1] // (heads + 2 * kv_heads)
            parts = mx.split(parts[0], [heads * features, (heads + kv_heads) * features], axis=-1)
        queries, keys, values = (
            part.reshape(rows, tokens, count, -1)
            for part, count in zip(parts, (heads, kv_heads, kv_heads), strict=True)
        )
        queries = queries if q_norm is None else q_norm(queries)
        keys = keys if k_norm is None else k_norm(keys)
        queries, keys, values = (part.transpose(0, 2, 1, 3) for part in (queries, keys, values))
        rotated = None
        if device is not None and rotation is not None:
            rotated = device.rotate(queries, keys, offset, rotation)
        if rotated is None:
            rotated = rope(queries, offset=offset), rope(keys, offset=offset)
        return *rotated, values

    return before_attention


def _sum_norm(
    x: mx.array, r: mx.array, norm: Any, inner: Any, device: LayerBackend | None
) -> tuple[mx.array, mx.array]:
    """``x`` plus ``r``, which goes through ``inner`` before where there is such a norm, and the norm of the sum."""
    if device is not None and type(norm) is RMSNorm and (inner is None or type(inner) is RMSNorm):
        both = device.sum_norm(x, r, norm.weight, norm.eps, None if inner is None else (inner.weight, inner.eps))
        if both is not None:
            return both
    h = x + (r if inner is None else inner(r))
    return h, norm(h)


def _rotation(rope: Any) -> Rotation | None:
    """What the device needs to know of a rotary embedding; None for one that is not known."""
    if type(rope) is RoPE:
        return Rotation(rope.dims, rope.traditional, rope.base, rope.scale)
    if type(rope) is FactoredRoPE:
        return Rotation(rope.dims, rope.traditional, magnitude=rope.magnitude, wavelengths=rope.wavelengths)
    return None
