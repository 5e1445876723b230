"""The audit of ``scaled_gd`` on worst-case neighbours: near its claim where it is sound, above it
where a fault is.

The attacker sees the noisy marginals and every noisy gradient, and knows both tables. Half of mu^2
goes to the marginals, so that a factor of two in either part shows; the claim is (4, 1e-5), and
factors do not depend on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpcore.accounting.budget import Budget
from dpcore.audit import Measured, audit
from dpcore.audit.attack import worst_case, worst_problem
from dpcore.descent.marginals import Marginals
from dpcore.losses import make_loss
from dpcore.problem import Adjacency, Problem

ADJACENCIES = [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE]
SETTINGS = {"steps": 3, "clip_norm": 0.05, "marginal_share": 0.5}


def attacked(
    adjacency: Adjacency, fits: int, door: type[Budget] = Budget, seed: int = 3
) -> Measured:
    problem = Problem(n=6, dimension=4, loss=make_loss("logistic"), adjacency=adjacency)
    return audit("scaled_gd", SETTINGS, problem=problem, fits=fits, door=door, seed=seed)


class Doctored(Budget):
    """Changes the noise of a release from its number: 1 for the marginals, others for gradients."""

    def _noisy(self, mechanism: Any, query: Any, lease: Any) -> Any:
        noisy, clear = super()._noisy(mechanism, query, lease), query(self._objective)
        return clear + self.share(self.releases) * (noisy - clear)

    def share(self, number: int) -> float:
        return 1.0


class ClearMarginals(Doctored):
    def share(self, number: int) -> float:
        return float(number > 1)


class ClearGradients(Doctored):
    def share(self, number: int) -> float:
        return float(number == 1)


class SameNoise(Budget):
    """A generator that begins anew at each release: marginals and gradients get the same noise."""

    def __init__(
        self, planned: Any, objective: Any, secret: np.random.Generator, **others: Any
    ) -> None:
        super().__init__(planned, objective, secret, **others)
        self._start = int(secret.integers(2**32))

    def _noisy(self, mechanism: Any, query: Any, lease: Any) -> Any:
        self._secret = np.random.default_rng(self._start)
        return super()._noisy(mechanism, query, lease)


def halve_marginals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marginals get noise for half of what a record moves them by."""
    whole = Marginals.sensitivity
    monkeypatch.setattr(
        Marginals, "sensitivity", lambda self, adjacency: whole(self, adjacency) / 2.0
    )


def halve_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are clipped to C and get noise for C / 2."""
    whole = Problem.sensitivity
    monkeypatch.setattr(Problem, "sensitivity", lambda self, clip: whole(self, clip) / 2.0)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_neighbours_reach_the_bound_of_the_marginals(adjacency: Adjacency) -> None:
    problem = worst_problem(
        Problem(n=6, dimension=4, loss=make_loss("logistic"), adjacency=adjacency),
        [adjacency],
        True,
    )
    first, second = worst_case(problem)
    layout = Marginals.of(problem)
    moved = np.linalg.norm(layout.query(first) - layout.query(second))
    assert moved == pytest.approx(layout.sensitivity(adjacency), rel=1e-4)


def test_quick() -> None:
    """A sound version that is far from nothing, and one that lacks noise."""
    assert 0.3 < attacked(Adjacency.ADD_REMOVE, 150).gaussian_tradeoff <= 4.0
    assert attacked(Adjacency.ADD_REMOVE, 60, ClearMarginals).gaussian_tradeoff > 4.0


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_sound_version_is_near_its_claim_and_below_it(adjacency: Adjacency) -> None:
    found = attacked(adjacency, 2000)
    assert 2.0 < found.gaussian_tradeoff <= found.claimed <= 4.0
    assert found.clopper_pearson <= found.claimed


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("fault", [halve_marginals, halve_clip])
def test_halved_sensitivities_are_found(
    adjacency: Adjacency, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    assert attacked(adjacency, 2000).exceeds_gaussian


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("door", [ClearMarginals, ClearGradients, SameNoise])
def test_missing_and_shared_noise_are_found(adjacency: Adjacency, door: type[Budget]) -> None:
    """Missing noise needs no Gaussian outputs to be seen; shared noise adds up with the signal."""
    found = attacked(adjacency, 1000, door)
    assert found.exceeds_gaussian
    assert door is SameNoise or found.exceeds
