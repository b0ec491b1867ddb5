"""Builds the rerank engine of a checkpoint."""

from __future__ import annotations

from engines.encoders.loading import Opened, open_checkpoint
from engines.errors import UnsupportedModel
from engines.interface import ReportProgress
from engines.rerank.engine import EncoderRerankEngine
from engines.rerank.heads import classifier_of
from engines.rerank.pairs import FramedPairs, JudgedPairs, Pairs
from engines.wire import LoadModel

__all__ = ["build"]


def build(load: LoadModel, report: ReportProgress) -> EncoderRerankEngine:
    """The engine of ``load.spec``, on the calling thread, which must make every later call but ``prepare``.

    CheckpointError and UnsupportedModel say which file and what in it.
    """
    opened = open_checkpoint(load, report)
    head = classifier_of(opened)
    opened.finish()
    engine = EncoderRerankEngine(opened, head, _pairs(opened), load.grant_bytes)
    engine.warm_up(report)
    return engine


def _pairs(opened: Opened) -> Pairs:
    if opened.blueprint.architecture == "qwen3":
        return _checked(opened, JudgedPairs(opened.tokenizer, opened.info.context))
    if opened.tokenizer.pair is None:
        raise UnsupportedModel(f"{opened.path}: the tokenizer does not say how two texts go together")
    return _checked(opened, FramedPairs(opened.tokenizer, opened.tokenizer.pair, opened.info.context))


def _checked(opened: Opened, pairs: FramedPairs | JudgedPairs) -> Pairs:
    """UnsupportedModel where a pair could have no token at all, or never fits."""
    if not 0 < pairs.around < opened.info.context:
        raise UnsupportedModel(
            f"{opened.path}: {pairs.around} tokens go around a pair of texts, and it may have {opened.info.context}"
        )
    return pairs
