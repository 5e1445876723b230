"""Norms of sessions that a clip or a price rests on, as upper bounds of the numbers that are
computed.

A session's gradient is G = sum_i c_i A_i D_i' over its n documents (``Layers`` of
``dpcore.ranking.scorers``), and what labels can do to it follows from directions u_i. Their squared
norms are cheapest from products between documents, sum_ij c_i c_j (A_i . A_j)(D_i . D_j), where
almost everything may cancel: documents that are nearly equal, or scores far apart, leave a result
far below the rounding of its terms. So every function here adds what rounding may hide, which is
relative to the *size* S = (sum_i |c_i| |A_i| |D_i|)^2 of the terms and not to the result. Where
that is not small beside the result, vectors are formed, whose error is linear in the unit roundoff
u and not a root of it, or differences come first.

Proof. With g_k = k u / (1 - k u), |fl(x . y) - x . y| <= g_k |x| |y| for k-vectors (Higham 2002,
section 3.1). For A in R^k and D in R^m an entry of the products is two inner products and three
roundings, n^2 of them are added, each error relative to |c_i c_j| |A_i| |A_j| |D_i| |D_j|, whose
sum is S: in all at most (k + m + n^2 + 16) u S, where 16 stands for what is of second order and for
the rounding of S, far below it while n (k + m + n^2) u < 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpcore.objective.rounding import UNIT, quotients
from dpcore.ranking.losses import BayesRank, RankingLoss, softmax, target_of
from dpcore.ranking.scorers import Array, Layers, layer_gradient

# A squared clip norm by products between documents is formed where more than this share of it is
# margin; a label bound is taken again where its margin is more than the other, for it has no second
# use.
FINE, LOSSY = 2.0**-20, 2.0**-10
# Blocks of fewer numbers than this are formed: products with a mean take more calls.
SMALL = 2**14
# Sessions whose terms cancel to less than this share are summed apart before they meet the others.
CANCELS = 2.0**-10
# What underflow may hide of any norm here: entries are sums of products of at most 1e5 times
# numbers above 2^-1075.
UNDERFLOW = 2.0**-500


# Of each layer the sums (B, in, out) of sessions, or None where nothing needed them.
Sums = list[Array | None]


class Clipped(NamedTuple):
    """Norms (B,) of sessions, and the sizes (B,) of the terms that they are sums of."""

    norms: Array
    sizes: Array


def lengths_of(x: Array) -> Array:
    if x.shape[-1] == 1:
        sizes: Array = np.abs(x[..., 0])
        return sizes
    found: Array = np.sqrt(np.einsum("bnk,bnk->bn", x, x))
    return found


def session_norms(layers: Layers, coefficient: Array) -> Clipped:
    """Upper bounds of the norms of sum_i c_i (gradient of score i) over each session;
    ``coefficient`` (B, n).

    A layer's part is the Frobenius norm of sum_i c_i A_i D_i': formed a session at a time, or by
    products between documents with the margin above, whichever takes fewer operations, and formed
    where the margin is not small. The vector that is released errs itself by (n + 3) u sum_i |c_i|
    |A_i| |D_i| a layer, however it is summed, and so does one that is formed here: 4 (n + 8) u
    times that is added.
    """
    return _norms_and_sums(layers, coefficient)[0]


def _norms_and_sums(layers: Layers, coefficient: Array) -> tuple[Clipped, Sums]:
    """``session_norms``, and of each layer the sums (B, in, out) that were formed for all sessions,
    or None.
    """
    squared, sizes = np.zeros(len(coefficient)), np.zeros(len(coefficient))
    n = coefficient.shape[1]
    sums: Sums = []
    with np.errstate(all="ignore"):
        for A, D in layers:
            wide, out = A.shape[2], D.shape[2]
            weighted, formed = coefficient[..., None] * D, None
            if out == 1 or n * (wide + out) >= wide * out:
                formed = _formed(A, weighted)
                part = _squares(formed)
                total = np.einsum("bi,bi->b", lengths_of(A), lengths_of(weighted))
            else:
                inputs, slopes = A @ np.swapaxes(A, 1, 2), weighted @ np.swapaxes(weighted, 1, 2)
                total = np.sqrt(np.einsum("bii->bi", inputs) * np.einsum("bii->bi", slopes)).sum(
                    axis=1
                )
                part = np.einsum("bij,bij->b", inputs, slopes)
                margin = (n * n + wide + out + 16) * UNIT * total**2
                part = np.maximum(part, 0.0) + margin
                lossy = margin > FINE * part
                if lossy.any():
                    part[lossy] = _squares(_formed(A[lossy], weighted[lossy]))
            squared += part
            sizes += total
            sums.append(formed)
        width = sum(A.shape[2] * D.shape[2] for A, D in layers)
        norms = (
            np.sqrt(squared) * (1.0 + (width + 16) * UNIT) + 4 * (n + 8) * UNIT * sizes + UNDERFLOW
        )
    return Clipped(_or_infinite(norms), sizes), sums


def _formed(A: Array, weighted: Array) -> Array:
    found: Array = np.matmul(np.swapaxes(A, 1, 2), weighted)
    return found


def _squares(formed: Array) -> Array:
    rows = formed.reshape(len(formed), -1)
    found: Array = np.einsum("bi,bi->b", rows, rows)
    return found


def _or_infinite(norms: Array) -> Array:
    """``norms`` with infinity where they are no number: such a session contributes nothing."""
    return np.where(np.isfinite(norms), norms, np.inf)


def session_vectors(X: Array, coefficient: Array) -> Array:
    """sum_i c_i x_i of each session, (B, p), for rows ``X`` (B, n, p) as score gradients: these are
    the gradients.
    """
    vectors: Array = np.matmul(coefficient[:, None, :], X)[:, 0]
    return vectors


def shrunk_vectors(vectors: Array, norms: Array, bound: float) -> Array:
    """sum over sessions of min(1, ``bound`` / norm) times ``vectors`` (B, p), shape (p,).

    What is scaled is what was measured, so no rounding of it is left to cover.
    """
    total: Array = np.minimum(1.0, quotients(bound, norms)) @ vectors
    return total


def clipped_sum(
    layers: Layers,
    coefficient: Array,
    clip_norm: float,
    alone: Callable[[int], tuple[Layers, Array]],
) -> Array:
    """sum over sessions of their gradients, each scaled down to norm ``clip_norm``; shape (size,).

    A session whose terms cancel to a small share of their size is computed by itself (``alone``):
    sums and products of others' documents, whose number decides how they are rounded, would else
    move it by a share of its clip.
    """
    (norms, sizes), sums = _norms_and_sums(layers, coefficient)
    apart = (sizes * CANCELS > norms) & np.isfinite(norms)
    total = shrunk_sum(layers, coefficient, np.where(apart, np.inf, norms), clip_norm, sums)
    for j in np.flatnonzero(apart):
        own_layers, own = alone(int(j))
        total += shrunk_sum(own_layers, own, session_norms(own_layers, own).norms, clip_norm)
    return total


def capped_sum(layers: Layers, coefficient: Array, found: Clipped, cap: float) -> Array:
    """sum over sessions of min(1, ``cap`` / bound) times their gradients, for the bounds of
    ``label_bounds``; (size,).

    Other labels leave documents, batch and products as they are; only the sum of a session whose
    terms cancel has to be formed apart, so that its rounding does not move those of others.
    """
    norms, sizes = found
    apart = (sizes * CANCELS > norms) & np.isfinite(norms)
    total = shrunk_sum(layers, coefficient, np.where(apart, np.inf, norms), cap)
    for j in np.flatnonzero(apart):
        own = slice(j, j + 1)
        total += shrunk_sum(
            [(A[own], D[own]) for A, D in layers], coefficient[own], norms[own], cap
        )
    return total


def shrunk_sum(
    layers: Layers, coefficient: Array, norms: Array, bound: float, sums: Sums | None = None
) -> Array:
    """sum over sessions of min(1, ``bound`` / norm) times their gradients; nothing of those without
    a finite norm.

    ``sums`` (a layer each) are sessions' gradients where these were formed already, which spares a
    second sum.
    """
    sums = [None] * len(layers) if sums is None else sums
    if not norms.max(initial=0.0) < np.inf:
        sound = np.isfinite(norms)
        layers = [(A[sound], D[sound]) for A, D in layers]
        sums = [None if formed is None else formed[sound] for formed in sums]
        coefficient, norms = coefficient[sound], norms[sound]
    share = np.minimum(1.0, quotients(bound, norms))
    shrunk, parts = coefficient * share[:, None], []
    for layer, formed in zip(layers, sums, strict=True):
        if formed is None:
            parts.append(layer_gradient(*layer, shrunk))
        else:
            parts.append(share @ formed.reshape(-1, formed.shape[1] * formed.shape[2]))
    return np.concatenate(parts)


class Directions(NamedTuple):
    """What the bounds of a block's labels follow from: maps from score gradients J to directions u,
    and sizes.

    ``map`` is p (B, n) for u_i = p_i (J_i - sum_l p_l J_l), a matrix (B, n, n) for u = map @ J,
    None for u_i = J_i. ``sizes`` P (B, n) bounds |u_i| by the triangle inequality and is what
    rounding is relative to.
    """

    map: Array | None
    sizes: Array
    total: Array


def directions_of(loss: RankingLoss, scores: Array, mask: Array, lengths: Array) -> Directions:
    """The directions of ``loss`` at ``scores`` (B, n), for documents with score gradients of
    ``lengths`` (B, n).
    """
    if loss.name == "listnet":
        p = softmax(scores, mask)
        sizes = np.where(mask, lengths, 0.0)
        return Directions(None, sizes, (p * sizes).sum(axis=1) + sizes.max(axis=1))
    if isinstance(loss, BayesRank) and loss.k == 2:
        A = loss.jacobian(scores, mask)
        sizes = np.matmul(np.abs(A), lengths[..., None])[..., 0]
        return Directions(A, sizes, sizes.sum(axis=1))
    p = softmax(scores, mask)
    sizes = p * (lengths + (p * lengths).sum(axis=1)[:, None])
    return Directions(p, sizes, sizes.sum(axis=1))


def products_of(directions: Directions, K: Array) -> Array:
    """u_i . u_j within each session, (B, n, n), from the products ``K`` of the score gradients.

    An entry errs by at most c P_i P_j with c = (width + 2 n + 16) u: the four terms of p_i p_j
    (K_ij - half_i - half_j) are products of r_i or m and of r_j or m, where r are the ``lengths``
    and m = p . r; likewise for a matrix.
    """
    if directions.map is None:
        return K
    if directions.map.ndim == 3:
        mapped: Array = np.matmul(np.matmul(directions.map, K), np.swapaxes(directions.map, 1, 2))
        return mapped
    p = directions.map
    Kp = np.matmul(K, p[..., None])[..., 0]
    half = Kp - 0.5 * (p * Kp).sum(axis=1)[:, None]
    found: Array = (K - half[:, :, None] - half[:, None, :]) * (p[:, :, None] * p[:, None, :])
    return found


def squares_of(directions: Directions, K: Array) -> Array:
    """u_i . u_i within each session, (B, n): the diagonal of ``products_of``, with its error, in
    fewer operations.
    """
    own = np.einsum("bii->bi", K)
    if directions.map is None:
        return np.asarray(own)
    if directions.map.ndim == 3:
        return np.asarray(np.einsum("bij,bij->bi", np.matmul(directions.map, K), directions.map))
    p = directions.map
    Kp = np.matmul(K, p[..., None])[..., 0]
    found: Array = (own - 2.0 * Kp + (p * Kp).sum(axis=1)[:, None]) * (p * p)
    return found


def bounds_by_products(
    K: Array, directions: Directions, target: str, width: int
) -> tuple[Array, Array]:
    """sum_i |u_i| (``gain``) or max |u_i - u_k| of each session (B,), and which of them are mostly
    margin.

    ``K`` (B, n, n) are products of score gradients. Padding needs no mask: it has u = 0, which is
    in the hull of the u_i, or repeats a document.
    """
    n, sizes = K.shape[1], directions.sizes
    error = (width + 2 * n + 16) * UNIT
    if target == "gain":
        own = np.maximum(squares_of(directions, K), 0.0)
        bounds = np.sqrt(own + error * sizes**2).sum(axis=1)
        return bounds, ~(bounds <= (1.0 + LOSSY) * np.sqrt(own).sum(axis=1))
    inner = products_of(directions, K)
    own = np.maximum(np.einsum("bii->bi", inner), 0.0)
    pairs = own[:, :, None] - 2.0 * inner
    pairs += own[:, None, :]
    largest = pairs.reshape(len(pairs), -1).max(axis=1)
    margin = 16.0 * error * sizes.max(axis=1) ** 2  # 4 c (P_i + P_k)^2 is at most that
    return np.sqrt(np.maximum(largest, 0.0) + margin), ~(margin <= LOSSY * largest)


def about_mean(p: Array, X: Array, lengths: Array) -> tuple[Array, Array]:
    """|x_i - m|^2 for m = sum_l p_l x_l as rounded, and what rounding may hide of it, both (B, n).

    From products of the rows ``X`` (B, n, k) of norms ``lengths`` with m: nothing of the size of X
    is formed. Two inner products, a square of a root and two additions err by (k + 8) u (|x_i| +
    |m|)^2 at most; twice that stands for the rounding of the norms in it.
    """
    mean = np.matmul(p[:, None, :], X)
    length = lengths_of(mean)
    squares = lengths**2 - 2.0 * np.matmul(X, np.swapaxes(mean, 1, 2))[..., 0] + length**2
    return np.maximum(squares, 0.0), 2 * (X.shape[2] + 8) * UNIT * (lengths + length) ** 2


def bounds_of_centred(p: Array, X: Array, lengths: Array) -> Array:
    """sum_i |u_i| of u_i = p_i (x_i - sum_l p_l x_l), (B,), for rows ``X`` (B, n, k) as score
    gradients.

    By products with the mean, and formed where the margin of these is not small beside the sum. The
    mean and the difference round by (n + 4) u (|x_i| + |m|) at most, which is in the margin of
    ``label_bounds``.
    """
    if X.size < SMALL:
        bounds = _formed_bounds(p, X)
    else:
        squares, margin = about_mean(p, X, lengths)
        bounds = np.einsum("bn,bn->b", p, np.sqrt(squares + margin))
        lossy = ~(bounds <= (1.0 + LOSSY) * np.einsum("bn,bn->b", p, np.sqrt(squares)))
        if lossy.any():
            bounds[lossy] = _formed_bounds(p[lossy], X[lossy])
    found: Array = bounds * (1.0 + (X.shape[2] + 16) * UNIT)
    return found


def _formed_bounds(p: Array, X: Array) -> Array:
    centred = X - np.matmul(p[:, None, :], X)
    found: Array = np.einsum("bn,bn->b", p, np.sqrt(np.einsum("bnk,bnk->bn", centred, centred)))
    return found


def referred(layers: Layers, reference: Array) -> tuple[Array, Array]:
    """Products (B, n, n) of J_i - J_t with the document t = ``reference`` (B,) of each session, and
    sizes r' (B, n).

    J_i - J_t = (A_i - A_t) D_i' + A_t (D_i - D_t)', so what all documents share is gone before
    anything is squared. An entry errs by (width + 16) u r'_i r'_j with r'_i = |A_i - A_t| |D_i| +
    |A_t| |D_i - D_t|, the differences themselves by 2 u (r_i + r_t). Directions are those of J up
    to the share by which their chances do not sum to 1, a few n u.
    """
    pick = np.arange(len(reference)), reference
    total: Array | float = 0.0
    squares: Array | float = 0.0
    for A, D in layers:
        A_t, D_t = A[pick][:, None, :], D[pick][:, None, :]
        a, d = A - A_t, D - D_t
        cross = np.matmul(a, np.swapaxes(A_t, 1, 2)) * np.matmul(D, np.swapaxes(d, 1, 2))
        total = total + np.matmul(a, np.swapaxes(a, 1, 2)) * np.matmul(D, np.swapaxes(D, 1, 2))
        total += cross + np.swapaxes(cross, 1, 2)
        length = lengths_of(A_t)
        total += (length**2)[..., None] * np.matmul(d, np.swapaxes(d, 1, 2))
        squares = squares + (lengths_of(a) * lengths_of(D) + length * lengths_of(d)) ** 2
    return np.asarray(total), np.sqrt(squares)


def label_bounds(
    layers: Layers, known: Array, scores: Array, mask: Array, loss: RankingLoss
) -> Clipped:
    """s_j of ``ScoredDocuments.label_bounds`` for the sessions of one block, rounding included,
    (B,); and their sizes.

    ``known`` are the products (B, n, n) of the documents' score gradients, or their norms (B, n)
    where one layer of rows with D = 1 is all there is and the directions come from differences to a
    mean. Where the margin of products is not small beside them, they are formed again from
    gradients measured from that of the likeliest document, which have the size of the result.

    To what the directions say 12 (n + 8) u sum_i P_i is added: for the rounding of the two released
    vectors that labels lead to, (3 n + 10) u sum_i P_i together, slopes and chances that do not sum
    to exactly 1 included, for that of differences and means, at most 2 (n + 5) u sum_i P_i, and for
    clips that differ by the margin of their norms, 2 (n + 8) u sum_i P_i. 8 width u sum_i P_i more
    are for a batch whose products are rounded in another order than those of all sessions. A
    session of one document has slope 0, exactly.
    """
    with np.errstate(all="ignore"):
        n, width = mask.shape[1], max(A.shape[2] + D.shape[2] for A, D in layers) + len(layers)
        target = target_of(loss)
        if known.ndim == 2:
            p = softmax(scores, mask)
            total = 2.0 * np.einsum("bi,bi->b", p, known)  # sum_i P_i
            bounds = bounds_of_centred(p, layers[0][0], known)
        else:
            directions = directions_of(loss, scores, mask, np.sqrt(np.einsum("bii->bi", known)))
            bounds, lossy = bounds_by_products(known, directions, target, width)
            if lossy.any():
                likeliest = np.argmax(np.where(mask, scores, -np.inf)[lossy], axis=1)
                near, sizes = referred([(A[lossy], D[lossy]) for A, D in layers], likeliest)
                closer = directions_of(loss, scores[lossy], mask[lossy], sizes)
                bounds[lossy], _ = bounds_by_products(near, closer, target, width)
            total = directions.total
        bounds = (
            bounds * (1.0 + (n + 16) * UNIT) + (12 * (n + 8) + 8 * width) * UNIT * total + UNDERFLOW
        )
    several = mask[:, 1] if n > 1 else np.zeros(len(mask), dtype=bool)
    return Clipped(np.where(several, _or_infinite(bounds), 0.0), total)
