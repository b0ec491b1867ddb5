"""bitnet. mlx-lm multiplies its weights on Metal only: here its layers multiply with the float32 weights that the file has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.linear import Linear
from mlx_lm.models import bitnet
from mlx_lm.models.bitlinear_layers import BitLinear

from engines.gguf.config import Hyperparameters
from engines.gguf.families import FAMILIES, Checkpoint
from engines.gguf.stand_ins.bitnet import BitMLP
from engines.gguf.writer import CheckpointTensor
from engines.header import read_header
from tests.engines.gguf.families.helpers_dense import CONFIG, faint_embeddings, keys
from tests.engines.gguf.families.helpers_family import Array, Case, Weights, checks, write_case
from tests.engines.gguf.helpers_tiny import apart

BITNET: dict[str, Any] = CONFIG | {"model_type": "bitnet"}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.attn_sub_norm": "attn_sub_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.ffn_sub_norm": "ffn_sub_norm",
}


def plain_layers(model: Any) -> None:
    """Ordinary linear layers instead of packed ones, and SiLU as earlier BitNets and llama.cpp have it."""
    for layer in model.layers:
        for owner in (layer.self_attn, layer.mlp):
            for name, child in owner.children().items():
                if isinstance(child, BitLinear):
                    owner[name] = Linear(child.in_features, child.out_features, bias=False)
        layer.mlp.__class__ = SiluMLP


class SiluMLP(bitnet.MLP):
    def __call__(self, x: mx.array) -> Any:
        gate = self.gate_proj(x)
        return self.down_proj(self.ffn_sub_norm(gate * mx.sigmoid(gate) * self.up_proj(x)))


def ternary(name: str, random: Array) -> Array | None:
    """-s, 0 and s, as such models are trained."""
    if "_proj." in name:
        scaled: Array = np.clip(np.round(random), -1, 1) * np.float32(0.1)
        return scaled
    return faint_embeddings(name, random)


def tensors(weights: Weights, config: dict[str, Any]) -> Weights:
    converted = {}
    for name, value in weights.items():
        match = re.fullmatch(r"(?:model\.layers\.(\d+)\.)?(.+)\.weight", name)
        assert match is not None, name
        layer, rest = match.groups()
        block = f"blk.{layer}." if layer else ""
        converted[f"{block}{NAMES[rest]}.weight"] = value
    return converted


CASES = [
    Case(
        "bitnet",
        "bitnet",
        BITNET,
        keys(BITNET, rope__scaling__type="linear", rope__scaling__factor=1.0),
        tensors,
        proof="mlx-lm's class with ordinary float32 layers for its Metal ones, and SiLU",
        prepare=plain_layers,
        initial=ternary,
    )
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)


def test_the_published_2b_model_squares_its_relu(tmp_path: Path) -> None:
    """It is told by its shape, since no key says it; its MLP is mlx-lm's."""
    keys_of_2b = {"block_count": 30, "embedding_length": 2560, "attention.key_length": 16, "attention.value_length": 16}
    tensors_of_2b: dict[str, CheckpointTensor] = {"token_embd.weight": ("F32", np.zeros((96, 2560), np.float32))}
    tensors_of_2b |= {f"blk.{layer}.attn_norm.weight": ("F32", np.zeros(1, np.float32)) for layer in range(30)}
    header = read_header(write_case(tmp_path / "2b.gguf", CASES[0], tensors_of_2b, keys_of_2b))
    plan = FAMILIES["bitnet"].plan(Checkpoint(header, Hyperparameters(header.path, "bitnet", header.metadata)))
    assert plan.config["hidden_act"] == "relu2"

    arguments: Any = bitnet.ModelArgs
    stock = bitnet.MLP(arguments.from_dict(BITNET))
    for name in ("gate_proj", "up_proj", "down_proj"):
        stock[name] = Linear(stock[name].in_features, stock[name].out_features, bias=False)
    ours = BitMLP(stock, 96, 1e-5, "relu2")
    ours.down_proj.norm.weight = stock.ffn_sub_norm.weight = mx.arange(96) / 48
    x = mx.random.normal((2, 5, 64), key=mx.random.key(0))
    assert apart(ours(x), stock(x)) < 1e-5
