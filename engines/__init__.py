"""How models run: checkpoints, kernels, batching and the worker process that holds one resident model.

A request's way through this package::

    gateway ──Submit frame──> worker.py ──prepare──> templates, tokenizer        (any thread)
                                 │
                                 └─submit, step──> text/engine → text/batcher → model with K-quant leaves   (device thread)
    gateway <──Events frame── worker.py <──events──┘

``interface``, ``wire``, ``errors``, ``header``, ``detect``, ``footprint``, ``inspection`` and ``scheduling`` are free of MLX
and NumPy: the gateway may import those and nothing else. The package knows nothing of HTTP.
"""
