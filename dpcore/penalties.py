"""Penalties that have a proximal operator: free functions for arrays of any shape, and thin classes
over them that leave the constant column alone.

A proximal point is prox(v, step) = argmin_w ||w - v||^2 / 2 + step * penalty(w). The classes leave
the last column (the constant one) alone where ``intercept`` is true. A penalty depends on no
record, so its proximal step costs no privacy (Chen 2020, Section 4.5.1). ``convex`` is stated as
data: with SCAD and MCP an algorithm keeps its privacy, but converges to a stationary point only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from dpcore.errors import (
    AssumptionNotMet,
    InputError,
    require_count,
    require_nonnegative,
    require_positive,
    unknown_name,
)
from dpcore.problem import Problem

Array = np.ndarray


def soft_threshold(v: Array, threshold: float | Array) -> Array:
    """argmin_w ||w - v||^2 / 2 + threshold ||w||_1: each coordinate moves towards 0 by
    ``threshold``. Any shape.
    """
    return np.asarray(np.sign(v) * np.maximum(np.abs(v) - threshold, 0.0))


def prox_l1(w: Array, strength: float, intercept: bool) -> Array:
    """Proximal step of strength * ||w||_1 without the last coordinate when ``intercept``; shape
    (d,) or (k, d).
    """
    return w if strength == 0.0 else _keep_constant(soft_threshold(w, strength), w, intercept)


def _keep_constant(shrunk: Array, v: Array, intercept: bool) -> Array:
    if intercept:
        shrunk[..., -1] = v[..., -1]
    return shrunk


def prox_l2(v: Array, threshold: float) -> Array:
    """argmin_w ||w - v||^2 / 2 + threshold / 2 ||w||^2 = v / (1 + threshold)."""
    return v / (1.0 + threshold)


def scad_value(w: Array, strength: float, a: float) -> float:
    """Sum of the SCAD penalty over the entries: lambda |w| up to lambda, a parabola up to a lambda,
    then constant.

    Fan & Li (2001), Equation 2.7: (2 a lambda |w| - w^2 - lambda^2) / (2 (a - 1)) between, (a + 1)
    lambda^2 / 2 beyond.
    """
    return float(_scad(np.abs(w), strength, a).sum())


def prox_scad(v: Array, strength: float, a: float, step: float) -> Array:
    """Global minimiser of (w - v)^2 / 2 + step * SCAD(w) in each entry, also where step >= a - 1
    makes it non-convex.

    The least of the stationary points of the three pieces, each cut to its piece.
    """
    size = np.abs(v)
    near = np.clip(size - step * strength, 0.0, strength)
    bend = 1.0 - step / (a - 1.0)
    ends = [np.full_like(size, strength), np.full_like(size, a * strength)]
    if bend > 0.0:
        ends.append(
            np.clip((size - step * a * strength / (a - 1.0)) / bend, strength, a * strength)
        )
    candidates = [near, *ends, np.maximum(size, a * strength)]
    return np.asarray(np.sign(v) * _least(candidates, size, lambda w: step * _scad(w, strength, a)))


def _scad(w: Array, strength: float, a: float) -> Array:
    middle = (2.0 * a * strength * w - w**2 - strength**2) / (2.0 * (a - 1.0))
    return np.where(
        w <= strength,
        strength * w,
        np.where(w <= a * strength, middle, (a + 1.0) * strength**2 / 2.0),
    )


def mcp_value(w: Array, strength: float, gamma: float) -> float:
    """Sum of the minimax concave penalty: lambda |w| - w^2 / (2 gamma) up to gamma lambda, then
    gamma lambda^2 / 2.

    Zhang (2010), Equation 2.1.
    """
    return float(_mcp(np.abs(w), strength, gamma).sum())


def prox_mcp(v: Array, strength: float, gamma: float, step: float) -> Array:
    """Global minimiser of (w - v)^2 / 2 + step * MCP(w) in each entry, also where step >= gamma
    makes it non-convex.
    """
    size = np.abs(v)
    candidates = [np.zeros_like(size), np.maximum(size, gamma * strength)]
    if step < gamma:
        candidates.append(
            np.clip((size - step * strength) / (1.0 - step / gamma), 0.0, gamma * strength)
        )
    return np.asarray(
        np.sign(v) * _least(candidates, size, lambda w: step * _mcp(w, strength, gamma))
    )


def _mcp(w: Array, strength: float, gamma: float) -> Array:
    inside = np.minimum(w, gamma * strength)
    return np.asarray(strength * inside - inside**2 / (2.0 * gamma))


def _least(candidates: list[Array], size: Array, cost: Callable[[Array], Array]) -> Array:
    """Entry by entry the candidate w >= 0 with the least (w - size)^2 / 2 + cost(w)."""
    stacked = np.stack(candidates)
    best = np.argmin((stacked - size) ** 2 / 2.0 + cost(stacked), axis=0)
    return np.asarray(np.take_along_axis(stacked, best[None], axis=0)[0])


def prox_group(v: Array, threshold: float, groups: tuple[tuple[int, ...], ...]) -> Array:
    """argmin_w ||w - v||^2 / 2 + threshold * sum_g sqrt(|g|) ||w_g||_2 over column groups; other
    columns stay.

    Each group shrinks as one, or vanishes as one. Yuan & Lin (2006), Equation 2.4. Shape (..., d).
    """
    w = np.array(v, dtype=np.float64)
    for group in groups:
        part = w[..., list(group)]
        norm = np.sqrt(np.sum(part**2, axis=-1, keepdims=True))
        keep = 1.0 - threshold * np.sqrt(len(group)) / np.maximum(norm, 1e-300)
        w[..., list(group)] = np.maximum(keep, 0.0) * part
    return w


def prox_nuclear(V: Array, threshold: float) -> Array:
    """argmin_W ||W - V||_F^2 / 2 + threshold * (sum of the singular values of W), shape (k, d).

    Soft-thresholds the singular values. Cai, Candès & Shen (2010), Theorem 2.1.
    """
    left, values, right = np.linalg.svd(V, full_matrices=False)
    return np.asarray((left * np.maximum(values - threshold, 0.0)) @ right)


def features(w: Array, intercept: bool) -> Array:
    """The coefficients of features: without the last column where that is the constant one. A
    view.
    """
    return w[..., :-1] if intercept else w


class Penalty(Protocol):
    """Value and proximal step of one penalty; ``w`` has shape (d,) or (k, d)."""

    name: ClassVar[str]
    convex: ClassVar[bool]

    def value(self, w: Array) -> float: ...

    def prox(self, v: Array, step: float) -> Array: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WithStrength:
    """What the penalties here have in common: a ``strength``, and whether the last column is the
    constant one.
    """

    convex: ClassVar[bool] = True

    strength: float = 1e-4
    intercept: bool = False

    def __post_init__(self) -> None:
        require_nonnegative(strength=self.strength)


@dataclass(frozen=True, slots=True, kw_only=True)
class L1(WithStrength):
    """strength * ||w||_1 without the constant column. Sets weights to exactly 0."""

    name: ClassVar[str] = "l1"

    def value(self, w: Array) -> float:
        return self.strength * float(np.abs(features(w, self.intercept)).sum())

    def prox(self, v: Array, step: float) -> Array:
        return prox_l1(v, step * self.strength, self.intercept)


@dataclass(frozen=True, slots=True, kw_only=True)
class L2(WithStrength):
    """strength / 2 * ||w||^2 over all of w, the constant column too: strong convexity needs it."""

    name: ClassVar[str] = "l2"

    def value(self, w: Array) -> float:
        return self.strength / 2.0 * float(np.sum(w * w))

    def prox(self, v: Array, step: float) -> Array:
        return prox_l2(v, step * self.strength)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticNet(WithStrength):
    """strength * ||w||_1 without the constant column, plus ridge / 2 * ||w||^2 over all of w."""

    name: ClassVar[str] = "elastic_net"

    ridge: float = 1e-4

    def __post_init__(self) -> None:
        WithStrength.__post_init__(self)
        require_nonnegative(ridge=self.ridge)

    def value(self, w: Array) -> float:
        ridge = self.ridge / 2.0 * float(np.sum(w * w))
        return self.strength * float(np.abs(features(w, self.intercept)).sum()) + ridge

    def prox(self, v: Array, step: float) -> Array:
        return prox_l1(v, step * self.strength, self.intercept) / (1.0 + step * self.ridge)


@dataclass(frozen=True, slots=True, kw_only=True)
class SCAD(WithStrength):
    """Smoothly clipped absolute deviation without the constant column. Not convex. Fan & Li
    (2001).
    """

    name: ClassVar[str] = "scad"
    convex: ClassVar[bool] = False

    a: float = 3.7

    def __post_init__(self) -> None:
        WithStrength.__post_init__(self)
        if not self.a > 2.0:
            raise InputError(f"Expected a > 2 for 'scad', got a={self.a!r}; Fan & Li propose 3.7.")

    def value(self, w: Array) -> float:
        return scad_value(features(w, self.intercept), self.strength, self.a)

    def prox(self, v: Array, step: float) -> Array:
        return _keep_constant(prox_scad(v, self.strength, self.a, step), v, self.intercept)


@dataclass(frozen=True, slots=True, kw_only=True)
class MCP(WithStrength):
    """Minimax concave penalty without the constant column. Not convex. Zhang (2010)."""

    name: ClassVar[str] = "mcp"
    convex: ClassVar[bool] = False

    gamma: float = 3.0

    def __post_init__(self) -> None:
        WithStrength.__post_init__(self)
        require_positive(gamma=self.gamma)

    def value(self, w: Array) -> float:
        return mcp_value(features(w, self.intercept), self.strength, self.gamma)

    def prox(self, v: Array, step: float) -> Array:
        return _keep_constant(prox_mcp(v, self.strength, self.gamma, step), v, self.intercept)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupL1(WithStrength):
    """strength * sum over column groups of sqrt(|g|) ||w_g||_2: an attribute stays or leaves. Yuan
    & Lin (2006).
    """

    name: ClassVar[str] = "group_l1"

    groups: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        WithStrength.__post_init__(self)
        columns = [column for group in self.groups for column in group]
        if len(set(columns)) < len(columns):
            raise InputError(
                "Expected groups without common columns for 'group_l1', got "
                f"groups={self.groups!r}."
            )

    def value(self, w: Array) -> float:
        norms = [
            np.sqrt(len(g)) * np.sqrt(np.sum(w[..., list(g)] ** 2, axis=-1)).sum()
            for g in self.groups
        ]
        return self.strength * float(np.sum(norms))

    def prox(self, v: Array, step: float) -> Array:
        return prox_group(v, step * self.strength, self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class NuclearNorm(WithStrength):
    """strength * sum of the singular values of a weight matrix (classes, d), the constant column
    left out.

    Few directions of the features then serve all classes, which takes one joint model of them
    (``softmax``): a single weight vector is a matrix of one row, whose nuclear norm is its
    Euclidean norm (``penalty_of`` refuses that).
    """

    name: ClassVar[str] = "nuclear"

    def value(self, w: Array) -> float:
        matrix = np.atleast_2d(features(w, self.intercept))
        return self.strength * float(np.linalg.svd(matrix, compute_uv=False).sum())

    def prox(self, v: Array, step: float) -> Array:
        inner = np.atleast_2d(features(v, self.intercept))
        shrunk = np.array(v, dtype=np.float64)
        lower = prox_nuclear(inner, step * self.strength)
        features(shrunk, self.intercept)[...] = lower.reshape(inner.shape[-v.ndim :])
        return shrunk


penalties: dict[str, type] = {
    penalty.name: penalty for penalty in (L1, L2, ElasticNet, SCAD, MCP, GroupL1, NuclearNorm)
}


def make_penalty(name: str, **parameters: Any) -> Penalty:
    """Return the penalty called ``name``; raise ``UnknownName`` with near misses."""
    if name not in penalties:
        raise unknown_name("penalty", name, penalties)
    made: Penalty = penalties[name](**parameters)
    return made


def penalty_of(problem: Problem, name: str = "l1") -> Penalty:
    """The non-smooth penalty of ``problem``: ``name`` with strength ``problem.l1``, groups from
    ``problem.blocks``.

    The ridge ``problem.l2`` stays with the smooth part. Raises ``InputError`` for another penalty
    than L1 of strength 0, which would do nothing, and ``AssumptionNotMet`` for ``group_l1`` without
    blocks and for ``nuclear`` without a weight matrix: two classes, a target, or several classes
    one against the rest.
    """
    if name not in penalties:
        raise unknown_name("penalty", name, penalties)
    if name == "nuclear" and problem.outputs == 1:
        raise AssumptionNotMet(
            "Expected several classes in one joint model (loss='softmax') for penalty='nuclear', "
            "got one weight vector (each class against the rest is trained by itself), whose rank "
            "cannot fall; use penalty='l1'."
        )
    if name == "group_l1" and not problem.blocks:
        raise AssumptionNotMet(
            "Expected blocks for penalty='group_l1', got none; declare a schema, or use 'l1'."
        )
    if name != "l1" and problem.l1 == 0.0:
        raise InputError(
            f"Expected l1 > 0, the strength of penalty={name!r}, got l1=0; set objective.l1, or "
            "use 'l1'."
        )
    if name != "group_l1":
        return make_penalty(name, strength=problem.l1, intercept=problem.intercept)
    groups = tuple(block.columns for block in problem.blocks)
    return make_penalty(name, strength=problem.l1, groups=groups, intercept=problem.intercept)


def ranked_columns(weights: Array, intercept: bool = False) -> Array:
    """Column numbers by falling |weight|, shape (d,) without the constant column; equal sizes keep
    their order.

    ``weights`` (d,) or, for several classes, (k, d): a column then counts by its largest weight.
    Weights compare only where the columns have one scale, as standardised or one-hot columns have.
    """
    return np.argsort(-column_sizes(weights, intercept), kind="stable")


def top_columns(scores: Array, count: int, intercept: bool = False) -> Array:
    """The ``count`` columns of largest |score| in rising order, with the constant column kept
    beside them.
    """
    require_count(count=count)
    chosen = ranked_columns(scores, intercept)[:count]
    if intercept:
        chosen = np.append(chosen, scores.shape[-1] - 1)
    return np.sort(chosen)


def column_sizes(weights: Array, intercept: bool) -> Array:
    sizes = np.abs(np.atleast_2d(features(np.asarray(weights, dtype=np.float64), intercept)))
    return np.asarray(sizes.max(axis=0))
