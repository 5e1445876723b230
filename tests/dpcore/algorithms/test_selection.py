"""Coverage, support, and the selectors: noisy correlations and two phases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcore.accounting import Target
from dpcore.algorithms import make
from dpcore.errors import AssumptionNotMet, InputError, UnknownName
from dpcore.losses import Logistic
from dpcore.mechanisms import Gaussian
from dpcore.metrics import coverage, support_precision_recall
from dpcore.objective import LinearObjective
from dpcore.penalties import ranked_columns, top_columns
from dpcore.problem import Block, Problem
from dpcore.synthetic import sparse_linear, sparse_model
from dpcore.train import plan, run
from tests.tape import ConstantSlope, replay

COLUMNS = 100


def sparse_data(rows: int = 8000, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """The sparse set of Chen (2020), 4.6.3, scaled by the public sqrt(100) and cut to norm 1."""
    table = sparse_linear(rows, seed)
    X = np.column_stack([table[f"x{j + 1}"] for j in range(COLUMNS)]) / 10.0
    return X / np.maximum(np.linalg.norm(X, axis=1), 1.0)[:, None], table["y"]


# ---- figures of merit
# -------------------------------------------------------------------------------------------


def test_coverage_is_the_papers_example():
    """Chen (2020), 4.6.6: 16 of the 20 relevant attributes among the 30 largest give xi_30 =
    0.8.
    """
    weights = np.zeros(COLUMNS)
    weights[:16] = 5.0
    weights[20:34] = 4.0
    weights[16:20] = 1.0
    assert coverage(weights, range(20), 30) == 0.8
    assert coverage(-weights, range(20), 30) == 0.8
    assert coverage(weights, range(20), 34) == 1.0
    assert coverage(weights, range(20), 1000) == 1.0


def test_ties_count_with_their_chance():
    """An all-zero model covers K / d whatever the place of the relevant columns; scikit's stable
    order would say 1.
    """
    nothing = np.zeros(COLUMNS)
    assert coverage(nothing, range(20), 20) == pytest.approx(0.2)
    assert coverage(nothing, range(80, 100), 20) == pytest.approx(0.2)
    half = np.zeros(4)
    half[3] = 1.0
    assert coverage(half, [0, 3], 2) == pytest.approx((1 + 1 / 3) / 2)


@given(seed=st.integers(0, 1000), count=st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_coverage_is_the_mean_over_random_orders_of_equal_weights(seed, count):
    rng = np.random.default_rng(seed)
    weights = rng.integers(-2, 3, size=30).astype(float)
    relevant = rng.choice(30, 7, replace=False)
    exact = coverage(weights, relevant, count)
    jitter = [
        coverage(weights + 1e-7 * rng.random(30) * np.where(weights < 0, -1, 1), relevant, count)
        for _ in range(200)
    ]
    assert exact == pytest.approx(np.mean(jitter), abs=0.08)
    assert exact <= coverage(weights, relevant, count + 1) + 1e-12


def test_support_precision_and_recall():
    weights = np.array([0.0, 2.0, 0.0, -1.0, 9.0])
    assert support_precision_recall(weights, [1, 2], intercept=True) == (0.5, 0.5)
    assert support_precision_recall(np.zeros(3), [1]) == (1.0, 0.0)


def test_rankings_leave_the_constant_out_and_join_classes():
    weights = np.array([[0.1, -3.0, 0.0, 50.0], [2.0, 0.0, 0.5, 60.0]])
    assert ranked_columns(weights, intercept=True).tolist() == [1, 0, 2]
    assert top_columns(weights[0], 1, intercept=True).tolist() == [1, 3]
    assert top_columns(np.array([0.0, 5.0, -6.0]), 2).tolist() == [1, 2]


def test_relevant_columns_out_of_range_are_refused():
    for relevant in ([], [-1], [4]):
        with pytest.raises(InputError, match="relevant"):
            coverage(np.ones(4), relevant, 2)
    with pytest.raises(InputError, match="count"):
        coverage(np.ones(4), [1], 0)


# ---- noisy correlations
# -----------------------------------------------------------------------------------------


def test_noisy_correlations_are_one_step_along_the_label_sums():
    """Without clipping and noise: weights = 4 / n * sum y_i x_i / 2 for the logistic loss."""
    X, y = sparse_data(500)
    problem = Problem(n=500, dimension=COLUMNS, loss=Logistic())
    settings = {"noise_multiplier": 1e-9, "clip_norm": 1.0}
    w = run(
        plan("noisy_correlations", settings, problem),
        LinearObjective(X, y, Logistic()),
        fixed_noise_seed=0,
    ).weights
    assert w == pytest.approx(2.0 * (y @ X) / 500, abs=1e-6)


def test_noisy_correlations_cost_one_gaussian():
    problem = Problem(n=500, dimension=COLUMNS, loss=Logistic(), adjacency="replace_one")
    planned = plan("noisy_correlations", {}, problem, Target(0.5, 1e-8))
    [mechanism] = planned.events
    assert isinstance(mechanism, Gaussian) and mechanism.sensitivity == 2 * 0.25
    assert planned.spent_epsilon == pytest.approx(0.5, rel=1e-3)


def test_the_sparse_columns_are_found():
    """xi_30 at (1, 1e-8) on 8,000 records: both selectors find nine of ten relevant columns; chance
    is 0.3.
    """
    X, y = sparse_data()
    problem = Problem(n=len(y), dimension=COLUMNS, loss=Logistic(), l1=1e-4)
    objective = LinearObjective(X, y, Logistic())
    relevant = np.flatnonzero(sparse_model(COLUMNS))
    for name in ("noisy_correlations", "two_phase"):
        w = run(plan(name, {}, problem, Target(1.0, 1e-8)), objective, fixed_noise_seed=1).weights
        assert coverage(w, relevant, 30) >= 0.9, name


# ---- two phases
# -------------------------------------------------------------------------------------------------


def test_two_phases_drop_columns_to_exactly_zero_and_keep_the_constant():
    X, y = sparse_data(2000)
    X = np.column_stack([X * 0.9, np.full(2000, 0.4)])
    problem = Problem(n=2000, dimension=COLUMNS + 1, loss=Logistic(), intercept=True)
    planned = plan("two_phase", {"keep": 12}, problem, Target(8.0, 1e-5))
    w = run(planned, LinearObjective(X, y, Logistic()), fixed_noise_seed=2).weights
    assert np.sum(w[:-1] != 0) == 12 and w[-1] != 0
    assert planned.algorithm.kept(problem) == 12 and make("two_phase", {}).kept(problem) == 30


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("second", ["ssadmm", "mpadmm", "dp_sgd"])
def test_any_trainer_may_follow_the_selection(adjacency, second):
    """The price is that of the parts, and the Tape finds nothing on either relation."""
    problem = Problem(n=6, dimension=4, loss=ConstantSlope(), adjacency=adjacency, l1=0.01)
    inner = {"steps": 2, "clip_norm": 0.05, "learning_rate": 0.5, "momentum": 0.5}
    algorithm = make(
        "two_phase", {"keep": 2, "second": second, "settings": inner, "clip_norm": 0.05}
    )
    assert replay(algorithm, problem).sound
    trainer = make(second, {**inner, "noise_multiplier": algorithm.noise_multiplier})
    assert algorithm.plan(problem)[1:] == trainer.plan(algorithm.restricted(problem))


def test_a_weight_shrinks_by_the_noise_in_its_correlation():
    """w z^4 / (z^4 + 3^4) of the same fit without: halved at z = 3, and the same columns and
    signs.
    """
    X, y = sparse_data(2000)
    X = np.column_stack([X * 0.9, np.full(2000, 0.4)])
    objective = LinearObjective(X, y, Logistic())
    problem = Problem(n=2000, dimension=COLUMNS + 1, loss=Logistic(), intercept=True)
    planned = [plan("two_phase", {"evidence": e}, problem, Target(2.0, 1e-5)) for e in (0.0, 3.0)]
    assert planned[0].events == planned[1].events
    plain, shrunk = (run(item, objective, fixed_noise_seed=2).weights for item in planned)
    first, _, _ = planned[1].algorithm.phases(problem)
    noise = first.noise(problem)
    assert planned[1].algorithm.trust(
        noise * np.array([3.0, -3.0, 0.0, 30.0]), first, problem
    ) == pytest.approx([0.5, 0.5, 0.0, 1e4 / (1e4 + 1)])
    kept = np.flatnonzero(plain[:-1])
    ratio = shrunk[kept] / plain[kept]
    assert np.all((ratio > 0) & (ratio < 1)) and ratio.min() < 0.6 and ratio.max() > 0.99
    assert shrunk[-1] == plain[-1], "the constant column has no correlation to doubt"
    [mechanism] = first.plan(problem)
    step = 1.0 / (problem.norm_bound**2 * 0.25)
    assert noise == pytest.approx(step * mechanism.sigma / problem.n)


def test_a_faint_selection_keeps_more_columns():
    """0.4 of them while n mu_1 < 400 (halved n under replace-one), from public facts; a number that
    was given stays.
    """
    for adjacency, epsilon, wide in (
        ("add_remove", 0.05, True),
        ("add_remove", 0.1, False),
        ("replace_one", 0.1, True),
    ):
        problem = Problem(
            n=32_000, dimension=COLUMNS, loss=Logistic(), l1=1e-4, adjacency=adjacency
        )
        planned = plan("two_phase", {}, problem, Target(epsilon, 1e-8))
        assert planned.algorithm.kept(problem) == (40 if wide else 30)
        assert (
            plan("two_phase", {"keep": 25}, problem, Target(epsilon, 1e-8)).algorithm.kept(problem)
            == 25
        )


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_given_share_is_kept(share):
    """mu_1^2 = share (mu_1^2 + mu_2^2), whatever the noise."""
    problem = Problem(n=5000, dimension=COLUMNS, loss=Logistic())
    planned = plan("two_phase", {"share": share}, problem, Target(0.3, 1e-8))
    first, *rest = (1.0 / (item.sigma / item.sensitivity) ** 2 for item in planned.events)
    assert first / (first + sum(rest)) == pytest.approx(share, rel=1e-9)


@given(log_m=st.floats(-2, 5), log_n=st.floats(2, 6))
@settings(max_examples=30, deadline=None)
def test_the_public_share_falls_with_the_budget_and_the_price_with_the_noise(log_m, log_n):
    """n mu_1 = (700 (n mu_2)^2)^(1/3): monotone, so that calibration closes on one crossing."""
    problem = Problem(n=int(10**log_n), dimension=COLUMNS, loss=Logistic())

    def parts(multiplier: float) -> tuple[float, float]:
        first, *rest = make("two_phase", {"noise_multiplier": multiplier}).plan(problem)
        return (first.sensitivity / first.sigma) ** 2, sum(
            (item.sensitivity / item.sigma) ** 2 for item in rest
        )

    loud, quiet = parts(2 * 10**log_m), parts(10**log_m)
    assert loud[0] < quiet[0] and loud[1] < quiet[1]
    assert loud[0] / sum(loud) >= quiet[0] / sum(quiet)
    assert problem.n * quiet[0] ** 0.5 == pytest.approx(
        (700.0 * problem.n**2 * quiet[1]) ** (1 / 3), rel=1e-6
    )


def test_blocks_follow_the_columns():
    blocks = (Block((0, 1, 2)), Block((3,)), Block((4,), "numeric"))
    problem = Problem(n=10, dimension=6, loss=Logistic(), blocks=blocks, intercept=True)
    algorithm = make("two_phase", {"keep": 3, "settings": {"penalty": "group_l1"}})
    left = algorithm.restricted(problem, np.array([1, 2, 4, 5]))
    assert left.blocks == (Block((0, 1)), Block((2,), "numeric"))
    assert left.dimension == 4 and left.norm_bound == pytest.approx((0.5 + 0.5 * 3 / 5) ** 0.5)


def test_trainers_that_cannot_follow_are_refused():
    for second in ("dp_agd", "non_private", "objective_perturbation"):
        with pytest.raises(
            AssumptionNotMet,
            match=rf"second phase.*second='{second}'.*use "
            rf"'ssadmm'",
        ):
            make("two_phase", {"second": second})
    with pytest.raises(UnknownName, match="ssadmm"):
        make("two_phase", {"second": "ssadm"})
    for field, value in (("keep", 0), ("share", 1.0), ("clip_norm", -1.0), ("evidence", -1.0)):
        with pytest.raises(InputError, match=field):
            make("two_phase", {field: value})


def test_columns_of_an_objective_are_those_of_the_matrix():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 5)), np.sign(rng.normal(size=30))
    keep = np.array([0, 3])
    view = LinearObjective(X, y, Logistic()).transform(np.ones(5), 2.0 * np.ones(5)).columns(keep)
    direct = LinearObjective(2.0 * (X[:, keep] - 1.0), y, Logistic())
    w = rng.normal(size=2)
    assert view.gradient_sum(w, 0.3) == pytest.approx(direct.gradient_sum(w, 0.3))
    assert view.row_norms == pytest.approx(direct.row_norms)
