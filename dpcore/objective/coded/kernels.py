"""Compiled passes over coded rows: look-ups column by column, slopes and clips of a block,
histograms of what is left.

As ``dpcore.objective.kernels``. No look-up is checked: ``Table.check`` has seen codes and
fractions.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np

from dpcore.objective.kernels import BLOCK, clip_slopes, jit, slopes_at, values_at

# Two tables side by side, so that one line of the cache has the score and the squared norm of a
# level.


@jit
def _look(z, v, q, table, lo):
    for i in range(len(q)):
        place = np.uint64(lo) + np.uint64(2) * np.uint64(q[i])
        z[i] += table[place]
        v[i] += table[place + np.uint64(1)]


@jit
def _look_sloped(z, v, q, f, table, lo):
    for i in range(len(q)):
        place = np.uint64(lo) + np.uint64(8) * np.uint64(q[i])
        share = np.float64(f[i])
        z[i] += table[place] + share * table[place + np.uint64(1)]
        squares = table[place + np.uint64(3)] + share * table[place + np.uint64(4)]
        v[i] += table[place + np.uint64(2)] + share * squares


@jit
def _look_scores(z, q, table, lo):
    for i in range(len(q)):
        z[i] += table[np.uint64(lo) + np.uint64(q[i])]


@jit
def _look_slopes(z, q, f, table, slopes, lo):
    for i in range(len(q)):
        place = np.uint64(lo) + np.uint64(q[i])
        z[i] += table[place] + np.float64(f[i]) * slopes[place]


@jit
def _look_squares(v, q, f, squares, lo):
    for i in range(len(q)):
        place = np.uint64(lo) + np.uint64(q[i])
        share = np.float64(f[i])
        v[i] += squares[0, place] + share * (squares[1, place] + share * squares[2, place])


@jit
def _scatter(heights, q, c, lo, size):
    """Add c to the bins of q: four histograms in turn, so that equal codes in a row need not wait
    for each other.
    """
    a, b = np.uint64(lo), np.uint64(lo + size)
    d, e = np.uint64(lo + 2 * size), np.uint64(lo + 3 * size)
    m = len(q) - len(q) % 4
    for i in range(0, m, 4):
        heights[a + np.uint64(q[i])] += c[i]
        heights[b + np.uint64(q[i + 1])] += c[i + 1]
        heights[d + np.uint64(q[i + 2])] += c[i + 2]
        heights[e + np.uint64(q[i + 3])] += c[i + 3]
    for i in range(m, len(q)):
        heights[a + np.uint64(q[i])] += c[i]


@jit
def _scatter_sloped(heights, tilts, q, f, c, lo, size):
    a, b = np.uint64(lo), np.uint64(lo + size)
    m = len(q) - len(q) % 2
    for i in range(0, m, 2):
        heights[a + np.uint64(q[i])] += c[i]
        tilts[a + np.uint64(q[i])] += c[i] * np.float64(f[i])
        heights[b + np.uint64(q[i + 1])] += c[i + 1]
        tilts[b + np.uint64(q[i + 1])] += c[i + 1] * np.float64(f[i + 1])
    for i in range(m, len(q)):
        heights[a + np.uint64(q[i])] += c[i]
        tilts[a + np.uint64(q[i])] += c[i] * np.float64(f[i])


@jit
def _roots(v, start, hidden, mode, factor):
    """Norms in place of squares; with a mode the factors of the rows too (1: to at most 1, 2: to
    1).
    """
    for i in range(len(v)):
        v[i] = math.sqrt(max(v[i] + start, 0.0) + hidden) * (1.0 + 4.5e-16)
    if mode > 0:
        for i in range(len(v)):
            factor[i] = 1.0 / (max(v[i], 1.0) if mode == 1 else v[i])
            v[i] *= factor[i] * (1.0 + 4.5e-16)


@jit
def coded_gradient(narrow, wide, fractions, fraction_of, active, starts, places, table, y,
                   begin, end, middle, start, hidden, mode, loss, h, up, down, clip, heights,
                   tilts):  # fmt: skip
    """Histograms (4, levels) of clipped slopes, and of slopes times fractions, of the ``active``
    columns; returns the sum of the slopes.
    """
    z, v, e = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    bits, factor = np.empty(BLOCK, np.int64), np.empty(BLOCK)
    few, levels = len(narrow), starts[len(fraction_of)]
    mass = 0.0
    for s in range(begin, end, BLOCK):
        t = min(s + BLOCK, end)
        m = t - s
        zs, vs = z[:m], v[:m]
        zs[:] = middle
        vs[:] = 0.0
        for k in active:
            if fraction_of[k] >= 0:
                f = fractions[fraction_of[k], s:t]
                if k < few:
                    _look_sloped(zs, vs, narrow[k, s:t], f, table, places[k])
                else:
                    _look_sloped(zs, vs, wide[k - few, s:t], f, table, places[k])
            elif k < few:
                _look(zs, vs, narrow[k, s:t], table, places[k])
            else:
                _look(zs, vs, wide[k - few, s:t], table, places[k])
        _roots(vs, start, hidden, mode, factor[:m])
        if mode > 0:
            for i in range(m):
                zs[i] *= factor[i]
        slopes_at(zs, y[s:t], loss, h, up, down, e[:m], bits[:m])
        clip_slopes(zs, vs, clip)
        if mode > 0:
            for i in range(m):
                zs[i] *= factor[i]
        part = 0.0
        for i in range(m):
            part += zs[i]
        mass += part
        for k in active:
            if fraction_of[k] >= 0:
                f = fractions[fraction_of[k], s:t]
                if k < few:
                    _scatter_sloped(heights, tilts, narrow[k, s:t], f, zs, starts[k], levels)
                else:
                    _scatter_sloped(heights, tilts, wide[k - few, s:t], f, zs, starts[k], levels)
            elif k < few:
                _scatter(heights, narrow[k, s:t], zs, starts[k], levels)
            else:
                _scatter(heights, wide[k - few, s:t], zs, starts[k], levels)
    return mass


@jit
def coded_values(narrow, wide, fractions, fraction_of, starts, scores, slopes, squares, y,
                 begin, end, middle, offset, start, hidden, mode, loss, h, up, down, clip,
                 totals):  # fmt: skip
    """Losses of every candidate, a table of ``scores`` and ``slopes`` (k, levels), on one block at
    a time.
    """
    z, v, e = np.empty(BLOCK), np.empty(BLOCK), np.empty(BLOCK)
    bits, factor = np.empty(BLOCK, np.int64), np.empty(BLOCK)
    columns, few = len(fraction_of), len(narrow)
    for s in range(begin, end, BLOCK):
        t = min(s + BLOCK, end)
        m = t - s
        zs, vs = z[:m], v[:m]
        if mode > 0:
            vs[:] = 0.0
            for k in range(columns):
                if fraction_of[k] >= 0:
                    f = fractions[fraction_of[k], s:t]
                    if k < few:
                        _look_squares(vs, narrow[k, s:t], f, squares, starts[k])
                    else:
                        _look_squares(vs, wide[k - few, s:t], f, squares, starts[k])
                elif k < few:
                    _look_scores(vs, narrow[k, s:t], squares[0], starts[k])
                else:
                    _look_scores(vs, wide[k - few, s:t], squares[0], starts[k])
            _roots(vs, start, hidden, mode, factor[:m])
        for j in range(len(scores)):
            zs[:] = middle[j]
            for k in range(columns):
                if fraction_of[k] >= 0:
                    f = fractions[fraction_of[k], s:t]
                    if k < few:
                        _look_slopes(zs, narrow[k, s:t], f, scores[j], slopes[j], starts[k])
                    else:
                        _look_slopes(zs, wide[k - few, s:t], f, scores[j], slopes[j], starts[k])
                elif k < few:
                    _look_scores(zs, narrow[k, s:t], scores[j], starts[k])
                else:
                    _look_scores(zs, wide[k - few, s:t], scores[j], starts[k])
            if mode > 0:
                for i in range(m):
                    zs[i] *= factor[i]
            if offset[j] != 0.0:
                for i in range(m):
                    zs[i] -= offset[j]
            totals[j] += values_at(zs, y[s:t], loss, h, up, down, clip, e[:m], bits[:m])
