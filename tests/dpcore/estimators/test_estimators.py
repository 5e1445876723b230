"""DPClassifier and DPRegressor: parameters, budget, bounds on rows, classes, refusals, what may
leave.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpcore.accounting import Allowance, Events
from dpcore.algorithms import registry
from dpcore.errors import BudgetExceeded, InputError, UnknownName
from dpcore.estimators import DPClassifier, DPRanker, DPRegressor, InternalWarning, PrivacyWarning
from dpcore.problem import Adjacency, Block

DECLARED: dict[str, Any] = {"classes": [0, 1], "n": 2000, "epsilon": 5.0}


def table(n: int = 2000, classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns in [0, 1]; the class is the third of column 0 (or its half)."""
    X = np.random.default_rng(seed).random((n, 3))
    return X, np.minimum((X[:, 0] * classes).astype(int), classes - 1)


X, Y = table()


def test_it_learns_and_states_the_guarantee_whole() -> None:
    model = DPClassifier(**DECLARED).fit(X, Y)
    assert model.score(X, Y) > 0.9
    assert model.releasable_ and model.blocked_ == ()
    spent = model.spent_
    assert 0.999 * 5.0 < spent.epsilon <= 5.0 and spent.delta == 1e-5
    assert (spent.adjacency, spent.unit, spent.accountant) == ("add_remove", "record", "gdp")
    assert "record under add_remove" in str(spent)
    assert Events.from_json(model.events_.to_json()).to_json() == model.events_.to_json()
    assert model.trace_[-1]["spent_epsilon"] == pytest.approx(spent.epsilon)
    assert "scaled" in model.reason_
    assert model.coef_.shape == (1, 3) and model.intercept_.shape == (1,)
    assert np.allclose(model.decision_function(X), X @ model.coef_[0] + model.intercept_[0])
    assert np.array_equal(model.predict(X), (model.predict_proba(X)[:, 1] > 0.5).astype(int))


@pytest.mark.parametrize("how", ["auto", "dp_sgd"])
def test_sparse_rows_give_the_same_scores(how: str) -> None:
    model = DPClassifier(how, **DECLARED).fit(csr_array(X), Y)
    assert np.allclose(model.decision_function(csr_array(X)), model.decision_function(X))


def test_parameters_of_the_algorithm_survive_clone_copy_and_search() -> None:
    model = DPClassifier("dp_sgd", steps=7, clip_norm=0.2)
    assert model.get_params()["steps"] == 7
    assert clone(model).get_params() == model.get_params()
    assert clone(model).set_params(steps=9, epsilon=2.0).get_params()["steps"] == 9
    fitted = clone(model).set_params(**DECLARED).fit(X, Y)
    assert len(fitted.events_) == 7 and fitted.planned_.parameters["clip_norm"] == 0.2
    with pytest.raises(UnknownName, match=r"stepz.*steps"):
        model.set_params(stepz=3)
    with pytest.raises(UnknownName, match=r"step'.*steps"):
        DPClassifier("dp_sgd", step=3, **DECLARED).fit(X, Y)


def test_a_search_spends_one_budget() -> None:
    budget = Allowance(20.0, 1e-5)
    model = DPClassifier(classes=[0, 1], n=1000, epsilon=1.0, delta=1e-6, budget=budget)
    assert clone(model).budget is budget and copy.deepcopy(model).budget is budget
    cross_val_score(model, X, Y, cv=3)
    assert len(budget.history) == 3
    GridSearchCV(model, {"steps": [8, 16]}, cv=2).fit(X, Y)
    assert len(budget.history) == 3 + 2 * 2 + 1
    assert 1.0 < budget.spent_epsilon < 8.0


def test_a_budget_that_is_used_up_refuses_and_keeps_what_it_was() -> None:
    budget = Allowance(1.0, 1e-5)
    model = DPClassifier(classes=[0, 1], n=2000, epsilon=0.8, delta=1e-6, budget=budget).fit(X, Y)
    before = budget.spent
    with pytest.raises(BudgetExceeded, match=r"budget.*lower epsilon"):
        for _ in range(4):
            model.fit(X, Y)
    assert len(budget.history) < 4
    assert budget.spent >= before and budget.spent <= budget.limit * (1 + 1e-9)


