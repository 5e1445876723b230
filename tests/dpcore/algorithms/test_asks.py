"""Every algorithm with every kind of records: refused in ``plan``, or it runs and asks no more than
it declares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpcore.accounting.budget import Lease
from dpcore.algorithms import registry
from dpcore.algorithms.base import OFFERED, offered
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.losses import Loss, make_loss
from dpcore.objective import LinearObjective, Objective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.users import UserObjective
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.model import RankingModel
from dpcore.ranking.sessions import Sessions
from dpcore.train import plan, run

N, D = 40, 4
# What every objective has, and the fields of records, which stand for one word, X.
COMMON = {"n", "take", "gradient_sum", "value_sum"}
FIELDS = {"X", "y", "loss", "shift", "scale"}


def table(
    labels: np.ndarray, loss: Any, kind: type[LinearObjective] = LinearObjective
) -> LinearObjective:
    rng = np.random.default_rng(0)
    X = rng.random((len(labels), D))
    return kind(
        np.append(X / np.linalg.norm(X, axis=1)[:, None] * 0.7, np.full((len(X), 1), 0.7), axis=1),
        labels,
        loss,
    )


def linear(adjacency: Adjacency, unit: str, l2: float) -> Problem:
    facts = {
        "n": N,
        "dimension": D + 1,
        "loss": make_loss("logistic"),
        "adjacency": adjacency,
        "unit": unit,
    }
    return Problem(**facts, l2=l2, intercept=True)  # type: ignore[arg-type]


def record(adjacency: Adjacency, l2: float) -> tuple[Problem, Objective]:
    y = np.where(np.arange(N) % 3, 1.0, -1.0)
    return linear(adjacency, "record", l2), table(y, make_loss("logistic"))


def user(adjacency: Adjacency, l2: float) -> tuple[Problem, Any]:
    y = np.where(np.arange(2 * N) % 3, 1.0, -1.0)
    users = np.repeat([f"u{k}" for k in range(N)], 2)
    return linear(adjacency, "user", l2), UserObjective(table(y, make_loss("logistic")), users, 2)


def of_three(loss: Loss, adjacency: Adjacency, l2: float) -> tuple[Problem, Objective]:
    """Three classes."""
    y = (np.arange(N) % 3).astype(float)
    problem = Problem(
        n=N, dimension=D + 1, loss=loss, adjacency=adjacency, outputs=3, intercept=True, l2=l2
    )
    return problem, table(y, loss, MulticlassObjective)


def joint(adjacency: Adjacency, l2: float) -> tuple[Problem, Objective]:
    return of_three(Softmax(), adjacency, l2)


def classes(adjacency: Adjacency, l2: float) -> tuple[Problem, Objective]:
    """Several classes, one against the rest."""
    return of_three(make_loss("logistic"), adjacency, l2)


def session(adjacency: Adjacency, l2: float) -> tuple[Problem, Any]:
    rng = np.random.default_rng(1)
    rows = Sessions.from_rows(
        rng.random((3 * N, D)), rng.integers(0, 2, 3 * N).astype(float), np.arange(3 * N) // 3
    )
    model = RankingModel(loss="listnet", features=("raw",))
    objective = model.objective(rows)
    return model.problem(objective, adjacency, n=N, l2=l2), objective


def network(adjacency: Adjacency, l2: float) -> tuple[Problem, Any]:
    pytest.importorskip("torch")
    from dpcore.network.spec import network_problem
    from tests.dpcore.network.small import records, spec_of

    built = spec_of("linear").build()
    return network_problem(built, N, adjacency, l2=l2), records(built, N)


KINDS = {
    "record": record,
    "user": user,
    "joint": joint,
    "classes": classes,
    "session": session,
    "network": network,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Names that queries ask of their batch or of a view of it."""
    names: set[str] = set()
    plain = Lease.__getattr__

    def noted(lease: Lease, name: str) -> Any:
        if not name.startswith("__"):
            names.add(name)
        return plain(lease, name)

    monkeypatch.setattr(Lease, "__getattr__", noted)
    return iter([names])


