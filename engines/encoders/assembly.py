"""From a family's blueprint and the checkpoint's tensors to an encoder."""

from __future__ import annotations

from mlx.nn.layers.activations import gelu, gelu_approx, silu

from engines.encoders.blocks import Attention, FeedForward, Mixture, Norm
from engines.encoders.blueprint import Blueprint
from engines.encoders.encoder import Block, Encoder
from engines.encoders.shape import Layer
from engines.encoders.weights import Linear, Weights, embedding, experts, linear, table, vector
from engines.errors import CheckpointError
from engines.interface import ReportProgress

__all__ = ["assemble", "check_left"]


def assemble(blueprint: Blueprint, weights: Weights, report: ReportProgress | None = None) -> Encoder:
    """The encoder. CheckpointError that names a tensor which is missing or of another shape."""
    return _Assembly(blueprint, weights).encoder(report)


def check_left(blueprint: Blueprint, weights: Weights) -> None:
    """CheckpointError that names a tensor which nothing has taken, or which is there in other layers: the model would not be what
    its author meant."""
    for slot, name in blueprint.names.items():
        _check_layers(blueprint, weights, slot, name)
    for name in weights.left():
        if blueprint.ignored is None or not blueprint.ignored.search(name):
            raise CheckpointError(f"{weights.path}: tensor '{name}' has no place in this architecture")


def _check_layers(blueprint: Blueprint, weights: Weights, slot: str, name: str) -> None:
    """What one layer may lack, all lack: biases, and gates where there are no experts."""
    of_layer = "{i}" in name
    layers = [name.format(i=i) for i in range(len(blueprint.shape.layers))] if of_layer else [name]
    there = [layer for layer in layers if weights.has(f"{layer}.weight")]
    # Every family whose norms stand behind the sums has them with a bias.
    wanted = slot not in _TABLES and (blueprint.biased or (slot in _NORMS and not blueprint.shape.pre_norm))
    biases = [weights.has(f"{layer}.bias") for layer in there]
    if (wanted or any(biases)) and not all(biases):
        raise CheckpointError(f"{weights.path}: tensor '{there[biases.index(False)]}.bias' is missing")
    if slot == "gate" and there:
        missing = next(
            (
                x
                for x, layer in zip(layers, blueprint.shape.layers, strict=True)
                if not layer.experts and x not in there
            ),
            None,
        )
        if missing is not None:
            raise CheckpointError(f"{weights.path}: tensor '{missing}.weight' is missing")


_TABLES = ("words", "positions", "types")
_NORMS = ("embedding_norm", "after_attention", "after_feed_forward")


