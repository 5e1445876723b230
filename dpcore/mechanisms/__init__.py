"""Mechanisms: each adds its noise, states its price and measures its distance from the same fields."""

from __future__ import annotations

from dpcore.mechanisms.base import MECHANISMS, SAMPLERS, Mechanism, from_dict, mechanism, sampler, to_dict
from dpcore.mechanisms.exact import Exact
from dpcore.mechanisms.forms import in_form, laplace_for
from dpcore.mechanisms.gaussian import Gaussian
from dpcore.mechanisms.laplace import GammaNorm, Laplace
from dpcore.mechanisms.permuted import RandomisedSensitivityGaussian
from dpcore.mechanisms.perturbation import AMP, ObjectivePerturbation
from dpcore.mechanisms.profile import gaussian_delta, gaussian_epsilon, gaussian_sigma
from dpcore.mechanisms.repeated import Composition, RepeatNegativeBinomial, RepeatPoisson
from dpcore.mechanisms.selection import Exponential, NoisyMax
from dpcore.mechanisms.threshold import AboveThreshold

# Last, for it needs the names above: stored events hold samplers too.
import dpcore.sampling  # noqa: F401  isort: skip

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
    "Laplace",
    "Mechanism",
    "NoisyMax",
    "ObjectivePerturbation",
    "RandomisedSensitivityGaussian",
    "RepeatNegativeBinomial",
    "RepeatPoisson",
    "from_dict",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_sigma",
    "in_form",
    "laplace_for",
    "mechanism",
    "sampler",
    "to_dict",
]
