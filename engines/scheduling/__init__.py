"""Policies the batcher asks: pure objects that take numbers and return decisions, free of MLX.

``waiting`` has the order in which rows begin, ``admission`` says whether one may within the KV grant, ``cohorts`` which batch it
joins, ``deferral`` since when it has waited for memory, and ``growth`` how much more to ask for. ``pacing`` says whose turn it is,
and ``chunking`` how long a prefill chunk may be. ``governor`` watches memory run out and says who gives way; ``measured`` corrects
what KV was said to take; ``capacity`` is how many rows of which length the grant holds. ``settings`` are the operator's. How they
work together: ``docs/scheduling.md``.
"""
