"""Choosing the candidate of highest score.

Ask queries one after the other until one is above a noisy threshold ("sparse vector", NoisyBTLS).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from dpcore.errors import InputError, require_choice, require_count, require_positive
from dpcore.mechanisms import renyi
from dpcore.mechanisms.base import Array, Mechanism, mechanism, settle


@dataclass(frozen=True, slots=True)
class Selection(Mechanism):
    """What both selections share; scores have shape (k,), higher is better, the result is an index.

    ``sensitivity`` is the most that one score moves. ``two_sided`` = False: all scores of
    neighbours move the same way (sums of terms in [0, C] under add/remove: C = ``sensitivity``).
    True: they may move in both directions (replaced records), which doubles the range of their
    differences.
    """

    sensitivity: float
    scale: float
    two_sided: bool = True

    def __post_init__(self) -> None:
        require_positive(sensitivity=self.sensitivity, scale=self.scale)
        if not isinstance(self.two_sided, bool):
            raise InputError(
                f"Expected two_sided to be true or false, got two_sided={self.two_sided!r}."
            )
        settle(self)

    @property
    def range(self) -> float:
        """Length of the interval that holds every change of a score difference, in units of
        ``scale``.
        """
        return (2.0 if self.two_sided else 1.0) * self.sensitivity / self.scale

    @property
    def pure_epsilon(self) -> float:
        """The range."""
        return self.range

    def replaced(self) -> Selection:
        """The two-sided form. Scores that moved one way by at most D when a record came or went
        move by at most D either way when it is replaced; scores that moved both ways move by 2D."""
        if self.two_sided:
            return replace(self, sensitivity=2.0 * self.sensitivity)
        return replace(self, two_sided=True)

    def distance(self, value: Array, other: Array) -> float:
        """Largest score change; for one-sided scores the span of the changes with 0 in it, which
        mixed signs widen.
        """
        change = np.asarray(value, dtype=np.float64) - np.asarray(other, dtype=np.float64)
        if self.two_sided:
            return float(np.abs(change).max())
        return float(max(change.max(), 0.0) - min(change.min(), 0.0))


@mechanism("exponential")
@dataclass(frozen=True, slots=True)
class Exponential(Selection):
    """Index of the largest score + Gumbel noise of ``scale``: the exponential mechanism, P(i) ~
    exp(score_i / scale).

    McSherry & Talwar (2007). The log-ratio of probabilities of neighbours lies in an interval of
    length ``range`` (bounded range), so it costs at most range^2 / 8 in zCDP: 2.2 times less noise
    than a Laplace noisy maximum at equal rho. Dong, Durfee & Rogers (2020); Cesar & Rogers (2021),
    Lemma 3.
    """

    def release(self, value: Array, rng: np.random.Generator) -> int:
        """Return the chosen index."""
        scores = np.asarray(value, dtype=np.float64)
        return int(np.argmax(scores + rng.gumbel(scale=self.scale, size=scores.shape)))

    def rdp(self, alphas: Array) -> Array:
        """The least curve that holds for every mechanism of that range, shape (k,):
        ``renyi.bounded_range``.
        """
        return renyi.bounded_range(np.asarray(alphas, dtype=np.float64), self.range)


@mechanism("noisy_max")
@dataclass(frozen=True, slots=True)
class NoisyMax(Selection):
    """Index of the largest score + Laplace noise of ``scale``; pure epsilon = range.

    Dwork & Roth (2014), Claim 3.9, for one-sided scores; the two-sided form doubles it (both
    measured to be attained).
    """

    def release(self, value: Array, rng: np.random.Generator) -> int:
        """Return the chosen index."""
        scores = np.asarray(value, dtype=np.float64)
        return int(np.argmax(scores + rng.laplace(scale=self.scale, size=scores.shape)))

    def rdp(self, alphas: Array) -> Array:
        """The largest curve of a pure epsilon-DP mechanism, shape (k,)."""
        return renyi.pure(np.asarray(alphas, dtype=np.float64), self.range)


@mechanism("above_threshold")
@dataclass(frozen=True, slots=True)
class AboveThreshold(Mechanism):
    """Index of the first query with value + noise >= ``threshold`` + noise, ``max_queries`` where
    none is.

    Each query moves by at most ``sensitivity`` between neighbours, in any direction. ``noise`` is
    laplace or gaussian; ``threshold_scale`` (b or sigma) is drawn once, ``query_scale`` afresh for
    every query.

    Price, with D = sensitivity (proved). Shift the threshold by D in the coupling: its noise pays
    for a shift D, each comparison for one of at most 2D, and all survival factors are at most 1.
     - laplace: e(a) = min{ e_Lap(a; e1) + 2 e2, pure(a; e1 + 2 e2) }, e1 = D / threshold_scale, e2
       = D / query_scale, for any number of queries (the first form: Zhu & Wang 2020).
     - gaussian: e(a) = a D^2 / (2 s1^2) + 2 a D^2 / s2^2 + ln(K) / (a - 1), K = max_queries: at
       step k the halting and the surviving term sum to at most e^{(a-1) 2 a D^2 / s2^2}, and there
       are K such steps.
    Theorem 5.3 of the dissertation leaves out ln K and is false; its Theorem 5.2 is unproved.
    """

    sensitivity: float
    threshold_scale: float
    query_scale: float
    max_queries: int
    threshold: float = 0.0
    noise: str = "laplace"

    def __post_init__(self) -> None:
        require_positive(
            sensitivity=self.sensitivity,
            threshold_scale=self.threshold_scale,
            query_scale=self.query_scale,
        )
        require_count(max_queries=self.max_queries)
        require_choice(("laplace", "gaussian"), noise=self.noise)
        settle(self)
        if not np.isfinite(self.threshold):
            raise InputError(f"Expected a finite threshold, got threshold={self.threshold!r}.")

    @property
    def losses(self) -> tuple[float, float]:
        """Sensitivity over the two noise scales."""
        return self.sensitivity / self.threshold_scale, self.sensitivity / self.query_scale

    @property
    def pure_epsilon(self) -> float:
        """e1 + 2 e2 for Laplace noise, infinity for Gaussian noise."""
        threshold, query = self.losses
        return threshold + 2.0 * query if self.noise == "laplace" else float("inf")

    def release(self, value: Iterable[float], rng: np.random.Generator) -> int:
        """Walk through ``value`` (an array, or a generator that computes each query when it is
        asked for).

        A generator saves the work of the queries behind the halting one; it runs inside
        ``release``, while the batch is alive. Its length must not depend on the records.
        """
        draw = rng.laplace if self.noise == "laplace" else rng.normal
        bar = self.threshold + draw(scale=self.threshold_scale)
        for index, query in enumerate(islice(iter(value), self.max_queries)):
            if float(query) + draw(scale=self.query_scale) >= bar:
                return index
        return self.max_queries

    def rdp(self, alphas: Array) -> Array:
        """The proved bound above, shape (k,)."""
        alphas = np.asarray(alphas, dtype=np.float64)
        threshold, query = self.losses
        if self.noise == "laplace":
            split = renyi.laplace(alphas, threshold) + 2.0 * query
            least: Array = np.minimum(split, renyi.pure(alphas, self.pure_epsilon))
            return least
        # Divergences rise with the order, so below the order where the bound is least, that least
        # value holds.
        slope = (threshold**2 + (2.0 * query) ** 2) / 2.0
        alphas = np.maximum(alphas, 1.0 + np.sqrt(np.log(self.max_queries) / slope))
        curve: Array = alphas * slope + np.log(self.max_queries) / (alphas - 1.0)
        return curve

    def replaced(self) -> AboveThreshold:
        """Twice the sensitivity."""
        return replace(self, sensitivity=2.0 * self.sensitivity)

    def distance(self, value: Iterable[float], other: Iterable[float]) -> float:
        """Largest change of one query (generators are run to their end)."""
        first, second = (
            np.fromiter((float(q) for q in islice(iter(queries), self.max_queries)), np.float64)
            for queries in (value, other)
        )
        return float(np.abs(first - second).max())
