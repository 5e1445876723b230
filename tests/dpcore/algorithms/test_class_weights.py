"""Class weights: they multiply a record's loss and its constants, and every algorithm keeps its
bounds with them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.accounting import Target
from dpcore.algorithms import registry
from dpcore.descent.minimise import Perturbed
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.losses import Hinge, HuberHinge, Logistic, Loss, Squared, Weighted, plain_name
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import Softmax
from dpcore.objective.users import UserObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run
from dpcore.train.planning import resolve
from tests.dpcore.algorithms.test_every_algorithm import CASES, blobs, small, small_problem
from tests.tape import ConstantSlope, replay

RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 3)) / 3
Y = np.where(RNG.random(40) < 0.4, 1.0, -1.0)
W = RNG.normal(size=(2, 3))


@pytest.mark.parametrize("base", [Logistic(), HuberHinge(h=0.25), Hinge()])
def test_constants_are_those_of_the_base_times_the_largest_weight(base: Loss) -> None:
    loss = Weighted(base, 2.0, 0.5)
    assert (loss.largest, loss.lipschitz) == (2.0, 2.0 * base.lipschitz)
    assert loss.smoothness == 2.0 * base.smoothness
    assert (loss.convex, loss.argument, plain_name(loss)) == (base.convex, "margin", base.name)
    facts = {"n": 10, "dimension": 3, "norm_bound": 1.5, "l2": 0.1}
    weighted, plain = Problem(loss=loss, **facts), Problem(loss=base, **facts)
    assert weighted.lipschitz == 2.0 * plain.lipschitz
    assert weighted.smoothness - 0.1 == pytest.approx(2.0 * (plain.smoothness - 0.1))


def by_hand(base: Loss, w: np.ndarray, clip: float, cap: float) -> tuple[np.ndarray, float]:
    """Clipped gradient sum and capped loss sum, record by record."""
    gradient, value = np.zeros(3), 0.0
    for x, y in zip(X, Y, strict=True):
        weight = 3.0 if y > 0 else 0.5
        z = y * (x @ w) if base.argument == "margin" else x @ w - y
        sign = y if base.argument == "margin" else 1.0
        g = weight * sign * float(base.slope(np.array([z]))[0]) * x
        gradient += g * min(1.0, clip / max(float(np.linalg.norm(g)), 1e-300))
        value += min(weight * float(base.value(np.array([z]))[0]), cap)
    return gradient, value


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("base", [Logistic(), HuberHinge(), Squared()])
@pytest.mark.parametrize(("clip", "cap"), [(np.inf, np.inf), (0.2, 0.7)])
def test_sums_weigh_each_record_before_it_is_clipped(
    base: Loss, sparse: bool, clip: float, cap: float
) -> None:
    rows = LinearObjective(csr_array(X) if sparse else X, Y, Weighted(base, 3.0, 0.5))
    for batch in (rows, rows.take(np.arange(40))):
        gradient, value = by_hand(base, W[0], clip, cap)
        np.testing.assert_allclose(batch.gradient_sum(W[0], clip), gradient, rtol=1e-12)
        np.testing.assert_allclose(batch.value_sum(W, cap)[0], value, rtol=1e-12)
    users = UserObjective(rows, np.arange(40).astype(str), 1)
    np.testing.assert_allclose(users.gradient_sum(W[0], clip), gradient, rtol=1e-12)
    np.testing.assert_allclose(users.value_sum(W, cap)[0], value, rtol=1e-12)


def test_the_perturbed_objective_has_the_gradient_and_hessian_of_its_value() -> None:
    batch = LinearObjective(X, Y, Weighted(Logistic(), 3.0, 0.5))
    problem, w, h = Perturbed(batch, 0.3, np.array([0.1, -0.2, 0.3])), W[0], 1e-5
    gradient, hessian = problem.gradient(w), problem.hessian(w)
    for j, e in enumerate(np.eye(3) * h):
        up, down = problem.value_and_gradient(w + e), problem.value_and_gradient(w - e)
        assert (up[0] - down[0]) / (2 * h) == pytest.approx(gradient[j], rel=1e-6)
        np.testing.assert_allclose((up[1] - down[1]) / (2 * h), hessian[j], rtol=1e-5)
    assert np.linalg.eigvalsh(hessian).max() <= problem.steepest
    np.testing.assert_allclose(
        gradient - 0.3 * w - problem.noise, batch.gradient_sum(w), rtol=1e-12
    )
    assert problem.part(20).shares.shape == problem.part(20).y.shape == (20,)


@pytest.mark.parametrize("weights", [(3.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_replay_with_weights_finds_nothing_but_values_that_depends_on_the_records(
    name, adjacency, weights
):
    best = 0.0
    for base in (ConstantSlope(), Logistic()):
        loss = Weighted(base, *weights)
        for seed in range(2):
            shown = replay(small(name), small_problem(name, adjacency, loss), seed)
            assert shown.sound, (loss.name, seed, shown)
            best = max(best, *shown.ratios)
    if weights[0] > weights[1]:  # the records that come first have label +1, here the larger weight
        assert best >= 0.99, f"no bound is reached (best {best:.3g})"


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_equal_weights_of_one_are_none_and_others_scale_the_objective(name, adjacency):
    """With weights a, a and the ridge a l2 all is a times as large, so the same noise gives the
    same model.
    """
    problem, rows = blobs(name, adjacency, 300)
    given = {"noise_multiplier": 3.0}
    plain = run(plan(name, given, problem), rows, seed=1, fixed_noise_seed=2).weights
    ones = Weighted(problem.loss)
    same = run(
        plan(name, given, replace(problem, loss=ones)),
        LinearObjective(rows.X, rows.y, ones),
        seed=1,
        fixed_noise_seed=2,
    ).weights
    assert np.array_equal(plain, same)
    double = Weighted(problem.loss, 2.0, 2.0)
    scaled = run(
        plan(name, given, replace(problem, loss=double, l2=2.0 * problem.l2)),
        LinearObjective(rows.X, rows.y, double),
        seed=1,
        fixed_noise_seed=2,
    ).weights
    np.testing.assert_allclose(scaled, plain, rtol=1e-3, atol=1e-6)


def test_the_heavier_class_wins_more_rows() -> None:
    problem, rows = blobs("scaled_gd", Adjacency.ADD_REMOVE, 2000)
    shares = []
    for positive in (0.25, 1.0, 4.0):
        loss = Weighted(Logistic(), positive, 1.0)
        planned = plan("auto", {}, replace(problem, loss=loss), Target(4.0, 1e-5))
        weights = run(
            planned, LinearObjective(rows.X, rows.y, loss), seed=0, fixed_noise_seed=0
        ).weights
        shares.append(float(np.mean(rows.X @ weights > 0)))
    assert shares[0] < shares[1] - 0.03 and shares[1] < shares[2] - 0.03


def test_auto_goes_by_the_loss_without_its_weights() -> None:
    problem = Problem(n=100, dimension=3, loss=Weighted(Logistic(), 2.0, 1.0))
    assert resolve("auto", {}, problem, None)[0] == "scaled_gd"


def test_majority_counts_rows_not_weights() -> None:
    labels = np.array([1.0, -1.0, -1.0])
    loss = Weighted(Logistic(), 5.0, 1.0)
    problem = Problem(n=3, dimension=2, loss=loss, intercept=True)
    rows = LinearObjective(np.full((3, 2), 0.5), labels, loss)
    assert run(plan("majority", {}, problem), rows).weights[-1] < 0.0


def test_what_needs_unweighted_classes_is_refused() -> None:
    loss = Weighted(Logistic(), 2.0, 1.0)
    problem = Problem(n=100, dimension=3, loss=loss, intercept=True)
    with pytest.raises(AssumptionNotMet, match="calibration_share=0"):
        plan("scaled_gd", {"calibration_share": 0.1}, problem, Target(1.0, 1e-5))
    with pytest.raises(InputError, match="two classes"):
        Weighted(Softmax(), 2.0, 1.0)
    with pytest.raises(InputError, match="positive"):
        Weighted(Logistic(), 0.0, 1.0)


def test_every_private_linear_algorithm_was_replayed() -> None:
    replayed = {case.values[0] for case in CASES}
    assert replayed == {
        name for name, cls in registry.items() if cls.private and not cls.requires.ranking
    }
