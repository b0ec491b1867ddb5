"""Embedding models: texts to vectors.

``recipe`` reads what stands beside the weights (pooling, prompts, longest input, dimensions), ``engine`` is the
:class:`engines.interface.EmbeddingEngine` on :mod:`engines.encoders`, ``loader`` builds it.
"""

from engines.embeddings.engine import EncoderEmbeddingEngine
from engines.embeddings.loader import build

__all__ = ["EncoderEmbeddingEngine", "build"]
