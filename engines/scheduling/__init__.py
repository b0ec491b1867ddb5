"""Policies the batcher asks: pure objects that take numbers and return decisions, free of MLX.

``admission`` says whether a row may start within the KV grant; ``pacing`` says whose turn it is and how long a prefill chunk
may be.
"""
