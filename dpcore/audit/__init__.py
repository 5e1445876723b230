"""Empirical lower bounds on epsilon: attacks on worst-case neighbours, and canaries in one run."""

from dpcore.audit.attack import Measured, audit, measure
from dpcore.audit.bounds import clopper_pearson_epsilon, gaussian_tradeoff_epsilon, one_run_epsilon
from dpcore.audit.canaries import Canaries, Guessed, canary_epsilon, guess, plant

__all__ = [
    "Canaries",
    "Guessed",
    "Measured",
    "audit",
    "canary_epsilon",
    "clopper_pearson_epsilon",
    "gaussian_tradeoff_epsilon",
    "guess",
    "measure",
    "one_run_epsilon",
    "plant",
]
