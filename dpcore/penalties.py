"""Proximal operators and values of penalties; the constant column, where there is one, stays unpenalised by L1."""

from __future__ import annotations

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
