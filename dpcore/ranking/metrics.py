"""MAP and NDCG over sessions. What the literature disagrees about is an argument, recorded beside
the number.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import comb, nan
from typing import Any

import numpy as np

from dpcore.errors import InputError, require_choice, require_count, require_positive, unknown_name
from dpcore.identity import unit_codes
from dpcore.ranking.sessions import Array, Sessions, check_rows, offsets_of, query_ids, real

EMPTY, TIES = ("skip", "zero", "one"), ("average", "worst")
DISCOUNTS, DIVISORS = ("log2", "letor"), ("min_k", "retrieved", "relevant")
SHORT, GAINS = ("keep", "zero"), ("exponential", "linear")


@dataclass(frozen=True, slots=True)
class Conventions:
    """What a ranking metric means.

    ``empty``: a query without a relevant document is left out of the mean (``skip``) or counts as 0
    or 1, for MAP and NDCG alike. ``ties``: equal scores give the mean over their orders, or the
    ``worst`` order. ``discount``: rank r counts 1 / log2(1 + r), or LETOR's form, 1 for the first
    two ranks and 1 / log2(r) after. ``divisor`` of AP@k: min(k, number relevant); ``retrieved``,
    the relevant ones inside the top k (Chen 2020, (6.2)); or ``relevant``, all relevant ones, as
    trec_eval's map_cut. A label of at least ``relevant_from`` is relevant for AP. ``gain`` of NDCG:
    2^label - 1 (``exponential``), or the label itself (``linear``), as in trec_eval. ``short``:
    NDCG@k of a query with fewer than k documents is taken over those it has (``keep``), or 0
    (``zero``), which LETOR's own script does and which can be most of a difference to published
    tables: where 95 of 157 queries are shorter than 10, NDCG@10 falls from .376 to .122.

    ``NAMED`` has LETOR's script as ``letor``, and trec_eval's map, map_cut and ndcg_cut as
    ``trec_eval``, for scores without ties: both break ties by an order of the documents.
    """

    empty: str = "skip"
    ties: str = "average"
    discount: str = "log2"
    divisor: str = "min_k"
    relevant_from: float = 1.0
    short: str = "keep"
    gain: str = "exponential"

    def __post_init__(self) -> None:
        require_choice(EMPTY, empty=self.empty)
        require_choice(TIES, ties=self.ties)
        require_choice(DISCOUNTS, discount=self.discount)
        require_choice(DIVISORS, divisor=self.divisor)
        require_choice(SHORT, short=self.short)
        require_choice(GAINS, gain=self.gain)
        require_positive(relevant_from=self.relevant_from)


PAPER = Conventions(empty="zero", divisor="retrieved")
NAMED = {
    "letor": Conventions(empty="zero", discount="letor", short="zero"),
    "trec_eval": Conventions(empty="zero", divisor="relevant", gain="linear"),
}


@dataclass(frozen=True, eq=False)
class _Sorted:
    """Documents in rank order within their sessions, with the tie group of each."""

    y: Array
    owner: Array  # session of each place
    rank: Array  # 1-based within the session
    start: Array  # rank of the first document of the tie group
    size: Array  # documents of the tie group
    group: Array  # index of the tie group
    offsets: Array


def _sort(y: Array, scores: Array, offsets: Array, ties: str) -> _Sorted:
    lengths = np.diff(offsets)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    # Worst order: among equal scores the least relevant document comes first.
    order = np.lexsort((y, -scores, owner))
    y, scores = y[order], scores[order]
    rank = np.arange(len(y)) - offsets[owner] + 1
    new = np.ones(len(y), dtype=bool)
    if ties == "average":
        new[1:] = (scores[1:] != scores[:-1]) | (owner[1:] != owner[:-1])
    first = np.flatnonzero(new)
    group = np.cumsum(new) - 1
    size = np.diff(np.append(first, len(y)))
    return _Sorted(y, owner, rank, rank[first][group], size[group], group, offsets)


def discounts(ranks: Array, kind: str = "log2") -> Array:
    """Weight of each 1-based rank: 1 / log2(1 + r), or 1 / log2(max(r, 2)) in LETOR's form."""
    return 1.0 / np.log2(1.0 + ranks) if kind == "log2" else 1.0 / np.log2(np.maximum(ranks, 2.0))


