"""Which batch a row joins."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scheduling.admission import Decision, KvAdmission, KvCost
from engines.scheduling.cohorts import MOST_COHORTS, Placement, mergeable, padding_bytes, place

COST = KvCost(1)  # so that bytes are tokens
ADMIT, WAIT, GROW = Decision.ADMIT, Decision.WAIT, Decision.GROW


def test_padding_is_what_the_longest_row_costs_the_others() -> None:
    assert padding_bytes(COST, [2048, *[128] * 7]) == 7 * (2048 - 256)
    assert padding_bytes(COST, [200, 256]) == 0
    assert padding_bytes(KvCost(0, 5, 256), [2048, 256]) == 0  # windows are no longer than themselves


@pytest.mark.parametrize(
    ("row", "cohorts", "grant", "pass_bytes", "placement"),
    [
        (2048, [], None, None, Placement(ADMIT, 0)),
        (2048, [], 2048, None, Placement(ADMIT, 0)),
        (2049, [], 2048, None, Placement(GROW, 0)),
        (2048, [[256] * 7], None, None, Placement(ADMIT, 0)),  # a pass may cost anything
        (2048, [[256] * 7], None, 12544, Placement(ADMIT, 0)),  # 7 × (2048 − 256) bytes of padding: as much as a pass
        (2048, [[256] * 7], None, 12543, Placement(ADMIT, 1)),
        (256, [[2048], [512]], None, 256, Placement(ADMIT, 1)),
        (256, [[2048], [512]], None, 255, Placement(ADMIT, 2)),
        (2048, [[256] * 7], 16384, 0, Placement(ADMIT, 1)),
        (2048, [[256] * 7], 8 * 2048 - 1, None, Placement(ADMIT, 1)),  # together they would not fit
        (2048, [[256] * 7], 2048 + 7 * 256 - 1, None, Placement(WAIT, 0)),
        (4096, [[256]], 2048, 0, Placement(GROW, 0)),
        (256, [[4096]] * MOST_COHORTS, 2 * MOST_COHORTS * 4096, 0, Placement(ADMIT, 0)),  # no more passes
    ],
)
def test_a_row_goes_where_it_wastes_less_than_a_pass(
    row: int, cohorts: list[list[int]], grant: int | None, pass_bytes: int | None, placement: Placement
) -> None:
    assert place(KvAdmission(COST, grant), row, cohorts, pass_bytes=pass_bytes) == placement


def test_what_others_hold_counts() -> None:
    admission = KvAdmission(COST, 1024)
    assert place(admission, 512, [[512]], beside=0).decision is ADMIT
    assert place(admission, 512, [[512]], beside=1).decision is WAIT
    assert place(admission, 1024, [], beside=1).decision is WAIT


@pytest.mark.parametrize(
    ("cohorts", "grant", "pass_bytes", "pair"),
    [
        ([[256]], None, 10**6, None),
        ([[2048], [256] * 7], None, 2 * 12544, (0, 1)),
        ([[2048], [256] * 7], None, 2 * 12544 - 2, None),
        ([[2048], [256] * 7], 8 * 2048 - 1, 10**6, None),
        ([[4096], [256], [512, 512]], None, 512, (1, 2)),
        ([[512], [300]], None, None, (0, 1)),  # no padding: no reason for two passes
    ],
)
def test_cohorts_that_have_come_near_each_other_are_joined(
    cohorts: list[list[int]], grant: int | None, pass_bytes: int | None, pair: tuple[int, int] | None
) -> None:
    assert mergeable(KvAdmission(COST, grant), cohorts, pass_bytes=pass_bytes) == pair


@settings(max_examples=80)
@given(
    rows=st.lists(st.integers(1, 5000), min_size=1, max_size=12),
    grant=st.integers(256, 60000),
    pass_bytes=st.one_of(st.none(), st.integers(0, 20000)),
)
def test_rows_placed_one_by_one_fit_waste_little_and_do_not_flap(
    rows: list[int], grant: int, pass_bytes: int | None
) -> None:
    admission = KvAdmission(KvCost(1, layer_bytes_per_token=1), grant)
    cohorts: list[list[int]] = []
    for row in rows:
        decision, index = place(admission, row, cohorts, pass_bytes=pass_bytes)
        before = [list(cohort) for cohort in cohorts]
        if decision is not ADMIT:
            assert (decision is GROW) == (not admission.fits([row]))
            continue
        if index == len(cohorts):
            cohorts.append([])
        cohorts[index].append(row)
        assert admission.fits_cohorts(cohorts) and len(cohorts) <= MOST_COHORTS
        if len(cohorts[index]) == 1 and before and pass_bytes is not None:  # a new one, for its padding or for memory
            pair = mergeable(admission, cohorts, pass_bytes=pass_bytes)
            assert pair is None or len(cohorts) - 1 not in pair or mergeable(admission, before, pass_bytes=pass_bytes)