def test_a_budget_does_not_leave_its_process() -> None:
    with pytest.raises(InputError, match="n_jobs=1"):
        pickle.dumps(DPClassifier(budget=Allowance(1.0, 1e-5)))
    model = DPClassifier(**DECLARED).fit(X, Y)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))  # noqa: S301


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": "dpsgd"}, "dp_sgd"),
        ({"loss": "logistc"}, "logistic"),
        ({"adjacency": "add"}, "add_remove"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"norm_bound": -1.0}, "norm_bound"),
        ({"l2": -1.0}, "l2"),
        ({"n": 0}, "n >= 1"),
        ({"budget": 1.0}, "Allowance"),
        ({"intercept": "first"}, "intercept"),
        ({"bounds": (1.0, 0.0)}, "bounds"),
        ({"classes": [0]}, "two classes"),
        ({"classes": [0, 2]}, "labels among"),
        ({"blocks": [[0, 1], [1, 2]]}, "blocks"),
        ({"preset": "papr", "algorithm": "dp_sgd"}, "paper"),
        ({"adjacency": "replace_one", "n": 1999}, "exactly n=1999"),
        ({"algorithm": "output_gd", "loss": "hinge", "adjacency": "replace_one"}, "smooth"),
        ({"algorithm": "privbr"}, "adjacency|ranking"),
        (
            {"epsilon": 1e-9, "delta": 1e-300, "algorithm": "dp_sgd", "sampling_rate": 0.5},
            "noise_multiplier|epsilon",
        ),
    ],
)
def test_refusals_name_the_way_out_and_spend_nothing(change: dict[str, Any], words: str) -> None:
    relation = "replace_one" if change.get("adjacency") == "replace_one" else "add_remove"
    budget = Allowance(10.0, 1e-4, relation)
    with pytest.raises((InputError, BudgetExceeded), match=words):
        DPClassifier(**({"budget": budget} | DECLARED | change)).fit(X, Y)
    assert budget.spent == 0.0 and budget.history == []


@pytest.mark.parametrize(
    "estimator", [DPClassifier(**DECLARED), DPRegressor(n=2000, target_bounds=(0, 1))]
)
def test_sample_weights_are_refused_in_words(estimator: Any) -> None:
    with pytest.raises(InputError, match="sample_weight"):
        estimator.fit(X, Y, sample_weight=np.ones(2000))
    with pytest.raises(TypeError, match="eval_set"):
        estimator.fit(X, Y, eval_set=None)


def test_what_is_read_from_the_data_warns_and_blocks_release() -> None:
    with pytest.warns(PrivacyWarning, match="classes=None"):
        model = DPClassifier(epsilon=5.0).fit(X, Y)
    assert not model.releasable_
    assert [text.split()[0] for text in model.blocked_] == ["the", "n"]
    with pytest.warns(PrivacyWarning, match="target_bounds=None"):
        assert not DPRegressor(n=2000).fit(X, Y).releasable_
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            DPClassifier(classes=[0, 1], epsilon=5.0, adjacency="replace_one").fit(X, Y).releasable_
        )
    assert not DPClassifier("non_private", **DECLARED).fit(X, Y).releasable_


def test_too_little_signal_warns_from_public_facts() -> None:
    with pytest.warns(PrivacyWarning, match="majority class"):
        DPClassifier(classes=[0, 1], n=2000, epsilon=0.01).fit(X, Y)


def test_long_rows_are_scaled_down_and_counted() -> None:
    long = X * 100.0
    model = DPClassifier("dp_sgd", norm_bound=2.0, **DECLARED).fit(long, Y)
    assert model.internal_["shortened_rows"] == 2000
    rows, _, _ = model.rows_(long)
    assert np.linalg.norm(rows, axis=1).max() <= 2.0
    assert np.array_equal(
        np.sign(model.decision_function(long)), np.sign(long @ model.coef_[0] + model.intercept_[0])
    )


