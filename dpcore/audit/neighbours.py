"""Synthetic neighbours on which the bounds of a proof are met: aligned records, full norm, a constant slope."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
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


def worst_problem(problem: Problem | None, adjacencies: Iterable[Adjacency]) -> Problem:
    """The public facts of the attack: those of ``problem`` with few records, else a small problem.

    Under add/remove n is a nominal divisor and stays; under replace-one it is the exact count and becomes ``RECORDS``.
    Raises ``AssumptionNotMet`` for what is no table of records.
    """
    known = set(adjacencies) & {Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE}
    if not known or (problem is not None and problem.kind != "linear"):
        raise AssumptionNotMet(
            "Expected an algorithm for tables of records, got one for sessions; audit the mechanism that it uses."
        )
    if problem is None:
        relation = Adjacency.ADD_REMOVE if Adjacency.ADD_REMOVE in known else Adjacency.REPLACE_ONE
        return Problem(n=RECORDS, dimension=DIMENSION, loss=ConstantSlope(), adjacency=relation)
    n = problem.n if problem.adjacency is Adjacency.ADD_REMOVE else min(problem.n, RECORDS)
    return replace(problem, n=n, loss=ConstantSlope(), blocks=(), intercept=False, outputs=1)


def worst_case(problem: Problem) -> tuple[LinearObjective, LinearObjective]:
    """Two neighbours of ``RECORDS`` aligned records: the last is gone (add/remove) or turned round (replace-one)."""
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
