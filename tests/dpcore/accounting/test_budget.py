"""The door: planned runs follow their plan, adaptive ones stay below its price, batches die,
refusals cost nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.accounting.budget import Budget
from dpcore.accounting.curves import curve_of
from dpcore.accounting.events import Events
from dpcore.accounting.observers import Call
from dpcore.errors import BudgetExceeded, DPFlowsError
from dpcore.losses import make_loss
from dpcore.mechanisms import AboveThreshold, Gaussian
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.users import UserObjective
from dpcore.problem import Adjacency, Block
from dpcore.ranking.losses import make_ranking_loss
from dpcore.ranking.objective import SessionObjective
from dpcore.ranking.sessions import Documents, Sessions
from dpcore.sampling import Poisson

OBJECTIVE = LinearObjective(np.ones((50, 2)) * 0.5, np.ones(50), make_loss("logistic"))
GAUSSIAN = Gaussian(1.0, 5.0)
SAMPLED = Poisson(0.2).amplify(GAUSSIAN, Adjacency.ADD_REMOVE)


def door(mechanisms: list, **options: object) -> Budget:
    events = Events.of(mechanisms, adjacency="add_remove")
    return Budget(events, OBJECTIVE, np.random.default_rng(0), **options)  # type: ignore[arg-type]


def gradient(batch):
    return batch.gradient_sum(np.zeros(2), 1.0)


def test_a_planned_run_releases_its_plan_and_no_more() -> None:
    budget = door([GAUSSIAN, SAMPLED])
    budget.release(GAUSSIAN, gradient)
    budget.release(SAMPLED, gradient)
    with pytest.raises(BudgetExceeded, match="release 3 of the plan"):
        budget.release(SAMPLED, gradient)
    assert budget.events == Events.of([GAUSSIAN, SAMPLED], adjacency="add_remove")


def test_a_planned_run_that_leaves_its_plan_is_stopped_for_good() -> None:
    budget = door([GAUSSIAN, SAMPLED])
    with pytest.raises(BudgetExceeded):
        budget.release(SAMPLED, gradient)
    with pytest.raises(BudgetExceeded):
        budget.release(GAUSSIAN, gradient)
    assert budget.releases == 0


def test_a_refused_release_asks_no_query_and_charges_nothing() -> None:
    charged: list[int] = []
    budget = door([GAUSSIAN], adaptive=True, on_charge=lambda: charged.append(1))
    asked: list[int] = []
    with pytest.raises(BudgetExceeded):
        budget.release(Gaussian(1.0, 0.1), lambda batch: asked.append(1))
    assert not asked
    assert not charged
    assert budget.affords(GAUSSIAN)


class Seeing:
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def asked(self, call: Call) -> None:
        self.told.append((call.name, call.n, [view.name for view in call.views]))

    def released(self, mechanism: Any, rows: Any, query: Any, value: Any) -> None:
        self.told.append((mechanism, None if rows is None else len(rows), value))


def test_observers_are_told_of_every_call_and_release_after_the_charge() -> None:
    """Through views too; the value is the one that the algorithm gets, and a release without
    observers is the same.
    """
    shift, scale = np.zeros(2), np.ones(2)

    def query(batch):
        return (
            batch.transform(shift, scale).columns(np.array([0, 1])).gradient_sum(np.zeros(2), 1.0)
        )

    seeing = Seeing()
    budget = door(
        [GAUSSIAN, SAMPLED], observers=[seeing], on_charge=lambda: seeing.told.append("charge")
    )
    values = [budget.release(GAUSSIAN, query), budget.release(SAMPLED, query)]
    charge, *calls = seeing.told[:5]
    assert (charge, calls) == (
        "charge",
        [
            ("transform", 50, []),
            ("columns", 50, ["transform"]),
            ("gradient_sum", 50, ["transform", "columns"]),
            (GAUSSIAN, None, values[0]),
        ],
    )
    drawn = seeing.told[-1][1]
    assert drawn < 50 and seeing.told[6][1] == drawn and seeing.told[-1][2] is values[1]
    plain = door([GAUSSIAN, SAMPLED])
    for mechanism, value in zip((GAUSSIAN, SAMPLED), values, strict=True):
        np.testing.assert_array_equal(plain.release(mechanism, query), value)


def test_the_charge_comes_before_the_rows_and_the_query() -> None:
    order: list[str] = []
    budget = door([SAMPLED], on_charge=lambda: order.append("charge"))

    def query(batch):
        order.append("query")
        return gradient(batch)

    budget.release(SAMPLED, query)
    assert order == ["charge", "query"]


def test_a_batch_is_dead_after_its_release() -> None:
    budget = door([SAMPLED] * 2)
    kept = []

    def query(batch):
        kept.append(batch)
        return gradient(batch)

    budget.release(SAMPLED, query)
    with pytest.raises(DPFlowsError, match="was used"):
        kept[0].gradient_sum(np.zeros(2))


def _views(batch: Any) -> dict[str, Any]:
    """All ways by which records can still be asked, from what a query was handed."""
    block = (Block((0, 1), "one_hot"),)
    unit = np.ones(2)
    found = {
        "take": batch.take(slice(0, 2)),
        "within": batch.within(block),
        "transform": batch.transform(0.5 * unit, unit),
        "columns": batch.columns(np.array([0])),
        "with_labels": batch.with_labels(np.ones(batch.n), LOSS),
        "unweighted": batch.unweighted(),
        "method": batch.gradient_sum,
        "twice": batch.within(block).transform(0.5 * unit, unit).take(np.array([1])),
        "method of a view": batch.take(slice(0, 2)).value_sum,
    }
    if hasattr(batch, "against_rest"):
        found["against_rest"] = batch.against_rest(1, LOSS)
    return found


X4 = np.array([[0.6, 0.0], [0.0, 0.8], [0.3, 0.4], [0.1, 0.2]])
LOSS = make_loss("logistic")


@pytest.mark.parametrize(
    "objective",
    [
        LinearObjective(X4, np.array([1.0, -1.0, 1.0, -1.0]), LOSS),
        LinearObjective(csr_array(X4), np.array([1.0, -1.0, 1.0, -1.0]), LOSS),
        MulticlassObjective(X4, np.array([0.0, 1.0, 2.0, 1.0]), Softmax()),
    ],
    ids=["dense", "sparse", "classes"],
)
def test_views_die_with_the_batch(objective: Any) -> None:
    kept: dict[str, Any] = {}

    def query(batch):
        kept.update(_views(batch))
        assert kept["take"].n == 2
        size = 6 if "against_rest" in kept else 2
        assert kept["take"].gradient_sum(np.zeros(size)).shape == (size,)
        return np.zeros(2)

    events = Events.of([GAUSSIAN], adjacency=Adjacency.ADD_REMOVE)
    Budget(events, objective, np.random.default_rng(0)).release(GAUSSIAN, query)
    for view in kept.values():
        ask = view if callable(view) else view.__getattr__
        with pytest.raises(DPFlowsError, match="was used"):
            ask(np.zeros(2) if callable(view) else "gradient_sum")


def test_users_and_sessions_behind_a_batch_die_with_it() -> None:
    rows = LinearObjective(X4, np.array([1.0, -1.0, 1.0, -1.0]), LOSS)
    users = UserObjective(rows, np.array(["a", "a", "b", "c"]), 2)
    offsets = np.array([0, 2, 4])
    sessions = Sessions(
        Documents(X4, offsets), np.array([1.0, 0.0, 0.0, 2.0]), np.array(["q", "r"])
    )
    searches = SessionObjective(sessions, make_ranking_loss("listnet"))
    kept: list[Any] = []

    def of_users(batch):
        kept.extend([batch.rows, batch.take(slice(0, 1)).rows])
        return batch.gradient_sum(np.zeros(2))

    def of_sessions(batch):
        kept.extend([batch.sessions, batch.public, batch.take(slice(0, 1)).sessions])
        return batch.gradient_sum(np.zeros(2))

    for objective, query in ((users, of_users), (searches, of_sessions)):
        events = Events.of([GAUSSIAN], adjacency=Adjacency.ADD_REMOVE)
        Budget(events, objective, np.random.default_rng(0)).release(GAUSSIAN, query)
    for view in kept:
        with pytest.raises(DPFlowsError, match="was used"):
            view.n  # noqa: B018


def test_the_batch_of_a_trial_dies_with_the_search_and_its_views_with_the_trial() -> None:
    outer = door([GAUSSIAN])
    kept: list[Any] = []

    def search(batch):
        inner = Budget(
            Events.of([GAUSSIAN], adjacency=Adjacency.ADD_REMOVE), batch, np.random.default_rng(1)
        )
        inner.release(GAUSSIAN, lambda rows: (kept.append(rows.take(slice(0, 1))), np.zeros(2))[1])
        with pytest.raises(DPFlowsError, match="was used"):
            kept[0].gradient_sum(np.zeros(2))
        kept.append(batch.take(slice(0, 1)))
        return kept[1].gradient_sum(np.zeros(2))

    outer.release(GAUSSIAN, search)
    with pytest.raises(DPFlowsError, match="was used"):
        kept[1].gradient_sum(np.zeros(2))


def test_an_adaptive_run_stays_below_the_plan_at_every_order() -> None:
    budget = door([GAUSSIAN] * 10, adaptive=True)
    other = Gaussian(1.0, 7.0)
    spent = 0
    while budget.affords(other):
        budget.release(other, gradient)
        spent += 1
    assert np.all(budget.events.price() <= 10 * curve_of(GAUSSIAN) * (1 + 1e-9))
    assert spent == 19  # 19 / 49 <= 10 / 25 < 20 / 49


def test_ten_equal_parts_fit_the_whole_and_an_eleventh_does_not() -> None:
    part = Gaussian(1.0, 5.0 * np.sqrt(10.0))
    budget = door([GAUSSIAN], adaptive=True)
    for _ in range(10):
        budget.release(part, gradient)
    with pytest.raises(BudgetExceeded):
        budget.release(part, gradient)


def test_poisson_batches_vary_and_may_be_empty() -> None:
    mechanism = Poisson(0.01).amplify(GAUSSIAN, Adjacency.ADD_REMOVE)
    budget = door([mechanism] * 400)
    sizes = []

    def query(batch):
        sizes.append(batch.n)
        return gradient(batch)

    for _ in range(400):
        budget.release(mechanism, query)
    assert min(sizes) == 0
    assert len(set(sizes)) > 2
    assert abs(np.mean(sizes) - 0.5) < 0.25  # 7 standard errors


def test_progress_counts_releases() -> None:
    seen: list[tuple[int, int]] = []
    budget = door([GAUSSIAN] * 3, on_progress=lambda done, total: seen.append((done, total)))
    for _ in range(3):
        budget.release(GAUSSIAN, gradient)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_an_adaptive_run_stays_below_the_plan_under_the_relation_of_the_ledger_too() -> None:
    """Replacing costs a Laplace search on a batch five times what adding does, a Gaussian release
    four times.
    """
    search = Poisson(0.2).amplify(AboveThreshold(1.0, 4.0, 8.0, 5), Adjacency.ADD_REMOVE)
    budget = door([GAUSSIAN] * 6 + [search] * 2, adaptive=True)
    while budget.affords(search):
        budget.release(search, lambda batch: iter([-100.0] * 5))
    for relation in ("add_remove", "replace_one"):
        spent, cap = budget.events.price(relation), budget.planned.price(relation)
        assert (spent <= cap * (1 + 1e-9)).all()
    # The room that one more would need is there under add/remove: the other relation stopped the
    # run.
    more = Events.of([*budget.events, search], adjacency="add_remove")
    assert (more.price() <= budget.planned.price()).all()
    assert (more.price("replace_one") > budget.planned.price("replace_one")).any()
    with pytest.raises(BudgetExceeded):
        budget.release(search, lambda batch: iter([-100.0] * 5))
