"""Rerankers: how well documents answer a query.

``pairs`` makes a row of tokens of a query and a document, ``heads`` reads the model's last layer off, ``engine`` is the
:class:`engines.interface.RerankEngine` on :mod:`engines.encoders`, ``loader`` builds it.
"""

from engines.rerank.engine import EncoderRerankEngine
from engines.rerank.loader import build

__all__ = ["EncoderRerankEngine", "build"]