def session_ndcg(
    y: Array, scores: Array, offsets: Array, k: int, conventions: Conventions = Conventions()
) -> Array:
    """DCG@k / best DCG@k of each session, 0 where nothing is relevant; shape (n,). Järvelin &
    Kekäläinen (2002).
    """
    placed = _sort(y, scores, offsets, conventions.ties)
    dcg = _dcg(placed, k, conventions)
    best = _dcg(_sort(y, y, offsets, "worst"), k, conventions)
    counted = (best > 0) & ((conventions.short == "keep") | (np.diff(offsets) >= k))
    ndcg: Array = np.divide(dcg, best, out=np.zeros_like(dcg), where=counted)
    return ndcg


def _dcg(placed: _Sorted, k: int, conventions: Conventions) -> Array:
    gain = (
        np.exp2(placed.y) - 1.0
        if conventions.gain == "exponential"
        else placed.y.astype(np.float64)
    )
    # Over random orders of a tie group every member has the group's mean gain.
    mean_gain = (np.bincount(placed.group, gain) / np.bincount(placed.group))[placed.group]
    weight = np.where(placed.rank <= k, discounts(placed.rank, conventions.discount), 0.0)
    return np.add.reduceat(mean_gain * weight, placed.offsets[:-1])


def session_ap(
    y: Array,
    scores: Array,
    offsets: Array,
    k: int | None = None,
    conventions: Conventions = Conventions(),
) -> Array:
    """Average precision of each session over its first ``k`` ranks (all without ``k``); 0 without a
    relevant one; (n,).

    In a tie group of m documents, r relevant, that begins after t documents with R relevant, place
    j holds a relevant document with chance r/m, and the expected precision there is (R + 1 +
    (j-1)(r-1)/(m-1)) / (t + j): the mean of AP over all orders, in closed form.
    """
    placed = _sort(y, scores, offsets, conventions.ties)
    relevant = (placed.y >= conventions.relevant_from).astype(np.float64)
    in_group = np.bincount(placed.group, relevant)[placed.group]
    total = np.add.reduceat(relevant, offsets[:-1])
    seen = np.cumsum(relevant)
    at_first = np.zeros(len(seen))
    leading = placed.rank == placed.start
    at_first[leading] = seen[leading] - relevant[leading]
    before = np.maximum.accumulate(at_first)
    before -= np.append(0.0, np.cumsum(total)[:-1])[placed.owner]
    j = placed.rank - placed.start
    precision = (before + 1.0 + j * (in_group - 1.0) / np.maximum(placed.size - 1, 1)) / placed.rank
    share = in_group / placed.size
    limit = np.inf if k is None else k
    summed = np.add.reduceat(
        np.where((placed.rank <= limit) & (in_group > 0), share * precision, 0.0), offsets[:-1]
    )
    if k is None or conventions.divisor != "retrieved":
        divisor = np.minimum(total, limit) if conventions.divisor == "min_k" else total
        return np.divide(summed, divisor, out=np.zeros_like(summed), where=divisor > 0)
    return _retrieved(placed, relevant, before, summed, k)


def _retrieved(placed: _Sorted, relevant: Array, before: Array, summed: Array, k: int) -> Array:
    """AP@k divided by the relevant documents inside the top k; a tie group cut by k makes that
    number random.
    """
    found = np.add.reduceat(np.where(placed.rank <= k, relevant, 0.0), placed.offsets[:-1])
    result: Array = np.divide(summed, found, out=np.zeros_like(summed), where=found > 0)
    cut = np.flatnonzero((placed.rank == k) & (placed.start + placed.size - 1 > k))
    for place in cut:
        j = placed.owner[place]
        session = slice(placed.offsets[j], placed.offsets[j + 1])
        result[j] = _cut_ap(placed, relevant, session, int(place), k, float(before[place]))
    return result


def _cut_ap(
    placed: _Sorted, relevant: Array, session: slice, place: int, k: int, before: float
) -> float:
    """Expected AP@k of one session whose tie group straddles rank k: a sum over the hypergeometric
    count inside.
    """
    start, size = int(placed.start[place]), int(placed.size[place])
    members = relevant[session][start - 1 : start - 1 + size]
    r, inside = int(members.sum()), k - start + 1
    outer = slice(session.start, session.start + start - 1)
    ahead = _tie_sum(placed, relevant, outer)
    j = np.arange(inside)
    value = 0.0
    for h in range(max(0, inside - (size - r)), min(r, inside) + 1):
        if before + h == 0:
            continue
        chance = comb(r, h) * comb(size - r, inside - h) / comb(size, inside)
        precision = (before + 1.0 + j * (h - 1.0) / max(inside - 1, 1)) / (start + j)
        value += chance * (ahead + float(np.sum(h / inside * precision))) / (before + h)
    return value


