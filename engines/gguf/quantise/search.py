"""Finding the scale (and the minimum) of a group of weights: the searches that the reference quantiser does.

A group is 16 or 32 neighbouring weights that share a scale. Groups lie in columns: float32 ``[n, groups]``, so that one
operation treats all groups at once, and a sum over a group (axis 0) adds its weights one after another in float32, as the
reference does. What comes out is therefore the reference's to the last bit, not merely as good.

There are three searches, each of which minimises a weighted error over a few candidates:

- :func:`fit_affine`: weight ≈ scale × code + minimum with codes 0 to ``top`` (Q2_K, Q4_K, Q5_K). Each candidate stretches the
  range of the codes a little, rounds the weights to codes, and solves the two-parameter least squares for these codes. A
  candidate that wins also moves the origin from which the next ones round.
- :func:`fit_signed`: weight ≈ scale × code with codes -``half`` to ``half`` - 1 (Q6_K). Each candidate rounds to codes and
  solves for the scale; the best is the one that explains most of the weighted sum of squares.
- :func:`fit_signed_by_steps`: the same for Q3_K, whose few codes are then improved one weight at a time, up to five rounds.

Source: ``make_qkx2_quants``, ``make_qx_quants`` and ``make_q3_quants`` of ggml-quants.c, without importance weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["AffineSearch", "Columns", "fit_affine", "fit_signed", "fit_signed_by_steps", "signed_extremes"]

Columns = NDArray[np.float32]
"""float32 ``[n, groups]``: a group a column."""

SMALLEST: Final = np.float32(1e-15)  # groups whose largest weight is below it are taken for zeros
ROUNDS: Final = 5


@dataclass(frozen=True)
class AffineSearch:
    """The candidates of :func:`fit_affine`: the range of codes is stretched to ``top + first + i × step``."""

    top: int  # the largest code
    first: float
    step: float
    candidates: int
    absolute: bool  # the error is that of absolute differences, not of squares


def fit_affine(x: Columns, weights: Columns, search: AffineSearch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales and minima of groups ``x``, float32 ``[groups]`` each; a minimum is subtracted, and never negative.

    ``weights`` is how much the error of each weight counts. A group of equal weights that are not positive gets scale 0.
    """
    top, first, step = (np.float32(value) for value in (search.top, search.first, search.step))
    low, high = np.minimum(x.min(axis=0), np.float32(0)), x.max(axis=0)
    sum_w, sum_x = weights.sum(axis=0), (weights * x).sum(axis=0)
    code, work = np.empty_like(x), np.empty_like(x)

    def error(scale: NDArray[np.float32], minimum: NDArray[np.float32]) -> NDArray[np.float32]:
        np.multiply(scale, code, out=work)
        np.add(work, minimum, out=work)
        np.subtract(work, x, out=work)
        if search.absolute:
            np.abs(work, out=work)
        else:
            np.multiply(work, work, out=work)
        np.multiply(work, weights, out=work)
        return np.asarray(work.sum(axis=0))

    stretch = top / (high - low)
    _round(x, low, stretch, top, code)
    scale = 1 / stretch
    best = error(scale, low)
    for candidate in range(search.candidates):
        _round(x, low, (first + step * np.float32(candidate) + top) / (high - low), top, code)
        np.multiply(weights, code, out=work)
        sum_l = work.sum(axis=0)
        sum_l2 = _sum_of_products(work, code)
        np.multiply(work, x, out=work)
        sum_xl = work.sum(axis=0)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        its_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        its_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = its_low > 0
        its_low[above] = 0
        its_scale[above] = (sum_xl / sum_l2)[above]
        its_error = error(its_scale, its_low)
        better = (determinant > 0) & (its_error < best)
        for kept, new in ((best, its_error), (scale, its_scale), (low, its_low)):
            np.copyto(kept, new, where=better)
    return scale, -low


