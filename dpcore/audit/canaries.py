"""Canaries in one run: records made to be noticed, each in or out by a coin; how many can be told gives a bound.

Steinke, Nasr & Jagielski (2023), "Privacy auditing with one (1) training run". A run with canaries is a training: it
is charged like any other, and it is never released.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpcore.audit.bounds import one_run_epsilon
from dpcore.checks import require_count
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array
from dpcore.problem import Adjacency, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Canaries:
    """Records ``X`` (m, d), ``y`` (m,) and which of them are ``included`` (m,)."""

    X: Array
    y: Array
    included: Array

    @property
    def rows(self) -> tuple[Array, Array]:
        """The records that go into the training."""
        return self.X[self.included], self.y[self.included]


def plant(problem: Problem, count: int, rng: np.random.Generator) -> Canaries:
    """``count`` canaries of the full norm along the axes, alternating in sign, each included with chance 1/2.

    Raises ``AssumptionNotMet`` under another adjacency than add/remove, for which the theorem is.
    """
    require_count(count=count)
    if problem.adjacency is not Adjacency.ADD_REMOVE or problem.kind != "linear":
        raise AssumptionNotMet(
            f"Expected records under add_remove for canaries, got {problem.kind}, {problem.adjacency}; use "
            "dpcore.audit.audit, which makes many fits."
        )
    X = np.zeros((count, problem.dimension))
    X[np.arange(count), np.arange(count) % problem.dimension] = problem.norm_bound * (1 - 1e-12)
    y = rng.choice([-1.0, 1.0], size=count)
    return Canaries(X, y, rng.random(count) < 0.5)


def canary_epsilon(
    canaries: Canaries, weights: Array, reference: Array, delta: float, confidence: float = 0.95, share: float = 0.5
) -> float:
    """Lower bound on epsilon from one run: canaries whose margin rose most are guessed in, those that fell most out.

    ``reference`` are weights that do not depend on the canaries (zero will do). ``share`` of all canaries are guessed.
    """
    margins = canaries.y * (canaries.X @ (np.asarray(weights) - np.asarray(reference)))
    order = np.argsort(margins)
    each = max(int(len(margins) * share / 2), 1)
    right = int(canaries.included[order[-each:]].sum() + (~canaries.included[order[:each]]).sum())
    return one_run_epsilon(len(margins), 2 * each, right, delta, confidence)
