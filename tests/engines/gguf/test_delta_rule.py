"""The delta rule by chunks against itself token by token."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf import chunks
from engines.gguf.delta_rule import delta_rule


def arguments(tokens: int, *, alike: bool = False, decay: float = 0.3) -> list[mx.array]:
    """Two rows, three heads; ``alike``: every token has the same key, so that every correction depends on all before."""
    generator = np.random.default_rng(tokens)
    q, k = generator.standard_normal((2, 2, tokens, 3, 8))
    if alike:
        k[:] = k[:, :1]
    q, k = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (q, k))
    v = generator.standard_normal((2, tokens, 3, 5))
    log_decays = -decay * generator.random((2, tokens, 3))
    rates = generator.random((2, tokens, 3))
    state = generator.standard_normal((2, 3, 5, 8))
    return [mx.array(each.astype(np.float32)) for each in (q, k, v, log_decays, rates, state)]


def token_by_token(given: list[mx.array]) -> tuple[np.ndarray, np.ndarray]:
    """The definition, in float64."""
    q, k, v, log_decays, rates, state = (np.array(each, np.float64) for each in given)
    outs = []
    for t in range(q.shape[1]):
        state = state * np.exp(log_decays[:, t])[..., None, None]
        correction = (v[:, t] - np.einsum("rhvk,rhk->rhv", state, k[:, t])) * rates[:, t][..., None]
        state = state + correction[..., None] * k[:, t][..., None, :]
        outs.append(np.einsum("rhvk,rhk->rhv", state, q[:, t]))
    return np.stack(outs, axis=1), state


@pytest.mark.parametrize("chunk", [16, 32, 64])
@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 70])
def test_chunks_equal_token_by_token(tokens: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_CPU_CHUNK", chunk)
    given = arguments(tokens)
    out, state = delta_rule(*given)
    wanted, wanted_state = token_by_token(given)
    np.testing.assert_allclose(np.array(out), wanted, atol=2e-5)
    np.testing.assert_allclose(np.array(state), wanted_state, atol=2e-5)


def test_a_text_that_repeats_itself_is_as_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Powers of its system would overflow what float32 can cancel."""
    monkeypatch.setattr(chunks, "_CPU_CHUNK", 64)
    given = arguments(128, alike=True, decay=1e-4)
    wanted, wanted_state = token_by_token(given)
    out, state = delta_rule(*given)
    np.testing.assert_allclose(np.array(out), wanted, atol=2e-5)
    np.testing.assert_allclose(np.array(state), wanted_state, atol=2e-5)


def test_strong_decays_do_not_overflow() -> None:
    given = arguments(40, decay=60.0)
    out, state = delta_rule(*given)
    wanted, wanted_state = token_by_token(given)
    np.testing.assert_allclose(np.array(out), wanted, atol=2e-5)
    np.testing.assert_allclose(np.array(state), wanted_state, atol=2e-5)


def test_tokens_without_rate_and_decay_leave_the_state_alone() -> None:
    q, k, v, log_decays, rates, state = arguments(20)
    hidden = mx.arange(20)[None, :, None] >= 13
    log_decays, rates = (mx.where(hidden, 0, each) for each in (log_decays, rates))
    _, after = delta_rule(q, k, v, log_decays, rates, state)
    first = slice(0, 13)
    _, wanted = delta_rule(q[:, first], k[:, first], v[:, first], log_decays[:, first], rates[:, first], state)
    assert mx.abs(after - wanted).max() < 1e-5
