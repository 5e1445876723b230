"""Compiled passes over stored rows (numba, the extra ``fast``): score, slope, clip and sum of a
block in the cache.

Imported by ``dpcore.objective.fused`` alone. No look-up is checked for bounds: codes, fractions,
indices and shapes are checked where rows are made. Sums are float64. The clip is a comparison that
NaN fails, and a slope that is no number counts as 0. Every chunk of rows has sums of its own,
whichever thread made them.
"""

# mypy: ignore-errors

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dpcore.objective import compiled

if compiled.cache_folder is not None:
    numba.config.CACHE_DIR = str(compiled.cache_folder)

KEPT = {"nogil": True, "cache": compiled.cache_folder is not None, "error_model": "numpy"}
# What Python calls, and parts of it, which need no entry from Python: it takes longer to compile
# than most of them.
jit: Any = numba.njit(**KEPT, no_cfunc_wrapper=True)
INNER = {**KEPT, "no_cfunc_wrapper": True, "no_cpython_wrapper": True}
part: Any = numba.njit(**INNER)
# Products are added without a rounding in between (contract), and a score in several sums at once
# (reassoc): neither depends on the place of a row or on how many threads there are.
fused: Any = numba.njit(**INNER, fastmath={"contract"})
lanes: Any = numba.njit(**INNER, fastmath={"reassoc", "contract"})

Array = np.ndarray

# Rows of a block: some arrays of this length and the tables of a coded table stay in the
# first-level cache.
BLOCK = 1024
LOG2E, LN2_HIGH, LN2_LOW = (
    1.4426950408889634,
    6.93147180369123816490e-01,
    1.90821492927058770002e-10,
)
C2, C3, C4, C5, C6, C7 = 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040
C8, C9, C10, C11, C12, C13 = (1 / math.factorial(k) for k in range(8, 14))
LOGISTIC, HINGE, HUBER_HINGE, SIGMOID, SQUARED, HUBER = range(6)


@intrinsic
def _as_double(context, bits):
    """The number whose bits these are."""

    def made(target, builder, signature, given):
        return builder.bitcast(given[0], ir.DoubleType())

    return types.float64(types.int64), made


@fused
def decay(t):
    """exp(-|t|), to some units in the last place: a polynomial on [-ln2 / 2, ln2 / 2], times a
    power of two.
    """
    x = max(-abs(t), -700.0)
    k = np.floor(x * LOG2E + 0.5)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    p = C13
    p = p * r + C12
    p = p * r + C11
    p = p * r + C10
    p = p * r + C9
    p = p * r + C8
    p = p * r + C7
    p = p * r + C6
    p = p * r + C5
    p = p * r + C4
    p = p * r + C3
    p = p * r + C2
    p = p * r + 1.0
    return (p * r + 1.0) * _as_double((np.int64(k) + 1023) << 52)


@fused
def _log1p(e):
    """log(1 + e) of e in [0, 1]: 2 artanh(s), s = e / (2 + e) <= 1/3."""
    s = e / (2.0 + e)
    q = s * s
    p = 1.0 / 35.0
    p = p * q + 1.0 / 33.0
    p = p * q + 1.0 / 31.0
    p = p * q + 1.0 / 29.0
    p = p * q + 1.0 / 27.0
    p = p * q + 1.0 / 25.0
    p = p * q + 1.0 / 23.0
    p = p * q + 1.0 / 21.0
    p = p * q + 1.0 / 19.0
    p = p * q + 1.0 / 17.0
    p = p * q + 1.0 / 15.0
    p = p * q + 1.0 / 13.0
    p = p * q + 1.0 / 11.0
    p = p * q + 1.0 / 9.0
    p = p * q + 1.0 / 7.0
    p = p * q + 1.0 / 5.0
    p = p * q + 1.0 / 3.0
    return 2.0 * s * (p * q + 1.0)


@part
def _argument(z, y, loss):
    """Scores become margins or residuals, in place."""
    if loss < SQUARED:
        for i in range(len(z)):
            z[i] *= y[i]
    else:
        for i in range(len(z)):
            z[i] -= y[i]


@part
def _weigh(c, y, up, down):
    if up != 1.0 or down != 1.0:
        for i in range(len(c)):
            c[i] *= up if y[i] > 0.0 else down


