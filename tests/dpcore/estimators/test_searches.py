"""A search is many fits: its winner may leave only where all were paid and nothing exact chose
it.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from joblib import parallel_config
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_validate

from dpcore.accounting import Allowance
from dpcore.estimators import DPClassifier

X = np.random.default_rng(0).random((400, 3))
Y = (X[:, 0] > 0.5).astype(int)
DECLARED: dict[str, Any] = {"classes": [0, 1], "n": 400, "epsilon": 1.0}
pytestmark = pytest.mark.filterwarnings("ignore")


def search(model: DPClassifier, **options: Any) -> DPClassifier:
    found = GridSearchCV(model, {"steps": [4, 8]}, cv=2, **options).fit(X, Y)
    return found.best_estimator_


def test_the_winner_of_an_unpaid_search_is_not_releasable() -> None:
    winner = search(DPClassifier(**DECLARED))
    assert not winner.releasable_
    assert "4 other fits of clones" in winner.blocked_[-1] and "Allowance" in winner.blocked_[-1]
    alone = DPClassifier(**DECLARED).fit(X, Y)
    assert alone.releasable_ and clone(DPClassifier(**DECLARED)).fit(X, Y).releasable_


def test_a_search_in_other_processes_or_threads_is_known_too() -> None:
    with parallel_config(backend="threading", n_jobs=2):
        assert not search(DPClassifier(**DECLARED)).releasable_
    model = DPClassifier(**DECLARED)
    pickle.dumps(clone(model))  # what a backend of processes does
    assert "other processes" in clone(model).fit(X, Y).blocked_[-1]
    away = pickle.loads(pickle.dumps(clone(DPClassifier(**DECLARED)))).fit(X, Y)  # noqa: S301
    assert not away.releasable_


def test_the_budget_says_what_it_paid_for() -> None:
    budget = Allowance(20.0, 1e-5)
    model = DPClassifier(**DECLARED, delta=1e-6, budget=budget)
    first = clone(model).fit(X, Y)
    assert first.spent_.epsilon <= 1.0 and first.spent_.fits == 1 and first.releasable_
    second = clone(model).set_params(steps=4).fit(X, Y)
    for one in (first, second):
        assert (
            one.spent_.epsilon == pytest.approx(budget.spent_epsilon) and one.spent_.epsilon > 1.0
        )
        assert one.spent_.fits == 2 and one.spent_.limit == (20.0, 1e-5) and one.releasable_
    assert "2 fits that one budget paid; (20, 1e-05)" in str(first.spent_)
    other = clone(model).set_params(budget=Allowance(20.0, 1e-5)).fit(X, Y)
    assert not other.releasable_ and not first.releasable_  # paid, but not from one budget


def test_exact_scores_of_other_fits_choose_nothing_that_leaves() -> None:
    budget = Allowance(30.0, 1e-5)
    winner = search(DPClassifier(**DECLARED, budget=budget))
    assert winner.spent_.fits == 5 == len(budget.history)
    assert winner.spent_.epsilon == pytest.approx(budget.spent_epsilon)
    assert not winner.releasable_ and "chosen by exact numbers" in winner.blocked_[-1]
    anew = DPClassifier(**DECLARED, budget=budget, steps=winner.get_params()["steps"]).fit(X, Y)
    assert anew.releasable_ and anew.spent_.fits == 6


def test_estimators_that_a_cross_validation_returns_are_one_of_many() -> None:
    kept = cross_validate(DPClassifier(**DECLARED), X, Y, cv=3, return_estimator=True)["estimator"]
    assert [one.releasable_ for one in kept] == [False] * 3


def test_a_refit_of_the_same_object_and_stored_models_are_no_search() -> None:
    model = DPClassifier(**DECLARED).fit(X, Y).fit(X, Y)
    assert model.releasable_
    stored = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert model.releasable_ and stored.releasable_ and copy.deepcopy(model).releasable_
    assert np.array_equal(stored.predict(X), model.predict(X)) and str(stored.spent_) == str(
        model.spent_
    )
    blocked = search(DPClassifier(**DECLARED))
    assert pickle.loads(pickle.dumps(blocked)).blocked_ == blocked.blocked_  # noqa: S301
