"""Canaries in one run: records made to be noticed, each decided by a coin; how many can be told
gives a bound.

Steinke, Nasr & Jagielski (2023), "Privacy auditing with one (1) training run". A run with canaries
is a training: it is charged like any other, and it is never released. Under add/remove the coin
says whether a canary is in. Under replace-one, where the number of records is public, it says which
of two records is in: the same features, and one label or the other. Turning a coin over makes a
neighbour either way, which is all that the theorems ask of coins.

An observer that looks: what canaries would have added to each noisy release, and how much of it is
there.

For a query that adds up over records, a release less the known records is sum_i S_i g_i + noise,
with g_i what canary i adds and S_i its coin. Where all noise is Gaussian, b_i = sum_t <g_i,
release_t> / sigma_t^2 says all that there is to say about the coins, and (K + 4 v I)^-1 (b - K 1 /
2), K = sum_t <g_i, g_j> / sigma_t^2, is the best linear guess at S - 1/2, where v is the variance
of the noise in units of the planned one. A sound run has v = 1; v is taken as what explains b best,
so that a run with too little noise is seen for what it is.

What it uses is fixed before the coins fall (records, canaries, plan) or follows from releases, with
one exception: the rows that a Poisson batch drew among the known records. The price holds with them
given away, since records are drawn independently; batches without replacement are not looked into.
A number of a watched run is exact, hence internal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from dpcore.accounting.budget import Budget
from dpcore.accounting.observers import Call, Query
from dpcore.audit.bounds import Least, curve_p_value, one_run_epsilon, one_run_gaussian_epsilon
from dpcore.errors import AssumptionNotMet, require_count
from dpcore.losses import Array
from dpcore.mechanisms import AMP, GammaNorm, Gaussian, Mechanism, RandomisedSensitivityGaussian
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.sampling import FullBatch, Poisson, Sampled
from dpcore.train import Planned

# Keeps a record inside its norm bound when it is stored in float32.
INSIDE = 1.0 - 1e-6
# Shares of the canaries that are guessed, the surest first; each is tested at its part of the error
# (Bonferroni).
SHARES = (0.5, 0.2)


@dataclass(frozen=True, slots=True, eq=False)
class Canaries:
    """Records ``X`` (m, d), ``y`` (m,) and the coins ``included`` (m,).

    Where a coin says no, the canary is left out, or goes in with the other label (``paired``).
    """

    X: Array
    y: Array
    included: Array
    paired: bool = False

    @property
    def rows(self) -> tuple[Array, Array]:
        """The records that go into the training."""
        if self.paired:
            return self.X, np.where(self.included, self.y, -self.y)
        return self.X[self.included], self.y[self.included]


@dataclass(frozen=True, slots=True, eq=False)
class Guessed:
    """What an attack on canaries found, with the ``scores`` (m,) behind it.

    ``epsilon`` is a lower bound for any mechanism, ``gaussian_epsilon`` one for Gaussian trade-off
    curves, and ``p_value`` the chance that the promised curve, where one was given, allows for
    guesses as good as these. ``right`` of ``guesses`` belong to the share of canaries with the
    largest bound.
    """

    epsilon: float
    gaussian_epsilon: float
    p_value: float
    guesses: int
    right: int
    scores: Array


def plant(
    problem: Problem,
    count: int,
    rng: np.random.Generator,
    coins: Any = None,
    within_blocks: bool = False,
) -> Canaries:
    """``count`` canaries with random labels, a byte of ``coins`` (a generator; ``rng`` where none)
    each.

    They lie along the axes, so that none hides another while there are no more than columns; beyond
    that they share axes. They have the full norm, or with ``within_blocks`` the value 1 in their
    column: algorithms that bound rows by their blocks would cut more away. The constant column is
    an axis like others, and 0 in the other canaries.

    Raises ``AssumptionNotMet`` for what is no table of records.
    """
    require_count(count=count)
    if problem.adjacency is Adjacency.REPLACE_LABELS or problem.kind != "linear":
        raise AssumptionNotMet(
            f"Expected a table of records for canaries, got {problem.kind}, {problem.adjacency}; "
            "use dpcore.audit.audit, which makes many fits."
        )
    X = np.zeros((count, problem.dimension))
    X[np.arange(count), np.arange(count) % problem.dimension] = (
        1.0 if within_blocks else problem.norm_bound * INSIDE
    )
    y = rng.choice([-1.0, 1.0], size=count)
    source = rng if coins is None else coins
    return Canaries(X, y, source.random(count) < 0.5, problem.adjacency is Adjacency.REPLACE_ONE)


def margins(canaries: Canaries, weights: Array, reference: Array | float = 0.0) -> Array:
    """Scores by the weights alone, shape (m,): how far a canary's margin rose above that under
    ``reference``.
    """
    return canaries.y * (canaries.X @ (np.asarray(weights) - reference))


def guess(
    canaries: Canaries,
    scores: Array,
    delta: float,
    confidence: float = 0.95,
    promised: Least | None = None,
) -> Guessed:
    """Guess yes for the canaries with the highest scores and no for the lowest, equally many; bound
    epsilon.

    The scores must follow from what the run released and from public facts, never from the coins.
    Of the shares of canaries that are guessed the best is kept, and the error of the tests is
    divided by their number.
    """
    order, tried = np.argsort(scores), []
    if len(order) < 4:
        raise AssumptionNotMet(
            f"Expected at least 4 canaries, got {len(order)}; plant some hundreds."
        )
    sure = 1.0 - (1.0 - confidence) / len(SHARES)
    for share in SHARES:
        each = max(int(len(order) * share / 2), 1)
        right = int(
            canaries.included[order[-each:]].sum() + (~canaries.included[order[:each]]).sum()
        )
        facts = len(order), 2 * each, right
        p_value = (
            1.0 if promised is None else min(len(SHARES) * curve_p_value(*facts, promised), 1.0)
        )
        epsilons = (
            one_run_epsilon(*facts, delta, sure),
            one_run_gaussian_epsilon(*facts, delta, sure),
        )
        tried.append((*epsilons, p_value, 2 * each, right))
    best = max(tried)
    return Guessed(
        best[0],
        max(one[1] for one in tried),
        min(one[2] for one in tried),
        best[3],
        best[4],
        np.asarray(scores),
    )


# Products of all pairs of canaries take longest and change slowly: they are formed at every so
# manieth release alike.
STRIDE = 16
# Variances of the noise that are tried, in units of the planned one.
VARIANCES = 4.0 ** -np.arange(-2.0, 8.0)
CLEAR = (Gaussian, GammaNorm, RandomisedSensitivityGaussian, AMP)


@dataclass
class Products:
    """<g_i, g_j> / sigma^2 of alike releases: the sum over those that were formed, their number and
    that of all.
    """

    total: Array
    formed: int = 0
    seen: int = 0


@dataclass(eq=False)
class CanaryWatch:
    """Scores of ``canaries`` among the ``known`` records of one run, from its noisy releases: an
    observer of that run.

    The run's objective must hold the known records first.
    """

    known: LinearObjective
    canaries: Canaries
    seen: Array = field(init=False)
    _products: dict[Mechanism, Products] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seen = np.zeros(len(self.canaries.y))
        self._yes = self._singles(self.canaries.y)
        self._no = self._singles(-self.canaries.y) if self.canaries.paired else None

    def _singles(self, y: Array) -> list[LinearObjective]:
        X = self.canaries.X.astype(self.known.X.dtype)
        rows: Any = csr_array(X) if issparse(self.known.X) else X
        return [
            LinearObjective(rows[i : i + 1], y[i : i + 1], self.known.loss) for i in range(len(y))
        ]

    def asked(self, call: Call) -> None:
        """What a query asks of the batch says nothing by itself."""

    def released(self, mechanism: Mechanism, rows: Array | None, query: Query, value: Any) -> None:
        """Add what one release says; anything but Gaussian noise says nothing here."""
        inner: Any = mechanism.mechanism if isinstance(mechanism, Sampled) else mechanism
        if not isinstance(inner, Gaussian):
            return
        sampler: Any = mechanism.sampler if isinstance(mechanism, Sampled) else FullBatch()
        rate = getattr(sampler, "rate", 1.0)
        empty = self._ask(query, self.known.take(np.arange(0)))
        if isinstance(sampler, Poisson):
            assert rows is not None
            without = self._ask(query, self.known.take(rows[rows < self.known.n]))
        else:
            without = empty + rate * (self._ask(query, self.known) - empty)
        added = rate * np.array([self._ask(query, one) - empty for one in self._yes])
        if self._no is not None:
            other = rate * np.array([self._ask(query, one) - empty for one in self._no])
            without, added = without + other.sum(axis=0), added - other
        self.seen += added @ (np.ravel(value) - without) / inner.sigma**2
        self._multiply(mechanism, added / inner.sigma)

    def _ask(self, query: Query, records: LinearObjective) -> Array:
        return np.ravel(np.asarray(query(records), dtype=np.float64))

    def _multiply(self, mechanism: Mechanism, added: Array) -> None:
        alike = self._products.setdefault(mechanism, Products(np.zeros((len(added), len(added)))))
        if alike.seen % STRIDE == 0:
            alike.total += added @ added.T
            alike.formed += 1
        alike.seen += 1

    @property
    def looked(self) -> int:
        """How many releases said something."""
        return sum(alike.seen for alike in self._products.values())

    def scores(self, planned: Planned, weights: Array, whole: LinearObjective) -> Array:
        """The best linear guesses, shape (m,); margins of the released ``weights`` where no release
        said something.

        The margins are taken against those of the same training without noise on the ``whole``
        table, without canaries.
        """
        if not self._products:
            return margins(self.canaries, weights, clear_weights(planned, whole))
        pairs = sum(
            (one.total * (one.seen / one.formed) for one in self._products.values()), np.zeros(())
        )
        return best_guess(pairs, self.seen)


def best_guess(pairs: Array, seen: Array) -> Array:
    """(K + 4 v I)^-1 (b - K 1 / 2), shape (m,), with the v of ``VARIANCES`` for which b is
    likeliest.

    For coins with mean 1/2 and variance 1/4, b has mean K 1 / 2 and covariance K^2 / 4 + v K.
    """
    values, vectors = np.linalg.eigh(pairs)
    values = np.maximum(values, 1e-12 * values.max(initial=1e-300))
    part = vectors.T @ (seen - pairs.sum(axis=1) / 2.0)
    spreads = values**2 / 4.0 + VARIANCES[:, None] * values
    v = VARIANCES[np.argmin(np.sum(np.log(spreads) + part**2 / spreads, axis=1))]
    guesses: Array = vectors @ (part / (values + 4.0 * v))
    return guesses


class NoiselessBudget(Budget):
    """Values without noise, for a result that stays inside."""

    def release(self, mechanism: Mechanism, query: Query) -> Any:
        value = query(self._objective)
        return (
            value(np.zeros(mechanism.perturbation.dimension))
            if isinstance(mechanism, AMP)
            else value
        )


def clear_weights(planned: Planned, records: LinearObjective) -> Array:
    """Weights of the training without noise, shape (d,); zero where choices, not values, are
    released.
    """
    inner = [one.mechanism if isinstance(one, Sampled) else one for one, _ in planned.events.counts]
    if planned.algorithm.adaptive or not all(isinstance(one, CLEAR) for one in inner):
        return np.zeros(records.dimension)
    door = NoiselessBudget(planned.events, records, np.random.default_rng(0))
    return planned.algorithm.fit(planned.problem, door, np.random.default_rng(0))


def planted(
    known: LinearObjective, canaries: Canaries, rng: np.random.Generator
) -> tuple[LinearObjective, CanaryWatch]:
    """The records of the run, canaries last, and the watch over them.

    Under replace-one the canaries take the places of as many records, chosen by ``rng``: the number
    stays.
    """
    X, y = canaries.rows
    if canaries.paired:
        known = known.take(np.sort(rng.permutation(known.n)[len(y) :]))
    X = X.astype(known.X.dtype)
    if issparse(known.X):
        from scipy.sparse import vstack

        rows: Any = vstack([known.X, csr_array(X)], format="csr")
    else:
        rows = np.concatenate([known.X, X])
    return LinearObjective(rows, np.concatenate([known.y, y]), known.loss), CanaryWatch(
        known, canaries
    )
