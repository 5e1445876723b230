"""Bounds and levels of undeclared columns, estimated privately: what a schema could not declare has
a price.

Numeric bounds are noisy quantiles over a public grid (exponential mechanism, Smith 2011). Levels
are found by a noisy thresholded histogram that grows texts byte by byte from a public alphabet, so
that no text is looked up in the data for free and the price is a Rényi curve without a failure
probability.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np

from dpcore.accounting import Budget, Events, Target, open_door
from dpcore.accounting.calibrate import least_noise
from dpcore.errors import InputError, require_count, require_fraction, require_positive
from dpcore.mechanisms import Exponential, Gaussian, Mechanism
from dpcore.problem import Adjacency

END = b"\x00"  # closes a whole text
ALPHABET = [bytes([b]) for b in range(1, 256)] + [END]
MOST_LEVELS = 64  # levels that an estimate keeps of one column
GRID = np.array(
    sorted({s * m * 10.0**e for s in (-1, 1) for m in (1, 2, 5) for e in range(-3, 10)} | {0.0})
)


@dataclass(frozen=True, slots=True)
class Columns:
    """The raw cells that are asked about: numbers (n,) and texts as bytes, by column. ``n``
    rows.
    """

    numbers: Mapping[str, np.ndarray]
    texts: Mapping[str, Sequence[bytes]]
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateColumns:
    """Low and high of ``numeric`` columns, levels of ``texts`` columns.

    ``n`` is the public (nominal) count, ``share`` the part of the rows that should lie within the
    bounds. A text of more than ``longest`` bytes is not found, of one depth at most ``widest``
    beginnings are followed, and of the whole texts the ``widest`` of largest noisy count are kept.
    Each column costs as much as two Gaussian releases of ``noise_multiplier``: a unit of at most
    ``rows`` rows moves a quantile's scores by at most ``rows`` (both ways, so ``two_sided``), and
    at each depth the counts by ``rows`` in one place (in two when it is replaced).
    """

    numeric: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    n: int = 1000
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    noise_multiplier: float = 10.0
    share: float = 0.99
    longest: int = 32
    widest: int = MOST_LEVELS
    threshold: float = 6.0
    rows: int = 1

    def __post_init__(self) -> None:
        require_count(n=self.n, longest=self.longest, widest=self.widest, rows=self.rows)
        require_positive(noise_multiplier=self.noise_multiplier, threshold=self.threshold)
        require_fraction(share=self.share)
        if self.adjacency is Adjacency.REPLACE_LABELS:
            raise InputError(
                "Expected adjacency add_remove or replace_one to estimate bounds, got "
                "replace_labels."
            )

    @property
    def quantile(self) -> Exponential:
        return Exponential(float(self.rows), self.rows * self.noise_multiplier, two_sided=True)

    @property
    def counts(self) -> Gaussian:
        sensitivity = self.rows * (1.0 if self.adjacency is Adjacency.ADD_REMOVE else sqrt(2.0))
        return Gaussian(sensitivity, sensitivity * self.noise_multiplier * sqrt(self.longest / 2.0))

    def plan(self) -> list[Mechanism]:
        """Two quantiles for each numeric column, then ``longest`` histograms for each text
        column.
        """
        return [self.quantile] * (2 * len(self.numeric)) + [self.counts] * (
            self.longest * len(self.texts)
        )

    def events(self, unit: str = "record", noise: str = "rounded") -> Events:
        return Events.of(
            [item.with_noise(noise) for item in self.plan()], adjacency=self.adjacency, unit=unit
        )

    def fit(self, budget: Budget) -> dict[str, dict[str, Any]]:
        """The released bounds and levels by column; follows the plan, of each text column's depths
        all of them.
        """
        found: dict[str, dict[str, Any]] = {}
        for name in self.numeric:
            low, high = self._bound(budget, name, False), self._bound(budget, name, True)
            found[name] = {"low": min(low, high), "high": max(low, high)}
        for name in self.texts:
            found[name] = {"levels": self._levels(budget, name)}
        return found

    def _bound(self, budget: Budget, name: str, upper: bool) -> float:
        """The grid point whose share of rows at or below it is nearest to the wanted one; ties go
        inward.

        A public cost of ``step`` a grid point breaks ties among points that no row lies between.
        """
        wanted = (1.0 + self.share) / 2.0 if upper else (1.0 - self.share) / 2.0
        step = min(2.0 * self.rows * self.noise_multiplier, 0.02 * self.n / len(GRID))
        order = np.arange(len(GRID)) if upper else np.arange(len(GRID))[::-1]

        def scores(batch: Columns) -> np.ndarray:
            values = np.sort(batch.numbers[name])
            below = np.searchsorted(values, GRID, side="right" if upper else "left")
            scores: np.ndarray = -np.abs(below - wanted * len(values)) - step * order
            return scores

        return float(GRID[budget.release(self.quantile, scores)])

    def _levels(self, budget: Budget, name: str) -> tuple[str, ...]:
        begun, whole = [b""], dict[bytes, float]()
        mechanism = self.counts
        for depth in range(1, self.longest + 1):
            candidates = [begin + letter for begin in begun for letter in ALPHABET]
            histogram = partial(_begun, name=name, depth=depth, candidates=candidates)
            noisy = budget.release(mechanism, histogram)[: len(candidates)]
            largest = np.argsort(-noisy)[: self.widest]
            frequent = largest[noisy[largest] > self.threshold * mechanism.sigma]
            kept = {candidates[i]: float(noisy[i]) for i in frequent}
            whole |= {text[:-1]: count for text, count in kept.items() if text.endswith(END)}
            begun = [text for text in kept if not text.endswith(END)]
        most = sorted(whole, key=lambda text: -whole[text])[: self.widest]
        return _texts(most)


def _begun(batch: Columns, name: str, depth: int, candidates: list[bytes]) -> np.ndarray:
    """How many texts of a column begin with each of ``candidates`` of length ``depth``; never
    empty.
    """
    place = {text: i for i, text in enumerate(candidates)}
    counts = np.zeros(len(place) or 1)
    for text, hits in Counter(batch.texts[name]).items():
        if (i := place.get((text + END)[:depth])) is not None:
            counts[i] += hits
    return counts


def _texts(found: list[bytes]) -> tuple[str, ...]:
    return tuple(sorted({text.decode(errors="replace") for text in found} - {""}))


def calibrated(
    estimate: EstimateColumns, target: Target, noise: str = "rounded"
) -> EstimateColumns:
    """The estimate with the least ``noise_multiplier`` (to 1 part in 1000) that fits ``target``."""

    def events(multiplier: float) -> Events:
        return replace(estimate, noise_multiplier=multiplier).events(noise=noise)

    return replace(estimate, noise_multiplier=least_noise(events, target))


def estimate_columns(
    estimate: EstimateColumns,
    columns: Columns,
    *,
    on_charge: Any = None,
    fixed_noise_seed: int | None = None,
    noise: str = "rounded",
    unit: str = "record",
) -> dict[str, dict[str, Any]]:
    """Run the estimate through a door of its own; ``on_charge`` is called after each charge, before
    a row is read.
    """
    planned = estimate.events(unit, noise)
    return estimate.fit(
        open_door(
            planned, columns, noise=noise, on_charge=on_charge, fixed_noise_seed=fixed_noise_seed
        )
    )
