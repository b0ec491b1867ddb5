"""Chunks fitted to the time they take, on modelled devices."""

from __future__ import annotations

import pytest

from engines.scheduling.pacing import FIRST_CHUNK, LARGEST_CHUNK, LIMIT_S, TARGET_S, Pacer


def settle(pacer: Pacer, fixed_s: float, token_s: float, chunks: int = 40) -> list[float]:
    """How long each chunk lasts on a device that needs so long for a pass and for each token."""
    seconds = []
    for _ in range(chunks):
        seconds.append(fixed_s + token_s * pacer.chunk_tokens)
        pacer.observe(pacer.chunk_tokens, seconds[-1])
    return seconds


@pytest.mark.parametrize(
    ("fixed_s", "token_s"),
    [(0.0, 0.11), (0.0, 0.01), (0.05, 0.002), (0.3, 0.02), (0.54, 0.05), (0.001, 0.0005), (0.8, 0.01)],
)
def test_a_chunk_comes_to_last_about_the_target_and_never_above_a_second(fixed_s: float, token_s: float) -> None:
    seconds = settle(Pacer(), fixed_s, token_s)
    assert max(seconds) <= LIMIT_S
    assert seconds[-1] > 0.6 * TARGET_S


def test_a_fast_device_soon_takes_the_largest_chunk() -> None:
    pacer = Pacer()
    settle(pacer, 0.001, 0.00001, chunks=6)
    assert pacer.chunk_tokens == LARGEST_CHUNK


def test_where_a_single_pass_is_too_long_chunks_still_share_it() -> None:
    """Three seconds a pass: chunks of one token would read nothing, and would not be shorter."""
    pacer = Pacer()
    seconds = settle(pacer, 3.0, 0.01)
    assert pacer.chunk_tokens > 50
    assert max(seconds) < 4.0


def test_attention_over_a_long_context_shrinks_the_chunk_again() -> None:
    pacer = Pacer()
    settle(pacer, 0.01, 0.001)
    before = pacer.chunk_tokens
    settle(pacer, 0.01, 0.01)
    assert pacer.chunk_tokens < before / 5


def test_a_short_last_chunk_of_a_prompt_does_not_shrink_the_next() -> None:
    pacer = Pacer()
    settle(pacer, 0.01, 0.001)
    before = pacer.chunk_tokens
    pacer.observe(1, 0.011)
    assert pacer.chunk_tokens == before


def test_a_time_of_zero_is_taken() -> None:
    pacer = Pacer()
    pacer.observe(pacer.chunk_tokens, 0.0)
    assert pacer.chunk_tokens > 1


def test_turns_alternate_while_both_have_work() -> None:
    pacer = Pacer()
    assert [pacer.turn(prefilling=True, decoding=True) for _ in range(4)] == ["prefill", "decode", "prefill", "decode"]
    assert [pacer.turn(prefilling=True, decoding=False) for _ in range(2)] == ["prefill", "prefill"]
    assert [pacer.turn(prefilling=False, decoding=True) for _ in range(2)] == ["decode", "decode"]


@pytest.mark.parametrize(("fixed_s", "tokens"), [(0.5, 40), (0.69, 40), (0.9, FIRST_CHUNK), (2.0, 40)])
def test_a_device_that_others_take_from_us_does_not_read_token_by_token(fixed_s: float, tokens: int) -> None:
    """A pass was short once, and is long now however few its tokens: what it costs is shared by many all the same."""
    pacer = Pacer()
    settle(pacer, 0.01, 0.02)
    seconds = settle(pacer, fixed_s, 0.002, chunks=80)
    assert pacer.chunk_tokens >= tokens
    assert max(seconds[1:]) <= max(LIMIT_S, 1.3 * fixed_s)
    pacer.observe(1, 0.03)
    assert max(settle(pacer, 0.01, 0.02)[1:]) <= LIMIT_S


def test_one_pass_that_was_held_up_does_not_make_chunks_long() -> None:
    pacer = Pacer()
    settle(pacer, 0.01, 0.02)
    pacer.observe(1, 30.0)
    assert max(settle(pacer, 0.01, 0.02)) <= LIMIT_S
