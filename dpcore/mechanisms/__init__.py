"""Mechanisms: each adds its noise, states its price and measures its distance from the same
fields.
"""

from __future__ import annotations

from dpcore.mechanisms.base import (
    MECHANISMS,
    SAMPLERS,
    Exact,
    InTurn,
    Mechanism,
    Rounds,
    mechanism,
    sampler,
    to_dict,
)
from dpcore.mechanisms.gaussian import (
    Gaussian,
    RandomisedSensitivityGaussian,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_sigma,
)
from dpcore.mechanisms.laplace import GammaNorm, Laplace, laplace_for
from dpcore.mechanisms.perturbation import AMP, ObjectivePerturbation
from dpcore.mechanisms.repeated import Composition, RepeatNegativeBinomial, RepeatPoisson
from dpcore.mechanisms.selection import AboveThreshold, Exponential, NoisyMax

__all__ = [
    "AMP",
    "MECHANISMS",
    "SAMPLERS",
    "AboveThreshold",
    "Composition",
    "Exact",
    "Exponential",
    "GammaNorm",
    "Gaussian",
    "InTurn",
    "Laplace",
    "Mechanism",
    "NoisyMax",
    "ObjectivePerturbation",
    "RandomisedSensitivityGaussian",
    "RepeatNegativeBinomial",
    "RepeatPoisson",
    "Rounds",
    "from_dict",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_sigma",
    "laplace_for",
    "mechanism",
    "sampler",
    "to_dict",
]
