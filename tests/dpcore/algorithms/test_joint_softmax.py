"""The joint softmax in every gradient method: bounds on neighbours, a search for the worst, planted
faults, use.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import Events, Target
from dpcore.algorithms import check_assumptions, make, registry
from dpcore.algorithms.base import Algorithm
from dpcore.algorithms.dp_svrg import DPSVRG
from dpcore.algorithms.output_gd import OutputGD
from dpcore.descent.gradient import usual_cap, usual_clip
from dpcore.descent.permuted import Walk
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Logistic
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run
from tests.dpcore.algorithms.audits import exact_values, least_epsilon
from tests.multiclass import (
    CLASSES,
    COLUMNS,
    RECORDS,
    AlwaysWrong,
    joint_problem,
    neighbours,
    replayed,
)

JOINT = (
    *(
        "dp_sgd",
        "dp_adam",
        "scaled_gd",
        "sgd_adv",
        "rrpsgd",
        "ssadmm",
        "mpadmm",
        "dp_admm",
        "dp_svrg",
    ),
    *("nsgd", "rsgd_ar", "output_gd", "dp_agd", "dp_blsgd", "dp_blgd", "dp_blsgd_ac", "privgene"),
)
CASES = [
    pytest.param(name, adjacency, id=f"{name}-{adjacency}")
    for name in JOINT
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
    if adjacency in registry[name].adjacencies
]


def small(name: str, **changes: Any) -> Algorithm:
    return make(name, registry[name].small | changes)


def test_these_algorithms_take_the_joint_loss_and_the_others_refuse_it() -> None:
    private = {name for name, cls in registry.items() if cls.private and not cls.requires.ranking}
    for name in private:
        adjacency = sorted(registry[name].adjacencies)[0]
        if name in JOINT:
            check_assumptions(small(name), joint_problem(adjacency))
        else:
            with pytest.raises(AssumptionNotMet, match=r"one margin.*against the rest"):
                check_assumptions(small(name), joint_problem(adjacency))


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_replay_on_neighbours(name: str, adjacency: Adjacency) -> None:
    """Every bound holds and is reached somewhere: by a loss of constant slope, or by softmax
    itself.
    """
    best = 0.0
    for loss in (AlwaysWrong(), Softmax()):
        for seed in range(2):
            facts = joint_problem(adjacency, loss=loss, l2=0.1)
            best = max(best, *replayed(small(name), facts, loss, seed))
            assert best <= 1 + 1e-9, (loss.name, seed)
    # scaled_gd centres its columns; the marginals of identical rows move by less than the bound for
    # all levels.
    least = {"scaled_gd": 0.5}.get(name, 0.99)
    assert best >= least, f"no bound is reached (best {best:.3g})"


def test_quotients_of_the_search_stay_within_the_lipschitz_bound() -> None:
    facts = joint_problem(Adjacency.REPLACE_ONE, l2=0.1)
    assert (
        max(replayed(small("dp_blsgd", query="quotient", first_step=50.0), facts, Softmax()))
        <= 1 + 1e-9
    )


def random_records(
    rng: np.random.Generator, classes: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(RECORDS, columns))
    return X / np.linalg.norm(X, axis=1)[:, None], rng.integers(0, classes, RECORDS).astype(float)


def candidate(
    rng: np.random.Generator, facts: Problem, best: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Records, labels and what replaces one of them: random ones, opposite ones, or a step away
    from ``best``.
    """
    X, y = random_records(rng, facts.outputs, facts.dimension)
    other, label = -X[0], y[0]
    kind = rng.integers(3)
    if kind == 0:
        (other, *_), (label, *_) = random_records(rng, facts.outputs, facts.dimension)
    elif kind == 1 or best is None:
        X, y = np.tile(X[0], (RECORDS, 1)), np.full(RECORDS, y[0])
    else:
        X, other = (rows + 0.3 * rng.normal(size=rows.shape) for rows in (best[0], best[2]))
        X, other = X / np.linalg.norm(X, axis=1)[:, None], other / np.linalg.norm(other)
        y, label = best[1], best[3]
    return X, y, other, float(label)


