"""Compiled passes over coded rows: look-ups column by column, slopes and clips of a block,
histograms of what is left.

As ``dpcore.objective.kernels``. No look-up is checked: ``Table.check`` has seen codes and
fractions. Codes of one byte are read where they stand, some columns at a time: a score is loaded
once for all, and sums do not wait for each other where equal codes follow. The rest goes by one in
16 bits, so that every look-up is compiled once.
"""

# mypy: ignore-errors

from __future__ import annotations

import math

import numpy as np

from dpcore.objective.kernels import (
    clip_slopes,
    decay,
    fused,
    jit,
    part,
    slopes_at,
    sum_of,
    values_along,
    values_at,
)

# Rows of a block, long runs of each column; of several weight vectors fewer.
BLOCK, SEVERAL = 4096, 256
SCORES, SQUARES, SUMS = range(3)


@part
def _bring(found, column, rows):
    for i in range(len(rows)):
        found[i] = column[np.uint64(rows[i])]


@part
def _codes(own, table, j, s, t):
    """The codes of column j in 16 bits."""
    narrow, wide, k = table[0], table[1], table[4][j]
    if k >= len(narrow):
        return wide[k - len(narrow), s:t]
    part = narrow[k, s:t]
    for i in range(len(part)):
        own[i] = part[i]
    return own[: t - s]


@part
def _fractions(table, j, s, t):
    return table[2][table[3][table[4][j]], s:t]


@part
def _look(z, q, table, lo):
    a = np.uint64(lo)
    for i in range(len(q)):
        z[i] += table[a + np.uint64(q[i])]


@part
def _look4(z, q, r, t, u, table, lo):
    a, b, c, d = np.uint64(lo[0]), np.uint64(lo[1]), np.uint64(lo[2]), np.uint64(lo[3])
    for i in range(len(q)):
        both = (z[i] + table[a + np.uint64(q[i])]) + table[b + np.uint64(r[i])]
        z[i] = (both + table[c + np.uint64(t[i])]) + table[d + np.uint64(u[i])]


@fused
def _look_sloped2(z, q, f, r, g, table, slopes, lo, lo2):
    a, b = np.uint64(lo), np.uint64(lo2)
    for i in range(len(q)):
        one, two = a + np.uint64(q[i]), b + np.uint64(r[i])
        first = table[one] + np.float64(f[i]) * slopes[one]
        z[i] = (z[i] + first) + (table[two] + np.float64(g[i]) * slopes[two])


@fused
def _look_powers(z, q, f, tables, lo):
    a = np.uint64(lo)
    for i in range(len(q)):
        place, share = a + np.uint64(q[i]), np.float64(f[i])
        z[i] += tables[0, place] + share * (tables[1, place] + share * tables[2, place])


@fused
def _look_powers2(z, q, f, r, g, tables, lo, lo2):
    a, b = np.uint64(lo), np.uint64(lo2)
    for i in range(len(q)):
        one, two = a + np.uint64(q[i]), b + np.uint64(r[i])
        h, k = np.float64(f[i]), np.float64(g[i])
        first = tables[0, one] + h * (tables[1, one] + h * tables[2, one])
        z[i] = (z[i] + first) + (tables[0, two] + k * (tables[1, two] + k * tables[2, two]))


@part
def _scatter(sums, q, c, lo):
    a = np.uint64(lo)
    for i in range(len(q)):
        sums[a + np.uint64(q[i])] += c[i]


@part
def _scatter4(heights, q, r, t, u, c, lo):
    a, b, d, e = np.uint64(lo[0]), np.uint64(lo[1]), np.uint64(lo[2]), np.uint64(lo[3])
    for i in range(len(q)):
        heights[a + np.uint64(q[i])] += c[i]
        heights[b + np.uint64(r[i])] += c[i]
        heights[d + np.uint64(t[i])] += c[i]
        heights[e + np.uint64(u[i])] += c[i]


@fused
def _scatter_sloped(heights, tilts, q, f, c, lo):
    a = np.uint64(lo)
    for i in range(len(q)):
        heights[a + np.uint64(q[i])] += c[i]
        tilts[a + np.uint64(q[i])] += c[i] * np.float64(f[i])


@fused
def _scatter_sloped2(heights, tilts, q, f, r, g, c, lo, lo2):
    a, b = np.uint64(lo), np.uint64(lo2)
    for i in range(len(q)):
        one, two = a + np.uint64(q[i]), b + np.uint64(r[i])
        heights[one] += c[i]
        tilts[one] += c[i] * np.float64(f[i])
        heights[two] += c[i]
        tilts[two] += c[i] * np.float64(g[i])


