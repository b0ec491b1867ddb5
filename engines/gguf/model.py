"""From a GGUF header to a model that runs: the stock mlx-lm class with the checkpoint's tensors in its leaves.

The steps of :func:`build_model`:

1. family by architecture; its plan: configuration, context, what the stock class must be told besides
2. every tensor gets its module, or the model is refused
3. the stock class is made; its own weights are lazy and are never computed
4. each module with weights is replaced: matrices of blocks by K-quant leaves, F32 matrices by ``nn.Linear`` and
   ``nn.Embedding``, norms by norms with the file's weight; shapes are held against the stock module's
5. rotary embedding and caches are replaced where the plan says so
6. norms, rotary embedding, gated MLPs and whole blocks are replaced by compiled ones where there are such
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.cache import KVCache, RotatingKVCache

from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.config import Hyperparameters
from engines.gguf.families import Checkpoint, Family, Plan, family_of
from engines.gguf.fused import can_fuse, fuse
from engines.gguf.fused_block import fuse_blocks
from engines.gguf.layers import KQuantEmbedding, KQuantLinear
from engines.gguf.names import Placement, SlotKind, place
from engines.gguf.rope import FactoredRoPE
from engines.gguf.tensors import TensorFile
from engines.header import GgufHeader, TensorInfo
from engines.interface import ReportProgress

__all__ = ["DTYPES", "BuiltModel", "build_model"]

DTYPES: Final[dict[str, mx.Dtype]] = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
"""What activations can be computed in."""


@dataclass(frozen=True)
class BuiltModel:
    """A model in memory, and what is known of it."""

    model: Any  # an mlx.nn.Module (untyped): the stock class with its leaves replaced
    config: dict[str, Any]  # what the stock class was made from
    architecture: str
    context: int  # tokens
    dtype: mx.Dtype  # of activations and KV
    kv_bytes_per_token: int  # a row, of the layers that keep every token
    kv_window_tokens: int  # the window of the other layers; 0 where there are none
    kv_window_bytes_per_token: int  # a row, of the other layers, up to that window


def build_model(
    header: GgufHeader,
    report: ReportProgress | None = None,
    *,
    dtype: str | None = None,
    context: int | None = None,
) -> BuiltModel:
    """Builds the model of a GGUF checkpoint, on the calling thread, whose MLX streams it is bound to.

    ``report`` is told the fraction of tensor bytes read. ``dtype`` is the compute dtype, a key of :data:`DTYPES`: None means
    float32 on the CPU and bfloat16 elsewhere. ``context`` (tokens) limits the checkpoint's own.

    Raises UnsupportedModel that names the architecture, the metadata key or the quant type at fault, and CheckpointError that
    names the tensor which is missing, left over or of the wrong shape, or the key which is missing or impossible.
    """
    compute = _compute_dtype(dtype)
    family = family_of(header)
    parameters = Hyperparameters(header.path, family.architecture, header.metadata)
    plan = family.plan(Checkpoint(header, parameters, context))
    parameters.finish()
    placements = place(header, family.slots, plan.config["num_hidden_layers"], plan.tensors)
    model = _stock_model(family, plan, placements)
    _fill(header, model, plan, placements, compute, report)
    fuse(model, family.gate)
    fuse_blocks(model)
    if not plan.stock_caches:
        # An attribute of the instance, which mlx-lm's make_prompt_cache finds before anything of the class.
        model.make_cache = lambda: _caches(plan.windows)
    model.eval()
    full, windowed = _kv_bytes(plan, compute)
    return BuiltModel(
        model=model,
        config=plan.config,
        architecture=family.architecture,
        context=plan.context,
        dtype=compute,
        kv_bytes_per_token=full,
        kv_window_tokens=max((window for window in plan.windows if window), default=0),
        kv_window_bytes_per_token=windowed,
    )


def _compute_dtype(name: str | None) -> mx.Dtype:
    if name is None:
        # On the CPU MLX multiplies half precision some sixty times slower; bfloat16 has float32's range, which Gemma needs.
        return mx.float32 if mx.default_device().type == mx.DeviceType.cpu else mx.bfloat16
    if name not in DTYPES:
        raise UnsupportedModel(f"dtype '{name}' is not supported; supported are {', '.join(DTYPES)}")
    return DTYPES[name]


def _stock_model(family: Family, plan: Plan, placements: Sequence[Placement]) -> Any:
    module = importlib.import_module(f"mlx_lm.models.{family.model_type}")
    model = module.Model(module.ModelArgs.from_dict(plan.config))
    if hasattr(model, "sanitize"):
        # Some stock classes drop their head only when they see that the checkpoint has none.
        model.sanitize({f"{placement.module}.weight": None for placement in placements})
    return model


def _fill(
    header: GgufHeader,
    model: Any,
    plan: Plan,
    placements: Sequence[Placement],
    compute: mx.Dtype,
    report: ReportProgress | None,
) -> None:
    """Replaces every module that has weights; one tensor at a time is in memory twice at most."""
    stock = {path: module for path, module in _leaves(model) if module.parameters()}
    total = sum(placement.weight.nbytes for placement in placements)
    filled: dict[str, Any] = {}
    done = 0
    with TensorFile(header) as tensors:
        leaf_of = _LeafMaker(header, tensors, compute, plan.plain_norms)
        for placement in placements:
            filled[placement.module] = leaf_of(placement, stock.pop(placement.module))
            done += placement.weight.nbytes
            if report is not None:
                report(done / total)
        if plan.rope is not None:
            filled |= _factored_ropes(header, tensors, plan)
    if stock:
        raise CheckpointError(f"{header.path}: no tensor for {', '.join(stock)} of this architecture")
    model.update_modules(tree_unflatten(list(filled.items())))


class _LeafMaker:
    """Makes the module that takes a stock module's place, with the checkpoint's tensors in it."""

    def __init__(self, header: GgufHeader, tensors: TensorFile, compute: mx.Dtype, plain_norms: bool) -> None:
        self._header = header
        self._tensors = tensors
        self._compute = compute
        self._plain_norms = plain_norms

    def __call__(self, placement: Placement, stock: Any) -> Any:
        """CheckpointError when a tensor has not the shape of the stock weight; UnsupportedModel for its quant type."""
        self._check(placement.weight, stock.weight.shape)
        bias = None
        if placement.bias is not None:
            self._check(placement.bias, stock.weight.shape[:1])
            bias = self._floats(placement.bias)
        if placement.kind is SlotKind.NORM:
            return self._norm(placement, stock)
        # MLX multiplies float32 matrices through its BLAS, which on a CPU is the reference one.
        if placement.weight.type.name == "F32" and not can_fuse():
            return self._dense(placement, bias)
        quant = self._tensors.quant(placement.weight.name)
        blocks = self._tensors.blocks(placement.weight.name)
        if placement.kind is SlotKind.EMBEDDING:
            return KQuantEmbedding(blocks, quant, self._compute)
        return KQuantLinear(blocks, quant, bias)

    def _norm(self, placement: Placement, stock: Any) -> Any:
        norm: Any = RMSNorm(stock.weight.shape[0], stock.eps) if self._plain_norms else stock
        norm.weight = self._floats(placement.weight)
        return norm

    def _dense(self, placement: Placement, bias: mx.array | None) -> Any:
        """A float32 matrix as the stock layer holds it, in the compute dtype."""
        weight = self._floats(placement.weight)
        # Made for one row: MLX's layers draw random weights of the size they are told.
        layer: Any = Embedding(1, 1) if placement.kind is SlotKind.EMBEDDING else Linear(1, 1, bias=False)
        layer.weight = weight
        if bias is not None:
            layer.bias = bias
        return layer

    def _floats(self, info: TensorInfo) -> mx.array:
        values = self._tensors.floats(info.name).astype(self._compute)
        mx.eval(values)
        return values

    def _check(self, info: TensorInfo, shape: Sequence[int]) -> None:
        if tuple(info.shape) != tuple(shape):
            raise CheckpointError(
                f"{self._header.path}: tensor '{info.name}' is {list(info.shape)}, the metadata makes it {list(shape)}"
            )


def _factored_ropes(header: GgufHeader, tensors: TensorFile, plan: Plan) -> dict[str, Any]:
    assert plan.rope is not None
    info = header.tensors[plan.rope.tensor]
    if info.shape != (plan.rope.dims // 2,) or info.type.name != "F32":
        raise CheckpointError(
            f"{header.path}: tensor '{info.name}' is {info.type.name} {list(info.shape)}, not F32 [{plan.rope.dims // 2}]"
        )
    rope = FactoredRoPE(
        tensors.floats(info.name),
        dims=plan.rope.dims,
        base=plan.rope.base,
        traditional=plan.rope.traditional,
        magnitude=plan.rope.magnitude,
    )
    return {f"model.layers.{i}.self_attn.rope": rope for i in range(len(plan.windows))}


def _leaves(model: Any) -> list[tuple[str, Any]]:
    leaves: Any = tree_flatten(model.leaf_modules(), is_leaf=lambda x: isinstance(x, Module))
    return list(leaves)


def _caches(windows: Sequence[int | None]) -> list[Any]:
    """A row's KV caches, one a layer."""
    full: Callable[[], Any] = KVCache
    rotating: Callable[[int], Any] = RotatingKVCache
    return [full() if window is None else rotating(window) for window in windows]


def _kv_bytes(plan: Plan, compute: mx.Dtype) -> tuple[int, int]:
    """Bytes a token takes in a row's caches: of the layers that keep all tokens, and of those that keep a window."""
    layer = 2 * plan.config["num_key_value_heads"] * plan.config["head_dim"] * compute.size
    windowed = sum(window is not None for window in plan.windows)
    return (len(plan.windows) - windowed) * layer, windowed * layer
