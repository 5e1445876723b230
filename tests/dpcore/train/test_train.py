"""Planning reads no record; running keeps the plan; refusals come first and say the way out."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.accounting import Room, Target, calibrate
from dpcore.accounting.calibrate import planned_events
from dpcore.accounting.curves import order_budgets
from dpcore.algorithms import make, registry
from dpcore.errors import AssumptionNotMet, BudgetExceeded, InputError, UnknownName
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.users import UserObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run

PROBLEM = Problem(
    n=1000, dimension=3, loss=make_loss("logistic"), norm_bound=1.0, l2=1e-3, intercept=True
)
TARGET = Target(1.0, 1e-5)


def objective(n: int = 1000, seed: int = 0) -> LinearObjective:
    rng = np.random.default_rng(seed)
    X = np.c_[rng.normal(size=(n, 2)), np.ones(n)]
    X /= np.linalg.norm(X, axis=1)[:, None] * (1 + 1e-12)
    return LinearObjective(X, np.where(X[:, 0] > 0, 1.0, -1.0), make_loss("logistic"))


def test_calibration_meets_the_target_closely_and_never_above() -> None:
    planned = plan("dp_sgd", {}, PROBLEM, TARGET)
    assert 0.999 < planned.spent_epsilon <= 1.0
    closer = replace(
        planned.algorithm, noise_multiplier=planned.algorithm.noise_multiplier * (1 - 1.1e-4)
    )
    assert TARGET.spent(planned_events(closer, PROBLEM)) > 1.0


@pytest.mark.parametrize("epsilon", [0.005, 0.05, 1.0, 8.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-15])
@pytest.mark.parametrize("steps", [1, 1000, 10**6])
@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_calibration_over_the_whole_range(
    epsilon: float, delta: float, steps: int, rate: float
) -> None:
    """Relative gap at most 1e-4 in the noise, always on the safe side; a target that no order can
    state is refused. By closed forms: distributions are searched to 1e-3.
    """
    target = Target(epsilon, delta, accountant="auto" if rate == 1.0 else "rdp")
    try:
        algorithm = calibrate(
            make("dp_sgd", {"steps": steps, "sampling_rate": rate}), PROBLEM, target
        )
    except BudgetExceeded:
        assert order_budgets(epsilon, delta).max() < 1e-3 * epsilon
        return
    assert target.ratio(planned_events(algorithm, PROBLEM)) <= 1.0
    closer = replace(algorithm, noise_multiplier=algorithm.noise_multiplier * (1 - 1.1e-4))
    assert target.ratio(planned_events(closer, PROBLEM)) > 1.0


def test_calibration_meets_the_ledger_too() -> None:
    room = Room(order=8.0, left=0.01, adjacency=Adjacency.ADD_REMOVE)
    planned = plan("dp_sgd", {}, PROBLEM, TARGET, room)
    assert room.ratio(planned.events) <= 1 + 1e-9
    assert planned.spent_epsilon < 0.9


def test_no_room_is_refused_before_any_record() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        plan("dp_sgd", {}, PROBLEM, TARGET, Room(8.0, 0.0, Adjacency.ADD_REMOVE))
    assert caught.value.left == 0.0


def test_given_noise_is_kept_and_must_fit() -> None:
    assert (
        plan("dp_sgd", {"noise_multiplier": 500.0}, PROBLEM, TARGET).algorithm.noise_multiplier
        == 500.0
    )
    with pytest.raises(BudgetExceeded, match="noise_multiplier"):
        plan("dp_sgd", {"noise_multiplier": 1.0}, PROBLEM, TARGET)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("dp_sdg", {}, "dp_sgd"),
        ("dp_sgd", {"step": 10}, "steps"),
        ("dp_sgd", {"steps": 0}, "steps"),
        ("dp_sgd", {"momentum": 1.0}, "momentum"),
        ("dp_sgd", {"sampling_rate": 1.5}, "sampling_rate"),
        ("dp_sgd", {"schedule": "cosine"}, "schedule"),
    ],
)
def test_bad_names_and_values(name: str, parameters: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(name, parameters, PROBLEM, TARGET)


def test_unknown_preset() -> None:
    with pytest.raises(UnknownName, match="paper"):
        plan("dp_sgd", {}, PROBLEM, TARGET, preset="papr")


def test_a_preset_where_there_is_none() -> None:
    with pytest.raises(InputError, match="no preset for 'majority'"):
        plan("majority", {}, PROBLEM, TARGET, preset="paper")


def test_an_assumption_that_is_not_met_is_refused_in_words() -> None:
    hinge = replace(PROBLEM, loss=make_loss("hinge"), adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(AssumptionNotMet, match="smooth loss for 'output_gd', got loss='hinge'"):
        plan("output_gd", {}, hinge, TARGET)


def test_aliases_find_the_algorithm() -> None:
    assert registry["sgd_ma"] is registry["dp_sgd"]


def test_a_run_releases_its_plan() -> None:
    planned = plan("dp_sgd", {}, PROBLEM, TARGET)
    result = run(planned, objective())
    assert result.events == planned.events
    assert result.weights.shape == (3,)
    assert not result.fixed_noise
    assert result.trace[-1]["spent_epsilon"] == pytest.approx(planned.spent_epsilon)
    assert [row["spent_epsilon"] for row in result.trace] == sorted(
        row["spent_epsilon"] for row in result.trace
    )


def test_two_runs_never_share_their_noise() -> None:
    planned = plan("dp_sgd", {}, PROBLEM, TARGET)
    assert not np.array_equal(
        run(planned, objective(), seed=1).weights, run(planned, objective(), seed=1).weights
    )


def test_fixed_noise_repeats_and_is_marked() -> None:
    planned = plan("dp_sgd", {}, PROBLEM, TARGET)
    first, second = (run(planned, objective(), fixed_noise_seed=7) for _ in range(2))
    assert np.array_equal(first.weights, second.weights)
    assert first.fixed_noise


def test_replace_one_needs_the_exact_count() -> None:
    planned = plan("dp_sgd", {}, replace(PROBLEM, adjacency=Adjacency.REPLACE_ONE), TARGET)
    with pytest.raises(InputError, match="n=1000"):
        run(planned, objective(999))


def test_add_remove_takes_a_nominal_count() -> None:
    assert run(plan("dp_sgd", {}, PROBLEM, TARGET), objective(990)).weights.shape == (3,)


def test_an_empty_table_is_refused() -> None:
    empty = LinearObjective(np.empty((0, 3)), np.empty(0), make_loss("logistic"))
    with pytest.raises(InputError, match="at least one record"):
        run(plan("dp_sgd", {}, PROBLEM, TARGET), empty)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    ("label", "length", "words"),
    [(3.0, 1.0, "labels -1 and"), (1.0, 2.0, "norm_bound"), (1.0, 1.0, "")],
)
def test_records_of_users_are_checked_as_records_are(
    sparse: bool, label: float, length: float, words: str
) -> None:
    """In single precision too, where the norms that clip are longer than the rows."""
    X = np.zeros((4, 2), dtype=np.float32)
    X[:, 0], y = 1.0, np.ones(4)
    X[3, 0], y[3] = length, label
    problem = Problem(
        n=2, dimension=2, loss=make_loss("logistic"), adjacency="replace_one", unit="user"
    )
    users = UserObjective(
        LinearObjective(csr_array(X) if sparse else X, y, problem.loss), np.array(list("abab")), 2
    )
    if words:
        with pytest.raises(InputError, match=words):
            users.check(problem)
    else:
        users.check(problem)


@pytest.mark.parametrize("name", ["non_private", "majority"])
def test_baselines_cost_infinity(name: str) -> None:
    planned = plan(name, {}, PROBLEM)
    assert planned.spent_epsilon == np.inf
    assert np.all(np.isinf(planned.events.price()))
    assert run(planned, objective()).weights.shape == (3,)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "huber_hinge", "softmax"])
def test_the_model_without_privacy_is_least_under_l1(loss: str, intercept: bool) -> None:
    """The conditions of a least point: a slope of l1 against the sign of a weight, of at most l1 at
    0, and of 0 at the constant, which carries no penalty.
    """
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 6)) / 4
    X[:, -1] = 0.5
    y = np.where(X[:, 0] + 0.1 > rng.normal(size=400) / 3, 1.0, -1.0)
    outputs = 3 if loss == "softmax" else 1
    cost = Softmax() if loss == "softmax" else make_loss(loss)
    problem = Problem(
        n=400, dimension=6, loss=cost, norm_bound=2.0, l1=0.02, l2=0.01, outputs=outputs,
        intercept=intercept,
    )  # fmt: skip
    data = LinearObjective(X, y, cost)
    if outputs > 1:
        data = MulticlassObjective(X, rng.integers(outputs, size=400), cost)
    w = run(plan("non_private", {"tolerance": 1e-9}, problem), data).weights
    slope = data.gradient_sum(w).ravel() / 400 + problem.l2 * w
    strength = np.full((outputs, 6), problem.l1)
    strength[:, -1] *= not intercept
    away = w != 0.0
    assert away.any() and not away.all()
    assert np.abs(slope + strength.ravel() * np.sign(w))[away].max() < 1e-5
    assert np.all(np.abs(slope[~away]) <= strength.ravel()[~away] + 1e-5)


def test_private_training_learns() -> None:
    planned = plan("dp_sgd", {}, replace(PROBLEM, n=4000), Target(4.0, 1e-6))
    w = run(planned, objective(4000)).weights
    test = objective(4000, seed=1)
    assert np.mean(np.sign(test.X @ w) == test.y) > 0.95


def test_exact_integer_noise_is_priced_and_drawn_in_one_form() -> None:
    planned = plan("dp_sgd", {"steps": 3}, PROBLEM, TARGET, noise="discrete")
    plain = plan("dp_sgd", {"steps": 3}, PROBLEM, TARGET)
    assert planned.algorithm.noise_multiplier > plain.algorithm.noise_multiplier
    assert all(mechanism.rounding > 0 for mechanism, _ in planned.events.counts)
    assert run(planned, objective()).events == planned.events


def test_exact_noise_is_refused_where_there_is_none() -> None:
    with pytest.raises(InputError, match="noise='rounded'"):
        plan("objective_perturbation", {}, PROBLEM, TARGET, noise="discrete")


@pytest.mark.parametrize("name", ["dp_sgd", "scaled_gd"])
def test_parameters_show_what_was_left_out(name: str) -> None:
    shown = plan(name, {}, PROBLEM, TARGET).parameters
    assert all(shown[key] > 0 for key in ("clip_norm", "learning_rate", "horizon") if key in shown)
    assert "clip_norm" in shown


@pytest.mark.parametrize(
    "name", sorted(name for name, cls in registry.items() if not cls.requires.ranking)
)
def test_every_algorithm_shows_its_parameters(name: str) -> None:
    adjacency = sorted(registry[name].adjacencies)[0]
    shown = plan(name, {}, replace(PROBLEM, adjacency=adjacency)).parameters
    assert shown["noise_multiplier"] > 0
    assert set(shown) >= {field.name for field in fields(registry[name])}