@part
def _walk(what, z, own, tables, table, s, t):
    """Rows ``s`` to ``t``: their scores or squared norms added to ``z``, from the ``tables`` (3,
    levels) by the power of the fraction; or to sums (2, levels) ``z``, and ``z`` times fractions.

    ``table``: its arrays, the place of each column's fraction, its columns in order, where those
    end that go by four, have no fraction, and go by two with one; where the levels of each begin.
    """
    narrow, columns, places, (four, plain, two) = table[0], table[4], table[6], table[5]
    j = 0
    while j < len(columns):
        lo = places[j]
        if j < four:
            a, b = narrow[columns[j], s:t], narrow[columns[j + 1], s:t]
            c, d = narrow[columns[j + 2], s:t], narrow[columns[j + 3], s:t]
            if what == SUMS:
                _scatter4(tables[0], a, b, c, d, z, places[j : j + 4])
            else:
                _look4(z, a, b, c, d, tables[0], places[j : j + 4])
            j += 4
        elif plain <= j < two:
            q, r, lo2 = narrow[columns[j], s:t], narrow[columns[j + 1], s:t], places[j + 1]
            f, g = _fractions(table, j, s, t), _fractions(table, j + 1, s, t)
            if what == SUMS:
                _scatter_sloped2(tables[0], tables[1], q, f, r, g, z, lo, lo2)
            elif what == SCORES:
                _look_sloped2(z, q, f, r, g, tables[0], tables[1], lo, lo2)
            else:
                _look_powers2(z, q, f, r, g, tables, lo, lo2)
            j += 2
        else:
            q = _codes(own, table, j, s, t)
            if table[3][columns[j]] < 0 and what == SUMS:
                _scatter(tables[0], q, z, lo)
            elif table[3][columns[j]] < 0:
                _look(z, q, tables[0], lo)
            elif what == SUMS:
                _scatter_sloped(tables[0], tables[1], q, _fractions(table, j, s, t), z, lo)
            else:
                _look_powers(z, q, _fractions(table, j, s, t), tables, lo)
            j += 1


@part
def _roots(v, start, hidden):
    """Upper bounds of norms in place of looked-up squares."""
    for i in range(len(v)):
        v[i] = math.sqrt(max(v[i] + start, 0.0) + hidden) * (1.0 + 4.5e-16)


@part
def _shorten(v, lengths, mode, factor):
    """Factors of rows of these ``lengths`` (1: to at most 1, 2: to 1), and norms after them."""
    for i in range(len(lengths)):
        factor[i] = 1.0 / (max(lengths[i], 1.0) if mode == 1 else lengths[i])
        v[i] = lengths[i] * factor[i] * (1.0 + 4.5e-16)


@jit
def coded_gradient(table, scores, squares, norms, known, rows, y, begin, end, middle, shape, terms,
                   clip, sums):  # fmt: skip
    """Adds clipped slopes to ``sums`` (2, levels), as ``_walk``, at the rows ``begin`` to ``end``,
    or at ``rows[begin:end]`` where any are picked; returns the sum of the slopes. Norms are read
    from ``norms`` where they are ``known``, else left there if it has room.
    """
    narrow, wide, fractions, fraction_of, columns, ends, places = table
    (start, hidden, mode), (loss, h, up, down) = shape, terms
    picked, few, mass, room = len(rows) > 0, len(narrow), 0.0, min(BLOCK, end - begin)
    z, v, after, factor = np.empty(room), np.empty(room), np.empty(room), np.ones(room)
    own, held = np.empty(room, np.uint16), room if picked else 0
    small, large = np.empty((few, held), np.uint8), np.empty((len(wide), held), np.uint16)
    shares = np.empty((len(fractions), held), np.float32)
    brought = (small, large, shares, fraction_of, columns, ends, places)
    for s in range(begin, end, BLOCK):
        t = min(s + BLOCK, end)
        m = t - s
        zs, vs = z[:m], norms[s:t] if len(norms) > 0 else v[:m]
        for k in columns if picked else columns[:0]:
            if k < few:
                _bring(small[k], narrow[k], rows[s:t])
            else:
                _bring(large[k - few], wide[k - few], rows[s:t])
            if fraction_of[k] >= 0:
                _bring(shares[fraction_of[k]], fractions[fraction_of[k]], rows[s:t])
        given, a, b = (brought, s - s, m) if picked else (table, s, t)
        zs[:] = middle
        _walk(np.int64(SCORES), zs, own, scores, given, a, b)
        if not known:
            vs[:] = 0.0
            _walk(np.int64(SQUARES), vs, own, squares, given, a, b)
            _roots(vs, start, hidden)
        if mode > 0:
            _shorten(after[:m], vs, mode, factor)
            vs = after[:m]
            for i in range(m):
                zs[i] *= factor[i]
        slopes_at(zs, y[s:t], loss, h, up, down)
        clip_slopes(zs, vs, clip)
        if mode > 0:
            for i in range(m):
                zs[i] *= factor[i]
        _walk(np.int64(SUMS), zs, own, sums, given, a, b)
        mass += sum_of(zs)
    return mass


# Several weight vectors at once, candidates or classes: their scores stand side by side, row after
# row, and one look-up adds those of a level to all of them.


@part
def _add_level(z, q, table, lo, count):
    for i in range(len(q)):
        a = np.uint64(i) * np.uint64(count)
        b = (np.uint64(lo) + np.uint64(q[i])) * np.uint64(count)
        for j in range(count):
            z[a + np.uint64(j)] += table[b + np.uint64(j)]


