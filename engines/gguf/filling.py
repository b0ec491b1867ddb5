"""Puts a checkpoint's tensors into a stock model: a leaf of ours in the place of each module, floats in that of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.rope_utils import initialize_rope

from engines.errors import CheckpointError
from engines.gguf.composites import FlippedMultiLinear, SideBySide
from engines.gguf.experts import KQuantMultiLinear, KQuantSwitchLinear
from engines.gguf.families import Plan
from engines.gguf.fused import can_fuse
from engines.gguf.layers import KQuantEmbedding, KQuantLinear
from engines.gguf.names import Placement, SlotKind
from engines.gguf.quants import QuantType
from engines.gguf.rope import FactoredRoPE
from engines.gguf.rope_scaling import RopeFactors, ScaledRope
from engines.gguf.tensors import TensorFile
from engines.header import GgufHeader, TensorInfo
from engines.interface import ReportProgress

__all__ = ["fill"]

_Part = tuple[mx.array, QuantType]  # blocks and their type


def fill(
    header: GgufHeader,
    model: Any,
    plan: Plan,
    placements: Sequence[Placement],
    compute: mx.Dtype,
    report: ReportProgress | None = None,
) -> None:
    """Replaces every module that has weights; one tensor at a time is in memory twice at most.

    ``compute`` is the dtype of floats, except for those that the stock class keeps in float32. CheckpointError that names the
    tensor of a wrong shape or without a place, or what the stock model has and the file has not; UnsupportedModel for a quant
    type.
    """
    modules: dict[str, Any] = dict(model.named_modules())
    parameters: Any = tree_flatten(model.parameters())
    missing: dict[str, Any] = dict(parameters)
    owned: dict[str, list[str]] = {}  # by module, the parameters it holds itself
    for name in missing:
        owned.setdefault(name.rpartition(".")[0], []).append(name)
    total = sum(placement.nbytes for placement in placements)
    leaves: dict[str, Any] = {}
    values: dict[str, mx.array] = {}
    done = 0
    with TensorFile(header) as tensors:
        maker = _LeafMaker(header, tensors, plan, compute)
        for placement in placements:
            path = placement.module
            filled = [name for name in owned.get(path, [path]) if name in missing]
            if not filled:
                raise CheckpointError(
                    f"{header.path}: tensor '{placement.weight.name}' has no place beside this metadata"
                )
            if placement.kind is SlotKind.PARAMETER:
                values[path] = maker.parameter(placement, missing[path], keeps=_keeps_float32(model, path))
            else:
                leaves[path] = maker.leaf(placement, modules[path])
            for name in filled:
                del missing[name]
            done += placement.nbytes
            if report is not None:
                report(done / total)
        for rope in plan.ropes:
            if isinstance(rope, ScaledRope):
                leaves |= _scaled_ropes(rope, plan)
            else:
                leaves |= _factored_ropes(tensors, rope, plan)
    heads = [name for name in missing if name.endswith("lm_head.weight")]
    if len(missing) == len(heads) == 1:  # a class that has no tied head
        embedding = next(leaves[p.module] for p in placements if p.kind is SlotKind.EMBEDDING)
        leaves[heads[0].removesuffix(".weight")] = _tied_head(embedding)
        missing.clear()
    missing = {name: value for name, value in missing.items() if not name.endswith(plan.stock_values)}
    if missing:
        raise CheckpointError(f"{header.path}: no tensor for {', '.join(missing)} of this architecture")
    model.update_modules(tree_unflatten(list(leaves.items())))
    model.update(tree_unflatten(list(values.items())))


def _keeps_float32(model: Any, path: str) -> bool:
    """Whether mlx-lm leaves this parameter alone when it casts a model; logarithms of decays, always: they compound."""
    return path.endswith(".A_log") or (hasattr(model, "cast_predicate") and not model.cast_predicate(path))


def _tied_head(embedding: Any) -> Any:
    if isinstance(embedding, KQuantEmbedding):
        return KQuantLinear(embedding.blocks, embedding.quant, head=True)
    head: Any = Linear(1, 1, bias=False)
    head.weight = embedding.weight
    return head


class _LeafMaker:
    """Makes the module that takes a stock module's place, with the checkpoint's tensors in it.

    CheckpointError when a tensor has not the shape of the stock weight; UnsupportedModel for its quant type.
    """

    def __init__(self, header: GgufHeader, tensors: TensorFile, plan: Plan, compute: mx.Dtype) -> None:
        self._header = header
        self._tensors = tensors
        self._plan = plan
        self._compute = compute

    def leaf(self, placement: Placement, stock: Any) -> Any:
        if placement.kind is SlotKind.NORM:
            return self._norm(placement, stock)
        shape = tuple(stock.weight.shape)
        # MLX multiplies float32 matrices through its BLAS, which on a CPU is the reference one.
        dense = placement.weight.type.name == "F32" and len(placement.weights) == 1 and not can_fuse()
        if dense and placement.kind in (SlotKind.LINEAR, SlotKind.EMBEDDING):
            return self._dense(placement, shape)
        parts = [self._part(placement, index) for index in range(len(placement.weights))]
        if placement.kind is SlotKind.EXPERTS_APART:
            return self._experts_apart(placement, parts, shape)
        flipped = placement.kind is SlotKind.HEADS_FLIPPED
        self._check_parts(placement, parts, (*shape[:-2], shape[-1], shape[-2]) if flipped else shape)
        biases = [self._bias(placement, index, blocks) for index, (blocks, _) in enumerate(parts)]
        leaves = [self._matrix(placement.kind, *part, bias) for part, bias in zip(parts, biases, strict=True)]
        return leaves[0] if len(leaves) == 1 else SideBySide(leaves)

    def parameter(self, placement: Placement, stock: mx.array, *, keeps: bool) -> mx.array:
        """The floats of a parameter, in the compute dtype unless ``keeps`` says that it stays in float32."""
        info = placement.weight
        blocks = self._tensors.blocks(info.name)
        values = self._tensors.quant(info.name).dequantize(blocks).reshape(info.shape)
        values = self._transformed(placement, info, values)
        self._check(info, tuple(values.shape), tuple(stock.shape))
        values = values if keeps else values.astype(self._compute)
        mx.eval(values)
        return values

    def _matrix(self, kind: SlotKind, blocks: mx.array, quant: QuantType, bias: mx.array | None) -> Any:
        match kind:
            case SlotKind.EMBEDDING:
                return KQuantEmbedding(blocks, quant, self._compute)
            case SlotKind.EXPERTS:
                return KQuantSwitchLinear(blocks, quant, bias)
            case SlotKind.HEADS:
                return KQuantMultiLinear(blocks, quant)
            case SlotKind.HEADS_FLIPPED:
                return FlippedMultiLinear(blocks, quant)
            case _:
                return KQuantLinear(blocks, quant, bias)

    def _part(self, placement: Placement, index: int) -> _Part:
        info = placement.weights[index]
        quant = self._tensors.quant(info.name)
        blocks = self._transformed(placement, info, self._tensors.blocks(info.name))
        if placement.transform is not None:
            blocks = mx.contiguous(blocks)  # which copies nothing of rows that lie together
        mx.eval(blocks)  # a view of rows; what is not evaluated would be copied
        return blocks, quant

    def _bias(self, placement: Placement, index: int, blocks: mx.array) -> mx.array | None:
        info = placement.biases[index]
        if info is None:
            return None
        bias = self._floats(placement, info)
        self._check(info, tuple(bias.shape), tuple(blocks.shape[:-1]))
        return bias

    def _experts_apart(self, placement: Placement, parts: Sequence[_Part], shape: tuple[int, ...]) -> Any:
        quant = parts[0][1]
        for info, (blocks, own) in zip(placement.weights, parts, strict=True):
            self._check(info, _weights_shape(blocks, own), shape[1:])
            if own is not quant:
                self._fail(info, f"is {own.name} where other experts are {quant.name}")
        stacked = mx.stack([blocks for blocks, _ in parts])
        self._check(placement.weight, (len(parts), *shape[1:]), shape)
        mx.eval(stacked)
        return KQuantSwitchLinear(stacked, quant)

    def _norm(self, placement: Placement, stock: Any) -> Any:
        norm: Any = RMSNorm(stock.weight.shape[0], stock.eps) if self._plan.plain_norms else stock
        weight, bias_info = self._floats(placement, placement.weight), placement.biases[0]
        self._check(placement.weight, tuple(weight.shape), tuple(stock.weight.shape))
        norm.weight = weight
        if bias_info is not None:
            bias = self._floats(placement, bias_info)
            self._check(bias_info, tuple(bias.shape), tuple(stock.weight.shape))
            norm.bias = bias
        elif "bias" in norm:
            name = placement.weight.name.removesuffix("weight")
            raise CheckpointError(f"{self._header.path}: tensor '{name}bias' is missing")
        return norm

    def _dense(self, placement: Placement, shape: tuple[int, ...]) -> Any:
        """A float32 matrix as the stock layer holds it, in the compute dtype."""
        info, bias_info = placement.weight, placement.biases[0]
        weight = self._floats(placement, info)
        self._check(info, tuple(weight.shape), shape)
        # Made for one row: MLX's layers draw random weights of the size they are told.
        layer: Any = Embedding(1, 1) if placement.kind is SlotKind.EMBEDDING else Linear(1, 1, bias=False)
        layer.weight = weight
        if bias_info is not None:
            bias = self._floats(placement, bias_info)
            self._check(bias_info, tuple(bias.shape), shape[:1])
            layer.bias = bias
        return layer

    def _floats(self, placement: Placement, info: TensorInfo) -> mx.array:
        values = self._transformed(placement, info, self._tensors.floats(info.name)).astype(self._compute)
        mx.eval(values)
        return values

    def _transformed(self, placement: Placement, info: TensorInfo, array: mx.array) -> mx.array:
        if placement.transform is None:
            return array
        try:
            transformed: mx.array = placement.transform(array, self._plan.config)
        except (ValueError, IndexError) as error:
            self._fail(info, f"does not fit the metadata: {error}")
        return transformed

    def _check_parts(self, placement: Placement, parts: Sequence[_Part], shape: tuple[int, ...]) -> None:
        """The parts side by side have the shape of the stock weight."""
        shapes = [_weights_shape(blocks, quant) for blocks, quant in parts]
        if len(shapes) == 1:
            self._check(placement.weight, shapes[0], shape)
            return
        for info, got in zip(placement.weights, shapes, strict=True):
            if len(got) != len(shape):
                self._check(info, got, shape)
            if (*got[:-2], got[-1]) != (*shape[:-2], shape[-1]):
                self._check(info, got, (*shape[:-2], got[-2], shape[-1]))
        rows = [got[-2] for got in shapes]
        if sum(rows) != shape[-2]:
            names = ", ".join(f"'{info.name}'" for info in placement.weights)
            raise CheckpointError(
                f"{self._header.path}: tensors {names} have {rows} rows, the metadata makes them {shape[-2]} together"
            )

    def _check(self, info: TensorInfo, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
        if found != shape:
            holds = "" if found == tuple(info.shape) else f", read as {list(found)}"
            self._fail(info, f"is {list(info.shape)}{holds}, the metadata makes it {list(shape)}")

    def _fail(self, info: TensorInfo, what: str) -> None:
        raise CheckpointError(f"{self._header.path}: tensor '{info.name}' {what}")


def _weights_shape(blocks: mx.array, quant: QuantType) -> tuple[int, ...]:
    return (*blocks.shape[:-1], quant.columns(blocks.shape[-1]))


def _scaled_ropes(rope: ScaledRope, plan: Plan) -> dict[str, Any]:
    layers = range(plan.config["num_hidden_layers"]) if rope.only is None else plan.layers[rope.only]
    stock: Any = initialize_rope
    context = plan.config["max_position_embeddings"]
    made = stock(rope.dims, rope.base, rope.traditional, rope.scaling, context)
    return {rope.module.format(i=i): made for i in layers}


def _factored_ropes(tensors: TensorFile, factors: RopeFactors, plan: Plan) -> dict[str, Any]:
    rope = FactoredRoPE(
        tensors.floats(factors.tensor)[: factors.dims // 2],
        dims=factors.dims,
        base=factors.base,
        traditional=factors.traditional,
        magnitude=factors.magnitude,
    )
    layers = range(plan.config["num_hidden_layers"]) if factors.only is None else plan.layers[factors.only]
    return {factors.module.format(i=i): rope for i in layers}
