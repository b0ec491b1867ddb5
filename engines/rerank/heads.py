"""What stands behind the last layer of a reranker: features to one number a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import mlx.core as mx

from engines.encoders.blocks import Norm
from engines.encoders.encoder import Encoded
from engines.encoders.hf_config import HfConfig
from engines.encoders.loading import Opened
from engines.encoders.weights import Linear, Weights, activate, linear, row_count, vector
from engines.errors import CheckpointError, UnsupportedModel
from engines.header import GgufHeader

__all__ = ["Classifier", "YesNo", "classifier_of", "yes_no_of"]

_Pooled = Literal["first", "mean", "last"]


@dataclass(frozen=True)
class Classifier:
    """Sequence classification: a pooled token, perhaps a layer with an activation and a norm, then the output, of one label."""

    pooled: _Pooled
    output: Linear
    dense: Linear | None = None
    activation: str | None = None  # tanh, or one of engines.gguf.fused.ACTIVATIONS
    norm: Norm | None = None

    def __call__(self, encoded: Encoded) -> mx.array:
        """float32 [rows]."""
        features = {"first": encoded.first, "mean": encoded.mean, "last": encoded.last}[self.pooled]()
        x = features.astype(encoded.features.dtype)
        if self.dense is not None:
            x = self.dense(x)
            x = mx.tanh(x) if self.activation == "tanh" else activate(x, self.activation)
        if self.norm is not None:
            x = self.norm(x)
        return self.output(x).astype(mx.float32)[:, 0]


@dataclass(frozen=True)
class YesNo:
    """The difference of two tokens' logits at each row's end, whose logistic function is the probability of yes against no."""

    difference: mx.array  # [width]: the row of yes less the row of no

    def __call__(self, encoded: Encoded) -> mx.array:
        """float32 [rows]."""
        return encoded.last().astype(mx.float32) @ self.difference


def classifier_of(opened: Opened) -> Classifier | YesNo:
    """The head of a checkpoint for sequence classification. UnsupportedModel for one of several labels."""
    if isinstance(opened.header, GgufHeader):
        return _of_gguf(opened)
    assert opened.config is not None
    return _of_config(opened, opened.config)


def yes_no_of(opened: Opened) -> YesNo:
    """Of a decoder that answers yes or no, from the rows of its head or its tied embedding."""
    weights, width = opened.weights, opened.blueprint.shape.width
    ids = [opened.tokenizer.find(word) for word in ("yes", "no")]
    if None in ids:
        raise CheckpointError(f"{opened.path}: the tokenizer has no token 'yes' or 'no'")
    head = next((name for name in ("lm_head.weight", "output.weight") if weights.has(name)), None)
    chosen = mx.array([id for id in ids if id is not None], mx.int32)
    if head is None:
        rows = opened.encoder.words(chosen)
    else:
        blocks, quant = weights.blocks(head)
        rows = quant.dequantize(blocks[chosen])
    return _difference(rows.reshape(2, width))


def _difference(rows: mx.array) -> YesNo:
    rows = rows.astype(mx.float32)
    difference = rows[0] - rows[1]
    mx.eval(difference)
    return YesNo(difference)


def _pools_mean(header: GgufHeader) -> bool:
    """Whether ModernBERT's classifier reads the mean of all tokens: so do files that do not say, as of before that key."""
    pooling = header.integer("modern-bert.classifier.pooling_type")
    if pooling not in (None, -1, _MEAN, _CLS):
        raise UnsupportedModel(
            f"{header.path}: modern-bert.classifier.pooling_type is {pooling}; {_MEAN} and {_CLS} are supported"
        )
    return pooling != _CLS


def _of_gguf(opened: Opened) -> Classifier | YesNo:
    assert isinstance(opened.header, GgufHeader)
    weights, width = opened.weights, opened.blueprint.shape.width
    if opened.blueprint.architecture == "qwen3":
        if not weights.has("cls.output.weight"):
            return yes_no_of(opened)
        if row_count(weights, "cls.output.weight", width) == 2:  # the rows of yes and no, cut out of the head
            blocks, quant = weights.blocks("cls.output.weight")
            return _difference(quant.dequantize(blocks))
        return Classifier("last", _output(weights, "cls.output", width))
    modern = opened.blueprint.architecture == "modern-bert"
    if not weights.has("cls.output.weight"):  # the one matrix there is maps straight to the score
        return Classifier("first", _output(weights, "cls", width))
    norm = None
    if weights.has("cls.norm.weight"):
        norm = _norm(opened, "cls.norm")
    return Classifier(
        "mean" if modern and _pools_mean(opened.header) else "first",
        _output(weights, "cls.output", width),
        linear(weights, "cls", width, width) if weights.has("cls.weight") else None,
        "gelu" if modern else "tanh",
        norm,
    )


def _of_config(opened: Opened, config: HfConfig) -> Classifier | YesNo:
    weights, width = opened.weights, opened.blueprint.shape.width
    architectures = config.texts("architectures")
    if not any(name.endswith("ForSequenceClassification") for name in architectures):
        if opened.blueprint.architecture == "qwen3":
            return yes_no_of(opened)
        raise UnsupportedModel(
            f"{config.path}: architectures is {architectures}; a reranker is …ForSequenceClassification"
        )
    match opened.blueprint.architecture:
        case "qwen3":
            return Classifier("last", _output(weights, "score", width))
        case "modernbert":
            config.expect("classifier_pooling", "cls", "mean")
            pooled: _Pooled = "mean" if config.text("classifier_pooling", default="cls") == "mean" else "first"
            activation = config.text("classifier_activation", default="gelu")
            if activation not in ("gelu", "silu", "tanh"):
                raise UnsupportedModel(f"{config.path}: classifier_activation {activation!r} is not supported")
            dense = linear(weights, "head.dense", width, width)
            return Classifier(
                pooled,
                _output(weights, "classifier", width, biased=True),
                dense,
                activation,
                _norm(opened, "head.norm"),
            )
        case "roberta" | "xlm-roberta" | "camembert":
            dense = linear(weights, "classifier.dense", width, width, biased=True)
            return Classifier("first", _output(weights, "classifier.out_proj", width, biased=True), dense, "tanh")
    pooler = next((name for name in _POOLERS if weights.has(f"{name}.weight")), None)
    if pooler is None:
        raise CheckpointError(f"{opened.path}: tensor 'pooler.dense.weight' is missing")
    dense = linear(weights, pooler, width, width, biased=True)
    return Classifier("first", _output(weights, "classifier", width, biased=True), dense, "tanh")


_MEAN, _CLS = 1, 2  # llama.cpp's pooling types
_POOLERS: Final = ("bert.pooler.dense", "nomic_bert.pooler.dense", "pooler.dense")


def _output(weights: Weights, name: str, width: int, *, biased: bool = False) -> Linear:
    rows = row_count(weights, f"{name}.weight", width)
    if rows != 1:
        raise UnsupportedModel(f"{weights.path}: the classifier '{name}' has {rows} labels; a reranker has one")
    return linear(weights, name, 1, width, biased=biased)


def _norm(opened: Opened, name: str) -> Norm:
    weights, shape = opened.weights, opened.blueprint.shape
    bias = vector(weights, f"{name}.bias", shape.width) if weights.has(f"{name}.bias") else None
    return Norm("layer", vector(weights, f"{name}.weight", shape.width), bias, shape.epsilon)
