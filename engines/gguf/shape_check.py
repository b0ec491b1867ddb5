"""Whether a checkpoint's tensors are of the shapes that its metadata implies, and of types that can be used there.

It is told from the header, before anything is loaded. The gateway asks it when it looks at a file, the build before it reads a
weight. The build then holds shapes against the stock modules too, which it has and the gateway has not. Nothing is computed:
transforms are given an :class:`Outline`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.families.family import Family, Plan
from engines.gguf.families.shapes import expected_shape, layer_of, widths_of
from engines.gguf.names import Placement, SlotKind
from engines.gguf.rope_scaling import RopeFactors
from engines.header import GgufHeader, TensorInfo

__all__ = ["Outline", "check_shapes"]

_Shape = tuple[int, ...]
_FLOATS: Final = frozenset({"F32", "F16", "BF16"})


def check_shapes(header: GgufHeader, family: Family, plan: Plan, placements: Sequence[Placement]) -> None:
    """CheckpointError that names the first tensor of a wrong shape, its shape and the one that the metadata makes it;
    UnsupportedModel for a norm or biases that are quantised."""
    by_layer: dict[int, Mapping[str, Any]] = {}
    for placement in placements:
        _check_types(header.path, placement)
        layer = layer_of(placement.module)
        if layer not in by_layer:
            by_layer[layer] = widths_of(plan.config, layer, family.widths)
        wanted = expected_shape(placement.module, placement.kind, family.shapes, by_layer[layer])
        if wanted is not None:
            _check(header.path, plan.config, placement, wanted)
    for rope in plan.ropes:
        if isinstance(rope, RopeFactors):
            _check_factors(header, rope)


def _check_types(path: str, placement: Placement) -> None:
    floats = [bias for bias in placement.biases if bias is not None]
    if placement.kind is SlotKind.NORM:
        floats += placement.weights
    for info in floats:
        if info.type.name not in _FLOATS:
            raise UnsupportedModel(f"{path}: tensor '{info.name}' is {info.type.name} where floats are needed")
    if placement.kind is SlotKind.EXPERTS_APART:
        kind = placement.weight.type
        for info in placement.weights:
            if info.type is not kind:
                _fail(path, info, f"is {info.type.name} where other experts are {kind.name}")


def _check(path: str, config: Mapping[str, Any], placement: Placement, wanted: _Shape) -> None:
    found = [_seen(path, config, placement, info) for info in placement.weights]
    if placement.kind is SlotKind.EXPERTS_APART:
        for info, shape in zip(placement.weights, found, strict=True):
            _expect(path, info, shape, wanted[1:])
        if len(found) != wanted[0]:
            _fail(path, placement.weight, f"is one of {len(found)}, the metadata makes them {wanted[0]}")
    elif len(found) == 1:
        flipped = placement.kind is SlotKind.HEADS_FLIPPED
        _expect(path, placement.weight, found[0], (*wanted[:-2], wanted[-1], wanted[-2]) if flipped else wanted)
    else:
        _check_side_by_side(path, placement, found, wanted)
    for bias, shape in zip(placement.biases, found, strict=True):
        if bias is not None:
            rows = shape if placement.kind is SlotKind.NORM else shape[:-1]
            _expect(path, bias, _seen(path, config, placement, bias), rows)


def _check_side_by_side(path: str, placement: Placement, found: Sequence[_Shape], wanted: _Shape) -> None:
    for info, shape in zip(placement.weights, found, strict=True):
        if len(shape) != len(wanted) or (*shape[:-2], shape[-1]) != (*wanted[:-2], wanted[-1]):
            rows = shape[-2] if len(shape) == len(wanted) else wanted[-2]
            _expect(path, info, shape, (*wanted[:-2], rows, wanted[-1]))
    rows_of_each = [shape[-2] for shape in found]
    if sum(rows_of_each) != wanted[-2]:
        names = ", ".join(f"'{info.name}'" for info in placement.weights)
        raise CheckpointError(
            f"{path}: tensors {names} have {rows_of_each} rows, the metadata makes them {wanted[-2]} together"
        )


def _check_factors(header: GgufHeader, factors: RopeFactors) -> None:
    info = header.tensors.get(factors.tensor)
    if info is None:
        raise CheckpointError(f"{header.path}: tensor '{factors.tensor}' is missing")
    stored = factors.dims // 2 if factors.stored is None else factors.stored
    if info.shape != (stored,) or info.type.name != "F32":
        _fail(header.path, info, f"is {info.type.name} {list(info.shape)}, the metadata makes it F32 [{stored}]")


def _seen(path: str, config: Mapping[str, Any], placement: Placement, info: TensorInfo) -> _Shape:
    """The shape of what the module gets of this tensor."""
    if placement.transform is None:
        return tuple(info.shape)
    try:
        seen: Outline = placement.transform(Outline(info.shape), config)
    except (ValueError, IndexError) as error:
        _fail(path, info, f"does not fit the metadata: {error} (it is {list(info.shape)})")
    return seen.shape


def _expect(path: str, info: TensorInfo, found: _Shape, wanted: _Shape) -> None:
    if found != wanted:
        read_as = "" if found == tuple(info.shape) else f", read as {list(found)}"
        _fail(path, info, f"is {list(info.shape)}{read_as}, the metadata makes it {list(wanted)}")


def _fail(path: str, info: TensorInfo, what: str) -> NoReturn:
    raise CheckpointError(f"{path}: tensor '{info.name}' {what}")


class Outline:
    """An array without elements: what transforms of slots ask of one, and what that does to its shape.

    ValueError and IndexError as an array raises them.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)

    def reshape(self, *shape: Any) -> Outline:
        """Sizes, or one sequence of them; one of them may be -1."""
        sizes = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        count = math.prod(self.shape)
        if -1 in sizes:
            others = -math.prod(sizes)
            sizes[sizes.index(-1)] = count // others if others > 0 and count % others == 0 else 0
        if math.prod(sizes) != count:
            raise ValueError(f"{list(self.shape)} cannot be taken as {list(shape)}")
        return Outline(sizes)

    def swapaxes(self, first: int, second: int) -> Outline:
        """With two axes in each other's place."""
        sizes = list(self.shape)
        sizes[first], sizes[second] = sizes[second], sizes[first]
        return Outline(sizes)

    def log(self) -> Outline:
        """Of each element."""
        return self

    def __neg__(self) -> Outline:
        return self

    def __getitem__(self, index: Any) -> Outline:
        """Numbers, slices, lists of numbers, None and an ellipsis, or several of them."""
        parts = list(index) if isinstance(index, tuple) else [index]
        taken = sum(part is not None and part is not Ellipsis for part in parts)
        if taken > len(self.shape):
            raise IndexError(f"{taken} indices of {len(self.shape)} axes")
        if Ellipsis not in parts:
            parts.append(Ellipsis)
        sizes: list[int] = []
        axes = iter(self.shape)
        for part in parts:
            if part is None:
                sizes.append(1)
            elif part is Ellipsis:
                sizes += [next(axes) for _ in range(len(self.shape) - taken)]
            elif isinstance(part, slice):
                sizes.append(len(range(*part.indices(next(axes)))))
            elif isinstance(part, list):
                next(axes)
                sizes.append(len(part))
            elif not 0 <= part < next(axes):
                raise IndexError(f"number {part} of {list(self.shape)}")
        return Outline(sizes)