@part
def _add_sloped(z, q, f, table, slopes, lo, count):
    for i in range(len(q)):
        a = np.uint64(i) * np.uint64(count)
        b = (np.uint64(lo) + np.uint64(q[i])) * np.uint64(count)
        share = np.float64(f[i])
        for j in range(count):
            z[a + np.uint64(j)] += table[b + np.uint64(j)] + share * slopes[b + np.uint64(j)]


@part
def _add_scores(z, own, middle, scores, slopes, table, s, t):
    """Scores of rows ``s`` to ``t``, in ``z``."""
    places, count = table[6], len(middle)
    for i in range(t - s):
        for j in range(count):
            z[i * count + j] = middle[j]
    for k in range(len(places)):
        q = _codes(own, table, k, s, t)
        if table[3][table[4][k]] >= 0:
            _add_sloped(z, q, _fractions(table, k, s, t), scores, slopes, places[k], count)
        else:
            _add_level(z, q, scores, places[k], count)


@jit
def coded_values(table, scores, slopes, squares, y, begin, end, middle, offset, along, shape, terms,
                 clip, totals):  # fmt: skip
    """Adds to ``totals`` the losses of all candidates, by tables of ``scores`` and ``slopes``
    (levels * k,); with places ``along`` a line those of its points, by the tables of its two ends.
    """
    (start, hidden, mode), (loss, h, up, down), count = shape, terms, len(middle)
    z, one, own = np.empty(SEVERAL * count), np.empty(SEVERAL), np.empty(SEVERAL, np.uint16)
    v, factor, first, other = np.empty(SEVERAL), np.ones(SEVERAL), one.copy(), one.copy()
    for s in range(begin, end, SEVERAL):
        t = min(s + SEVERAL, end)
        m = t - s
        _add_scores(z, own, middle, scores, slopes, table, s, t)
        if mode > 0:
            v[:m] = 0.0
            _walk(np.int64(SQUARES), v[:m], own, squares, table, s, t)
            _roots(v[:m], start, hidden)
            _shorten(one[:m], v[:m], mode, factor)
        if len(along) > 0:
            for i in range(m):
                first[i] = z[2 * i] * factor[i] - offset[0]
                other[i] = z[2 * i + 1] * factor[i] - offset[1]
            values_along(first[:m], other[:m], along, y[s:t], loss, h, up, down, clip, one[:m],
                         totals)  # fmt: skip
            continue
        for j in range(count):
            for i in range(m):
                one[i] = z[i * count + j] * factor[i] - offset[j]
            totals[j] += values_at(one[:m], y[s:t], loss, h, up, down, clip)


@part
def _softmax_slopes(z, labels, norms, clip, count, e):
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
    for i in range(len(z)):
        e[i] = decay(z[i])
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


@part
def _scatter_level(heights, q, c, lo, count):
    for i in range(len(q)):
        a = np.uint64(i) * np.uint64(count)
        b = (np.uint64(lo) + np.uint64(q[i])) * np.uint64(count)
        for j in range(count):
            heights[b + np.uint64(j)] += c[a + np.uint64(j)]


@part
def _scatter_tilted(heights, tilts, q, f, c, lo, count):
    for i in range(len(q)):
        a = np.uint64(i) * np.uint64(count)
        b = (np.uint64(lo) + np.uint64(q[i])) * np.uint64(count)
        share = np.float64(f[i])
        for j in range(count):
            heights[b + np.uint64(j)] += c[a + np.uint64(j)]
            tilts[b + np.uint64(j)] += share * c[a + np.uint64(j)]


@jit
def coded_softmax(table, scores, slopes, squares, labels, begin, end, middle, shape, clip, heights,
                  tilts, mass):  # fmt: skip
    """Histograms (levels * classes,) of clipped gradients in the scores, and of these times
    fractions; ``mass``: their sum by class.
    """
    (start, hidden, mode), count = shape, len(middle)
    z, e, own = np.empty(SEVERAL * count), np.empty(SEVERAL * count), np.empty(SEVERAL, np.uint16)
    v, factor, places = np.empty(SEVERAL), np.ones(SEVERAL), table[6]
    for s in range(begin, end, SEVERAL):
        t = min(s + SEVERAL, end)
        zs, vs = z[: (t - s) * count], v[: t - s]
        _add_scores(z, own, middle, scores, slopes, table, s, t)
        vs[:] = 0.0
        _walk(np.int64(SQUARES), vs, own, squares, table, s, t)
        _roots(vs, start, hidden)
        if mode > 0:
            _shorten(vs, vs, mode, factor)
        for i in range(len(zs)):
            z[i] *= factor[i // count]
        _softmax_slopes(zs, labels[s:t], vs, clip, count, e[: len(zs)])
        for i in range(len(zs)):
            z[i] *= factor[i // count]
            mass[i % count] += z[i]
        for k in range(len(places)):
            q = _codes(own, table, k, s, t)
            if table[3][table[4][k]] >= 0:
                _scatter_tilted(heights, tilts, q, _fractions(table, k, s, t), zs, places[k], count)
            else:
                _scatter_level(heights, q, zs, places[k], count)