def worst_of_search(walk: Walk, facts: Problem, seed: int, tries: int = 60) -> float:
    """Largest distance of two results over the bound of the batch with the replaced record, over
    random neighbours.
    """
    rng, best, worst = np.random.default_rng(seed), None, 0.0
    ends = np.cumsum(walk.sizes)
    cuts = [slice(end - size, end) for size, end in zip(walk.sizes, ends, strict=True)]
    for _ in range(tries):
        X, y, other, label = found = candidate(rng, facts, best)
        for batch, end in enumerate(ends):
            changed, changed_y = X.copy(), y.copy()
            changed[end - 1], changed_y[end - 1] = other, label
            results = [
                walk.descend(
                    [MulticlassObjective(A[cut], b[cut], Softmax()) for cut in cuts], facts
                )
                for A, b in ((X, y), (changed, changed_y))
            ]
            ratio = (
                float(np.linalg.norm(results[0] - results[1])) / walk.sensitivities(facts)[batch]
            )
            if ratio > worst:
                best, worst = found, ratio
    return worst


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("interval", [0, 2])
def test_no_neighbours_are_further_apart_than_the_walk_says(classes: int, interval: int) -> None:
    """Short steps stay near W = 0, where a gradient has sqrt((1 - 1/K) / 2) of its bound; the
    longest are 2 / beta.
    """
    facts = joint_problem(Adjacency.REPLACE_ONE, dimension=3, outputs=classes)
    for eta0, least in ((0.01, 0.95 * sqrt((1 - 1 / classes) / 2)), (2.0 / facts.smoothness, 0.0)):
        assert (
            least
            <= worst_of_search(Walk((3, 3), 4, eta0, interval), facts, seed=classes)
            <= 1 + 1e-9
        )


def step(W: np.ndarray, eta: float, rows: MulticlassObjective, facts: Problem) -> np.ndarray:
    return W - eta * (rows.gradient_sum(W) / rows.n + facts.l2 * W)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_gradient_steps_up_to_two_over_beta_do_not_lengthen_distances(classes: int) -> None:
    rng = np.random.default_rng(classes)
    facts = joint_problem(dimension=3, outputs=classes, l2=0.05)
    longest = 2.0 / facts.smoothness
    for _ in range(200):
        rows = MulticlassObjective(*random_records(rng, classes, 3), Softmax())
        eta = longest * rng.random()
        W = rng.normal(size=3 * classes) * 10 ** rng.uniform(-2, 1)
        other = W + rng.normal(size=len(W)) * 10 ** rng.uniform(-6, 1)
        rho = max(abs(1 - eta * facts.l2), abs(1 - eta * facts.smoothness))
        before, after = W - other, step(W, eta, rows, facts) - step(other, eta, rows, facts)
        assert np.linalg.norm(after) <= rho * np.linalg.norm(before) * (1 + 1e-9)


def test_the_curvature_bound_is_met_so_longer_steps_do_lengthen_them() -> None:
    """Two classes of equal chance, the others out of reach, rows in one direction: the Hessian is
    r^2 / 2 along it.
    """
    facts = joint_problem(dimension=2, outputs=3, l2=0.0)
    rows = MulticlassObjective(np.tile([1.0, 0.0], (RECORDS, 1)), np.zeros(RECORDS), Softmax())
    W = np.array([0.0, 0.0, 0.0, 0.0, -60.0, 0.0])
    apart = 1e-5 * np.array([1.0, 0.0, -1.0, 0.0, 0.0, 0.0])
    for eta, expected in ((1.0, 0.5), (2.0 / facts.smoothness, 1.0), (3.0 / facts.smoothness, 2.0)):
        after = step(W + apart, eta, rows, facts) - step(W, eta, rows, facts)
        assert np.linalg.norm(after) / np.linalg.norm(apart) == pytest.approx(expected, rel=1e-6)


