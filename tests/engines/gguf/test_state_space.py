"""State-space layers by chunks against themselves token by token."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf import chunks
from engines.gguf.state_space import state_space


def arguments(tokens: int, *, decay: float = 0.5) -> list[mx.array]:
    """Two rows, six heads of two groups."""
    generator = np.random.default_rng(tokens)
    shapes = ((2, tokens, 6, 5), (2, tokens, 6), (2, tokens, 2, 4), (2, tokens, 2, 4), (2, 6, 5, 4))
    x, log_decays, into, out_of, state = (generator.standard_normal(shape) for shape in shapes)
    return [mx.array(each.astype(np.float32)) for each in (x, -decay * np.abs(log_decays), into, out_of, state)]


def token_by_token(given: list[mx.array]) -> tuple[np.ndarray, np.ndarray]:
    """The definition, in float64."""
    x, log_decays, into, out_of, state = (np.array(each, np.float64) for each in given)
    into, out_of = (np.repeat(each, 3, axis=2) for each in (into, out_of))
    outs = []
    for t in range(x.shape[1]):
        state = state * np.exp(log_decays[:, t])[..., None, None] + x[:, t][..., None] * into[:, t][..., None, :]
        outs.append(np.einsum("rhws,rhs->rhw", state, out_of[:, t]))
    return np.stack(outs, axis=1), state


@pytest.mark.parametrize("chunk", [16, 64])
@pytest.mark.parametrize(("tokens", "decay"), [(1, 0.5), (15, 0.5), (16, 0.5), (17, 0.5), (70, 0.5), (70, 50.0)])
def test_chunks_equal_token_by_token(tokens: int, decay: float, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_CPU_CHUNK", chunk)
    given = arguments(tokens, decay=decay)
    out, state = state_space(*given)
    wanted, wanted_state = token_by_token(given)
    np.testing.assert_allclose(np.array(out), wanted, atol=5e-5)
    np.testing.assert_allclose(np.array(state), wanted_state, atol=5e-5)


def test_tokens_without_input_and_decay_leave_the_state_alone() -> None:
    x, log_decays, into, out_of, state = arguments(20)
    hidden = mx.arange(20)[None, :, None] >= 13
    _, after = state_space(mx.where(hidden[..., None], 0, x), mx.where(hidden, 0, log_decays), into, out_of, state)
    first = slice(0, 13)
    _, wanted = state_space(x[:, first], log_decays[:, first], into[:, first], out_of[:, first], state)
    assert mx.abs(after - wanted).max() < 1e-5
