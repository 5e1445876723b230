"""Empirical lower bounds on epsilon: attacks on worst-case neighbours, and canaries in one run."""

from dpcore.audit.attack import audit
from dpcore.audit.bounds import (
    Measured,
    clopper_pearson_epsilon,
    curve_p_value,
    gaussian_tradeoff_epsilon,
    lower_bounds,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    promise_of,
)
from dpcore.audit.canaries import Canaries, CanaryWatch, Guessed, guess, margins, plant, planted

__all__ = [
    "Canaries",
    "CanaryWatch",
    "Guessed",
    "Measured",
    "audit",
    "clopper_pearson_epsilon",
    "curve_p_value",
    "gaussian_tradeoff_epsilon",
    "guess",
    "lower_bounds",
    "margins",
    "one_run_epsilon",
    "one_run_gaussian_epsilon",
    "plant",
    "planted",
    "promise_of",
]