def test_difference_of_clipped_gradients_is_bounded_for_any_two_points() -> None:
    """dp_svrg: projections on a ball are 1-Lipschitz, so a record moves by min(2C, r^2 / 2 ||W -
    A||) at most.
    """
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(400):
        X, y = random_records(rng, 4, 3)
        one = MulticlassObjective(X[:1], y[:1], Softmax())
        W = rng.normal(size=12) * 10 ** rng.uniform(-1, 1)
        A = W + rng.normal(size=12) * 10 ** rng.uniform(-3, 1)
        clip = 10 ** rng.uniform(-1.5, 0.2)
        moved = float(np.linalg.norm(one.gradient_sum(W, clip) - one.gradient_sum(A, clip)))
        bound = min(2 * clip, 0.5 * float(np.linalg.norm(W - A)))
        assert moved <= bound * (1 + 1e-9)
        largest = max(largest, moved / bound)
    assert largest > 0.4
    # Two classes of equal chance that move apart: 1/2, the curvature bound.
    one = MulticlassObjective(np.array([[1.0, 0.0]]), np.zeros(1), Softmax())
    W, apart = (
        np.array([0.0, 0.0, 0.0, 0.0, -60.0, 0.0]),
        1e-4 * np.array([1.0, 0.0, -1.0, 0.0, 0.0, 0.0]),
    )
    moved = float(np.linalg.norm(one.gradient_sum(W + apart, 2.0) - one.gradient_sum(W, 2.0)))
    assert moved == pytest.approx(0.5 * float(np.linalg.norm(apart)), rel=1e-6)


def test_losses_of_candidates_are_those_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(50, COLUMNS)), rng.integers(0, CLASSES, 50)
    rows = MulticlassObjective(X, y.astype(float), Softmax())
    W = 3 * rng.normal(size=(7, CLASSES * COLUMNS))
    z = np.einsum("nd,kcd->knc", X, W.reshape(7, CLASSES, COLUMNS))
    alone = np.log(np.exp(z).sum(axis=2)) - z[:, np.arange(50), y]
    for most in (4_000_000, 400, 1):
        monkeypatch.setattr("dpcore.objective.multiclass.MOST_SCORES", most)
        assert np.allclose(rows.value_sum(W), alone.sum(axis=1))
        assert np.allclose(rows.value_sum(W, 1.5), np.minimum(alone, 1.5).sum(axis=1))


def test_losses_of_far_scores_stay_between_0_and_the_clip() -> None:
    z = np.array([[900.0, 0.0, 0.0], [0.0, 900.0, -900.0], [0.0, 0.0, 0.0]])
    value = Softmax().value(z, np.array([0, 0, 1]))
    assert np.all(value >= 0) and np.allclose(value, [0.0, 900.0, np.log(3.0)])


def test_clip_and_cap_of_the_joint_loss_follow_from_public_facts() -> None:
    facts = joint_problem(norm_bound=2.0, outputs=5)
    assert usual_clip(facts) == pytest.approx(1.6)
    assert usual_cap(facts) == pytest.approx(3.0 * np.log(5.0))
    assert make("dp_agd", {}).clips(facts) == (usual_clip(facts), usual_cap(facts))


class HalvedLipschitz(OutputGD):
    """The bound of one margin, R = r / 2 sqrt 2 of softmax's, in the sensitivity."""

    def sensitivity(self, problem: Problem) -> float:
        return OutputGD.sensitivity(self, problem) / 2


class ForgottenCurvature(DPSVRG):
    """The curvature of the logistic loss, 1/4, in the bound of a difference of gradients."""

    def fit(self, problem: Problem, budget: Any, rng: Any) -> np.ndarray:
        loss = type("Flat", (type(problem.loss),), {"smoothness": problem.loss.smoothness / 4})()
        given = replace(self, learning_rate=self.step_size(problem))
        return DPSVRG.fit(given, replace(problem, loss=loss), budget, rng)  # type: ignore[arg-type]


def test_a_halved_lipschitz_bound_is_seen() -> None:
    facts = joint_problem("replace_one", loss=AlwaysWrong(), l2=0.1)
    assert max(replayed(OutputGD(steps=3), facts, AlwaysWrong())) == pytest.approx(1.0, abs=0.01)
    assert max(replayed(HalvedLipschitz(steps=3), facts, AlwaysWrong())) > 1.9


