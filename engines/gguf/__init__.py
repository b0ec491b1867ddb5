"""GGUF checkpoints: from tensors and metadata to a stock mlx-lm model whose weights are still the file's blocks.

::

    header (engines.header) ──> config: metadata → mlx-lm's configuration, or a refusal by key
                            ──> names, families/: tensor names → modules, one file a family
                            ──> tensors: blocks, one copy a tensor ──> layers: K-quant leaves in the stock model (model.py)
                            ──> tokenizer: vocabulary, merges, special tokens
    layers ──> qmatmul ──> kernels/: the back end for this device;  quants/: what the bits of each type mean

``writer`` makes checkpoints in the same conventions, for tests; ``quantise`` makes blocks of float weights, and of a checkpoint one
of another mix of types.
"""
