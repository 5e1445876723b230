"""Whatever stands in a parameter or in the data: a fit, or one line that names it, and nothing is
spent.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.accounting import Allowance
from dpcore.errors import DPFlowsError, InputError
from dpcore.estimators import DPClassifier, DPRanker, DPRegressor

X = np.random.default_rng(0).random((40, 3))
Y = (X[:, 0] > 0.5).astype(int)
Q = np.repeat(np.arange(8), 5)
MALFORMED = [
    None,
    True,
    5,
    -1,
    2.5,
    float("nan"),
    float("inf"),
    "a",
    b"a",
    (),
    (1,),
    (1, "a"),
    [],
    {},
    {"a": 1},
    object(),
]
MALFORMED += [
    np.zeros(2),
    np.array(["a"]),
    np.int64(3),
    (0, 1, 2),
    ("a", "b"),
    ((0, 1), (2, 3, 4)),
    lambda: 1,
]


def fit(kind: str, **change: Any) -> Any:
    if kind == "classifier":
        return DPClassifier(**({"classes": [0, 1], "n": 40} | change)).fit(X, Y)
    if kind == "regressor":
        return DPRegressor(**({"target_bounds": (0, 1), "n": 40} | change)).fit(X, X[:, 0])
    return DPRanker(**({"adjacency": "add_remove", "n": 8} | change)).fit(X, Y, groups=Q)


KINDS = {"classifier": DPClassifier, "regressor": DPRegressor, "ranker": DPRanker}
PARAMETERS = [
    (kind, name)
    for kind, cls in KINDS.items()
    for name in cls().get_params()
    if name != "random_state"
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_malformed_parameters_are_refused_in_one_line_or_work(kind: str, name: str) -> None:
    for value in MALFORMED:
        budget = Allowance(1e6, 1e-5)
        change = {"budget": budget, name: value}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                fit(kind, **change)
            except DPFlowsError as error:
                assert "\n" not in str(error) and len(str(error)) < 500, (name, value)
                assert budget.spent == 0.0 and budget.history == [], (name, value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["classifier", "regressor", "ranker"])
def test_parameters_of_the_algorithm_are_checked_before_the_charge(kind: str) -> None:
    for name in ("steps", "learning_rate", "clip_norm", "sampling_rate", "noise_multiplier"):
        for value in MALFORMED:
            budget = Allowance(1e6, 1e-5)
            try:
                fit(kind, algorithm="dp_sgd", budget=budget, epsilon=100.0, **{name: value})
            except DPFlowsError as error:
                assert "\n" not in str(error), (name, value)
                assert budget.spent == 0.0, (name, value)


BAD_ROWS = {
    "nan": np.where(X > 0.9, np.nan, X),
    "inf": np.where(X > 0.9, np.inf, X),
    "complex": X + 1j,
    "text": X.astype(str).astype(object) + np.full((40, 3), "x", dtype=object),
    "one row": X[0],
    "three axes": X[None],
    "none": X[:0],
    "sparse nan": csr_array(np.where(X > 0.9, np.nan, X)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["classifier", "regressor", "ranker"])
@pytest.mark.parametrize("rows", BAD_ROWS)
def test_bad_rows_are_refused_in_fit_and_predict(kind: str, rows: str) -> None:
    budget, bad = Allowance(1e3, 1e-5), BAD_ROWS[rows]
    model = fit(kind, budget=budget)
    spent = budget.spent
    y = {"classifier": Y, "regressor": X[:, 0], "ranker": Y}[kind]
    groups = {"groups": Q} if kind == "ranker" else {}
    with pytest.raises((ValueError, TypeError)):
        model.fit(bad, y, **groups)
    with pytest.raises((ValueError, TypeError)):
        model.predict(bad, **groups)
    assert budget.spent == spent and np.all(np.isfinite(model.predict(X, **groups)))


def test_the_columns_of_a_ranker_are_those_of_fit() -> None:
    """Reordered or renamed columns would be scored as if they were the others."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["a", "b", "c"])
    model = DPRanker(epsilon=20.0).fit(table, Y, groups=Q)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"] and model.n_features_in_ == 3
    assert np.array_equal(model.predict(table, Q), model.predict(table, Q))
    with pytest.raises(ValueError, match="same order"):
        model.predict(table[["c", "a", "b"]], Q)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(table.rename(columns={"a": "z"}), Q)
    with pytest.raises((ValueError, TypeError), match=r"[Ss]parse"):
        model.predict(csr_array(X), Q)


@pytest.mark.parametrize(
    "groups", [Q[:-1], Q[:, None], 3, np.where(Q == 1, np.nan, Q), [None] + ["q"] * 39]
)
def test_bad_query_ids_are_refused(groups: Any) -> None:
    with pytest.raises(DPFlowsError, match="groups"):
        DPRanker().fit(X, Y, groups=groups)
    model = DPRanker().fit(X, Y, groups=Q)
    with pytest.raises(DPFlowsError, match="groups"):
        model.predict(X, groups)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["auto", "dp_sgd", "objective_perturbation"])
@pytest.mark.parametrize("classes", [2, 3])
def test_log_probabilities_are_those_of_the_probabilities_and_finite_far_out(
    how: str, classes: int
) -> None:
    y = np.minimum((X[:, 0] * classes).astype(int), classes - 1)
    model = DPClassifier(how, classes=range(classes), n=40, epsilon=100.0).fit(X, y)
    assert model.predict_log_proba(X) == pytest.approx(np.log(model.predict_proba(X)), abs=1e-12)
    assert model.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(40))
    model.weights_ = model.weights_ * 1e5
    assert np.all(np.isfinite(model.predict_log_proba(X))) and np.all(
        np.isfinite(model.predict_proba(X))
    )
    assert not hasattr(DPClassifier(how, loss="hinge"), "predict_log_proba")


@pytest.mark.filterwarnings("ignore")
def test_a_score_that_is_no_number_is_none() -> None:
    """Of no spread no share is explained, and of no query there is no gain: not 0, which is one."""
    rng = np.random.default_rng(0)
    X, groups = rng.random((20, 3)), np.arange(20) // 5
    regressor = DPRegressor(target_bounds=(0.0, 1.0), n=20).fit(X, X[:, 0])
    ranker = DPRanker(features="raw").fit(X, rng.integers(0, 3, 20), groups)
    assert np.isnan(regressor.score(X, np.ones(20))) and np.isnan(regressor.score(X[:1], X[:1, 0]))
    assert np.isnan(ranker.score(X, np.zeros(20), groups))
    assert np.isfinite(regressor.score(X, X[:, 0]))


@pytest.mark.parametrize("low", [-1e308, -1.7e308])
def test_bounds_whose_distance_is_no_number_are_refused(low: float) -> None:
    X, y = np.linspace(-1.0, 1.0, 40).reshape(20, 2), np.arange(20) % 2
    with pytest.raises(InputError, match="a finite distance apart"):
        DPClassifier(bounds=(low, 1e308), n=20).fit(X, y)
    with pytest.raises(InputError, match="a finite distance apart"):
        DPRegressor(bounds=(-1.0, 1.0), target_bounds=(low, 1e308), n=20).fit(X, X[:, 0])
