"""Profiles of single releases, pure totals and advanced composition."""

from __future__ import annotations

from math import exp, inf, log, log1p, sqrt

import numpy as np
import pytest

from dpcore.accounting import Events, Target
from dpcore.accounting.exact import advanced_epsilon, has_profile, profile_epsilon, pure_total
from dpcore.mechanisms import (
    AMP,
    GammaNorm,
    Gaussian,
    ObjectivePerturbation,
    RandomisedSensitivityGaussian,
    gaussian_delta,
    gaussian_epsilon,
)
from dpcore.sampling import Permuted, Poisson

DELTA = 1e-6


def mixture(bounds: tuple[float, ...], sizes: tuple[int, ...], n: int):
    return Permuted(sizes, n).amplify(
        RandomisedSensitivityGaussian(bounds, sizes, n, 1.0), "replace_one"
    )


def test_equal_bounds_are_the_exact_gaussian() -> None:
    release = mixture((0.3, 0.3), (5, 5), 10)
    assert profile_epsilon(release, DELTA) == pytest.approx(gaussian_epsilon(DELTA, 0.3), rel=1e-7)


def test_the_mixture_profile_is_an_upper_bound_of_exact_mixtures_and_below_the_curve() -> None:
    """One dimension: P = sum q_j N(0, 1), Q = sum q_j N(D_j, 1); delta = integral of (P - e^eps
    Q)_+ both ways.
    """
    bounds, sizes = (0.2, 0.9), (7, 3)
    release = mixture(bounds, sizes, 10)
    x = np.linspace(-12, 14, 400_001)
    normal = lambda shift: np.exp(-((x - shift) ** 2) / 2) / sqrt(2 * np.pi)  # noqa: E731
    first, second = normal(0.0), sum(q / 10 * normal(d) for q, d in zip(sizes, bounds, strict=True))
    for epsilon in (0.0, 0.5, 1.5, 3.0):
        stated = release.mechanism.permuted_delta(epsilon)
        for p, q in ((first, second), (second, first)):
            exact = np.trapezoid(np.maximum(p - exp(epsilon) * q, 0.0), x)
            assert exact <= stated * (1 + 1e-6)
    events = Events.of([release], adjacency="replace_one")
    target = Target(1.0, DELTA)
    assert target.accountant_of(events) == "profile"
    by_curve = Target(1.0, DELTA, accountant="rdp").spent(events)
    assert 0.85 * by_curve < target.spent(events) < by_curve


def test_records_in_no_batch_lower_delta() -> None:
    half = mixture((0.5,), (5,), 10)
    assert half.mechanism.permuted_delta(1.0) == pytest.approx(gaussian_delta(1.0, 0.5) / 2)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_profile_epsilon_inverts_the_profile_from_the_safe_side(adjacency) -> None:
    release = AMP(ObjectivePerturbation(1.0, 0.25, 5.0, 20.0, 3, adjacency), 1e-5, 1e-3)
    epsilon = profile_epsilon(release, DELTA)
    assert release.delta(epsilon) <= DELTA < release.delta(epsilon * (1 - 1e-6))


def test_only_single_releases_have_a_profile() -> None:
    release = mixture((0.3,), (10,), 10)
    assert has_profile([(release, 1)]) and not has_profile([(release, 2)])
    assert not has_profile([(Gaussian(1.0, 1.0), 1), (release, 1)])
    assert not has_profile([(Poisson(0.1).amplify(Gaussian(1.0, 1.0)), 1)])


def test_pure_releases_add() -> None:
    assert pure_total([(GammaNorm(1.0, 4.0), 3)]) == pytest.approx(0.75)
    assert pure_total([(GammaNorm(1.0, 4.0), 1), (Gaussian(1.0, 1.0), 1)]) == inf
    assert (
        Target(1.0, 1e-12).spent(Events.of([GammaNorm(1.0, 2.0)], adjacency="replace_one")) <= 0.5
    )


def test_advanced_composition_is_the_printed_formula_and_above_the_curve() -> None:
    step, k, q = Poisson(0.01).amplify(Gaussian(1.0, 4.0)), 500, 0.01
    inner = gaussian_epsilon(DELTA / (2 * k * q), 0.25)
    e = log1p(q * (exp(inner) - 1))
    expected = sqrt(2 * k * log(2 / DELTA)) * e + k * e * (exp(e) - 1)
    assert advanced_epsilon([(step, k)], DELTA) == pytest.approx(expected, rel=1e-9)
    events = Events.of([step] * k, adjacency="add_remove")
    assert Target(1.0, DELTA, accountant="rdp").spent(events) < expected
    assert advanced_epsilon([(GammaNorm(1.0, 1.0), 1)], DELTA) == inf
