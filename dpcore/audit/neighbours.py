"""Synthetic neighbours on which the bounds of a proof are met: aligned records, full norm, a constant slope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar

import numpy as np

from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem

# Fits are many, so records are few: the differing record counts as much among six as among a million.
RECORDS = 6
DIMENSION = 4


@dataclass(frozen=True, slots=True)
class ConstantSlope:
    """Loss -z of the margin z: every record's gradient is -y x at any w, so that bounds on neighbours are met."""

    name: ClassVar[str] = "constant_slope"
    argument: ClassVar[str] = "margin"
    convex: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = 1e-9

    def value(self, z: Array) -> Array:
        return -z

    def slope(self, z: Array) -> Array:
        return -np.ones_like(z)

    def curvature(self, z: Array) -> Array:
        return np.zeros_like(z)


def worst_problem(
    problem: Problem | None, adjacencies: Iterable[Adjacency], bounded_by_blocks: bool = False
) -> Problem:
    """The public facts of the attack: those of ``problem`` with few records, else a small problem.

    Under add/remove n is a nominal divisor and stays; under replace-one it is the exact count and becomes ``RECORDS``.
    For algorithms that bound rows by their blocks there is a constant column, around whose means they turn.
    Raises ``AssumptionNotMet`` for what is no table of records.
    """
    known = set(adjacencies) & {Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE}
    if not known or (problem is not None and problem.kind != "linear"):
        raise AssumptionNotMet(
            "Expected an algorithm for tables of records, got one for sessions; audit the mechanism that it uses."
        )
    if problem is None:
        relation = Adjacency.ADD_REMOVE if Adjacency.ADD_REMOVE in known else Adjacency.REPLACE_ONE
        problem = Problem(n=RECORDS, dimension=DIMENSION, loss=ConstantSlope(), adjacency=relation)
    n = problem.n if problem.adjacency is Adjacency.ADD_REMOVE else min(problem.n, RECORDS)
    length = max(problem.norm_bound, sqrt(problem.dimension)) if bounded_by_blocks else problem.norm_bound
    return replace(
        problem,
        n=n,
        loss=ConstantSlope(),
        norm_bound=length,
        blocks=(),
        intercept=bounded_by_blocks,
        outputs=1,
    )


def worst_case(problem: Problem) -> tuple[LinearObjective, LinearObjective]:
    """Two neighbours of ``RECORDS`` aligned records: the last is gone (add/remove) or turned round (replace-one).

    With a constant column: corners of the unit cube, half zeros and half ones. The last is a one without its constant,
    as far from the means and as free of a direction that it shares as can be; it is gone, or a zero.
    """
    if problem.intercept:
        return _corners(problem)
    direction = np.zeros(problem.dimension)
    direction[0] = problem.norm_bound * (1 - 1e-12)
    X = np.tile(direction, (RECORDS, 1))
    y = np.where(np.arange(RECORDS) % 2 == 0, 1.0, -1.0)
    y[-1] = 1.0
    first = LinearObjective(X, y, problem.loss)
    if problem.adjacency is Adjacency.ADD_REMOVE:
        return first, LinearObjective(X[:-1], y[:-1], problem.loss)
    other = y.copy()
    other[-1] = -1.0
    return first, LinearObjective(X, other, problem.loss)


def _corners(problem: Problem) -> tuple[LinearObjective, LinearObjective]:
    X = np.zeros((RECORDS, problem.dimension))
    X[1::2, :-1] = 1.0
    X[:-1, -1] = 1.0
    y = np.where(np.arange(RECORDS) % 4 < 2, 1.0, -1.0)
    first = LinearObjective(X, y, problem.loss)
    if problem.adjacency is Adjacency.ADD_REMOVE:
        return first, LinearObjective(X[:-1], y[:-1], problem.loss)
    other = X.copy()
    other[-1] = 0.0
    return first, LinearObjective(other, y, problem.loss)
