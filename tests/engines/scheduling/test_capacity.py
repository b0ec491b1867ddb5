"""What a grant holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scheduling.admission import KvAdmission, KvCost
from engines.scheduling.capacity import CAPACITY_ROWS, WORTHWHILE_TOKENS, Depth, decode_width, depths, queue_cap


def test_depths_halve_as_rows_double() -> None:
    assert depths(KvCost(100), 100 * 8192, 32768) == (
        Depth(1, 8192),
        Depth(2, 4096),
        Depth(4, 2048),
        Depth(8, 1024),
        Depth(16, 512),
        Depth(32, 256),
    )


def test_depths_end_at_the_context_and_at_nothing() -> None:
    assert [depth.tokens for depth in depths(KvCost(100), 100 * 1024, 1000)] == [1000, 512, 256, 0, 0, 0]
    assert {depth.tokens for depth in depths(KvCost(100), None, 4096)} == {4096}


def test_the_copy_counts_only_in_company() -> None:
    cost = KvCost(100, layer_bytes_per_token=25)
    assert depths(cost, 100 * 4096, 8192)[:2] == (Depth(1, 4096), Depth(2, 1536))


@pytest.mark.parametrize(
    ("grant", "context", "most", "width"),
    [
        (None, 8192, 12, 12),
        (100 * WORTHWHILE_TOKENS * 5, 8192, 12, 5),
        (100 * WORTHWHILE_TOKENS * 5 - 1, 8192, 12, 4),
        (100 * 512 * 5, 512, 12, 5),  # the model has no more context
        (0, 8192, 12, 1),
        (100 * WORTHWHILE_TOKENS * 5, 8192, 1, 1),
    ],
)
def test_width_is_of_rows_that_are_worth_it(grant: int | None, context: int, most: int, width: int) -> None:
    assert decode_width(KvCost(100), grant, context, most) == width


def test_as_many_requests_queue_as_two_batches() -> None:
    assert [queue_cap(width) for width in (1, 8, 9, 32)] == [16, 16, 18, 64]


@settings(max_examples=60)
@given(
    cost=st.builds(
        KvCost,
        st.integers(0, 50),
        st.integers(0, 50),
        st.sampled_from([0, 300, 512]),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    grant=st.integers(0, 10**6),
    context=st.integers(1, 40000),
)
def test_depths_fit_and_a_token_more_does_not(cost: KvCost, grant: int, context: int) -> None:
    admission = KvAdmission(cost, grant)
    found = depths(cost, grant, context)
    assert [depth.rows for depth in found] == list(CAPACITY_ROWS)
    for rows, tokens in found:
        assert 0 <= tokens <= context
        assert tokens == 0 or admission.fits([tokens] * rows)
        assert tokens == context or not admission.fits([tokens + 1] * rows)