class _Assembly:
    def __init__(self, blueprint: Blueprint, weights: Weights) -> None:
        self._blueprint = blueprint
        self._shape = blueprint.shape
        self._names = blueprint.names
        self._weights = weights

    def encoder(self, report: ReportProgress | None) -> Encoder:
        shape, names, weights = self._shape, self._names, self._weights
        words = embedding(weights, f"{names['words']}.weight", shape.vocabulary, shape.width)
        positions = table(weights, f"{names['positions']}.weight", None, shape.width) if "positions" in names else None
        if positions is not None and positions.shape[0] < shape.position_offset + shape.context:
            raise CheckpointError(
                f"{weights.path}: tensor '{names['positions']}.weight' has {positions.shape[0]} positions, for {shape.context}"
                f" tokens from {shape.position_offset}"
            )
        types = table(weights, f"{names['types']}.weight", None, shape.width) if "types" in names else None
        blocks = []
        for index, layer in enumerate(shape.layers):
            blocks.append(self._block(index, layer))
            if report is not None:
                report((index + 1) / len(shape.layers))
        return Encoder(shape, words, positions, types, self._norm("embedding_norm"), blocks, self._norm("final_norm"))

    def _block(self, index: int, layer: Layer) -> Block:
        def norm(slot: str) -> Norm | None:
            return self._norm(slot, index)

        return Block(
            attention=self._attention(index, layer),
            feed_forward=self._mixture(index) if layer.experts else self._feed_forward(index),
            before_attention=norm("before_attention"),
            within_attention=norm("within_attention"),
            after_attention=norm("after_attention"),
            before_feed_forward=norm("before_feed_forward"),
            within_feed_forward=norm("within_feed_forward"),
            after_feed_forward=norm("after_feed_forward"),
        )

    def _attention(self, index: int, layer: Layer) -> Attention:
        shape = self._shape
        query, key = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        joined = self._name("joined", index)
        if joined is not None and (self._weights.has(f"{joined}.weight") or self._name("query", index) is None):
            projections: tuple[Linear, ...] = (self._linear("joined", index, query + 2 * key, shape.width),)
        else:
            separate = (
                self._linear("query", index, query, shape.width),
                self._linear("key", index, key, shape.width),
                self._linear("value", index, key, shape.width),
            )
            one = Linear.joined(separate, self._weights.compute)
            projections = separate if one is None else (one,)
        norms = self._query_norms(index)
        whole = norms is not None and norms[0][1] != shape.head_width
        return Attention(
            shape,
            layer,
            projections,
            self._linear("output", index, shape.width, query),
            head_norms=None if norms is None or whole else (norms[0][0], norms[1][0]),
            whole_norms=(norms[0][0], norms[1][0]) if norms is not None and whole else None,
        )

    def _query_norms(self, index: int) -> tuple[tuple[Norm, int], tuple[Norm, int]] | None:
        name = self._name("query_norm", index)
        if name is None or ("query_norm" in self._blueprint.absent and not self._weights.has(f"{name}.weight")):
            return None
        sizes = [self._size(f"{self._name(slot, index)}.weight") for slot in ("query_norm", "key_norm")]
        query, key = (
            self._norm(slot, index, size) for slot, size in zip(("query_norm", "key_norm"), sizes, strict=True)
        )
        assert query is not None and key is not None
        return (query, sizes[0]), (key, sizes[1])

    def _feed_forward(self, index: int) -> FeedForward:
        shape = self._shape
        down = self._linear("down", index, shape.width, shape.feed_forward)
        gate_up = self._name("gate_up", index)
        found = gate_up is not None and (self._weights.has(f"{gate_up}.weight") or self._name("up", index) is None)
        if found and not self._has("gate", index):
            joined = self._linear("gate_up", index, 2 * shape.feed_forward, shape.width)
            gate, up = joined.halves(self._weights.compute)
            return FeedForward(shape.activation, up, down, gate)
        gated = self._linear("gate", index, shape.feed_forward, shape.width) if self._has("gate", index) else None
        return FeedForward(shape.activation, self._linear("up", index, shape.feed_forward, shape.width), down, gated)

    def _mixture(self, index: int) -> Mixture:
        shape, count = self._shape, self._blueprint.expert_count
        activation = {"gelu": gelu, "gelu_tanh": gelu_approx, "silu": silu}[shape.activation]
        up, down = self._name("expert_up", index), self._name("expert_down", index)
        assert up is not None and down is not None
        return Mixture(
            activation,
            self._linear("router", index, count, shape.width),
            experts(self._weights, up, count, shape.feed_forward, shape.width),
            experts(self._weights, down, count, shape.width, shape.feed_forward),
            shape.experts_used,
        )

    def _norm(self, slot: str, index: int = 0, size: int | None = None) -> Norm | None:
        name = self._name(slot, index)
        if name is None or (slot in self._blueprint.absent and not self._weights.has(f"{name}.weight")):
            return None
        size = size or self._shape.width
        weight = vector(self._weights, f"{name}.weight", size)
        if self._shape.norm_offset:
            weight = weight + self._shape.norm_offset
        bias = vector(self._weights, f"{name}.bias", size) if self._weights.has(f"{name}.bias") else None
        return Norm(self._shape.norm, weight, bias, self._shape.epsilon)

    def _size(self, name: str) -> int:
        found = self._weights.shape(name)
        if len(found) != 1 or found[0] < 1:
            raise CheckpointError(f"{self._weights.path}: tensor '{name}' is {list(found)}, and no vector")
        return found[0]

    def _linear(self, slot: str, index: int, rows: int, columns: int) -> Linear:
        name = self._name(slot, index)
        if name is None:
            raise CheckpointError(f"{self._weights.path}: this architecture has no '{slot}'")
        return linear(self._weights, name, rows, columns)

    def _has(self, slot: str, index: int) -> bool:
        name = self._name(slot, index)
        return name is not None and self._weights.has(f"{name}.weight")

    def _name(self, slot: str, index: int) -> str | None:
        name = self._names.get(slot)
        return None if name is None else name.format(i=index)
