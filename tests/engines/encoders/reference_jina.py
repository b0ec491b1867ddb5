"""Jina's BERT v2 written out in NumPy, float64, one row at a time: transformers does not have it.

Source: Günther et al., 2023; Press et al., 2021, for the slopes: with a power of two of heads they are 2^(-8/heads) and its powers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tests.engines.encoders.helpers_tiny_encoders import CONFIGS, HEADS, LAYERS, ROWS, TYPES, tensors_of

__all__ = ["jina_features", "jina_logits"]

_gelu = np.vectorize(lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))))


class _Reference:
    def __init__(self, classifies: bool) -> None:
        self.weights = {
            k.removeprefix("bert."): v.astype(np.float64) for k, v in tensors_of("jina", classifies=classifies).items()
        }

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        product: np.ndarray = x @ self.weights[f"{name}.weight"].T
        biased: np.ndarray = product + self.weights.get(f"{name}.bias", np.zeros(1))
        return biased

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        spread = np.sqrt(x.var(axis=-1, keepdims=True) + CONFIGS["jina"]["layer_norm_eps"])
        even: np.ndarray = (x - x.mean(axis=-1, keepdims=True)) / spread
        return even * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def features(self, ids: Sequence[int], types: Sequence[int]) -> np.ndarray:
        words, kinds = (self.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "token_type"))
        x = self.norm("embeddings.LayerNorm", words[list(ids)] + kinds[list(types)])
        for i in range(LAYERS):
            x = self.layer(f"encoder.layer.{i}", x)
        return x

    def layer(self, name: str, x: np.ndarray) -> np.ndarray:
        heads = [self.linear(f"{name}.attention.self.{part}", x) for part in ("query", "key", "value")]
        q, k, v = (part.reshape(len(x), HEADS, -1).transpose(1, 0, 2) for part in heads)
        places = np.arange(len(x))
        slopes = np.array([2.0 ** (-8.0 * (head + 1) / HEADS) for head in range(HEADS)])
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        scores -= slopes[:, None, None] * np.abs(places[:, None] - places[None, :])
        share = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attended = ((share / share.sum(axis=-1, keepdims=True)) @ v).transpose(1, 0, 2).reshape(len(x), -1)
        x = self.norm(f"{name}.attention.output.LayerNorm", x + self.linear(f"{name}.attention.output.dense", attended))
        gate, up = np.split(self.linear(f"{name}.mlp.gated_layers", x), 2, axis=-1)
        return self.norm(f"{name}.mlp.layernorm", x + self.linear(f"{name}.mlp.wo", _gelu(gate) * up))


def jina_features() -> np.ndarray:
    """As FEATURES in ``helpers_golden.py``."""
    reference = _Reference(False)
    rows = [reference.features(row, types) for row, types in zip(ROWS, TYPES, strict=True)]
    return np.array([[*x[-1, :6], *x[0, :2]] for x in rows])


def jina_logits() -> np.ndarray:
    """As LOGITS there: a layer with tanh on the first token, then the output."""
    reference = _Reference(True)
    first = np.array([reference.features(row, types)[0] for row, types in zip(ROWS, TYPES, strict=True)])
    return reference.linear("classifier", np.tanh(reference.linear("pooler.dense", first)))[:, 0]
