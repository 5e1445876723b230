"""Independent ways to the same numbers: dp-accounting, mpmath and plain quadrature."""

from __future__ import annotations

import mpmath
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant as public
from scipy.special import log_ndtr, logsumexp


def public_poisson(rate: float, sigma: float, orders: np.ndarray) -> np.ndarray:
    """dp-accounting's Poisson-sampled Gaussian."""
    return np.asarray(public._compute_rdp_poisson_subsampled_gaussian(rate, sigma, list(orders)))


def public_fixed_size(rate: float, sigma: float, orders: np.ndarray) -> np.ndarray:
    """dp-accounting's Gaussian on batches without replacement."""
    return np.asarray(public._compute_rdp_sample_wor_gaussian(rate, sigma, list(orders)))


def mixture_divergence(order: float, rate: float, density, support: list[float]) -> float:
    """D_a((1-q) f0 + q f1 || f0) by mpmath; ``density(z)`` gives (f0, f1)."""
    q, a = mpmath.mpf(rate), mpmath.mpf(order)

    def integrand(z):
        base, moved = density(z)
        return base * ((1 - q) + q * moved / base) ** a

    return float(mpmath.log(mpmath.quad(integrand, support)) / (a - 1))


def planar_divergence(
    order: float, rate: float, u: np.ndarray, v: np.ndarray, reach: float = 9.0
) -> float:
    """D_a((1-q) N(0) + q N(u) || (1-q) N(0) + q N(v)) in the plane with unit variance, on a fine
    grid.
    """
    step = 0.05
    grid = np.arange(
        -reach, reach + order * max(np.linalg.norm(u), np.linalg.norm(v), 0.1) + step, step
    )
    x = np.stack(np.meshgrid(grid, np.arange(-reach, reach, step), indexing="ij"))
    log_w = -(x**2).sum(axis=0) / 2

    def mixed(mean: np.ndarray) -> np.ndarray:
        moved = -((x - mean[:, None, None]) ** 2).sum(axis=0) / 2
        return np.logaddexp(np.log1p(-rate) + log_w, np.log(rate) + moved)

    log_p, log_q = mixed(u), mixed(v)
    total = logsumexp(order * log_p + (1 - order) * log_q) + 2 * np.log(step) - np.log(2 * np.pi)
    return float(total / (order - 1))


def log_halting(
    queries: np.ndarray,
    threshold_sigma: float,
    query_sigma: float,
    weights: np.ndarray,
    z: np.ndarray,
):
    """ln P[halt at k] for k = 1..K and for never, of AboveThreshold with Gaussian noise; quadrature
    over z.
    """
    below = log_ndtr((z[:, None] - queries) / query_sigma)
    above = log_ndtr((queries - z[:, None]) / query_sigma)
    survived = np.concatenate([np.zeros((len(z), 1)), np.cumsum(below, axis=1)], axis=1)
    log_weights = (np.log(weights) - z**2 / (2 * threshold_sigma**2))[:, None]
    halts = logsumexp(log_weights + survived[:, :-1] + above, axis=0)
    return np.append(halts, logsumexp(log_weights[:, 0] + survived[:, -1]))