def _tie_sum(placed: _Sorted, relevant: Array, part: slice) -> float:
    """Expected sum of precisions over a leading part of one session that ends with a tie group."""
    total, before, place = 0.0, 0.0, part.start
    while place < part.stop:
        m, t = int(placed.size[place]), int(placed.start[place]) - 1
        r = float(relevant[place : place + m].sum())
        j = np.arange(m)
        total += (
            float(np.sum(r / m * (before + 1.0 + j * (r - 1.0) / max(m - 1, 1)) / (t + j + 1)))
            if r
            else 0.0
        )
        before, place = before + r, place + m
    return total


def _mean(values: Array, y: Array, offsets: Array, conventions: Conventions) -> float:
    """Mean over the queries that count; NaN where none does, for then there is no such number."""
    if len(values) == 0:
        return nan
    empty = np.maximum.reduceat(y, offsets[:-1]) < conventions.relevant_from
    if conventions.empty == "skip":
        return float(values[~empty].mean()) if not np.all(empty) else nan
    return float(np.where(empty, float(conventions.empty == "one"), values).mean())


def mean_average_precision(
    y: Array, scores: Array, groups: Array, k: int | None = None, **conventions: Any
) -> float:
    """Mean of AP (or AP@k) over the queries named by ``groups`` (documents,); see ``Conventions``
    for the arguments.

    NaN where no query counts: with ``empty`` = "skip" and nothing relevant there is no such number.
    Raises ``InputError`` for labels outside [0, 30], scores that are no numbers and a k below 1.
    """
    chosen = _conventions(conventions)
    y, scores, offsets = _grouped(y, scores, groups, k)
    return _mean(session_ap(y, scores, offsets, k, chosen), y, offsets, chosen)


def ndcg(y: Array, scores: Array, groups: Array, k: int = 8, **conventions: Any) -> float:
    """Mean of NDCG@k over the queries named by ``groups`` (documents,); NaN and errors as those of
    MAP.
    """
    chosen = _conventions(conventions)
    y, scores, offsets = _grouped(y, scores, groups, k)
    return _mean(session_ndcg(y, scores, offsets, k, chosen), y, offsets, chosen)


def _conventions(given: dict[str, Any]) -> Conventions:
    known = [item.name for item in fields(Conventions)]
    for name in given:
        if name not in known:
            raise unknown_name("convention", name, known)
    return Conventions(**given)


def _grouped(y: Array, scores: Array, groups: Array, k: int | None) -> tuple[Array, Array, Array]:
    """Labels and scores with the rows of each query together, and where each begins."""
    if k is not None:
        require_count(k=k)
    y, scores = real(y, "labels"), real(scores, "scores")
    if y.ndim != 1 or scores.shape != y.shape or len(y) == 0:
        raise InputError(
            f"Expected one score a label, got labels {y.shape} and scores {scores.shape}."
        )
    if not np.all(np.isfinite(scores)):
        raise InputError(
            "Expected finite scores, got NaN or inf; the model diverged or a feature is missing."
        )
    check_rows(np.empty((len(y), 0)), y)
    owner, _ = unit_codes(query_ids(groups, len(y)), "groups")
    order = np.argsort(owner, kind="stable")
    return y[order], scores[order], offsets_of(np.bincount(owner))


def ranking_report(
    sessions: Sessions,
    scores: Array,
    at: tuple[int, ...] = (1, 2, 4, 8),
    conventions: Conventions = Conventions(),
    map_at: tuple[int, ...] = (),
) -> dict[str, Any]:
    """MAP, NDCG@k for k in ``at`` and MAP@k for k in ``map_at`` of ``scores``, the number of
    queries, how many have no relevant document, and the conventions.

    A metric over no query is NaN: there is no such number, and nothing may be written in its place.
    """
    y, offsets = sessions.y, sessions.documents.offsets
    if not np.all(np.isfinite(scores)):
        raise InputError(
            "Expected finite scores, got NaN or inf; the model diverged or a feature is missing."
        )
    for k in (*at, *map_at):
        require_count(k=k)
    report: dict[str, Any] = {
        "map": _mean(session_ap(y, scores, offsets, None, conventions), y, offsets, conventions)
    }
    for k in map_at:
        report[f"map@{k}"] = _mean(
            session_ap(y, scores, offsets, k, conventions), y, offsets, conventions
        )
    for k in at:
        values = session_ndcg(y, scores, offsets, k, conventions)
        report[f"ndcg@{k}"] = _mean(values, y, offsets, conventions)
    empty = np.maximum.reduceat(y, offsets[:-1]) < conventions.relevant_from
    report |= {
        "queries": sessions.n,
        "empty_queries": int(empty.sum()),
        "conventions": asdict(conventions),
    }
    return report
