"""The state-space layers of Mamba 2 over many tokens at once, by matrix products over chunks of them.

A state S [width, state] of each head decays, takes a token in and is read, token by token::

    S_t = g_t S_{t-1} + x_t b_t',   y_t = S_t c_t

Within a chunk that begins with S, with G_t the product of its decays up to t::

    y_t = G_t S c_t + sum over s <= t of (G_t / G_s) (b_s . c_t) x_s

mlx-lm compares 256 tokens with each other for every head, by MLX's products; smaller chunks need fewer. (Dao and Gu, Transformers
are SSMs, 2024, arXiv 2405.21060, section 6.)
"""

from __future__ import annotations

import mlx.core as mx

from engines.gguf.chunks import across, chunk_size, decays_between, in_chunks, joined, times

__all__ = ["state_space"]


def state_space(
    x: mx.array, log_decays: mx.array, into: mx.array, out_of: mx.array, state: mx.array
) -> tuple[mx.array, mx.array]:
    """What is read for each token, float32 [rows, tokens, heads, width], and the state after the last.

    ``x`` is [rows, tokens, heads, width], ``log_decays`` (float32) [rows, tokens, heads], ``into`` (b) and ``out_of`` (c)
    [rows, tokens, groups, state], each group serving neighbouring heads, ``state`` float32 [rows, heads, width, state]. A token
    whose x and log decay are 0 leaves the state alone.
    """
    rows, tokens, heads, width = x.shape
    groups = into.shape[2]
    each = heads // groups
    size = chunk_size(tokens)
    v, log_g, b, c = (in_chunks(array, size) for array in (x, log_decays, into, out_of))
    until = mx.cumsum(log_g, axis=-1)  # log G: [rows, chunks, heads, size]
    read = mx.exp(until)[..., None]
    alike = mx.repeat(across(c, b), each, axis=2)  # of neighbouring heads
    within = times(decays_between(log_g) * alike, v)
    kept = mx.exp(until[..., -1:] - until)[..., None] * v
    outs = []
    for chunk in range(v.shape[1]):
        # The heads of a group are rows of one product, since they share b and c.
        before = across(c[:, chunk], state.reshape(rows, groups, each * width, -1))
        before = before.reshape(rows, groups, size, each, width).swapaxes(2, 3).reshape(rows, heads, size, width)
        outs.append(within[:, chunk] + read[:, chunk] * before)
        added = kept[:, chunk].swapaxes(-1, -2).reshape(rows, groups, each * width, size)
        state = read[:, chunk, :, -1:] * state + times(added, b[:, chunk]).reshape(state.shape)
    return joined(outs, tokens), state
