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

from engines.gguf.kernels import backend
from engines.gguf.kernels.gathering import HeadsBackend
from engines.gguf.quants import quant_type

__all__ = ["delta_rule"]

_CPU_CHUNK = 32  # tokens
_GPU_CHUNK = 64
_FLOATS = quant_type("F32")


def delta_rule(
    queries: mx.array, keys: mx.array, values: mx.array, log_decays: mx.array, rates: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """What is read for each token, float32 [rows, tokens, heads, values], and the state after the last.

    ``queries`` and ``keys`` are [rows, tokens, heads, width], ``values`` [rows, tokens, heads, values], ``log_decays`` (float32)
    and ``rates`` [rows, tokens, heads], ``state`` float32 [rows, heads, values, width]. A token whose rate and log decay are 0
    leaves the state alone.
    """
    tokens = keys.shape[1]
    size = min(tokens, _CPU_CHUNK if mx.default_device() == mx.cpu else _GPU_CHUNK)
    q, k, v, log_g, b = (_chunks(array, size) for array in (queries, keys, values, log_decays, rates))
    until = mx.cumsum(log_g, axis=-1)  # log G: [rows, chunks, heads, size], as the rates; the others [..., size, width]
    read = mx.exp(until)[..., None]
    seen = mx.tri(size, dtype=mx.bool_)
    between = mx.exp(
        mx.where(seen, until[..., :, None] - until[..., None, :], -mx.inf)
    )  # G_t / G_s, 0 for what is to come
    inverse = _inverse(mx.tril(b[..., None] * between * _across(k, k), -1))
    own = _times(inverse, b[..., None] * v)
    taken = _times(inverse, b[..., None] * read * k)
    weights = between * _across(q, k)
    kept = mx.exp(until[..., -1:] - until)[..., None] * k
    q = q * read
    outs = []
    for chunk in range(k.shape[1]):
        corrections = own[:, chunk] - _across(taken[:, chunk], state)
        outs.append(_across(q[:, chunk], state) + _times(weights[:, chunk], corrections))
        state = read[:, chunk, :, -1:] * state + _times(corrections.swapaxes(-1, -2), kept[:, chunk])
    out = mx.stack(outs, axis=1).swapaxes(2, 3)
    return out.reshape(out.shape[0], -1, *out.shape[3:])[:, :tokens], state


def _chunks(array: mx.array, size: int) -> mx.array:
    """[rows, tokens, heads, …] to float32 [rows, chunks, heads, size, …], with zeros behind the last token."""
    rows, tokens, *rest = array.shape
    missing = -tokens % size
    padded = mx.pad(array.astype(mx.float32), [(0, 0), (0, missing), *((0, 0) for _ in rest)])
    return padded.reshape(rows, -1, size, *rest).swapaxes(2, 3)


def _across(a: mx.array, b: mx.array) -> mx.array:
    """[..., m, k] and [..., n, k] to [..., m, n]: rows times rows. Float32."""
    return _compiled(a, b, transpose=True) if backend().name == "cpu" else a @ b.swapaxes(-1, -2)


def _times(a: mx.array, b: mx.array) -> mx.array:
    """[..., m, k] and [..., k, n] to [..., m, n]. Float32."""
    return _compiled(a, b, transpose=False) if backend().name == "cpu" else a @ b


def _compiled(a: mx.array, b: mx.array, *, transpose: bool) -> mx.array:
    """By the compiled kernels' product of heads, which is ten times as fast as MLX's of float32 on a CPU."""
    chosen = backend()
    assert isinstance(chosen, HeadsBackend)
    heads = mx.contiguous(b.reshape(-1, *b.shape[-2:])).view(mx.uint8)
    out = chosen.multiply_heads(a.reshape(-1, *a.shape[-2:]), heads, _FLOATS, transpose)
    return out.reshape(*a.shape[:-1], -1)


def _inverse(lower: mx.array) -> mx.array:
    """The inverse of the identity plus ``lower`` [..., n, n], which is zero on and above its diagonal, by forward substitution."""
    size = lower.shape[-1]
    identity = mx.eye(size)
    inverse = mx.broadcast_to(identity[:1], (*lower.shape[:-2], 1, size))
    for row in range(1, size):
        inverse = mx.concatenate([inverse, identity[row] - lower[..., row : row + 1, :row] @ inverse], axis=-2)
    return inverse
