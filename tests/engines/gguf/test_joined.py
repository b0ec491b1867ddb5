"""Layers that share a kernel, where the back end offers one: a stand-in does here, no GPU."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx_lm.models.llama import MLP, Attention, ModelArgs

from engines.gguf import fused
from engines.gguf.fused import fuse
from engines.gguf.joined import JoinedLinear, OneKernelMLP
from engines.gguf.layers import KQuantLinear
from engines.gguf.quants import QuantType, quant_type
from tests.engines.gguf.helpers_blocks import random_blocks

Q4_K, Q6_K = map(quant_type, ("Q4_K", "Q6_K"))
ARGUMENTS = ModelArgs("llama", 256, 1, 512, 4, 1e-5, 100, num_key_value_heads=2)


class Fusing:
    """A back end that does so by MLX's operations, up to four rows of activations."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def multiply_gated(
        self, x: mx.array, gate: mx.array, up: mx.array, quant: QuantType, activation: str
    ) -> mx.array | None:
        if x.shape[-2] > 4:
            return None
        self.calls.append(activation)
        left, right = (x @ quant.dequantize(blocks).T for blocks in (gate, up))
        return left * mx.sigmoid(left) * right

    def multiply_joined(self, x: mx.array, blocks: Sequence[mx.array], quant: QuantType) -> tuple[mx.array, ...] | None:
        if x.shape[-2] > 4:
            return None
        self.calls.append(f"{len(blocks)} of {quant.name}")
        return tuple(x @ quant.dequantize(each).T for each in blocks)


def mlp(gate: QuantType = Q4_K, up: QuantType = Q4_K, bias: bool = False) -> Any:
    made: Any = MLP(ARGUMENTS)
    bias_of_gate = mx.ones((512,)) if bias else None
    made.gate_proj = KQuantLinear(mx.array(random_blocks(gate, 512, 256, seed=1)), gate, bias_of_gate)
    made.up_proj = KQuantLinear(mx.array(random_blocks(up, 512, 256, seed=2)), up)
    made.down_proj = KQuantLinear(mx.array(random_blocks(Q6_K, 256, 512, seed=3)), Q6_K)
    return made


def attention(value: QuantType = Q4_K, bias: bool = False) -> Any:
    made: Any = Attention(ARGUMENTS)
    for seed, (name, rows, quant) in enumerate((("q_proj", 256, Q4_K), ("k_proj", 128, Q4_K), ("v_proj", 128, value))):
        blocks = mx.array(random_blocks(quant, rows, 256, seed=seed, scale=0.02))
        made[name] = KQuantLinear(blocks, quant, mx.full((rows,), 0.5 + seed) if bias else None)
    made.o_proj = KQuantLinear(mx.array(random_blocks(Q4_K, 256, 256, seed=9, scale=0.02)), Q4_K)
    return made


def fused_layer(monkeypatch: pytest.MonkeyPatch, activation: str | None = "silu", **stock: Any) -> tuple[Any, Fusing]:
    fusing = Fusing()
    monkeypatch.setattr(fused, "backend", lambda: fusing)
    layer = SimpleNamespace(**{"mlp": mlp()} | stock)
    fuse(SimpleNamespace(layers=[layer]), activation)
    return layer, fusing


def near(got: mx.array, expected: mx.array) -> bool:
    return bool(mx.linalg.norm((got - expected).flatten()) < 1e-2 * mx.linalg.norm(expected.flatten()))


def test_few_rows_take_one_kernel_and_many_the_models_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = mlp()
    layer, fusing = fused_layer(monkeypatch, mlp=stock)
    assert isinstance(layer.mlp, OneKernelMLP)
    for rows, calls in ((1, 1), (4, 2), (5, 2)):
        x = mx.random.normal((1, rows, 256), key=mx.random.key(rows))
        assert near(layer.mlp(x), stock(x))
        assert fusing.calls == ["silu"] * calls


@pytest.mark.parametrize("stock", [{"bias": True}, {"up": Q6_K}], ids=["bias", "two types"])
def test_what_one_kernel_cannot_do_stays_as_the_model_has_it(
    stock: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = mlp(**stock)
    layer, fusing = fused_layer(monkeypatch, mlp=plain)
    x = mx.random.normal((1, 1, 256), key=mx.random.key(0))
    assert near(layer.mlp(x), plain(x))
    assert not fusing.calls


def test_a_projection_that_is_replaced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one with an adapter, say."""

    class Adapted(Module):
        def __init__(self, linear: Any) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.linear = linear

        def __call__(self, x: mx.array) -> Any:
            return 3 * self.linear(x)

    stock, heads = mlp(), attention()
    layer, fusing = fused_layer(monkeypatch, mlp=mlp(), self_attn=attention())
    for each in (stock, layer.mlp):
        each.up_proj = Adapted(each.up_proj)
    for each in (heads, layer.self_attn):
        each.k_proj = Adapted(each.k_proj)
    x = mx.random.normal((1, 2, 256), key=mx.random.key(0))
    assert near(layer.mlp(x), stock(x))
    assert fusing.calls == []
    for _ in range(2):
        assert near(layer.self_attn(x), heads(x))


def test_parameters_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, heads = mlp(), attention(bias=True)
    expected = [set(stock.parameters()), set(heads.parameters()), set(heads.q_proj.parameters())]
    layer, _ = fused_layer(monkeypatch, mlp=stock, self_attn=heads)
    made = [set(each.parameters()) for each in (layer.mlp, layer.self_attn, layer.self_attn.q_proj)]
    assert made == expected


def test_a_model_without_gated_mlps_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = mlp()
    layer, _ = fused_layer(monkeypatch, None, mlp=stock)
    assert layer.mlp is stock


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("value", "call"), [(Q4_K, "3 of Q4_K"), (Q6_K, "2 of Q4_K")], ids=["one type", "two types"])
def test_projections_of_one_type_share_a_kernel(
    value: QuantType, call: str, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = attention(value, bias)
    layer, fusing = fused_layer(monkeypatch, self_attn=attention(value, bias))
    x = mx.random.normal((1, 4, 256), key=mx.random.key(1))
    assert near(layer.self_attn(x), stock(x))
    assert fusing.calls == [call]
    x = mx.random.normal((1, 5, 256), key=mx.random.key(1))
    assert near(layer.self_attn(x), stock(x))
    assert fusing.calls == [call]


def test_a_projection_of_other_activations_is_its_own_product(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = attention()
    layer, _ = fused_layer(monkeypatch, self_attn=attention())
    x, other = (mx.random.normal((1, 1, 256), key=mx.random.key(seed)) for seed in (1, 2))
    query, key, value = (layer.self_attn[name] for name in ("q_proj", "k_proj", "v_proj"))
    assert isinstance(key, JoinedLinear)
    assert near(query(x), stock.q_proj(x))
    assert near(key(other), stock.k_proj(other))
    assert near(key(x), stock.k_proj(x))
    assert near(key(x), stock.k_proj(x)), "a second time"
    assert near(value(x), stock.v_proj(x))
    assert near(value(other), stock.v_proj(other))


def test_products_that_were_handed_out_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, _ = fused_layer(monkeypatch, self_attn=attention())
    x = mx.random.normal((1, 1, 256), key=mx.random.key(1))
    layer.self_attn(x)
    group = layer.self_attn.q_proj._group
    assert (group._x, group._waiting) == (None, {})
