"""Faults planted on purpose: the shared checks and the audits pass the sound version and stop each
of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import Events, Target
from dpcore.algorithms import make
from dpcore.algorithms.dp_agd import DPAGD
from dpcore.algorithms.output_gd import OutputGD
from dpcore.algorithms.rsgd_ar import RSGDAR, permuted_release, release_walk
from dpcore.descent.permuted import Walk
from dpcore.mechanisms import AMP, Exponential, Gaussian, NoisyMax
from dpcore.problem import Adjacency, Problem
from tests.dpcore.algorithms.audits import exact_values, least_epsilon
from tests.tape import RECORDS, ConstantSlope, neighbours, replay

DELTA = 1e-5
DRAWS = 500_000
CHOICES = 10_000


def problem(adjacency: str = "replace_one", **changes) -> Problem:
    facts = {
        "n": RECORDS,
        "dimension": 4,
        "loss": ConstantSlope(),
        "adjacency": adjacency,
        "l2": 0.1,
    }
    return Problem(**(facts | changes))


class HalvedSensitivity(OutputGD):
    """2R became R."""

    def sensitivity(self, problem: Problem) -> float:
        return OutputGD.sensitivity(self, problem) / 2


@dataclass(frozen=True)
class ForgottenRestart(Walk):
    """The price walks eta0 / s, the training eta0 / h."""

    def sensitivities(self, problem: Problem) -> tuple[float, ...]:
        total = np.zeros(len(self.sizes))
        bounds = np.zeros(len(self.sizes))
        for epoch in range(self.epochs):
            eta = self.eta0 / (epoch + 1)
            for batch in range(len(self.sizes)):
                bounds *= max(abs(1 - eta * problem.l2), abs(1 - eta * problem.smoothness))
                bounds[batch] += eta * problem.sensitivity(problem.lipschitz) / self.sizes[batch]
                total += bounds
            if (epoch + 1) % self.interval == 0:
                bounds, total = total / (len(self.sizes) * self.interval), np.zeros(len(self.sizes))
        return tuple(bounds.tolist())


@dataclass(frozen=True)
class IgnoredShortBatch(Walk):
    """The last batch is short, and priced like the others."""

    def sensitivities(self, problem: Problem) -> tuple[float, ...]:
        return Walk(
            (max(self.sizes),) * len(self.sizes), self.epochs, self.eta0, self.interval
        ).sensitivities(problem)


class Walked(RSGDAR):
    """RSGD-AR on a walk that a test hands over."""

    given: Walk

    def walk(self, problem: Problem) -> Walk:
        return type(self).given

    def plan(self, problem: Problem) -> list[Any]:
        return [permuted_release(self.given, problem, self.noise_multiplier)]

    def fit(self, problem: Problem, budget: Any, rng: Any) -> np.ndarray:
        return release_walk(self.given, problem, budget, self.plan(problem)[0])


def walked(walk: Walk) -> Walked:
    return type("Planted", (Walked,), {"given": walk})()


class UnsoundNoisyMin(NoisyMax):
    """The public DP-AGD code: noise SUBTRACTED from scores that are maximised, and exponential at
    that.
    """

    def release(self, value: np.ndarray, rng: np.random.Generator) -> int:
        return int(np.argmax(np.asarray(value) - rng.exponential(self.scale, np.shape(value))))


@dataclass(frozen=True)
class MissingTwo(AMP):
    """The printed sigma_2: n g / Lambda for the sensitivity."""

    @property
    def output_sensitivity(self) -> float:
        return self.gradient_norm / self.perturbation.curvature


def largest(algorithm: Any, facts: Problem) -> float:
    return max(max(replay(algorithm, facts, seed).ratios) for seed in range(6))


def test_halved_sensitivity_is_seen():
    assert largest(OutputGD(steps=3), problem()) == pytest.approx(1.0, abs=0.01)
    assert largest(HalvedSensitivity(steps=3), problem()) > 1.9


def test_s_in_place_of_h_in_the_price_is_seen():
    sizes = (2, 2, 2)
    assert largest(walked(Walk(sizes, 6, 0.5, 2)), problem()) <= 1 + 1e-9
    assert largest(walked(ForgottenRestart(sizes, 6, 0.5, 2)), problem()) > 1.1


def test_a_short_last_batch_that_is_ignored_is_seen():
    sizes = (4, 2)
    assert largest(walked(Walk(sizes, 3, 0.5, 2)), problem()) <= 1 + 1e-9
    assert largest(walked(IgnoredShortBatch(sizes, 3, 0.5, 2)), problem()) > 1.5


def test_a_gradient_clip_that_idles_is_seen():
    """Clipping to C but pricing C under replace-one instead of 2C."""

    class PricedAsAddRemove(DPAGD):
        def gradient(self, problem: Problem, rho: float) -> Gaussian:
            return DPAGD.gradient(self, replace(problem, adjacency=Adjacency.ADD_REMOVE), rho)

    small = DPAGD.small
    assert largest(DPAGD(**small), problem()) <= 1 + 1e-9
    assert largest(PricedAsAddRemove(**small), problem()) > 1.9


def claimed(mechanisms: list[Any], adjacency: str) -> float:
    return Target(1.0, DELTA).spent(Events.of(mechanisms, adjacency=adjacency))


def audited(
    value: np.ndarray, other: np.ndarray, mechanism: Any, believed: Any = None
) -> tuple[float, float]:
    """(claimed epsilon, least epsilon seen) for noise of ``mechanism`` on two values; ``believed``
    makes the claim.
    """
    rng = np.random.default_rng(11)
    axis = (value - other) / np.linalg.norm(value - other)
    first = rng.normal(size=DRAWS) * mechanism.sigma + value @ axis
    second = rng.normal(size=DRAWS) * mechanism.sigma + other @ axis
    return claimed([believed or mechanism], "replace_one"), least_epsilon(first, second, DELTA)


@pytest.mark.parametrize(("kind", "sound"), [(OutputGD, True), (HalvedSensitivity, False)])
def test_audit_of_output_perturbation(kind, sound):
    """Claimed epsilon about 5; half the noise shows more. False alarm below 1e-6."""
    facts = problem()
    first, second, _ = neighbours(facts, 0)
    algorithm = kind(steps=3, noise_multiplier=1.0)
    values = exact_values(algorithm, facts, (first, second))
    claim, seen = audited(values[0], values[1], algorithm.plan(facts)[0])
    assert 4 < claim < 8
    assert (seen <= claim) is sound, (claim, seen)


@pytest.mark.parametrize(
    ("walk", "sound"), [(Walk, True), (ForgottenRestart, False), (IgnoredShortBatch, False)]
)
def test_audit_of_rsgd_ar(walk, sound):
    """The adversary's best case: the record always lands in the batch that moves the result most,
    and the price is that of the largest bound. A walk without contraction (l2 = 0, constant slope)
    reaches its bounds."""
    sizes = (5, 1) if walk is IgnoredShortBatch else (3, 3)
    facts = problem(l2=0.0)
    true = max(Walk(sizes, 12, 0.5, 2).sensitivities(facts))
    believed = max(walk(sizes, 12, 0.5, 2).sensitivities(facts))
    claim, seen = audited(
        np.array([true]), np.zeros(1), Gaussian(true, believed), Gaussian(believed, believed)
    )
    assert 4 < claim < 8
    assert (seen <= claim) is sound, (claim, seen)


@pytest.mark.parametrize(("kind", "sound"), [(AMP, True), (MissingTwo, False)])
def test_audit_of_amp(kind, sound):
    """Solvers that stop at opposite ends of the tolerance, on the same exact minimiser; output
    noise alone.
    """
    [release] = make("amp", {"output_ratio": 0.5}).plan(problem(l2=1.0))
    true = release.output_sensitivity
    planted = kind(release.perturbation, release.gradient_norm, 1.0)
    sigma = planted.output_sensitivity / 1.0
    shift = np.array([true, 0.0])
    claim, seen = audited(
        shift, np.zeros(2), Gaussian(true, sigma), Gaussian(planted.output_sensitivity, sigma)
    )
    assert 4 < claim < 8
    assert (seen <= claim) is sound, (claim, seen)


@pytest.mark.parametrize(
    ("kind", "sound"), [(NoisyMax, True), (Exponential, True), (UnsoundNoisyMin, False)]
)
def test_audit_of_the_step_choice(kind, sound):
    """21 candidates of equal score; on the neighbour all but one move by the full sensitivity
    (one-sided).

    The sign fault makes one choice all but impossible on one side: the log-ratio grows like 20
    sensitivities.
    """
    choice = kind(1.0, 0.8, False)
    rng = np.random.default_rng(3)
    scores = np.zeros(21)
    moved = scores + 1.0
    moved[7] = 0.0
    first = np.array([choice.release(scores, rng) for _ in range(CHOICES)]) == 7
    second = np.array([choice.release(moved, rng) for _ in range(CHOICES)]) == 7
    seen = max(
        least_epsilon(first.astype(float), second.astype(float), 0.0),
        least_epsilon(1.0 - first, 1.0 - second, 0.0),
    )
    assert choice.distance(scores, moved) == 1.0
    assert (seen <= choice.pure_epsilon) is sound, (choice.pure_epsilon, seen)
