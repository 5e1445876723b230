"""Values and proximal points of penalties as free functions, for arrays of any shape.

A proximal point is prox(v, step) = argmin_w ||w - v||^2 / 2 + step * penalty(w). ``dpcore.penalties`` joins value and
proximal point in classes that leave the constant column alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpcore.losses import Array


def soft_threshold(v: Array, threshold: float | Array) -> Array:
    """argmin_w ||w - v||^2 / 2 + threshold ||w||_1: each coordinate moves towards 0 by ``threshold``. Any shape."""
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0.0)


def prox_l1(w: Array, strength: float, intercept: bool) -> Array:
    """Proximal step of strength * ||w||_1 without the last coordinate when ``intercept``; shape (d,) or (k, d)."""
    if strength == 0.0:
        return w
    shrunk = soft_threshold(w, strength)
    if intercept:
        shrunk[..., -1] = w[..., -1]
    return shrunk


def prox_l2(v: Array, threshold: float) -> Array:
    """argmin_w ||w - v||^2 / 2 + threshold / 2 ||w||^2 = v / (1 + threshold)."""
    return v / (1.0 + threshold)


def prox_elastic_net(v: Array, l1: float, l2: float) -> Array:
    """argmin_w ||w - v||^2 / 2 + l1 ||w||_1 + l2/2 ||w||^2. Zou & Hastie (2005), Equation 6."""
    return soft_threshold(v, l1) / (1.0 + l2)


def scad_value(w: Array, strength: float, a: float) -> float:
    """Sum of the SCAD penalty over the entries: lambda |w| up to lambda, a parabola up to a lambda, then constant.

    Fan & Li (2001), Equation 2.7: (2 a lambda |w| - w^2 - lambda^2) / (2 (a - 1)) between, (a + 1) lambda^2 / 2 beyond.
    """
    return float(_scad(np.abs(w), strength, a).sum())


def prox_scad(v: Array, strength: float, a: float, step: float) -> Array:
    """Global minimiser of (w - v)^2 / 2 + step * SCAD(w) in each entry, also where step >= a - 1 makes it non-convex.

    The least of the stationary points of the three pieces, each cut to its piece.
    """
    size = np.abs(v)
    near = np.clip(size - step * strength, 0.0, strength)
    bend = 1.0 - step / (a - 1.0)
    ends = [np.full_like(size, strength), np.full_like(size, a * strength)]
    if bend > 0.0:
        ends.append(np.clip((size - step * a * strength / (a - 1.0)) / bend, strength, a * strength))
    candidates = [near, *ends, np.maximum(size, a * strength)]
    return np.sign(v) * _least(candidates, size, lambda w: step * _scad(w, strength, a))


def _scad(w: Array, strength: float, a: float) -> Array:
    middle = (2.0 * a * strength * w - w**2 - strength**2) / (2.0 * (a - 1.0))
    return np.where(w <= strength, strength * w, np.where(w <= a * strength, middle, (a + 1.0) * strength**2 / 2.0))


def mcp_value(w: Array, strength: float, gamma: float) -> float:
    """Sum of the minimax concave penalty: lambda |w| - w^2 / (2 gamma) up to gamma lambda, then gamma lambda^2 / 2.

    Zhang (2010), Equation 2.1.
    """
    return float(_mcp(np.abs(w), strength, gamma).sum())


def prox_mcp(v: Array, strength: float, gamma: float, step: float) -> Array:
    """Global minimiser of (w - v)^2 / 2 + step * MCP(w) in each entry, also where step >= gamma makes it non-convex."""
    size = np.abs(v)
    candidates = [np.zeros_like(size), np.maximum(size, gamma * strength)]
    if step < gamma:
        candidates.append(np.clip((size - step * strength) / (1.0 - step / gamma), 0.0, gamma * strength))
    return np.sign(v) * _least(candidates, size, lambda w: step * _mcp(w, strength, gamma))


def _mcp(w: Array, strength: float, gamma: float) -> Array:
    inside = np.minimum(w, gamma * strength)
    return strength * inside - inside**2 / (2.0 * gamma)


def _least(candidates: list[Array], size: Array, cost: Callable[[Array], Array]) -> Array:
    """Entry by entry the candidate w >= 0 with the least (w - size)^2 / 2 + cost(w)."""
    stacked = np.stack(candidates)
    best = np.argmin((stacked - size) ** 2 / 2.0 + cost(stacked), axis=0)
    return np.take_along_axis(stacked, best[None], axis=0)[0]


def prox_group(v: Array, threshold: float, groups: tuple[tuple[int, ...], ...]) -> Array:
    """argmin_w ||w - v||^2 / 2 + threshold * sum_g sqrt(|g|) ||w_g||_2 over column groups; other columns stay.

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
    return (left * np.maximum(values - threshold, 0.0)) @ right


def features(w: Array, intercept: bool) -> Array:
    """The coefficients of features: without the last column where that is the constant one. A view."""
    return w[..., :-1] if intercept else w
