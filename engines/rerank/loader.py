"""Builds the rerank engine of a checkpoint."""

from __future__ import annotations

from dataclasses import replace

from engines.encoders.hf_config import sentence_limit
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
    opened.info = replace(opened.info, context=min(opened.info.context, _most_tokens(opened)))
    return EncoderRerankEngine(opened, head, _pairs(opened), load.grant_bytes)


def _pairs(opened: Opened) -> Pairs:
    if opened.blueprint.architecture == "qwen3":
        return JudgedPairs(opened.tokenizer, opened.info.context)
    if opened.tokenizer.pair is None:
        raise UnsupportedModel(f"{opened.path}: the tokenizer does not say how two texts go together")
    return FramedPairs(opened.tokenizer, opened.tokenizer.pair, opened.info.context)


def _most_tokens(opened: Opened) -> int:
    """The longest pair that the files beside the weights allow."""
    return sentence_limit(opened.directory) or opened.info.context