def cases() -> list[Any]:
    """Baselines are not of networks: a minimum of theirs takes long."""
    pairs = [(name, kind) for name in sorted(registry) for kind in KINDS]
    return [
        pytest.param(name, kind, id=f"{name}-{kind}")
        for name, kind in pairs
        if kind != "network" or registry[name].private
    ]


@pytest.mark.parametrize(("name", "kind"), cases())
def test_an_algorithm_is_refused_in_plan_or_runs_on_what_it_declares(
    name: str, kind: str, asked: Iterator[set[str]]
) -> None:
    [names] = asked
    # Without given steps output perturbation may solve instead of descend; a tiny noise makes the
    # descent long.
    settings = {"noise_multiplier": 1e-6} if name == "output_gd" else registry[name].small
    ran = 0
    for adjacency in sorted(registry[name].adjacencies):
        try:
            problem, objective = KINDS[kind](adjacency, 1e-2)
            planned = plan(name, dict(settings), problem)
        except (AssumptionNotMet, InputError):
            continue
        with np.errstate(all="ignore"):
            result = run(planned, objective, seed=0)
        assert result.weights.size
        ran += 1
        declared = COMMON | registry[name].asks
        assert registry[name].asks <= OFFERED[offered(problem)]
        declared |= FIELDS if declared & {"X", "as_rows"} else set()
        declared |= {"against_rest"} if kind == "classes" else set()
        declared |= {"dimension", "labels"} if kind == "session" else set()
        assert names <= declared, f"{name} asks for {sorted(names - declared)}"
    if kind == "record" and not registry[name].requires.ranking:
        assert ran, f"{name} trains on records"


@pytest.mark.parametrize("kind", ["record", "user", "session", "network"])
def test_what_is_offered_is_there(kind: str) -> None:
    problem, objective = KINDS[kind](Adjacency.ADD_REMOVE, 0.0)
    assert offered(problem) == kind
    for name in COMMON | OFFERED[kind]:
        assert hasattr(objective, name), name


def test_output_perturbation_by_users_solves_what_descent_would_reach() -> None:
    """The minimiser of the users' mean loss, found on their records with the share that each
    has.
    """
    problem, objective = user(Adjacency.REPLACE_ONE, 1e-2)
    planned = plan("output_gd", {"noise_multiplier": 1e-6}, problem)
    convexity = planned.algorithm.shortcut(problem)  # type: ignore[attr-defined]
    assert convexity is not None
    found = run(planned, objective, seed=0).weights
    w = np.zeros(problem.dimension)
    for _ in range(3_000):
        w = w - 2.0 * (objective.gradient_sum(w) / problem.n + convexity * w)
    np.testing.assert_allclose(found, w, atol=1e-4)


def test_a_minimiser_by_users_moves_by_at_most_its_sensitivity() -> None:
    """One user's rows replaced by other rows and labels."""
    problem, _ = user(Adjacency.REPLACE_ONE, 1e-2)
    planned = plan("output_gd", {"noise_multiplier": 1e-9}, problem)
    [mechanism] = list(planned.events)
    users = np.repeat([f"u{k}" for k in range(N)], 2)
    y = np.where(np.arange(2 * N) % 3, 1.0, -1.0)
    moves = []
    for who in range(4):
        other = y.copy()
        other[2 * who : 2 * who + 2] *= -1.0
        both = [
            UserObjective(table(labels, make_loss("logistic")), users, 2) for labels in (y, other)
        ]
        first, second = (run(planned, one, fixed_noise_seed=0).weights for one in both)
        moves.append(np.linalg.norm(first - second) / mechanism.sensitivity)  # type: ignore[attr-defined]
    assert 0.05 < max(moves) <= 1.0 + 1e-6
