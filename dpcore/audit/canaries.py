"""Canaries in one run: records made to be noticed, each in or out by a coin; how many can be told gives a bound.

Steinke, Nasr & Jagielski (2023), "Privacy auditing with one (1) training run". A run with canaries is a training: it
is charged like any other, and it is never released.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcore.audit.bounds import one_run_epsilon
from dpcore.checks import require_count
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array
from dpcore.problem import Adjacency, Problem

# Keeps a record inside its norm bound when it is stored in float32.
INSIDE = 1.0 - 1e-6
SHARE = 0.5


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


@dataclass(frozen=True, slots=True, eq=False)
class Guessed:
    """What an attack on ``canaries`` found: ``right`` of ``guesses``, the bound, and the ``scores`` (m,) behind it."""

    epsilon: float
    guesses: int
    right: int
    scores: Array


def plant(
    problem: Problem, count: int, rng: np.random.Generator, coins: Any = None, like_rows: bool = False
) -> Canaries:
    """``count`` canaries, each included with chance 1/2 by a byte of ``coins`` (a generator; ``rng`` where none).

    They have the full norm and both labels. Up to the dimension they lie along the axes, so that none hides another;
    more of them have random signs. ``like_rows`` makes them one level of every block and 0 or 1 in a numeric column:
    for algorithms that bound rows by their blocks and would scale other records down.

    Raises ``AssumptionNotMet`` under another adjacency than add/remove, for which the theorem is.
    """
    require_count(count=count)
    if problem.adjacency is not Adjacency.ADD_REMOVE or problem.kind != "linear":
        raise AssumptionNotMet(
            f"Expected records under add_remove for canaries, got {problem.kind}, {problem.adjacency}; use "
            "dpcore.audit.audit, which makes many fits."
        )
    X = _rows(problem, count, rng) if like_rows else _directions(problem, count, rng)
    y = rng.choice([-1.0, 1.0], size=count)
    source = rng if coins is None else coins
    return Canaries(X, y, source.random(count) < 0.5)


def _directions(problem: Problem, count: int, rng: np.random.Generator) -> Array:
    """Records of the full norm, shape (count, d): axes where there are enough of them, else random signs."""
    d, length = problem.dimension, problem.norm_bound * INSIDE
    if count <= d:
        return length * np.eye(d)[:count]
    return rng.choice([-1.0, 1.0], size=(count, d)) * (length / np.sqrt(d))


def _rows(problem: Problem, count: int, rng: np.random.Generator) -> Array:
    """Records as an encoder could make them, shape (count, d): the constant, one level a block, ends of numbers."""
    X = rng.integers(0, 2, size=(count, problem.dimension)).astype(float)
    for block in problem.blocks:
        columns = np.asarray(block.columns)
        if block.kind == "numeric" and len(columns) == 1:
            continue
        X[:, columns] = 0.0
        X[np.arange(count), rng.choice(columns, size=count)] = 1.0
    if problem.intercept:
        X[:, -1] = 1.0
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return X * np.minimum(1.0, problem.norm_bound * INSIDE / np.maximum(norms, 1e-300))


def guess(
    canaries: Canaries, weights: Array, reference: Array, delta: float, confidence: float = 0.95, share: float = SHARE
) -> Guessed:
    """Guess in the canaries whose margin rose most and out those whose margin rose least, and bound epsilon.

    ``reference`` are weights that do not depend on the canaries (zero will do). ``share`` of all canaries are guessed:
    it is fixed before the coins are looked at, as the theorem demands.
    """
    margins = canaries.y * (canaries.X @ (np.asarray(weights) - np.asarray(reference)))
    each = max(int(len(margins) * share / 2), 1)
    if 2 * each > len(margins):
        raise AssumptionNotMet(f"Expected at least 2 canaries, got {len(margins)}; plant some hundreds.")
    order = np.argsort(margins)
    right = int(canaries.included[order[-each:]].sum() + (~canaries.included[order[:each]]).sum())
    epsilon = one_run_epsilon(len(margins), 2 * each, right, delta, confidence)
    return Guessed(epsilon, 2 * each, right, margins)


def canary_epsilon(
    canaries: Canaries, weights: Array, reference: Array, delta: float, confidence: float = 0.95, share: float = SHARE
) -> float:
    """Lower bound on epsilon from one run; see ``guess``."""
    return guess(canaries, weights, reference, delta, confidence, share).epsilon
