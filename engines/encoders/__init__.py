"""Transformers that read a text as a whole: what embedding models and rerankers are made of.

::

    files ──> families/       which tensor is what, and the arithmetic: one module an architecture, for GGUF and safetensors
                 │ Blueprint (shape, names)
              weights         tensors by name from either format, as leaves on the file's own blocks
                 │
              encoder         the one forward pass, with the options that the families need
                 │
    texts ──> tokenizer       ids with what the model wants around them, from tokenizer.json or GGUF metadata
                 │
              batches         which rows go together, by length and by turn (pure)
                 │
              batch_engine    the queue, the steps, memory and cancellation of a worker's engine

:mod:`engines.embeddings` and :mod:`engines.rerank` put a head on it. Why not mlx-embeddings' classes: see docs/embeddings.md.
"""