def test_a_curvature_bound_of_the_logistic_loss_is_seen() -> None:
    settings = DPSVRG.small | {"clip_norm": 2.0, "learning_rate": 0.01, "noise_multiplier": 1e-3}
    facts = joint_problem("add_remove")
    assert max(replayed(DPSVRG(**settings), facts, Softmax())) <= 1 + 1e-9
    assert max(replayed(ForgottenCurvature(**settings), facts, Softmax())) > 1.2


@pytest.mark.parametrize(("kind", "sound"), [(OutputGD, True), (HalvedLipschitz, False)])
def test_audit_of_output_perturbation(kind: type[OutputGD], sound: bool) -> None:
    """Claimed epsilon between 4 and 8; half the noise shows more. False alarm below 1e-6."""
    facts = joint_problem("replace_one", loss=AlwaysWrong(), l2=0.1)
    algorithm = kind(steps=3, noise_multiplier=1.0)
    [mechanism] = algorithm.plan(facts)
    values = exact_values(algorithm, facts, neighbours(facts.adjacency, AlwaysWrong()))
    rng = np.random.default_rng(11)
    axis = (values[0] - values[1]) / np.linalg.norm(values[0] - values[1])
    first, second = (rng.normal(size=500_000) * mechanism.sigma + value @ axis for value in values)
    claim = Target(1.0, 1e-5).spent(Events.of([mechanism], adjacency="replace_one"))
    assert 4 < claim < 8
    assert (least_epsilon(first, second, 1e-5) <= claim) is sound


def records_of(classes: int, n: int = 6000) -> tuple[np.ndarray, np.ndarray]:
    """Classes around the corners of a simplex, rows of norm 1 with a constant column last."""
    rng = np.random.default_rng(3)
    y = rng.integers(0, classes, n)
    X = np.column_stack([np.eye(classes)[y] + 0.5 * rng.normal(size=(n, classes)), np.ones(n)])
    return X / np.linalg.norm(X, axis=1)[:, None], y.astype(float)


def accuracy_of(name: str, loss: Any, epsilon: float, classes: int) -> float:
    X, y = records_of(classes)
    cls = registry[name]
    adjacency = "add_remove" if Adjacency.ADD_REMOVE in cls.adjacencies else "replace_one"
    sizes = {"n": len(y), "dimension": X.shape[1], "outputs": classes}
    facts = joint_problem(adjacency, loss=loss, l2=1e-4, intercept=True, **sizes)
    planned, rows = plan(name, {}, facts, Target(epsilon, 1e-6)), MulticlassObjective(X, y, loss)
    return rows.right_count(run(planned, rows, seed=0, fixed_noise_seed=0).weights) / len(y)


@pytest.mark.parametrize("name", sorted(set(JOINT) - {"privgene", "sgd_adv", "scaled_gd"}))
def test_learns_with_privacy(name: str) -> None:
    assert accuracy_of(name, Softmax(), 2.0, classes=3) > 0.8


@pytest.mark.parametrize("name", ["dp_adam", "rrpsgd"])
def test_one_price_for_all_classes_buys_more_than_one_each(name: str) -> None:
    joint, apart = (accuracy_of(name, loss, 0.1, classes=8) for loss in (Softmax(), Logistic()))
    assert joint > apart + 0.05


def test_baselines_without_privacy() -> None:
    X, y = records_of(3, 600)
    y[:200] = 2.0
    facts = joint_problem(n=600, dimension=4, l2=1e-3, intercept=True)
    rows = MulticlassObjective(X, y, Softmax())
    best = run(plan("non_private", {}, facts), rows).weights
    assert np.linalg.norm(rows.gradient_sum(best) / 600 + 1e-3 * best) < 1e-4
    for loss in (Softmax(), Logistic()):
        majority = run(
            plan("majority", {}, replace(facts, loss=loss)), MulticlassObjective(X, y, loss)
        ).weights
        assert np.all((X @ majority.reshape(3, 4).T).argmax(axis=1) == 2)
