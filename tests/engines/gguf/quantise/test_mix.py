"""Which tensor gets which type.

The counts are of llama.cpp's ``llama-quantize --dry-run`` (build 11434) on files of these tensors.
"""

from __future__ import annotations

from collections import Counter

import pytest

from engines.errors import UnsupportedModel
from engines.ggml_types import GgmlType
from engines.gguf.quantise import MixedModel, tensor_types

DENSE = MixedModel("llama", 32, grouping=4, grouped=True)
DEEP = MixedModel("llama", 80, grouping=8, grouped=True)
EIGHT_EXPERTS = MixedModel("llama", 16, experts=8, grouping=4, grouped=True)


def shapes(model: MixedModel, *, columns: int = 256, odd: int = 256, tied: bool = False) -> dict[str, tuple[int, ...]]:
    """Tensors of a model; down and output projections have rows of ``odd`` weights."""
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (8, columns), "output_norm.weight": (columns,)}
    if not tied:
        tensors["output.weight"] = (8, columns)
    for layer in range(model.layers):
        block = f"blk.{layer}."
        tensors[block + "attn_norm.weight"] = (columns,)
        for name in ("attn_q", "attn_k", "attn_v"):
            tensors[f"{block}{name}.weight"] = (4, columns)
        tensors[block + "attn_output.weight"] = (4, odd)
        if model.experts:
            tensors[block + "ffn_gate_inp.weight"] = (model.experts, columns)
            for name in ("gate", "up", "down"):
                tensors[f"{block}ffn_{name}_exps.weight"] = (2, 4, columns)
                tensors[f"{block}ffn_{name}_shexp.weight"] = (4, columns)
        else:
            for name, width in (("gate", columns), ("up", columns), ("down", odd)):
                tensors[f"{block}ffn_{name}.weight"] = (4, width)
    return tensors


def text(types: dict[str, GgmlType]) -> str:
    """``Q4_K 193, Q6_K 33``: how many tensors get each type, by name."""
    found = Counter(kind.name for kind in types.values())
    return ", ".join(f"{name} {found[name]}" for name in sorted(found))


@pytest.mark.parametrize(
    ("mix", "dense", "fallback", "deep", "experts"),
    [
        (
            "Q2_K",
            "Q2_K 129, Q3_K 64, Q4_K 32, Q6_K 1",
            "Q4_0 192, Q5_0 32, Q8_0 1",
            "Q2_K 321, Q3_K 160, Q5_K 80, Q6_K 1",
            "Q2_K 81, Q3_K 32, Q5_K 16, Q6_K 1, Q8_0 32",
        ),
        (
            "Q3_K_S",
            "Q3_K 225, Q6_K 1",
            "Q4_0 224, Q8_0 1",
            "Q3_K 481, Q5_K 80, Q6_K 1",
            "Q3_K 113, Q5_K 16, Q6_K 1, Q8_0 32",
        ),
        (
            "Q3_K_M",
            "Q3_K 129, Q4_K 92, Q5_K 4, Q6_K 1",
            "Q4_0 128, Q5_0 92, Q5_1 4, Q8_0 1",
            "Q3_K 321, Q4_K 155, Q5_K 85, Q6_K 1",
            "Q3_K 81, Q4_K 30, Q5_K 18, Q6_K 1, Q8_0 32",
        ),
        (
            "Q3_K_L",
            "Q3_K 129, Q5_K 96, Q6_K 1",
            "Q4_0 128, Q5_1 96, Q8_0 1",
            "Q3_K 321, Q5_K 240, Q6_K 1",
            "Q3_K 97, Q5_K 32, Q6_K 1, Q8_0 32",
        ),
        (
            "Q4_K_S",
            "Q4_K 217, Q5_K 8, Q6_K 1",
            "Q5_0 216, Q5_1 8, Q8_0 1",
            "Q4_K 471, Q5_K 90, Q6_K 1",
            "Q4_K 109, Q5_K 20, Q6_K 1, Q8_0 32",
        ),
        (
            "Q4_K_M",
            "Q4_K 193, Q6_K 33",
            "Q5_0 192, Q8_0 33",
            "Q4_K 441, Q5_K 40, Q6_K 81",
            "Q4_K 97, Q5_K 16, Q6_K 17, Q8_0 32",
        ),
        ("Q5_K_S", "Q5_K 225, Q6_K 1", "Q5_1 224, Q8_0 1", "Q5_K 561, Q6_K 1", "Q5_K 129, Q6_K 1, Q8_0 32"),
        ("Q5_K_M", "Q5_K 193, Q6_K 33", "Q5_1 192, Q8_0 33", "Q5_K 481, Q6_K 81", "Q5_K 113, Q6_K 17, Q8_0 32"),
        ("Q6_K", "Q6_K 226", "Q8_0 225", "Q6_K 562", "Q6_K 130, Q8_0 32"),
        ("Q4_0", "Q4_0 225, Q6_K 1", "Q4_0 224, Q8_0 1", "Q4_0 561, Q6_K 1", "Q4_0 129, Q6_K 1, Q8_0 32"),
        ("Q4_1", "Q4_1 225, Q6_K 1", "Q4_1 224, Q8_0 1", "Q4_1 561, Q6_K 1", "Q4_1 129, Q6_K 1, Q8_0 32"),
        ("Q5_0", "Q5_0 225, Q6_K 1", "Q5_0 224, Q8_0 1", "Q5_0 561, Q6_K 1", "Q5_0 129, Q6_K 1, Q8_0 32"),
        ("Q5_1", "Q5_1 225, Q6_K 1", "Q5_1 224, Q8_0 1", "Q5_1 561, Q6_K 1", "Q5_1 129, Q6_K 1, Q8_0 32"),
        ("Q8_0", "Q8_0 226", "Q8_0 225", "Q8_0 562", "Q8_0 162"),
        ("F16", "F16 226", "F16 225", "F16 562", "F16 162"),
        ("BF16", "BF16 226", "BF16 225", "BF16 562", "BF16 162"),
    ],
)
def test_mix_gives_as_many_tensors_each_type_as_the_reference(
    mix: str, dense: str, fallback: str, deep: str, experts: str
) -> None:
    assert text(tensor_types(mix, DENSE, shapes(DENSE))) == dense
    assert text(tensor_types(mix, DENSE, shapes(DENSE, columns=576, odd=96, tied=True))) == fallback
    assert text(tensor_types(mix, DEEP, shapes(DEEP))) == deep
    assert text(tensor_types(mix, EIGHT_EXPERTS, shapes(EIGHT_EXPERTS))) == experts


