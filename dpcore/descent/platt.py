"""Calibrated probabilities at a small price: a noisy histogram of scores by label, then a public
fit of two numbers.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from scipy.optimize import minimize

from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian
from dpcore.problem import Adjacency, Block, Problem

# Cells of the histogram: probabilities below 1 / 400 and above 399 / 400 are told apart no further.
EDGES = np.linspace(-6.0, 6.0, 25)
CENTRES = (EDGES[1:] + EDGES[:-1]) / 2.0
# Cells whose noisy count is within this many standard deviations of 0 are left out of the fit.
VISIBLE = 3.0
# Ranges of the slope and of the shift of the log odds.
SLOPES, SHIFTS = (0.2, 10.0), (-5.0, 5.0)


def require_log_odds(problem: Problem) -> None:
    """Raise ``AssumptionNotMet`` unless scores are log odds of two classes and a constant column
    can take the shift.
    """
    if problem.loss.name != "logistic" or not problem.intercept or problem.outputs != 1:
        raise AssumptionNotMet(
            "Expected two classes, loss='logistic' and a constant column for calibration, got "
            f"loss={problem.loss.name!r}, outputs={problem.outputs}, "
            f"intercept={problem.intercept}; use calibration_share=0."
        )


def sensitivity(adjacency: Adjacency) -> float:
    """L2 sensitivity of the histogram: a record stands in one cell, so 1, or sqrt 2 when it moves
    to another.
    """
    return 1.0 if adjacency is Adjacency.ADD_REMOVE else sqrt(2.0)


def visible(n: int, sigma: float) -> bool:
    """Whether a cell of the histogram that holds its equal share of ``n`` records is told from its
    noise; below that hardly a cell is left for the fit, and nothing is gained.
    """
    return n / len(CENTRES) > VISIBLE * sqrt(2.0) * sigma


def calibrate(
    weights: Array, release: Gaussian, blocks: tuple[Block, ...], problem: Problem, budget: Any
) -> Array:
    """Weights whose log odds are a z + b, with a and b fitted to the noisy histogram of the scores
    z; shape (d,).

    Platt (1999) on counts: minimise sum over cells of n+ log(1 + e^-(a c + b)) + n- log(1 + e^(a c
    + b)), with a pull towards a = 1, b = 0 as strong as the noise of the counts.
    """
    counts = budget.release(
        release, lambda batch: batch.within(blocks).score_counts(weights, EDGES)
    )
    slope, shift = fit(counts, release.sigma, problem.n)
    calibrated = slope * weights
    calibrated[-1] += shift
    return calibrated


def fit(counts: Array, sigma: float, n: int) -> tuple[float, float]:
    """Slope and shift from noisy ``counts`` (2, cells), label +1 first; noise ``sigma`` a cell,
    public ``n``.
    """
    kept = counts.sum(axis=0) > VISIBLE * sqrt(2.0) * sigma
    if kept.sum() < 2:
        return 1.0, 0.0
    positive, negative, centre = counts[0, kept], counts[1, kept], CENTRES[kept]
    total = float(positive.sum() + negative.sum())
    pull = sigma * sqrt(len(EDGES)) / n

    def loss(point: Array) -> float:
        odds = point[0] * centre + point[1]
        told = positive @ np.logaddexp(0.0, -odds) + negative @ np.logaddexp(0.0, odds)
        return float(told / total + pull * ((point[0] - 1.0) ** 2 + point[1] ** 2))

    slope, shift = minimize(
        loss, np.array([1.0, 0.0]), method="L-BFGS-B", bounds=[SLOPES, SHIFTS]
    ).x
    return float(slope), float(shift)
