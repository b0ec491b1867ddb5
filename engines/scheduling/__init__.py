"""Policies the batcher asks: pure objects that take numbers and return decisions, free of MLX.

``admission`` says whether a row may start within the KV grant, ``growth`` how much more to ask for where it may not; ``pacing``
says whose turn it is and how long a prefill chunk may be.
"""