@pytest.mark.parametrize(
    ("mix", "kind", "layers"),
    [
        ("Q4_K_M", "Q6_K", [0, 1, 2, 3, *range(6, 28, 3), 28, 29, 30, 31]),
        ("Q5_K_M", "Q6_K", [0, 1, 2, 3, *range(6, 28, 3), 28, 29, 30, 31]),
        ("Q4_K_S", "Q5_K", [0, 1, 2, 3]),
        ("Q3_K_M", "Q5_K", [0, 1]),
    ],
)
def test_mix_spends_its_bits_on_the_layers_of_the_reference(mix: str, kind: str, layers: list[int]) -> None:
    tensors = shapes(DENSE)
    shuffled = {
        name: tensors[name] for name in sorted(tensors, key=lambda name: name[::-1])
    }  # the order in the file does not matter
    types = tensor_types(mix, DENSE, shuffled)
    for role in ("attn_v", "ffn_down"):
        raised = [layer for layer in range(32) if types[f"blk.{layer}.{role}.weight"].name == kind]
        assert raised == layers, role


def test_mix_falls_back_to_f16_where_blocks_of_32_do_not_fit() -> None:
    types = tensor_types("Q4_K_M", DENSE, shapes(DENSE, odd=100))
    assert text(types) == "F16 64, Q4_K 145, Q6_K 17"
    assert types["blk.0.ffn_down.weight"] is types["blk.31.attn_output.weight"] is GgmlType.F16


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_mix_knows_the_models_whose_value_projections_are_small(architecture: str) -> None:
    """80 layers of llama with as many key-value heads as heads are another model, 80 layers of qwen2 always that one."""
    even = MixedModel(architecture, 80, grouping=1)
    types = tensor_types("Q3_K_S", even, shapes(even))
    assert types["blk.40.attn_v.weight"].name == ("Q5_K" if architecture == "qwen2" else "Q3_K")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_norm.weight", (256,)),
        ("blk.0.attn_q_norm.weight", (4, 256)),
        ("blk.0.attn_q.bias", (4, 256)),
        ("blk.0.attn_v.weight", (1, 256)),  # a vector, however it is written
        ("blk.0.ffn_gate_inp.weight", (8, 256)),
        ("blk.0.ssm_conv1d.weight", (8, 4)),
        ("position_embd.weight", (8, 256)),
        ("token_types.weight", (2, 256)),
        ("rope_freqs.weight", (64,)),
    ],
)
def test_mix_leaves_small_and_delicate_tensors(name: str, shape: tuple[int, ...]) -> None:
    types = tensor_types("Q4_K_M", DENSE, {name: shape, "blk.0.attn_q.weight": (4, 256)})
    assert list(types) == ["blk.0.attn_q.weight"]


def test_mix_unknown_is_refused_with_the_list() -> None:
    with pytest.raises(UnsupportedModel, match=r"'Q2_K_S' is not known; these are: Q2_K, Q3_K_S"):
        tensor_types("Q2_K_S", DENSE, {})


def test_mix_of_an_architecture_with_rules_of_its_own_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="falcon"):
        tensor_types("Q4_K_M", MixedModel("falcon", 32), {})
