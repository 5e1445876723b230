"""Weights so large that scores overflow: a record still adds a bounded number to a clipped sum,
never NaN.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.accounting import Target
from dpcore.losses import losses, make_loss
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.users import UserObjective
from dpcore.problem import Problem
from dpcore.ranking.losses import make_ranking_loss
from dpcore.ranking.objective import SessionObjective
from dpcore.ranking.scorers import MLP, Linear
from dpcore.train import plan, run
from tests.dpcore.ranking.test_objective import sessions_of

HUGE = 1.6e308
WEIGHTS = {
    "opposite": np.array([HUGE, -HUGE, HUGE, -HUGE]),
    "infinite": np.array([np.inf, -np.inf, 1.0, 0.0]),
    "not a number": np.array([np.nan, 1.0, -1.0, 0.0]),
}
FEW = np.array([[0.1, 0.0, 0.2, 0.0], [0.0, 0.3, 0.0, 0.1]])
MORE = np.vstack([FEW, np.full(4, 0.6)])
CLIP = 0.5
MARGIN_OR_RESIDUAL = sorted(
    name for name in losses if make_loss(name).argument in ("margin", "residual")
)


def objectives(X: np.ndarray, loss_name: str):
    loss, y = make_loss(loss_name), np.ones(len(X))
    yield LinearObjective(X, y, loss)
    yield LinearObjective(X.astype(np.float32), y, loss)
    yield LinearObjective(csr_array(X), y, loss)
    yield LinearObjective(csr_array(X), y, loss).take(np.arange(len(X)))
    yield LinearObjective(X, y, loss, shift=np.full(4, 0.1), scale=np.full(4, 2.0))
    yield UserObjective(LinearObjective(X, y, loss), np.arange(len(X)), 2)


@pytest.mark.parametrize("w", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("loss_name", MARGIN_OR_RESIDUAL)
def test_one_more_record_moves_the_sums_by_no_more_than_the_clip(
    loss_name: str, w: np.ndarray
) -> None:
    with np.errstate(all="ignore"):
        for few, more in zip(objectives(FEW, loss_name), objectives(MORE, loss_name), strict=True):
            moved = more.gradient_sum(w, CLIP) - few.gradient_sum(w, CLIP)
            assert np.linalg.norm(moved) <= CLIP * (1 + 1e-9)
            raised = more.value_sum(w[None], CLIP) - few.value_sum(w[None], CLIP)
            assert np.all((raised >= -1e-12) & (raised <= CLIP + 1e-12))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_user_whose_gradient_overflows_adds_nothing(sparse: bool) -> None:
    """A target of 1e308 and entries above 1: the product is no number, and no factor brings it
    within the clip.
    """
    X, y = np.array([[0.5, 0.0], [2.0, 2.0], [-2.0, 2.0]]), np.array([1.0, HUGE, HUGE])
    users = UserObjective(
        LinearObjective(csr_array(X) if sparse else X, y, make_loss("squared")),
        np.array([0, 1, 2]),
        1,
    )
    with np.errstate(all="ignore"):
        total = users.gradient_sum(np.zeros(2), CLIP)
    assert np.array_equal(total, users.take(np.array([0])).gradient_sum(np.zeros(2), CLIP))


@pytest.mark.parametrize("w", WEIGHTS.values(), ids=WEIGHTS)
def test_several_classes(w: np.ndarray) -> None:
    W = np.concatenate([w, -w, w[::-1]])
    few, more = (MulticlassObjective(X, np.arange(len(X)) % 3.0, Softmax()) for X in (FEW, MORE))
    assert np.linalg.norm(more.gradient_sum(W, CLIP) - few.gradient_sum(W, CLIP)) <= CLIP * (
        1 + 1e-9
    )
    assert 0.0 <= (more.value_sum(W[None], CLIP) - few.value_sum(W[None], CLIP))[0] <= CLIP + 1e-12


@pytest.mark.parametrize("size", [1e308, np.inf, np.nan])
@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize("loss", ["listnet", "bayesrank", "listmle"])
def test_sessions(loss: str, kind: str, size: float) -> None:
    sessions = sessions_of([1, 4, 6, 2])
    p = sessions.documents.dimension
    scorer = Linear(p) if kind == "linear" else MLP(p, hidden=(4,))
    w = size * np.where(np.arange(scorer.size) % 2, 1.0, -1.0)
    whole = SessionObjective(sessions, make_ranking_loss(loss), scorer)
    with np.errstate(all="ignore"):
        for j in range(sessions.n):
            alone = whole.take(np.array([j]))
            assert np.linalg.norm(alone.gradient_sum(w, CLIP)) <= CLIP * (1 + 1e-9)
            assert 0.0 <= alone.value_sum(w[None], CLIP)[0] <= CLIP


@pytest.mark.parametrize("loss_name", MARGIN_OR_RESIDUAL)
def test_losses_are_numbers_far_out(loss_name: str) -> None:
    loss, z = make_loss(loss_name), np.array([-1e40, -1e31, 1e31, 1e40])
    with np.errstate(all="ignore"):
        assert not np.isnan(loss.slope(z)).any()
        assert not np.isnan(loss.value(z)).any()


def test_a_diverging_run_does_not_tell_whether_a_record_is_there() -> None:
    """Weights grow past the largest float; without a cut the row of 249.75s alone makes them
    NaN.
    """
    problem = Problem(n=50, dimension=16, loss=make_loss("logistic"), norm_bound=1000.0, l2=1.0)
    setting = {
        "learning_rate": 4.0,
        "momentum": 0.0,
        "schedule": "constant",
        "average": 0.0,
        "clip_norm": 1.0,
    }
    planned = plan("dp_sgd", {**setting, "steps": 643}, problem, Target(1.0, 1e-5))
    X = np.full((50, 16), 0.01)
    for rows in (X, np.vstack([X, np.full((1, 16), 249.75)])):
        data = LinearObjective(rows, np.ones(len(rows)), problem.loss)
        with np.errstate(all="ignore"):
            assert not any(np.isnan(run(planned, data, seed=k).weights).all() for k in range(5))


@pytest.mark.parametrize("name", ["dp_sgd", "ssadmm", "mpadmm", "two_phase"])
@pytest.mark.parametrize("l2", [0.1, 1.0, 100.0])
def test_default_steps_are_stable_under_a_strong_ridge(name: str, l2: float) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 10))
    X /= np.linalg.norm(X, axis=1)[:, None]
    problem = Problem(n=2000, dimension=10, loss=make_loss("logistic"), l2=l2)
    data = LinearObjective(X, np.sign(X[:, 0]), problem.loss)
    weights = run(plan(name, {}, problem, Target(1.0, 1e-5)), data).weights
    assert np.linalg.norm(weights) < 2.0 / l2