def fit_signed(x: Columns, half: int) -> NDArray[np.float32]:
    """Scales of groups ``x``, float32 ``[groups]``, of either sign. Errors count by the square of the weight."""
    extreme = signed_extremes(x)
    w = x * x
    wx = w * x
    code, work = np.empty_like(x), np.empty_like(x)
    scale = best = np.zeros_like(extreme)
    for tenths in (0, *range(-9, 0), *range(1, 10)):
        np.multiply(x, -(np.float32(half) + np.float32(0.1) * np.float32(tenths)) / extreme, out=code)
        np.rint(code, out=code)
        np.clip(code, -half, half - 1, out=code)
        np.multiply(wx, code, out=work)
        sum_lx = work.sum(axis=0)
        np.multiply(w, code, out=work)
        np.multiply(work, code, out=work)
        sum_l2 = work.sum(axis=0)
        its_scale = np.where(sum_l2 != 0, sum_lx / sum_l2, np.float32(0))
        if tenths == 0:
            scale, best = its_scale, its_scale * sum_lx
            continue
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        np.copyto(scale, its_scale, where=better)
        np.copyto(best, its_scale * sum_lx, where=better)
    return np.where(np.abs(extreme) < SMALLEST, np.float32(0), scale)


def fit_signed_by_steps(x: Columns, half: int) -> NDArray[np.float32]:
    """As :func:`fit_signed`, from the codes of one scale, each of which then moves while that makes the fit better."""
    extreme = signed_extremes(x)
    w = x * x
    wx = w * x
    code = np.clip(np.rint(-np.float32(half) / extreme * x), -half, half - 1)
    all_lx, all_l2 = (wx * code).sum(axis=0), (w * code * code).sum(axis=0)
    groups = np.arange(len(extreme))  # those that still move
    for _ in range(ROUNDS):
        sum_lx, sum_l2 = all_lx[groups], all_l2[groups]
        moved = np.zeros(len(groups), bool)
        for i in range(len(x)):
            own_code = code[i]
            w_code = w[i] * own_code
            rest_lx = sum_lx - wx[i] * own_code
            rest_l2 = sum_l2 - w_code * own_code
            new = x[i] * rest_l2
            new /= rest_lx
            np.rint(new, out=new)
            np.clip(new, -half, half - 1, out=new)
            new_lx = rest_lx + wx[i] * new
            new_l2 = rest_l2 + w[i] * new * new
            better = (rest_lx > 0) & (new != own_code) & (new_l2 > 0)
            better &= new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2
            moved |= better
            for kept, value in ((own_code, new), (sum_lx, new_lx), (sum_l2, new_l2)):
                np.copyto(kept, value, where=better)
        all_lx[groups], all_l2[groups] = sum_lx, sum_l2
        if not moved.any():
            break
        groups = groups[moved]
        x, w, wx, code = x[:, moved], w[:, moved], wx[:, moved], code[:, moved]
    zero = (np.abs(extreme) < SMALLEST) | ~(all_l2 > 0)
    return np.where(zero, np.float32(0), all_lx / all_l2)


def signed_extremes(x: Columns) -> NDArray[np.float32]:
    """Of each group the weight that is largest in size, with its sign: float32 ``[groups]``; of two equal ones the first."""
    low, high = x.min(axis=0), x.max(axis=0)
    extreme: NDArray[np.float32] = np.where(high >= -low, high, low)
    tied = np.flatnonzero((high == -low) & (high != 0))
    if len(tied):
        columns = x[:, tied]
        extreme[tied] = columns[np.abs(columns).argmax(axis=0), np.arange(len(tied))]
    return extreme


def _round(x: Columns, low: NDArray[np.float32], stretch: NDArray[np.float32], top: np.float32, code: Columns) -> None:
    np.subtract(x, low, out=code)
    np.multiply(code, stretch, out=code)
    np.rint(code, out=code)
    np.clip(code, np.float32(0), top, out=code)


def _sum_of_products(left: Columns, right: Columns) -> NDArray[np.float32]:
    return np.asarray((left * right).sum(axis=0))