@fused
def slopes_at(z, y, loss, h, up, down):
    """Slopes in the score in place of scores ``z``; ``up``, ``down``: class weights."""
    if loss == LOGISTIC:
        for i in range(len(z)):
            margin = z[i] * y[i]
            e = decay(margin)
            top = e if margin >= 0.0 else 1.0
            z[i] = -y[i] * top / (1.0 + e) if margin == margin else 0.0
        _weigh(z, y, up, down)
        return
    _argument(z, y, loss)
    if loss == SIGMOID:
        for i in range(len(z)):
            e = decay(z[i])
            z[i] = -y[i] * e / ((1.0 + e) * (1.0 + e)) if z[i] == z[i] else 0.0
    elif loss == HINGE:
        for i in range(len(z)):
            z[i] = -y[i] if z[i] < 1.0 else 0.0
    elif loss == HUBER_HINGE:
        for i in range(len(z)):
            z[i] = -y[i] * min(max((1.0 + h - z[i]) / (2.0 * h), 0.0), 1.0) if z[i] == z[i] else 0.0
    elif loss == HUBER:
        for i in range(len(z)):
            z[i] = min(max(z[i], -h), h) if z[i] == z[i] else 0.0
    else:
        for i in range(len(z)):
            z[i] = z[i] if z[i] == z[i] else 0.0
    _weigh(z, y, up, down)


@part
def clip_slopes(c, norms, clip):
    """c_i to +-clip / ||x_i||, for norms that are never too small."""
    if clip == math.inf:
        return
    for i in range(len(c)):
        bound = clip / max(norms[i], 1e-300)
        c[i] = min(max(c[i], -bound), bound)


