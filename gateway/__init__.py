"""The gateway: HTTP in front, models behind, and the decision who is in memory.

::

    cli ──> app, server ──> middleware ──> routes ──> protocols (parse) ──> classify ──> registry
                                             └──> residency: lease ──> worker process ──> events
                                             └──> leased_response ──> protocols (render) ──> client

It imports no MLX, NumPy or transformers: those live in worker processes (``engines``). Imports run one way; a test holds
them to it.
"""
