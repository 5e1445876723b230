"""Penalties that have a proximal operator: thin classes over the free functions of ``dpcore.proximal``.

A proximal point is prox(v, step) = argmin_w ||w - v||^2 / 2 + step * penalty(w). The classes leave the last column (the
constant one) alone where ``intercept`` is true. A penalty depends on no record, so its proximal step costs no privacy
(Chen 2020, Section 4.5.1). ``convex`` is stated as data: with SCAD and MCP an algorithm keeps its privacy, but
converges to a stationary point only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from dpcore.checks import require_nonnegative, require_positive
from dpcore.errors import AssumptionNotMet, InputError, unknown_name
from dpcore.losses import Array
from dpcore.problem import Problem
from dpcore.proximal import (
    features,
    mcp_value,
    prox_group,
    prox_l1,
    prox_l2,
    prox_mcp,
    prox_nuclear,
    prox_scad,
    scad_value,
)


class Penalty(Protocol):
    """Value and proximal step of one penalty; ``w`` has shape (d,) or (k, d)."""

    name: ClassVar[str]
    convex: ClassVar[bool]

    def value(self, w: Array) -> float: ...

    def prox(self, v: Array, step: float) -> Array: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class L1:
    """strength * ||w||_1 without the constant column. Sets weights to exactly 0."""

    name: ClassVar[str] = "l1"
    convex: ClassVar[bool] = True

    strength: float = 1e-4
    intercept: bool = False

    def __post_init__(self) -> None:
        require_nonnegative(strength=self.strength)

    def value(self, w: Array) -> float:
        return self.strength * float(np.abs(features(w, self.intercept)).sum())

    def prox(self, v: Array, step: float) -> Array:
        return prox_l1(v, step * self.strength, self.intercept)


@dataclass(frozen=True, slots=True, kw_only=True)
class L2:
    """strength / 2 * ||w||^2 over all of w, the constant column too: strong convexity needs it."""

    name: ClassVar[str] = "l2"
    convex: ClassVar[bool] = True

    strength: float = 1e-4
    intercept: bool = False

    def __post_init__(self) -> None:
        require_nonnegative(strength=self.strength)

    def value(self, w: Array) -> float:
        return self.strength / 2.0 * float(np.sum(w * w))

    def prox(self, v: Array, step: float) -> Array:
        return prox_l2(v, step * self.strength)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticNet:
    """strength * ||w||_1 without the constant column, plus ridge / 2 * ||w||^2 over all of w."""

    name: ClassVar[str] = "elastic_net"
    convex: ClassVar[bool] = True

    strength: float = 1e-4
    ridge: float = 1e-4
    intercept: bool = False

    def __post_init__(self) -> None:
        require_nonnegative(strength=self.strength, ridge=self.ridge)

    def value(self, w: Array) -> float:
        ridge = self.ridge / 2.0 * float(np.sum(w * w))
        return self.strength * float(np.abs(features(w, self.intercept)).sum()) + ridge

    def prox(self, v: Array, step: float) -> Array:
        return prox_l1(v, step * self.strength, self.intercept) / (1.0 + step * self.ridge)


@dataclass(frozen=True, slots=True, kw_only=True)
class SCAD:
    """Smoothly clipped absolute deviation without the constant column. Not convex. Fan & Li (2001)."""

    name: ClassVar[str] = "scad"
    convex: ClassVar[bool] = False

    strength: float = 1e-4
    a: float = 3.7
    intercept: bool = False

    def __post_init__(self) -> None:
        require_nonnegative(strength=self.strength)
        if not self.a > 2.0:
            raise InputError(f"Expected a > 2 for 'scad', got a={self.a!r}; Fan & Li propose 3.7.")

    def value(self, w: Array) -> float:
        return scad_value(features(w, self.intercept), self.strength, self.a)

    def prox(self, v: Array, step: float) -> Array:
        return _keep_constant(prox_scad(v, self.strength, self.a, step), v, self.intercept)


@dataclass(frozen=True, slots=True, kw_only=True)
class MCP:
    """Minimax concave penalty without the constant column. Not convex. Zhang (2010)."""

    name: ClassVar[str] = "mcp"
    convex: ClassVar[bool] = False

    strength: float = 1e-4
    gamma: float = 3.0
    intercept: bool = False

    def __post_init__(self) -> None:
        require_nonnegative(strength=self.strength)
        require_positive(gamma=self.gamma)

    def value(self, w: Array) -> float:
        return mcp_value(features(w, self.intercept), self.strength, self.gamma)

    def prox(self, v: Array, step: float) -> Array:
        return _keep_constant(prox_mcp(v, self.strength, self.gamma, step), v, self.intercept)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupL1:
    """strength * sum over column groups of sqrt(|g|) ||w_g||_2: an attribute stays or leaves. Yuan & Lin (2006)."""

    name: ClassVar[str] = "group_l1"
    convex: ClassVar[bool] = True

    strength: float = 1e-4
    groups: tuple[tuple[int, ...], ...] = ()
    intercept: bool = False

    def __post_init__(self) -> None:
        require_nonnegative(strength=self.strength)
        columns = [column for group in self.groups for column in group]
        if len(set(columns)) < len(columns):
            raise InputError(f"Expected groups without common columns for 'group_l1', got groups={self.groups!r}.")

    def value(self, w: Array) -> float:
        norms = [np.sqrt(len(g)) * np.sqrt(np.sum(w[..., list(g)] ** 2, axis=-1)).sum() for g in self.groups]
        return self.strength * float(np.sum(norms))

    def prox(self, v: Array, step: float) -> Array:
        return prox_group(v, step * self.strength, self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class NuclearNorm:
    """strength * sum of the singular values of a weight matrix (classes, d), the constant column left out.

    Few directions of the features then serve all classes, which takes one joint model of them (``softmax``): a single
    weight vector is a matrix of one row, whose nuclear norm is its Euclidean norm (``penalty_of`` refuses that).
    """

    name: ClassVar[str] = "nuclear"
    convex: ClassVar[bool] = True

    strength: float = 1e-4
    intercept: bool = False

    def __post_init__(self) -> None:
        require_nonnegative(strength=self.strength)

    def value(self, w: Array) -> float:
        matrix = np.atleast_2d(features(w, self.intercept))
        return self.strength * float(np.linalg.svd(matrix, compute_uv=False).sum())

    def prox(self, v: Array, step: float) -> Array:
        inner = np.atleast_2d(features(v, self.intercept))
        shrunk = np.array(v, dtype=np.float64)
        lower = prox_nuclear(inner, step * self.strength)
        features(shrunk, self.intercept)[...] = lower.reshape(inner.shape[-v.ndim :])
        return shrunk


def _keep_constant(shrunk: Array, v: Array, intercept: bool) -> Array:
    if intercept:
        shrunk[..., -1] = v[..., -1]
    return shrunk


penalties: dict[str, type] = {
    penalty.name: penalty for penalty in (L1, L2, ElasticNet, SCAD, MCP, GroupL1, NuclearNorm)
}


def make_penalty(name: str, **parameters: Any) -> Penalty:
    """Return the penalty called ``name``; raise ``UnknownName`` with near misses."""
    if name not in penalties:
        raise unknown_name("penalty", name, penalties)
    return penalties[name](**parameters)


def penalty_of(problem: Problem, name: str = "l1") -> Penalty:
    """The non-smooth penalty of ``problem``: ``name`` with strength ``problem.l1``, groups from ``problem.blocks``.

    The ridge ``problem.l2`` stays with the smooth part. Raises ``InputError`` for another penalty than L1 of strength
    0, which would do nothing, and ``AssumptionNotMet`` for ``group_l1`` without blocks and for ``nuclear`` without a
    weight matrix: two classes, a target, or several classes one against the rest.
    """
    if name not in penalties:
        raise unknown_name("penalty", name, penalties)
    if name == "nuclear" and problem.outputs == 1:
        raise AssumptionNotMet(
            "Expected several classes in one joint model (loss='softmax') for penalty='nuclear', got one weight vector "
            "(each class against the rest is trained by itself), whose rank cannot fall; use penalty='l1'."
        )
    if name == "group_l1" and not problem.blocks:
        raise AssumptionNotMet("Expected blocks for penalty='group_l1', got none; declare a schema, or use 'l1'.")
    if name != "l1" and problem.l1 == 0.0:
        raise InputError(f"Expected l1 > 0, the strength of penalty={name!r}, got l1=0; set objective.l1, or use 'l1'.")
    if name != "group_l1":
        return make_penalty(name, strength=problem.l1, intercept=problem.intercept)
    groups = tuple(block.columns for block in problem.blocks)
    return make_penalty(name, strength=problem.l1, groups=groups, intercept=problem.intercept)
