"""Compiled passes over coded rows: look-ups column by column, slopes and clips of a block,
histograms of what is left.

As ``dpcore.objective.kernels``. No look-up is checked: ``Table.check`` has seen codes and
fractions.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np

from dpcore.objective.kernels import (
    BLOCK,
    _decay,
    clip_slopes,
    jit,
    slopes_at,
    values_along,
    values_at,
)

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
def _coded_sums(narrow, wide, fractions, fraction_of, active, starts, places, table, y,
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


# By its own name for ``coded_picked``, which was compiled with it.
coded_gradient = _coded_sums


@jit
def _bring(found, column, rows):
    for i in range(len(rows)):
        found[i] = column[np.uint64(rows[i])]


@jit
def coded_picked(narrow, wide, fractions, fraction_of, rows, active, starts, places, table, y,
                 middle, start, hidden, mode, loss, h, up, down, clip, heights,
                 tilts):  # fmt: skip
    """As ``coded_gradient`` of ``rows``, in their order, with the labels of these alone: their
    codes are brought together a block at a time.
    """
    few = len(narrow)
    small = np.empty((few, BLOCK), narrow.dtype)
    large = np.empty((len(wide), BLOCK), wide.dtype)
    shares = np.empty((len(fractions), BLOCK), fractions.dtype)
    mass = 0.0
    for s in range(0, len(rows), BLOCK):
        t = min(s + BLOCK, len(rows))
        own, first = rows[s:t], s - s  # for a literal 0 all of the sums would be compiled anew
        for k in active:
            if k < few:
                _bring(small[k], narrow[k], own)
            else:
                _bring(large[k - few], wide[k - few], own)
            if fraction_of[k] >= 0:
                _bring(shares[fraction_of[k]], fractions[fraction_of[k]], own)
        mass += _coded_sums(small, large, shares, fraction_of, active, starts, places, table,
                            y[s:t], first, t - s, middle, start, hidden, mode, loss, h, up, down,
                            clip, heights, tilts)  # fmt: skip
    return mass


# Several weight vectors at once, candidates or classes: their scores stand side by side, row after
# row, and one look-up adds those of a level to all of them.


@jit
def _add_level(z, q, table, lo, count):
    for i in range(len(q)):
        a = np.uint64(i) * np.uint64(count)
        b = (np.uint64(lo) + np.uint64(q[i])) * np.uint64(count)
        for j in range(count):
            z[a + np.uint64(j)] += table[b + np.uint64(j)]


@jit
def _add_sloped(z, q, f, table, slopes, lo, count):
    for i in range(len(q)):
        a = np.uint64(i) * np.uint64(count)
        b = (np.uint64(lo) + np.uint64(q[i])) * np.uint64(count)
        share = np.float64(f[i])
        for j in range(count):
            z[a + np.uint64(j)] += table[b + np.uint64(j)] + share * slopes[b + np.uint64(j)]


@jit
def _add_scores(z, narrow, wide, fractions, fraction_of, starts, s, t, table, slopes, count):
    """Scores of rows ``s`` to ``t``, added to ``z``."""
    few = len(narrow)
    for k in range(len(fraction_of)):
        if fraction_of[k] >= 0:
            f = fractions[fraction_of[k], s:t]
            if k < few:
                _add_sloped(z, narrow[k, s:t], f, table, slopes, starts[k], count)
            else:
                _add_sloped(z, wide[k - few, s:t], f, table, slopes, starts[k], count)
        elif k < few:
            _add_level(z, narrow[k, s:t], table, starts[k], count)
        else:
            _add_level(z, wide[k - few, s:t], table, starts[k], count)


@jit
def _squared(v, narrow, wide, fractions, fraction_of, starts, s, t, squares):
    """Squared norms of rows ``s`` to ``t``, added to ``v``."""
    few = len(narrow)
    for k in range(len(fraction_of)):
        if fraction_of[k] >= 0:
            f = fractions[fraction_of[k], s:t]
            if k < few:
                _look_squares(v, narrow[k, s:t], f, squares, starts[k])
            else:
                _look_squares(v, wide[k - few, s:t], f, squares, starts[k])
        elif k < few:
            _look_scores(v, narrow[k, s:t], squares[0], starts[k])
        else:
            _look_scores(v, wide[k - few, s:t], squares[0], starts[k])


SEVERAL = 256


@jit
def coded_values(narrow, wide, fractions, fraction_of, starts, scores, slopes, squares, y,
                 begin, end, middle, offset, along, start, hidden, mode, loss, h, up, down, clip,
                 totals):  # fmt: skip
    """Losses of every candidate, tables of ``scores`` and ``slopes`` (levels * k,): one read of a
    row serves all. With places ``along`` a line: of its points, from the tables of its two ends.
    """
    count = len(middle)
    z, one = np.empty(SEVERAL * count), np.empty(SEVERAL)
    v, factor, e = np.empty(SEVERAL), np.empty(SEVERAL), np.empty(SEVERAL)
    bits, first, other = np.empty(SEVERAL, np.int64), np.empty(SEVERAL), np.empty(SEVERAL)
    for s in range(begin, end, SEVERAL):
        t = min(s + SEVERAL, end)
        m = t - s
        if mode > 0:
            v[:m] = 0.0
            _squared(v[:m], narrow, wide, fractions, fraction_of, starts, s, t, squares)
            _roots(v[:m], start, hidden, mode, factor[:m])
        for i in range(m):
            for j in range(count):
                z[i * count + j] = middle[j]
        _add_scores(z, narrow, wide, fractions, fraction_of, starts, s, t, scores, slopes, count)
        if len(along) > 0:
            for i in range(m):
                share = factor[i] if mode > 0 else 1.0
                first[i] = z[2 * i] * share - offset[0]
                other[i] = z[2 * i + 1] * share - offset[1]
            values_along(first[:m], other[:m], along, y[s:t], loss, h, up, down, clip, one[:m],
                         e[:m], bits[:m], totals)  # fmt: skip
            continue
        for j in range(count):
            for i in range(m):
                score = z[i * count + j]
                one[i] = (score * factor[i] if mode > 0 else score) - offset[j]
            totals[j] += values_at(one[:m], y[s:t], loss, h, up, down, clip, e[:m], bits[:m])


@jit
def _softmax_slopes(z, labels, norms, clip, count, e, bits):
    """p - e_y in place of scores, each row scaled down to norm clip / ||x||; what is no number
    counts as 0.
    """
    m = len(labels)
    for i in range(m):
        a = i * count
        top = z[a]
        for j in range(1, count):
            top = max(top, z[a + j])
        for j in range(count):
            z[a + j] -= top
    _decay(z, e, bits)
    for i in range(m):
        a = i * count
        total = 0.0
        for j in range(count):
            total += e[a + j]
        square = 0.0
        for j in range(count):
            part = e[a + j] / total
            if z[a + j] != z[a + j]:
                part = math.nan
            if j == labels[i]:
                part -= 1.0
            z[a + j] = part
            square += part * part
        if not square < math.inf:
            for j in range(count):
                z[a + j] = 0.0
        elif clip < math.inf:
            length = math.sqrt(square) * (1.0 + 2.3e-16 * (count + 8)) * norms[i]
            share = clip / max(length, 1e-300)
            if share < 1.0:
                for j in range(count):
                    z[a + j] *= share


@jit
def _scatter_level(heights, q, c, lo, count):
    for i in range(len(q)):
        a = np.uint64(i) * np.uint64(count)
        b = (np.uint64(lo) + np.uint64(q[i])) * np.uint64(count)
        for j in range(count):
            heights[b + np.uint64(j)] += c[a + np.uint64(j)]


@jit
def _scatter_tilted(heights, tilts, q, f, c, lo, count):
    for i in range(len(q)):
        a = np.uint64(i) * np.uint64(count)
        b = (np.uint64(lo) + np.uint64(q[i])) * np.uint64(count)
        share = np.float64(f[i])
        for j in range(count):
            heights[b + np.uint64(j)] += c[a + np.uint64(j)]
            tilts[b + np.uint64(j)] += share * c[a + np.uint64(j)]


@jit
def coded_softmax(narrow, wide, fractions, fraction_of, starts, scores, slopes, squares, labels,
                  begin, end, middle, start, hidden, mode, clip, heights, tilts, mass):  # fmt: skip
    """Histograms (levels * classes,) of clipped gradients in the scores, and of these times
    fractions; ``mass``: their sum by class.
    """
    count, few = len(middle), len(narrow)
    z, e = np.empty(SEVERAL * count), np.empty(SEVERAL * count)
    v, factor, bits = np.empty(SEVERAL), np.empty(SEVERAL), np.empty(SEVERAL * count, np.int64)
    for s in range(begin, end, SEVERAL):
        t = min(s + SEVERAL, end)
        m = t - s
        zs, vs = z[: m * count], v[:m]
        vs[:] = 0.0
        _squared(vs, narrow, wide, fractions, fraction_of, starts, s, t, squares)
        _roots(vs, start, hidden, mode, factor[:m])
        for i in range(m):
            for j in range(count):
                z[i * count + j] = middle[j]
        _add_scores(zs, narrow, wide, fractions, fraction_of, starts, s, t, scores, slopes, count)
        if mode > 0:
            for i in range(m):
                for j in range(count):
                    z[i * count + j] *= factor[i]
        _softmax_slopes(zs, labels[s:t], vs, clip, count, e[: m * count], bits[: m * count])
        for i in range(m):
            for j in range(count):
                if mode > 0:
                    z[i * count + j] *= factor[i]
                mass[j] += z[i * count + j]
        for k in range(len(fraction_of)):
            if fraction_of[k] >= 0:
                f = fractions[fraction_of[k], s:t]
                if k < few:
                    _scatter_tilted(heights, tilts, narrow[k, s:t], f, zs, starts[k], count)
                else:
                    _scatter_tilted(heights, tilts, wide[k - few, s:t], f, zs, starts[k], count)
            elif k < few:
                _scatter_level(heights, narrow[k, s:t], zs, starts[k], count)
            else:
                _scatter_level(heights, wide[k - few, s:t], zs, starts[k], count)
