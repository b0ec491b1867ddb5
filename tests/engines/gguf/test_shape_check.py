"""Shapes from a header alone: what transforms do to an outline is what they do to an array, and every message says both shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engines.errors import CheckpointError
from engines.ggml_types import GgmlType
from engines.gguf.families import Checkpoint, Family, Plan
from engines.gguf.families.shapes import expected_shape, layer_of, widths_of
from engines.gguf.names import Placement, SlotKind, Transform
from engines.gguf.rope_scaling import RopeFactors
from engines.gguf.shape_check import Outline, check_shapes
from engines.gguf.transforms import rows
from engines.header import FileIdentity, GgufHeader, GgufPart, TensorInfo

CONFIG: dict[str, Any] = {
    "hidden_size": 8,
    "vocab_size": 20,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 12,
    "num_experts": 3,
    "moe_intermediate_size": 6,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 1,
    "v_head_dim": 4,
}


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.reshape(-1),
        lambda a: a.reshape(6, -1, 4),
        lambda a: a.reshape((2, 12, 5)),
        lambda a: a.reshape(7, -1),
        lambda a: a.reshape(0, -1),
        lambda a: a.reshape(6, 4),
        lambda a: a.swapaxes(0, 1),
        lambda a: -a,
        lambda a: a[1],
        lambda a: a[9],
        lambda a: a[:, 1:],
        lambda a: a[:, 2:99],
        lambda a: a[[2, 0, 1, 0]],
        lambda a: a[..., None],
        lambda a: a[..., 1:3],
        lambda a: a[None, :, 0, ::2],
        lambda a: a[0, 0, 0, 0],
    ],
)
def test_outline_takes_the_shape_that_an_array_takes(change: Callable[[Any], Any]) -> None:
    def tried(array: Any) -> object:
        try:
            return change(array).shape
        except (ValueError, IndexError) as error:
            return type(error)

    assert tried(Outline((6, 4, 5))) == tried(np.zeros((6, 4, 5)))


def test_outline_of_a_logarithm_has_the_same_shape() -> None:
    assert Outline((3, 2)).log().shape == (3, 2)


def test_longest_end_of_a_path_tells_the_shape() -> None:
    widths = widths_of(CONFIG, 0)
    kinds = {
        "model.layers.1.mlp.gate_proj": (12, 8),
        "model.layers.1.mlp.switch_mlp.gate_proj": (3, 6, 8),
        "model.layers.1.self_attn.gate_proj": (8, 8),
        "model.layers.1.self_attn.odd_proj": None,
        "lm_head": (20, 8),
    }
    assert {path: expected_shape(path, SlotKind.LINEAR, {}, widths) for path in kinds} == kinds
    assert expected_shape("model.layers.1.some_norm", SlotKind.NORM, {}, widths) == (8,)
    assert expected_shape("model.layers.1.some_norm", SlotKind.NORM, {"some_norm": ("inner",)}, widths) == (12,)
    assert expected_shape("model.layers.1.mlp.gate_proj", SlotKind.LINEAR, {}, widths_of({"hidden_size": 8}, 0)) is None


@pytest.mark.parametrize(
    ("path", "layer"), [("model.layers.12.mlp.up_proj", 12), ("model.h.3.ln_1", 3), ("lm_head", 0), ("model.norm", 0)]
)
def test_layer_of_a_path(path: str, layer: int) -> None:
    assert layer_of(path) == layer


def test_widths_of_a_layer_take_the_place_of_the_usual_ones() -> None:
    widths = widths_of(CONFIG, 2, lambda config, layer: {"kv_heads": layer})
    assert (widths["kv_heads"], widths["keys"], widths["values"]) == (2, 2 * 4, 2 * 4)


def info(name: str, *shape: int) -> TensorInfo:
    return TensorInfo(name=name, type=GgmlType.F32, shape=shape, offset=0, nbytes=0, part=0)


def quantised(name: str, *shape: int) -> TensorInfo:
    return replace(info(name, *shape), type=GgmlType.Q8_0)


def header(*tensors: TensorInfo) -> GgufHeader:
    part = GgufPart(FileIdentity("m.gguf", 0, 0), 32, 0)
    return GgufHeader(3, (part,), {}, {each.name: each for each in tensors})


def plan_of(checkpoint: Checkpoint) -> Plan:
    raise AssertionError("the plan is given")


FAMILY = Family(architecture="some", model_type="some", slots=(), plan=plan_of)
_ATTENTION = "model.layers.0.self_attn"
_EXPERTS = "model.layers.0.mlp.switch_mlp.gate_proj"


def placement(
    module: str,
    kind: SlotKind,
    *weights: TensorInfo,
    bias: TensorInfo | None = None,
    transform: Transform | None = None,
) -> Placement:
    return Placement(module, kind, weights, (bias,) * len(weights), transform)


def _upper_half(array: Any, config: Mapping[str, Any]) -> Any:
    return array[array.shape[0] // 2 :]


_WHOLE = rows(lambda config: 0, lambda config: 8, lambda config: 16)


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        (
            placement(f"{_ATTENTION}.q_proj", SlotKind.LINEAR, info("q", 8, 7)),
            "tensor 'q' is [8, 7], the metadata makes it [8, 8]",
        ),
        (
            placement(f"{_ATTENTION}.q_proj", SlotKind.LINEAR, info("q", 8, 8), bias=info("b", 9)),
            "tensor 'b' is [9], the metadata makes it [8]",
        ),
        (
            placement("model.norm", SlotKind.NORM, info("n", 8), bias=info("b", 8, 1)),
            "tensor 'b' is [8, 1], the metadata makes it [8]",
        ),
        (
            placement(f"{_ATTENTION}.q_proj", SlotKind.LINEAR, info("q", 18, 8), transform=_upper_half),
            "tensor 'q' is [18, 8], read as [9, 8], the metadata makes it [8, 8]",
        ),
        (
            placement(f"{_ATTENTION}.q_proj", SlotKind.LINEAR, info("q", 15, 8), transform=_WHOLE),
            "tensor 'q' does not fit the metadata: 15 rows where 16 belong (it is [15, 8])",
        ),
        (
            placement(f"{_ATTENTION}.qkv_proj", SlotKind.LINEAR, info("q", 8, 8), info("k", 4, 8), info("v", 5, 8)),
            "tensors 'q', 'k', 'v' have [8, 4, 5] rows, the metadata makes them 16 together",
        ),
        (
            placement(f"{_ATTENTION}.qkv_proj", SlotKind.LINEAR, info("q", 8, 8), info("k", 4, 9), info("v", 4, 8)),
            "tensor 'k' is [4, 9], the metadata makes it [4, 8]",
        ),
        (
            placement(f"{_ATTENTION}.qkv_proj", SlotKind.LINEAR, info("q", 8, 8), info("k", 32)),
            "tensor 'k' is [32], the metadata makes it [16, 8]",
        ),
        (
            placement(_EXPERTS, SlotKind.EXPERTS, info("e", 3, 6, 9)),
            "tensor 'e' is [3, 6, 9], the metadata makes it [3, 6, 8]",
        ),
        (
            placement(_EXPERTS, SlotKind.EXPERTS_APART, info("e0", 6, 8), info("e1", 6, 7), info("e2", 6, 8)),
            "tensor 'e1' is [6, 7], the metadata makes it [6, 8]",
        ),
        (
            placement(_EXPERTS, SlotKind.EXPERTS_APART, info("e0", 6, 8), info("e1", 6, 8)),
            "tensor 'e0' is one of 2, the metadata makes them 3",
        ),
        (
            placement(f"{_ATTENTION}.embed_q", SlotKind.HEADS_FLIPPED, info("k", 2, 5, 3)),
            "tensor 'k' is [2, 5, 3], the metadata makes it [2, 3, 5]",
        ),
    ],
)
def test_wrong_shape_is_refused_with_the_tensor_and_both_shapes(placed: Placement, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_shapes(header(), FAMILY, Plan(CONFIG, 1, (None,)), [placed])
    assert caught.value.message == f"m.gguf: {message}"


@pytest.mark.parametrize(
    ("placed", "message"),
    [
        (placement("model.norm", SlotKind.NORM, quantised("n", 32)), "'n' is Q8_0 where floats are needed"),
        (
            placement(f"{_ATTENTION}.q_proj", SlotKind.LINEAR, info("q", 8, 8), bias=quantised("b", 8)),
            "'b' is Q8_0 where floats are needed",
        ),
        (
            placement(_EXPERTS, SlotKind.EXPERTS_APART, info("e0", 6, 8), quantised("e1", 6, 8), info("e2", 6, 8)),
            "'e1' is Q8_0 where other experts are F32",
        ),
    ],
)
def test_type_that_cannot_be_used_so_is_refused(placed: Placement, message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_shapes(header(), FAMILY, Plan(CONFIG, 1, (None,)), [placed])
    assert caught.value.message == f"m.gguf: tensor {message}"


def test_right_shapes_and_modules_without_a_rule_are_left_alone() -> None:
    fine = [
        placement(f"{_ATTENTION}.qkv_proj", SlotKind.LINEAR, info("q", 8, 8), info("k", 4, 8), info("v", 4, 8)),
        placement(_EXPERTS, SlotKind.EXPERTS_APART, *(info(f"e{i}", 6, 8) for i in range(3))),
        placement(f"{_ATTENTION}.embed_q", SlotKind.HEADS_FLIPPED, info("k", 2, 3, 5)),
        placement("model.layers.0.odd_proj", SlotKind.LINEAR, info("odd", 1, 2, 3)),
    ]
    check_shapes(header(), FAMILY, Plan(CONFIG, 1, (None,)), fine)


@pytest.mark.parametrize(
    ("tensor", "stored", "message"),
    [
        (info("f", 3), None, "tensor 'f' is F32 [3], the metadata makes it F32 [2]"),
        (info("f", 2), 4, "tensor 'f' is F32 [2], the metadata makes it F32 [4]"),
        (info("g", 2), None, "tensor 'f' is missing"),
    ],
)
def test_rotary_factors_of_another_number_are_refused(tensor: TensorInfo, stored: int | None, message: str) -> None:
    plan = Plan(CONFIG, 1, (None,), ropes=(RopeFactors("f", 4, 1e4, traditional=False, stored=stored),))
    with pytest.raises(CheckpointError) as caught:
        check_shapes(header(tensor), FAMILY, plan, [])
    assert caught.value.message == f"m.gguf: {message}"
