"""The gated delta rule over many tokens at once, by matrix products over chunks of them.

A state S [values, keys] of each head is decayed, corrected and read, token by token::

    S_t = g_t S_{t-1} + d_t k_t',   d_t = b_t (v_t - g_t S_{t-1} k_t),   y_t = S_t q_t

Token by token, as mlx-lm computes it where it has no Metal, a prompt of n tokens keeps n states in memory until it has been read.
Within a chunk that begins with S, with G_t the product of its decays up to t, the corrections solve a triangular system::

    d_t + sum over s < t of b_t (G_t / G_s) (k_t . k_s) d_s = b_t (v_t - G_t S k_t)

Its inverse does not depend on S, so those of all chunks are found together, row by row, which is as stable as the rule itself; then
chunk after chunk takes a few products. (Yang et al., Gated Delta Networks, 2024, arXiv 2412.06464, call this the chunkwise form.)
"""

from __future__ import annotations

import mlx.core as mx

from engines.gguf.chunks import across, chunk_size, decays_between, in_chunks, joined, times

__all__ = ["delta_rule"]


def delta_rule(
    queries: mx.array, keys: mx.array, values: mx.array, log_decays: mx.array, rates: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """What is read for each token, float32 [rows, tokens, heads, values], and the state after the last.

    ``queries`` and ``keys`` are [rows, tokens, heads, width], ``values`` [rows, tokens, heads, values], ``log_decays`` (float32)
    and ``rates`` [rows, tokens, heads], ``state`` float32 [rows, heads, values, width]. A token whose rate and log decay are 0
    leaves the state alone.
    """
    tokens = keys.shape[1]
    size = chunk_size(tokens)
    q, k, v, log_g, b = (in_chunks(array, size) for array in (queries, keys, values, log_decays, rates))
    until = mx.cumsum(log_g, axis=-1)  # log G: [rows, chunks, heads, size], as the rates; the others [..., size, width]
    read = mx.exp(until)[..., None]
    between = decays_between(log_g)  # G_t / G_s
    inverse = _inverse(mx.tril(b[..., None] * between * across(k, k), -1))
    own = times(inverse, b[..., None] * v)
    taken = times(inverse, b[..., None] * read * k)
    weights = between * across(q, k)
    kept = mx.exp(until[..., -1:] - until)[..., None] * k
    q = q * read
    outs = []
    for chunk in range(k.shape[1]):
        corrections = own[:, chunk] - across(taken[:, chunk], state)
        outs.append(across(q[:, chunk], state) + times(weights[:, chunk], corrections))
        state = read[:, chunk, :, -1:] * state + times(corrections.swapaxes(-1, -2), kept[:, chunk])
    return joined(outs, tokens), state


def _inverse(lower: mx.array) -> mx.array:
    """The inverse of the identity plus ``lower`` [..., n, n], which is zero on and above its diagonal, by forward substitution."""
    size = lower.shape[-1]
    identity = mx.eye(size)
    inverse = mx.broadcast_to(identity[:1], (*lower.shape[:-2], 1, size))
    for row in range(1, size):
        inverse = mx.concatenate([inverse, identity[row] - lower[..., row : row + 1, :row] @ inverse], axis=-2)
    return inverse
