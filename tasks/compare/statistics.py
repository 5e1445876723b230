"""Means, spread and paired comparisons of the cells of a comparison, and what they may be taken
for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from scipy.stats import t as student

from tasks.compare.grouping import Cells, Place, Record, collect, lower_is_better
from tasks.compare.variants import same_price

LEVEL = 0.95
# cells (or pairs) of an interval; two would give one many times as wide as their own distance
LEAST = 3


@dataclass(frozen=True, slots=True)
class Resampling:
    """How cells come from the data: ``ratio`` is test rows / training rows of a cell, None where
    all share one split.

    ``words`` say what the paired test may be taken for.
    """

    ratio: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Paired:
    """Differences to the best over shared (repeat, fold) cells; ``p`` is None where there is no
    test.

    ``low`` and ``high`` are those of ``student_interval``, None for fewer than ``LEAST`` pairs.
    """

    best: str
    pairs: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """One metric at one place: mean, standard deviation and interval over (repeat, fold) cells.

    ``draws`` noise draws stand behind it; ``sd`` is None for fewer than two cells, ``low`` and
    ``high`` for fewer than ``LEAST``, ``mean`` without a finite number.
    """

    place: Place
    metric: str
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    cells: int
    draws: int
    failed: int
    missing: int
    paired: Paired | None = None
    spent: float | None = None

    @property
    def epsilon(self) -> float | None:
        """As asked, or where noise is given what followed from the price; None without privacy."""
        return self.spent if self.place.noise is not None else self.place.epsilon


def resampling(records: Sequence[Record], facts: Mapping[str, Any]) -> Resampling:
    """What the cells share: folds (``facts["folds"]`` or as found), random splits (``test_share``),
    or one split.
    """
    share = facts.get("test_share")
    if share:
        ratio = float(share) / (1.0 - float(share))
        return Resampling(
            ratio, f"random splits with {float(share):.0%} test rows; training parts overlap"
        )
    folds = int(facts.get("folds") or len({record.get("fold") for record in records}))
    if folds > 1:
        common = "share no" if folds == 2 else f"share {(folds - 2) / (folds - 1):.0%} of their"
        return Resampling(
            1.0 / (folds - 1), f"{folds} folds; training parts of two folds {common} rows"
        )
    return Resampling(
        None, "one split: cells differ in noise alone, so nothing is said about other data"
    )


def summarise(records: Sequence[Record], metric: str, facts: Mapping[str, Any]) -> list[Summary]:
    """A summary of ``metric`` for each place, with paired differences to the best of its setting
    and guarantee.

    The best is the private algorithm of the best mean among those with equal setting, adjacency,
    delta and epsilon.
    """
    places = collect(records, metric)
    ratio = resampling(records, facts).ratio
    paired: dict[Place, Paired] = {}
    for block in blocks(places):
        paired |= against_best(
            {place: places[place] for place in block}, lower_is_better(metric), ratio
        )
    return [_summary(place, cells, metric, paired.get(place)) for place, cells in places.items()]


def blocks(places: Mapping[Place, Cells]) -> list[list[Place]]:
    """Places that may be compared: same setting, adjacency, delta and epsilon, with a value; none
    without privacy.

    At given noise those of one noise multiplier whose epsilon came out the same.
    """
    found: dict[Any, list[tuple[Place, float | None]]] = {}
    for place, cells in places.items():
        if place.relation is not None and cells.draws:
            spent = cells.spent if place.noise is not None else None
            found.setdefault(
                (place.setting, place.relation, place.epsilon, place.noise), []
            ).append((place, spent))
    return [part for items in found.values() for part in same_price(items)]


def _summary(place: Place, cells: Cells, metric: str, paired: Paired | None) -> Summary:
    values = np.array(list(cells.means.values()))
    mean = float(values.mean()) if len(values) else None
    sd = float(values.std(ddof=1)) if len(values) > 1 else None
    low, high = interval(values)
    counts = (len(values), cells.count, cells.failed, cells.missing)
    return Summary(place, metric, mean, sd, low, high, *counts, paired, cells.spent)


def interval(values: np.ndarray) -> tuple[float | None, float | None]:
    """Interval of the mean of ``values`` (k,) at ``LEVEL``: mean -+ t sd / sqrt(k), with k - 1
    degrees of freedom.

    (None, None) for fewer than ``LEAST``. Student (1908): of three cells t is 4.3, where resampling
    them would give an interval that misses the mean one time in four. Cells share training rows, so
    over other data sets of this kind it is too narrow.
    """
    if len(values) < LEAST:
        return None, None
    mean = float(np.mean(values))
    reach = (
        float(student.ppf((1 + LEVEL) / 2, len(values) - 1))
        * float(np.std(values, ddof=1))
        / sqrt(len(values))
    )
    return mean - reach, mean + reach


def _best(means: Mapping[Place, Mapping[Any, float]], smaller: bool) -> Place:
    """The place with the best mean, the first of equal ones."""
    sign = 1.0 if smaller else -1.0
    return min(means, key=lambda place: sign * float(np.mean(list(means[place].values()))))


def against_best(
    block: Mapping[Place, Cells], smaller: bool, ratio: float | None
) -> dict[Place, Paired]:
    """Differences (algorithm minus best) over the cells that both have, with Holm's correction over
    the block.

    The best is chosen by the same cells, so its lead is somewhat overstated: the p-values describe,
    they do not prove.
    """
    means = {place: cells.means for place, cells in block.items()}
    best = _best(means, smaller)
    found: dict[Place, Paired] = {}
    for place, values in means.items():
        shared = [key for key in values if key in means[best]]
        if place == best or not shared:
            continue
        differences = np.array([values[key] - means[best][key] for key in shared])
        low, high = student_interval(differences, ratio)
        p = corrected_t_test(differences, ratio)
        found[place] = Paired(best.label, len(shared), float(differences.mean()), low, high, p)
    return _with_holm(found)


def corrected_t_test(differences: np.ndarray, ratio: float | None) -> float | None:
    """Two-sided p-value that the mean of paired ``differences`` (k,) is 0; None without a spread or
    a second pair.

    t = mean / sqrt((1/k + ratio) variance) with k - 1 degrees of freedom, ``ratio`` = test rows /
    training rows, which allows for the training rows that cells share: the corrected resampled
    t-test of Nadeau & Bengio (2003), section 3. With ``ratio`` None it is the plain paired t-test.
    All differences 0 give 1.
    """
    count = len(differences)
    if count < 2:
        return None
    error = _standard_error(differences, ratio)
    if error is None:
        return 1.0 if not np.any(differences) else None
    return float(2.0 * student.sf(abs(float(differences.mean()) / error), count - 1))


def student_interval(
    differences: np.ndarray, ratio: float | None
) -> tuple[float | None, float | None]:
    """Interval of the mean of paired ``differences`` (k,) at ``LEVEL``, from the statistic of
    ``corrected_t_test``.

    It holds 0 exactly where that test, before Holm's correction, gives p >= 1 - ``LEVEL``. (None,
    None) for fewer than ``LEAST`` pairs and without a spread.
    """
    count = len(differences)
    error = _standard_error(differences, ratio) if count >= LEAST else None
    if error is None:
        return None, None
    mean, reach = float(differences.mean()), float(student.ppf((1 + LEVEL) / 2, count - 1)) * error
    return mean - reach, mean + reach


def _standard_error(differences: np.ndarray, ratio: float | None) -> float | None:
    """sqrt((1/k + ratio) variance) of ``differences`` (k,); None where they do not differ among
    each other.
    """
    spread = float(differences.std(ddof=1))
    if spread <= 1e-12 * max(1.0, float(np.abs(differences).max())):
        return None
    return sqrt(1.0 / len(differences) + (ratio or 0.0)) * spread


def holm(values: Sequence[float]) -> list[float]:
    """p-values adjusted for being many: step-down, the i-th smallest times (k - i), never falling.
    Holm (1979).
    """
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(len(values))
    highest = 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = highest
    return [float(value) for value in adjusted]


def _with_holm(found: dict[Place, Paired]) -> dict[Place, Paired]:
    tested = {place: pair.p for place, pair in found.items() if pair.p is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {
        place: Paired(
            pair.best, pair.pairs, pair.mean, pair.low, pair.high, pair.p, adjusted.get(place)
        )
        for place, pair in found.items()
    }


def explain(records: Sequence[Record], facts: Mapping[str, Any]) -> list[str]:
    """What stands behind intervals and tests, in sentences for whoever reads the tables."""
    kind = resampling(records, facts)
    draws = int(facts.get("draws") or 1)
    lines = [
        f"Intervals of means: {LEVEL:.0%}, by Student's t over (repeat, fold) cells; intervals of "
        f"differences: {LEVEL:.0%}, from the statistic of the test below. With fewer than {LEAST} "
        "cells or pairs there is none.",
        (
            "Noise is fixed by the seed of each cell"
            if facts.get("reproducible")
            else "Noise is drawn anew in every cell"
        )
        + (
            f", {draws} times on each split; draws on one split are averaged first."
            if draws > 1
            else "."
        ),
        "Pairs: two algorithms are compared by their difference on each (repeat, fold) that both "
        "have, never across adjacency, delta, epsilon or objective.",
    ]
    if kind.ratio is None:
        return [
            *lines,
            f"Test: paired t-test against the best mean, {kind.words}; p-values by Holm (1979).",
        ]
    return [
        *lines,
        "Test: corrected resampled t-test against the best mean (Nadeau & Bengio 2003), because "
        f"cells are not independent: {kind.words}. p-values are corrected for the number of "
        "algorithms by Holm (1979). The best is picked on the same cells, so small p-values "
        "describe these runs and prove little.",
    ]
