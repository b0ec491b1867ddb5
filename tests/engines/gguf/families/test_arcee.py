"""arcee. mlx-lm has no class of its own for it: the reference is its llama with another MLP, made here."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, interleaved, keys
from tests.engines.gguf.families.helpers_family import Case, checks

ARCEE: dict[str, Any] = CONFIG | {"model_type": "llama", "head_dim": 32, "tie_word_embeddings": False}
YARN = ARCEE | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
KEYS: dict[str, Any] = {"vocab_size": 96, "rope__dimension_count": 32}
YARN_KEYS: dict[str, Any] = {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 64,
}


class SquaredRelu(Module):
    def __init__(self, width: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.up_proj = Linear(width, 96, bias=False)
        self.down_proj = Linear(96, width, bias=False)

    def __call__(self, x: mx.array) -> Any:
        hidden = mx.maximum(self.up_proj(x), 0.0)
        return self.down_proj(hidden * hidden)


def ungated(model: Any) -> None:
    for layer in model.layers:
        layer.mlp = SquaredRelu(model.args.hidden_size)


CASES = [
    Case(
        "arcee",
        "arcee",
        YARN,
        keys(YARN, **KEYS, **YARN_KEYS),
        by_name("arcee", interleaved),
        proof="mlx-lm's llama with an MLP of the test's",
        prepare=ungated,
    ),
    Case(
        "arcee-unscaled",
        "arcee",
        ARCEE,
        keys(ARCEE, **KEYS),
        by_name("arcee", interleaved),
        proof="mlx-lm's llama with an MLP of the test's",
        prepare=ungated,
        light=True,
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