@part
def sum_of(z):
    """Four sums side by side, so that none waits for the one before it."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = len(z) - len(z) % 4
    for i in range(0, whole, 4):
        a += z[i]
        b += z[i + 1]
        c += z[i + 2]
        d += z[i + 3]
    for i in range(whole, len(z)):
        a += z[i]
    return (a + b) + (c + d)


@fused
def values_at(z, y, loss, h, up, down, clip):
    """Sum of the losses at scores ``z``, each cut to [0, clip]; what is no number counts as
    clip.
    """
    _argument(z, y, loss)
    if loss == LOGISTIC:
        for i in range(len(z)):
            z[i] = max(-z[i], 0.0) + _log1p(decay(z[i])) if z[i] == z[i] else math.inf
    elif loss == SIGMOID:
        for i in range(len(z)):
            e = decay(z[i])
            z[i] = (e if z[i] >= 0.0 else 1.0) / (1.0 + e) if z[i] == z[i] else math.inf
    elif loss == HINGE:
        for i in range(len(z)):
            z[i] = max(0.0, 1.0 - z[i]) if z[i] == z[i] else math.inf
    elif loss == HUBER_HINGE:
        for i in range(len(z)):
            gap = min(max(1.0 + h - z[i], 0.0), 2.0 * h)
            z[i] = gap * gap / (4.0 * h) + max(0.0, 1.0 - h - z[i]) if z[i] == z[i] else math.inf
    elif loss == HUBER:
        for i in range(len(z)):
            inner = min(abs(z[i]), h)
            z[i] = inner * (abs(z[i]) - inner / 2.0) if z[i] == z[i] else math.inf
    else:
        for i in range(len(z)):
            z[i] = z[i] * z[i] / 2.0 if z[i] == z[i] else math.inf
    for i in range(len(z)):
        z[i] = min(z[i] * (up if y[i] > 0.0 else down), clip)
    return sum_of(z)


# Sparse rows (CSR), with unsigned indices and places: signed ones would be tested for being below
# zero, which takes half of a pass.


@fused
def _score(data, indices, first, last, w):
    score = 0.0
    for j in range(np.uint64(first), np.uint64(last)):
        score += np.float64(data[j]) * w[indices[j]]
    return score


@fused
def _spread(total, data, indices, first, last, c):
    for j in range(np.uint64(first), np.uint64(last)):
        total[indices[j]] += np.float64(data[j]) * c


# Rows are asked of the memory some rows ahead. It saves a third of a pass over those of a batch,
# which lie far from each other, and a fifteenth of one over all. It is a hint alone, and reads
# nothing.
AHEAD = 16


@intrinsic
def _fetch(context, array, place):
    """Ask for the line of the cache with ``array[place]``."""

    def made(target, builder, signature, given):
        kind = signature.args[0]
        held = target.make_array(kind)(target, builder, given[0])
        spot = cgutils.get_item_pointer(target, builder, kind, held, [given[1]], wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        call = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        )
        builder.call(call, [builder.bitcast(spot, byte), word(0), word(3), word(1)])
        return target.get_dummy_value()

    return types.void(array, place), made


@jit
def csr_gradient(data, indices, ends, rows, norms, y, begin, end, w, middle, loss, h, up, down,
                 clip, total):  # fmt: skip
    """Adds the clipped gradients of rows ``begin`` to ``end``, or of ``rows[begin:end]`` where any
    are picked, to ``total`` (d,); returns the sum of the slopes. Norms and labels are those of the
    rows that are summed.
    """
    z, mass = np.empty(BLOCK), 0.0
    from_, to = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    for s in range(begin, end, BLOCK):
        t = min(s + BLOCK, end)
        m = t - s
        zs, first, last = z[:m], ends[s:t], ends[s + 1 : t + 1]
        if len(rows) > 0:
            first, last = from_[:m], to[:m]
            for i in range(m):
                first[i], last[i] = ends[rows[s + i]], ends[rows[s + i] + 1]
        for i in range(m):
            if i + AHEAD < m:
                ahead = first[i + AHEAD]
                _fetch(data, ahead)
                _fetch(data, ahead + 8)
                _fetch(data, ahead + 16)
                _fetch(indices, ahead)
                _fetch(indices, ahead + 16)
            zs[i] = _score(data, indices, first[i], last[i], w) - middle
        slopes_at(zs, y[s:t], loss, h, up, down)
        clip_slopes(zs, norms[s:t], clip)
        for i in range(m):
            _spread(total, data, indices, first[i], last[i], zs[i])
        mass += sum_of(zs)
    return mass


@part
def values_along(a, b, places, y, loss, h, up, down, clip, z, totals):
    """Adds the losses at scores a + places[k] b to ``totals`` (k,)."""
    for k in range(len(places)):
        for i in range(len(z)):
            z[i] = a[i] + places[k] * b[i]
        totals[k] += values_at(z, y, loss, h, up, down, clip)


@jit
def csr_values(data, indices, ends, y, begin, end, W, middle, along, loss, h, up, down, clip,
               totals):  # fmt: skip
    """Losses of every candidate, weights (d * k,) side by side: one read of a row serves all. With
    places ``along`` a line: of its points, from the weights of its two ends.
    """
    count = len(middle)
    z, one = np.empty(BLOCK * count), np.empty(BLOCK)
    first, other = np.empty(BLOCK), np.empty(BLOCK)
    for s in range(begin, end, BLOCK):
        t = min(s + BLOCK, end)
        m = t - s
        for i in range(m):
            a = np.uint64(i) * np.uint64(count)
            for k in range(count):
                z[a + np.uint64(k)] = -middle[k]
            for j in range(np.uint64(ends[s + i]), np.uint64(ends[s + i + 1])):
                value, b = np.float64(data[j]), np.uint64(indices[j]) * np.uint64(count)
                for k in range(count):
                    z[a + np.uint64(k)] += value * W[b + np.uint64(k)]
        if len(along) > 0:
            for i in range(m):
                first[i], other[i] = z[2 * i], z[2 * i + 1]
            values_along(first[:m], other[:m], along, y[s:t], loss, h, up, down, clip, one[:m],
                         totals)  # fmt: skip
            continue
        for k in range(count):
            for i in range(m):
                one[i] = z[i * count + k]
            totals[k] += values_at(one[:m], y[s:t], loss, h, up, down, clip)


# Dense rows: single precision is for storage, products and sums are double.


@lanes
def _dot(x, w):
    total = 0.0
    for j in range(len(w)):
        total += np.float64(x[j]) * w[j]
    return total


@fused
def _add4(total, X, i, a, b, c, d):
    """Four rows at a time: the sums are loaded and stored once for all of them."""
    p, q, r, s = X[i], X[i + 1], X[i + 2], X[i + 3]
    for j in range(len(total)):
        both = a * np.float64(p[j]) + b * np.float64(q[j])
        total[j] += both + (c * np.float64(r[j]) + d * np.float64(s[j]))


# Few rows of a block: they are in the first-level cache when their sums are formed.
DENSE = 16


@jit
def dense_gradient(X, norms, y, begin, end, w, middle, loss, h, up, down, clip,
                   total):  # fmt: skip
    """Adds the clipped gradients of rows ``begin`` to ``end`` to ``total`` (d,); returns the sum of
    the slopes.
    """
    z = np.empty(DENSE)
    part, mass = np.zeros(len(total)), 0.0
    for s in range(begin, end, DENSE):
        t = min(s + DENSE, end)
        m = t - s
        zs = z[:m]
        for i in range(m):
            zs[i] = _dot(X[s + i], w) - middle
        slopes_at(zs, y[s:t], loss, h, up, down)
        clip_slopes(zs, norms[s:t], clip)
        whole = m - m % 4
        for i in range(0, whole, 4):
            _add4(part, X, s + i, zs[i], zs[i + 1], zs[i + 2], zs[i + 3])
        for i in range(whole, m):
            for j in range(len(part)):
                part[j] += zs[i] * np.float64(X[s + i, j])
        mass += sum_of(zs)
    for j in range(len(total)):
        total[j] += part[j]
    return mass
