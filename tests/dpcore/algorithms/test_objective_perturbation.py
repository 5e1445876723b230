"""The certified minimiser, objective perturbation and AMP."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.accounting import Target
from dpcore.algorithms import make
from dpcore.descent import minimise
from dpcore.descent.minimise import Perturbed, _certain
from dpcore.errors import AssumptionNotMet
from dpcore.losses import HuberHinge, HuberRegression, Logistic, MarginLoss
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run

TOLERANCE = 1e-6


def records(loss, form: str = "dense", n: int = 200, d: int = 6) -> LinearObjective:
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(n, d)), rng.choice([-1.0, 1.0], n)
    X /= np.linalg.norm(X, axis=1)[:, None]
    X = csr_array(X) if form == "csr" else X.astype(np.float32) if form == "float32" else X
    return LinearObjective(X, y, loss)


@pytest.mark.parametrize("form", ["dense", "csr", "float32"])
@pytest.mark.parametrize("loss", [Logistic(), HuberHinge(), HuberHinge(h=1e-3), HuberRegression()])
@pytest.mark.parametrize(("curvature", "scale"), [(1e-3, 1.0), (0.5, 30.0), (50.0, 1e4)])
def test_the_gradient_norm_is_reached(form, loss, curvature, scale):
    noise = np.random.default_rng(1).normal(scale=scale, size=6)
    batch = records(loss, form)
    w = minimise.minimise(batch, curvature, noise, TOLERANCE)
    assert np.linalg.norm(Perturbed(batch, curvature, noise).gradient(w)) <= TOLERANCE


@pytest.mark.parametrize("case", ["empty", "zero rows", "one row", "equal rows"])
def test_no_data_set_makes_it_fail(case):
    """Code inside a query must not raise or stop short for any records."""
    X = {"empty": np.zeros((0, 3)), "zero rows": np.zeros((4, 3)), "one row": np.eye(3)[:1]}.get(
        case, np.ones((5, 3))
    )
    noise = np.array([3.0, -1.0, 0.5])
    batch = LinearObjective(X, np.ones(len(X)), Logistic())
    w = minimise.minimise(batch, 0.1, noise, TOLERANCE)
    assert np.linalg.norm(Perturbed(batch, 0.1, noise).gradient(w)) <= TOLERANCE


@pytest.mark.parametrize("start", [0.0, 1e3, np.nan])
def test_the_proved_number_of_gradient_steps_is_enough_alone(start):
    """Where the quick steps fail, for whatever reason, the gradient steps end within their known
    number.
    """
    noise = np.array([2.0, -5.0, 0.1, 0.0, 1.0, 1.0])
    problem = Perturbed(records(HuberHinge()), 0.5, noise)
    w = minimise._certain(problem, np.full(6, start), TOLERANCE)
    assert np.linalg.norm(problem.gradient(w)) <= TOLERANCE


def test_many_columns_take_no_square_matrix(monkeypatch):
    monkeypatch.setattr(minimise, "MOST_COLUMNS", 3)
    monkeypatch.setattr(Perturbed, "hessian", lambda *_: pytest.fail("a (d, d) matrix was formed"))
    noise = np.random.default_rng(1).normal(size=6)
    w = minimise.minimise(records(Logistic()), 0.5, noise, TOLERANCE)
    assert np.linalg.norm(Perturbed(records(Logistic()), 0.5, noise).gradient(w)) <= TOLERANCE


@pytest.mark.parametrize("margin", [Logistic(), HuberRegression()])
def test_perturbed_gradient_and_hessian_are_those_of_the_value(margin):
    problem = Perturbed(records(margin), 0.3, np.arange(6.0))
    w = np.random.default_rng(2).normal(size=6)
    gradient, hessian = problem.value_and_gradient(w)[1], problem.hessian(w)
    for k, axis in enumerate(np.eye(6) * 1e-5):
        slope = (
            problem.value_and_gradient(w + axis)[0] - problem.value_and_gradient(w - axis)[0]
        ) / 2e-5
        bend = (problem.gradient(w + axis) - problem.gradient(w - axis)) / 2e-5
        assert slope == pytest.approx(gradient[k], abs=1e-5)
        np.testing.assert_allclose(
            bend, hessian[k], atol=1e-4 if margin.argument == "margin" else 0.3
        )
    assert np.linalg.eigvalsh(hessian)[-1] <= problem.steepest


@dataclass(frozen=True)
class Linear(MarginLoss):
    """Loss -z: objective perturbation becomes a Gaussian mechanism whose law is known."""

    name = "linear"
    convex = True
    lipschitz = 1.0
    smoothness = 1e-9

    def _value(self, t):
        return -t

    def _slope(self, t):
        return -np.ones_like(t)

    def _curvature(self, t):
        return np.zeros_like(t)


def test_approximate_minimisers_reach_the_output_sensitivity_and_not_half_of_it():
    """AMP: both data sets may stop anywhere within g / curvature of their minimiser, so 2 g /
    curvature apart.
    """
    problem = Problem(n=6, dimension=2, loss=Linear(), adjacency="replace_one", l2=0.1)
    [release] = make("amp", {}).plan(problem)
    curvature, g = release.perturbation.curvature, release.gradient_norm
    noise, total = np.array([0.4, -0.2]), np.zeros(2)
    exact = -(noise - total) / curvature
    ends = [exact + np.array([sign * g / curvature, 0.0]) for sign in (-1, 1)]
    for end in ends:
        assert np.linalg.norm(curvature * end + noise - total) <= g * (1 + 1e-9)
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(release.output_sensitivity, rel=1e-9)


@pytest.mark.parametrize("name", ["objective_perturbation", "amp"])
def test_output_noise_is_a_small_part_of_the_price(name):
    problem = Problem(n=40_000, dimension=100, loss=Logistic(), l2=1e-5)
    planned = plan(name, {}, problem, Target(0.1, 1e-8))
    [release] = planned.events
    without = planned.target.spent(replace(planned.events, table=(release.perturbation,)))
    assert 0.95 * planned.spent_epsilon <= without <= planned.spent_epsilon
    assert release.output_sigma * release.perturbation.curvature < 0.02 * release.perturbation.scale


def test_pure_version_is_pure():
    problem = Problem(n=5000, dimension=5, loss=Logistic(), adjacency="replace_one", l2=1e-3)
    planned = plan("objective_perturbation", {"noise": "gamma"}, problem, Target(0.5, 1e-10))
    [release] = planned.events
    assert release.pure_epsilon <= 0.5 * (1 + 1e-6)
    assert release.pure_epsilon == pytest.approx(0.5, rel=1e-3)
    assert np.all(np.isfinite(run(planned, records(Logistic(), n=5000, d=5)).weights))


def test_a_curvature_that_rounding_hides_is_refused_and_raises_nothing_in_the_solver():
    problem = Problem(n=200, dimension=2, loss=Logistic(), l2=1e-20)
    with pytest.raises(AssumptionNotMet, match="curvature"):
        make("objective_perturbation", {"ridge": 0.0}).plan(problem)
    flat = Perturbed(records(Logistic(), d=2), 1e-16, np.zeros(2))
    flat.gradient = lambda w: np.zeros(2) if w.any() else np.ones(2)
    assert np.isfinite(_certain(flat, np.zeros(2), 1e-5)).all()


def test_more_than_one_weight_vector_or_no_curvature_is_refused():
    problem = Problem(n=100, dimension=3, loss=Logistic())
    with pytest.raises(AssumptionNotMet, match="one-vs-rest"):
        make("objective_perturbation", {}).plan(replace(problem, outputs=3))
    with pytest.raises(AssumptionNotMet, match="l2 > 0, or leave ridge out"):
        make("objective_perturbation", {"ridge": 0.0}).plan(problem)


@pytest.mark.parametrize("adjacency", list(Adjacency)[:2])
def test_the_profile_is_sharper_than_the_curve(adjacency):
    problem = Problem(n=40_000, dimension=10, loss=Logistic(), adjacency=adjacency, l2=1e-4)
    planned = plan("objective_perturbation", {}, problem, Target(0.2, 1e-8))
    by_curve = plan("objective_perturbation", {}, problem, Target(0.2, 1e-8, accountant="rdp"))
    assert 1.0 < by_curve.algorithm.noise_multiplier / planned.algorithm.noise_multiplier < 1.12


def test_the_notes_settings_are_what_they_print():
    """Wang's notes, 14.1 and 14.1.1: curvature 4 beta / epsilon to first order, in units of the
    printed noise; AMP stops at a gradient of norm 1 / n^2 of the mean.
    """
    ln = np.log(1e8)
    assert make("objective_perturbation", {}, "paper").ridge == pytest.approx(
        4.0 / np.sqrt(10.0 * ln), rel=1e-3
    )
    assert make("objective_perturbation", {}, "paper_pure").ridge == 4.0 / 4.0
    problem = Problem(n=20_000, dimension=5, loss=Logistic(), adjacency="replace_one", norm_bound=3)
    amp = make("amp", {"noise_multiplier": 30.0}, "paper")
    [release] = amp.plan(problem)
    assert release.gradient_norm == pytest.approx(1.0 / problem.n, rel=1e-12)
    share = 2.0 / (1.0 - 0.9)  # Lambda over beta, times eps_1
    sigma = 2.0 * (1.0 + np.sqrt(2.0 * ln)) / 0.9  # of n b_1, over L, times eps_1
    assert amp.ridge == pytest.approx(share / sigma, rel=0.01)
    assert amp.output_ratio == pytest.approx(0.9 * 0.99 / 0.01, rel=0.01)
