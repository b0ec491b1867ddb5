"""bitnet. mlx-lm multiplies its weights on Metal only: here its layers multiply with the float32 weights that the file has."""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.linear import Linear
from mlx_lm.models import bitnet
from mlx_lm.models.bitlinear_layers import BitLinear

from tests.engines.gguf.families.helpers_dense import CONFIG, faint_embeddings, keys
from tests.engines.gguf.families.helpers_family import Array, Case, Weights, checks

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
