"""Empirical lower bounds: below the truth for sound code, above the claim for planted faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from dpcore.accounting.budget import Budget
from dpcore.audit import audit, lower_bounds, one_run_epsilon
from dpcore.audit.bounds import clopper_pearson_epsilon, gaussian_tradeoff_epsilon, one_run_p_value
from dpcore.errors import AssumptionNotMet
from dpcore.mechanisms import Laplace, gaussian_sigma

CLAIM, DELTA = 4.0, 1e-5


def gaussian_sum(scale: float, seed: int, fits: int = 2000) -> Any:
    """Outputs of a plain Gaussian sum on neighbours one apart, its noise times ``scale``."""
    rng = np.random.default_rng(seed)
    sigma = scale * gaussian_sigma(CLAIM, DELTA)
    return lower_bounds(
        rng.normal(0, sigma, (fits, 1)), rng.normal(1, sigma, (fits, 1)), CLAIM, DELTA
    )


@pytest.mark.parametrize("seed", range(20))
def test_sound_gaussian_sum_is_near_its_claim_and_below_it(seed: int) -> None:
    found = gaussian_sum(1.0, seed)
    assert 2.0 <= found.gaussian_tradeoff <= CLAIM
    assert found.clopper_pearson <= CLAIM


@pytest.mark.parametrize("seed", range(20))
def test_halved_noise_is_above_the_claim(seed: int) -> None:
    assert gaussian_sum(0.5, seed).exceeds_gaussian


def test_bounds_against_closed_forms() -> None:
    """No miss and every hit: only the confidence limits speak. Chance one half on both sides:
    nothing is shown.
    """
    low, high = 0.025 ** (1 / 100), 1 - 0.025 ** (1 / 100)
    assert clopper_pearson_epsilon(100, 0, 100, 0.0, 0.95) == pytest.approx(np.log(low / high))
    assert clopper_pearson_epsilon(50, 50, 100, 0.0, 0.95) == 0.0
    assert gaussian_tradeoff_epsilon(50, 50, 100, 1e-5, 0.95) == 0.0
    assert gaussian_tradeoff_epsilon(100, 0, 100, 1e-5, 0.95) > 10


def test_pure_bound_holds_for_laplace() -> None:
    """25 audits of Laplace(1) at epsilon 1: the bound passes the truth no more often than its
    confidence says.
    """
    rng = np.random.default_rng(3)
    above = 0
    for _ in range(25):
        first, second = rng.laplace(size=(400, 1)), 1.0 + rng.laplace(size=(400, 1))
        above += (
            lower_bounds(first, second, 1.0, 1e-12).clopper_pearson > Laplace(1.0, 1.0).pure_epsilon
        )
    assert above <= binom.ppf(1 - 1e-6, 25, 0.05)


@pytest.mark.parametrize("name", ["output_gd", "dp_sgd", "rsgd_ar"])
def test_sound_algorithms_stay_below_their_claim(name: str) -> None:
    found = audit(name, fits=300, seed=1)
    assert found.gaussian_tradeoff <= found.claimed <= CLAIM
    assert not found.exceeds


class HalfSensitivity(Budget):
    """Noise for half the sensitivity."""

    def _noisy(self, mechanism: Any, query: Any, lease: Any) -> Any:
        value = super()._noisy(mechanism, query, lease)
        return value if mechanism is None else self._clear(query) + (value - self._clear(query)) / 2

    def _clear(self, query: Any) -> Any:
        return query(self._objective)


class NoNoise(HalfSensitivity):
    """The value itself."""

    def _noisy(self, mechanism: Any, query: Any, lease: Any) -> Any:
        Budget._noisy(self, mechanism, query, lease)
        return self._clear(query)


class ReusedSeed(Budget):
    """Every run draws the same noise."""

    def __init__(self, planned: Any, objective: Any, secret: Any, **others: Any) -> None:
        super().__init__(planned, objective, np.random.default_rng(5), **others)


class WrongSign(HalfSensitivity):
    """Every second release takes away the noise that the one before it added."""

    last: Any = None

    def _noisy(self, mechanism: Any, query: Any, lease: Any) -> Any:
        value, clear = Budget._noisy(self, mechanism, query, lease), self._clear(query)
        if self.last is None:
            self.last = value - clear
            return value
        noise, self.last = self.last, None
        return clear - noise


@pytest.mark.parametrize("door", [HalfSensitivity, NoNoise, ReusedSeed, WrongSign])
def test_planted_faults_are_found(door: type[Budget]) -> None:
    settings = {"steps": 2, "schedule": "constant", "momentum": 0.0}
    assert not audit("dp_sgd", settings, fits=600, seed=2).exceeds_gaussian
    found = audit("dp_sgd", settings, fits=600, seed=2, door=door)
    assert found.exceeds_gaussian
    if door is not HalfSensitivity:
        assert found.exceeds


def test_sessions_are_refused_in_words() -> None:
    with pytest.raises(AssumptionNotMet, match="for sessions"):
        audit("privbr", fits=10)


def test_one_run_bound_is_the_theorem() -> None:
    """All of 100 guesses right, delta 0: q^100 = 0.05 with q = 1 / (1 + e^-epsilon)."""
    q = 0.05 ** (1 / 100)
    assert one_run_epsilon(1000, 100, 100, 0.0, 0.95) == pytest.approx(
        np.log(q / (1 - q)), rel=1e-4
    )
    assert one_run_epsilon(1000, 100, 50, 0.0, 0.95) == 0.0
    assert one_run_p_value(1000, 100, 90, 1.0, 1e-5) >= one_run_p_value(1000, 100, 90, 1.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["output_gd", "dp_sgd", "rsgd_ar"])
def test_whole_audit_takes_less_than_90_seconds_on_two_cores(name: str) -> None:
    found = audit(name, fits=2000, workers=2)
    assert found.seconds < 90
    assert found.clopper_pearson <= found.claimed