def test_values_and_blocks_are_bounded_and_counted() -> None:
    wild = np.c_[X, 1.0 - X[:, :1]]
    wild[0] = [5.0, -3.0, 1.0, 9.0]
    model = DPClassifier(blocks=[[0, 3], [1]], **DECLARED).fit(wild, Y)
    assert model.internal_ == {"clipped_values": 3, "shortened_blocks": 1, "records": 2000}
    rows, _, _ = model.rows_(wild)
    assert rows.min() >= 0.0 and (rows[:, 0] + rows[:, 3]).max() <= 1.0 + 1e-6
    assert model.planned_.problem.blocks == (Block((0, 3)), Block((1,)))


def test_columns_far_outside_their_bounds_are_named_to_the_operator() -> None:
    """Standardised columns lose half of what they say when they are cut to [0, 1]."""
    centred = 4.0 * X - 2.0
    with pytest.warns(InternalWarning, match=r"lie outside \[0, 1\].*declare bounds=\(low, high\)"):
        cut = DPClassifier(**DECLARED).fit(centred, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        held = DPClassifier(bounds=(-2.0, 2.0), **DECLARED).fit(centred, Y)
    assert held.score(centred, Y) > cut.score(centred, Y)


def test_declared_bounds_map_columns_onto_the_unit_interval() -> None:
    low, high = np.array([-10.0, 0.0, 5.0]), np.array([10.0, 1.0, 6.0])
    raw = low + X * (high - low)
    model = DPClassifier(bounds=(low, high), **DECLARED).fit(raw, Y)
    assert model.score(raw, Y) > 0.9
    assert np.allclose(model.decision_function(raw), raw @ model.coef_[0] + model.intercept_[0])
    with pytest.raises(InputError, match="low=0"):
        DPClassifier(bounds=(low, high), **DECLARED).fit(csr_array(raw), Y)
    scaled = DPClassifier(bounds=(0.0, 2.0), **DECLARED).fit(csr_array(2 * X), Y)
    assert scaled.score(2 * X, Y) > 0.9


@pytest.mark.parametrize("intercept", [True, False, "last"])
def test_intercepts(intercept: Any) -> None:
    rows = np.c_[X, np.ones(2000)] if intercept == "last" else X
    model = DPClassifier(intercept=intercept, **DECLARED).fit(rows, Y)
    assert model.coef_.shape == (1, rows.shape[1])
    assert (model.intercept_[0] == 0.0) == (intercept is not True)
    assert model.planned_.problem.intercept == bool(intercept)


@pytest.mark.parametrize("how", ["auto", "dp_sgd"])
def test_classes_as_text_are_trained_together(how: str) -> None:
    rows, numbers = table(6000, classes=3)
    names = np.array(["low", "mid", "top"])
    model = DPClassifier(how, classes=names, n=6000, epsilon=20.0, norm_bound=2.0).fit(
        rows, names[numbers]
    )
    assert model.planned_.problem.loss.name == "softmax" and len(model.events_) <= 257
    assert model.coef_.shape == (3, 3) and model.predict_proba(rows).shape == (6000, 3)
    assert np.allclose(model.predict_proba(rows).sum(axis=1), 1.0)
    assert model.score(rows, names[numbers]) > 0.75


@pytest.mark.parametrize(
    ("how", "loss"),
    [("objective_perturbation", "logistic"), ("dp_sgd", "huber_hinge"), ("dp_agd", "huber_hinge")],
)
def test_classes_against_the_rest_share_the_budget(how: str, loss: str) -> None:
    rows, numbers = table(3000, classes=3)
    budget = Allowance(30.0, 1e-4)
    model = DPClassifier(
        how, loss, classes=[0, 1, 2], n=3000, epsilon=10.0, norm_bound=2.0, budget=budget
    )
    model.fit(rows, numbers)
    assert model.planned_.problem.outputs == 3
    assert len(model.events_) % 3 == 0
    assert model.spent_.epsilon <= 10.0 * (1 + 1e-9)
    assert model.coef_.shape == (3, 3)
    assert model.score(rows, numbers) > 0.5
    if loss == "logistic":
        assert np.allclose(model.predict_proba(rows).sum(axis=1), 1.0)
    else:
        assert not hasattr(model, "predict_proba")


def test_a_declared_class_without_records_is_no_error() -> None:
    model = DPClassifier(classes=["no", "yes"], n=2000, epsilon=5.0).fit(X, np.full(2000, "no"))
    assert np.mean(model.predict(X) == "no") > 0.9


def test_l1_ranks_features() -> None:
    model = DPClassifier(l1=1e-3, **DECLARED).fit(X, Y)
    assert model.ranked_features_[0] == 0 and sorted(model.ranked_features_) == [0, 1, 2]
    assert not hasattr(DPClassifier(**DECLARED).fit(X, Y), "ranked_features_")


def test_pipeline() -> None:
    model = make_pipeline(
        FunctionTransformer(lambda rows: rows / 10.0), DPClassifier(**DECLARED)
    ).fit(X * 10.0, Y)
    assert model.score(X * 10.0, Y) > 0.9


@pytest.mark.parametrize("loss", ["squared", "huber_regression"])
@pytest.mark.parametrize("how", ["auto", "dp_sgd"])
def test_regression_in_the_units_of_the_target(how: str, loss: str) -> None:
    target = 50.0 + 100.0 * X[:, 0]
    model = DPRegressor(
        how, loss, n=2000, epsilon=20.0, norm_bound=2.0, bounds=(0, 1), target_bounds=(40, 160)
    )
    model.fit(X, target)
    assert model.releasable_ and model.score(X, target) > 0.8
    assert np.allclose(model.predict(X), X @ model.coef_ + model.intercept_)
    with pytest.raises(InputError, match="residuals"):
        DPRegressor(loss="hinge", n=2000, target_bounds=(0, 1)).fit(X, target)
    with pytest.raises(InputError, match="target_bounds"):
        DPRegressor(n=2000, target_bounds=(1, 0)).fit(X, target)


ENTRIES = [
    pytest.param(name, str(adjacency), id=f"{name}-{adjacency}")
    for name, cls in sorted(registry.items())
    if not cls.requires.ranking
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
    if adjacency in cls.adjacencies
]


@pytest.mark.parametrize(("name", "adjacency"), ENTRIES)
def test_every_entry_of_the_registry_serves_the_classifier(name: str, adjacency: str) -> None:
    model = DPClassifier(
        name, classes=[0, 1], n=400, adjacency=adjacency, epsilon=4.0, random_state=0
    )
    assert model.fit(X[:400], Y[:400]).predict(X).shape == (2000,)
    assert model.spent_.epsilon <= 4.0 * (1 + 1e-9) or not registry[name].private


def test_the_ranker_is_exported_here() -> None:
    assert DPRanker().get_params()["adjacency"] == "replace_labels"


def test_no_exact_count_of_records_leaves_in_a_pickle() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(1237, 3)), rng.integers(0, 2, 1237)
    model = DPClassifier(algorithm="dp_sgd", n=1000, classes=[0, 1], delta=1e-5).fit(X, y)
    assert model.internal_["records"] == 1237
    stored = pickle.dumps(model)
    again = pickle.loads(stored)  # noqa: S301
    assert not hasattr(again, "internal_") and not hasattr(copy.deepcopy(model), "internal_")
    counts = {value for value in _numbers(again.__dict__) if value == 1237}
    assert not counts and np.array_equal(again.predict(X), model.predict(X))


def _numbers(value: Any) -> Iterator[float]:
    """Every number in nested plain values and dataclasses."""
    if isinstance(value, int | float | np.number):
        yield float(value)
    elif isinstance(value, np.ndarray):
        yield from value.ravel().tolist() if value.dtype.kind in "iuf" else []
    elif isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _numbers(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _numbers(getattr(value, field.name))
