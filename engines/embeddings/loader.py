"""Builds the embedding engine of a checkpoint."""

from __future__ import annotations

from engines.embeddings.engine import EncoderEmbeddingEngine, Head
from engines.embeddings.recipe import Dense, Recipe, gguf_recipe, hf_recipe
from engines.encoders.loading import Opened, open_checkpoint
from engines.encoders.weights import Weights, linear, row_count, weights_of
from engines.errors import CheckpointError
from engines.header import GgufHeader, read_safetensors_header
from engines.interface import ReportProgress
from engines.wire import LoadModel

__all__ = ["build"]


def build(load: LoadModel, report: ReportProgress) -> EncoderEmbeddingEngine:
    """The engine of ``load.spec``, on the calling thread, which must make every later call but ``prepare``.

    CheckpointError and UnsupportedModel say which file and what in it.
    """
    opened = open_checkpoint(load, report)
    recipe = _recipe(opened)
    heads = _heads(opened, recipe)
    opened.finish()
    engine = EncoderEmbeddingEngine(opened, recipe, heads, load.grant_bytes)
    engine.warm_up(report)
    return engine


def _recipe(opened: Opened) -> Recipe:
    if isinstance(opened.header, GgufHeader):
        return gguf_recipe(opened.header)
    assert opened.directory is not None and opened.config is not None
    return hf_recipe(opened.directory, opened.config, opened.blueprint.architecture)


def _heads(opened: Opened, recipe: Recipe) -> list[Head]:
    heads: list[Head] = []
    columns = opened.blueprint.shape.width
    for dense in recipe.dense:
        weights = _weights(opened, dense)
        rows = row_count(weights, f"{dense.name}.weight", columns)
        heads.append((linear(weights, dense.name, rows, columns, biased=dense.biased), dense.activation))
        if dense.rows not in (None, rows):
            raise CheckpointError(
                f"{weights.path}: tensor '{dense.name}.weight' has {rows} rows, out_features is {dense.rows}"
            )
        left = weights.left() if dense.directory is not None else []
        if left:
            raise CheckpointError(f"{weights.path}: tensor '{left[0]}' has no place in this architecture")
        columns = rows
    return heads


def _weights(opened: Opened, dense: Dense) -> Weights:
    if dense.directory is None:
        return opened.weights
    return weights_of(read_safetensors_header(dense.directory), opened.weights.compute)
