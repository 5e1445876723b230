"""Canaries in one run: records made to be noticed, each decided by a coin; how many can be told gives a bound.

Steinke, Nasr & Jagielski (2023), "Privacy auditing with one (1) training run". A run with canaries is a training: it
is charged like any other, and it is never released. Under add/remove the coin says whether a canary is in. Under
replace-one, where the number of records is public, it says which of two records is in: the same features, and one
label or the other. Turning a coin over makes a neighbour either way, which is all that the theorems ask of coins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcore.audit.bounds import one_run_epsilon
from dpcore.audit.one_run import Least, curve_p_value, one_run_gaussian_epsilon
from dpcore.checks import require_count
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array
from dpcore.problem import Adjacency, Problem

# Keeps a record inside its norm bound when it is stored in float32.
INSIDE = 1.0 - 1e-6
# Shares of the canaries that are guessed, the surest first; each is tested at its part of the error (Bonferroni).
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

    ``epsilon`` is a lower bound for any mechanism, ``gaussian_epsilon`` one for Gaussian trade-off curves, and
    ``p_value`` the chance that the promised curve, where one was given, allows for guesses as good as these.
    ``right`` of ``guesses`` belong to the share of canaries with the largest bound.
    """

    epsilon: float
    gaussian_epsilon: float
    p_value: float
    guesses: int
    right: int
    scores: Array


def plant(
    problem: Problem, count: int, rng: np.random.Generator, coins: Any = None, within_blocks: bool = False
) -> Canaries:
    """``count`` canaries with random labels, a byte of ``coins`` (a generator; ``rng`` where none) each.

    They lie along the axes, so that none hides another while there are no more than columns; beyond that they share
    axes. They have the full norm, or with ``within_blocks`` the value 1 in their column: algorithms that bound rows by
    their blocks would cut more away. The constant column is an axis like others, and 0 in the other canaries.

    Raises ``AssumptionNotMet`` for what is no table of records.
    """
    require_count(count=count)
    if problem.adjacency is Adjacency.REPLACE_LABELS or problem.kind != "linear":
        raise AssumptionNotMet(
            f"Expected a table of records for canaries, got {problem.kind}, {problem.adjacency}; use "
            "dpcore.audit.audit, which makes many fits."
        )
    X = np.zeros((count, problem.dimension))
    X[np.arange(count), np.arange(count) % problem.dimension] = 1.0 if within_blocks else problem.norm_bound * INSIDE
    y = rng.choice([-1.0, 1.0], size=count)
    source = rng if coins is None else coins
    return Canaries(X, y, source.random(count) < 0.5, problem.adjacency is Adjacency.REPLACE_ONE)


def margins(canaries: Canaries, weights: Array, reference: Array | float = 0.0) -> Array:
    """Scores by the weights alone, shape (m,): how far a canary's margin rose above that under ``reference``."""
    return canaries.y * (canaries.X @ (np.asarray(weights) - reference))


def guess(
    canaries: Canaries, scores: Array, delta: float, confidence: float = 0.95, promised: Least | None = None
) -> Guessed:
    """Guess yes for the canaries with the highest scores and no for the lowest, equally many; bound epsilon.

    The scores must follow from what the run released and from public facts, never from the coins. Of the shares of
    canaries that are guessed the best is kept, and the error of the tests is divided by their number.
    """
    order, tried = np.argsort(scores), []
    if len(order) < 4:
        raise AssumptionNotMet(f"Expected at least 4 canaries, got {len(order)}; plant some hundreds.")
    sure = 1.0 - (1.0 - confidence) / len(SHARES)
    for share in SHARES:
        each = max(int(len(order) * share / 2), 1)
        right = int(canaries.included[order[-each:]].sum() + (~canaries.included[order[:each]]).sum())
        facts = len(order), 2 * each, right
        p_value = 1.0 if promised is None else min(len(SHARES) * curve_p_value(*facts, promised), 1.0)
        epsilons = one_run_epsilon(*facts, delta, sure), one_run_gaussian_epsilon(*facts, delta, sure)
        tried.append((*epsilons, p_value, 2 * each, right))
    best = max(tried)
    return Guessed(
        best[0], max(one[1] for one in tried), min(one[2] for one in tried), best[3], best[4], np.asarray(scores)
    )
