"""A loss with its slope cut, the perturbed objective that is minimised with it, and what it
costs.
"""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.algorithms import make
from dpcore.algorithms.admm_objp import Capped, capped
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.losses import HuberHinge, Logistic, Sigmoid, Squared, Weighted
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from tests.tape import ConstantSlope, replay

MARGINS = np.linspace(-8.0, 8.0, 401)
CASES = [(Logistic(), 0.25), (Logistic(), 0.6), (HuberHinge(), 0.3), (ConstantSlope(), 0.5)]


@pytest.mark.parametrize(("base", "cap"), CASES)
def test_slope_value_and_curvature_belong_together(base, cap):
    loss = Capped(base, cap)
    h = 1e-5
    assert (loss.value(MARGINS + h) - loss.value(MARGINS - h)) / (2 * h) == pytest.approx(
        loss.slope(MARGINS), abs=1e-4
    )
    slopes = loss.slope(MARGINS)
    assert np.all(np.diff(slopes) >= -1e-12), "convex"
    assert (
        slopes.min() == pytest.approx(-min(cap, base.lipschitz))
        and np.abs(slopes).max() <= loss.lipschitz
    )
    flat = loss.curvature(MARGINS)
    assert np.all(flat[slopes <= -cap] == 0.0) and flat.max() <= loss.smoothness
    gentle = base.slope(MARGINS) > -cap
    assert loss.value(MARGINS)[gentle] == pytest.approx(base.value(MARGINS)[gentle])


def test_the_sum_is_that_of_clipped_gradients_of_rows_of_norm_1():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    X /= np.linalg.norm(X, axis=1)[:, None]
    y, w = np.sign(rng.normal(size=60)), 5.0 * rng.normal(size=4)
    plain = LinearObjective(X, y, Logistic())
    cut = plain.with_labels(y, Capped(Logistic(), 0.3))
    assert cut.gradient_sum(w) == pytest.approx(plain.gradient_sum(w, 0.3))


def test_only_what_is_steeper_is_cut():
    assert capped(Logistic(), 1.0) == Logistic()
    weighted = capped(Weighted(Logistic(), 2.0, 1.0), 0.25)
    assert isinstance(weighted, Weighted) and weighted.lipschitz == 0.5
    for loss in (Squared(), Sigmoid()):
        with pytest.raises(AssumptionNotMet, match="slope_cap"):
            Capped(loss, 0.1)
    with pytest.raises(InputError, match="slope_cap"):
        make("admm_objp", {"slope_cap": 0.0})


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("loss", [ConstantSlope(), Logistic(), HuberHinge()])
def test_the_perturbed_objective_is_the_one_with_the_cap(loss, adjacency):
    """Minimisers are stationary for the drawn noise; the noise that explains them elsewhere is
    within cap * norm.
    """
    problem = Problem(n=6, dimension=4, loss=loss, adjacency=adjacency, l1=0.01, l2=0.1)
    algorithm = make("admm_objp", {"steps": 2, "slope_cap": 0.2})
    for seed in range(2):
        shown = replay(algorithm, problem, seed)
        assert shown.sound, shown
    if isinstance(loss, ConstantSlope):
        assert max(shown.ratios) >= 0.99
    [mechanism, _] = algorithm.plan(problem)
    assert mechanism.perturbation.lipschitz == pytest.approx(0.2)


def test_ranking_caps_the_slope_and_other_problems_keep_their_loss():
    """Half the slope at 0 with L1 on centred columns; the loss itself without, and with columns in
    [0, 1].
    """
    algorithm = make("admm_objp", {})
    sparse = Problem(n=500, dimension=4, loss=Logistic(), l1=1e-4)
    assert algorithm.minimised(sparse).loss == Capped(Logistic(), 0.25)
    assert algorithm.minimised(Problem(n=500, dimension=4, loss=Logistic())).loss == Logistic()
    [first, _] = algorithm.plan(sparse)
    assert first.perturbation.lipschitz == 0.25
