"""Coefficients are those of ``predict``, or there are none; a model without a constant passes
through 0.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from sklearn.metrics import r2_score

from dpcore.algorithms import registry
from dpcore.errors import InputError
from dpcore.estimators import DPClassifier, DPRanker, DPRegressor
from dpcore.features import Column
from dpcore.preprocess import Encoder

pytestmark = pytest.mark.filterwarnings("ignore")
RNG = np.random.default_rng(1)
X = RNG.uniform(-2.0, 3.0, (300, 4))
TARGET = X @ np.array([1.0, -2.0, 0.5, 0.0]) + 4.0
LOW, HIGH = float(TARGET.min()) - 1.0, float(TARGET.max()) + 1.0
NAMES = sorted(
    name
    for name, cls in registry.items()
    if not cls.requires.ranking and cls.name == name and "majority" not in name
)
BOUNDS = [None, (-2.0, 3.0), (np.array([-2.0, -3.0, -2.0, -9.0]), np.array([3.0, 3.0, 4.0, 9.0]))]
SETTINGS = list(product(BOUNDS, (1.0, 3.0), (True, False, "last")))


def regressor(name: str, bounds: Any, norm_bound: float, intercept: Any) -> DPRegressor | None:
    model = DPRegressor(
        name, epsilon=50.0, target_bounds=(LOW, HIGH), bounds=bounds, norm_bound=norm_bound
    )
    relation = str(sorted(registry[name].adjacencies)[-1])
    small = registry[name].small
    try:
        return model.set_params(intercept=intercept, n=300, adjacency=relation, **small).fit(
            rows(intercept), TARGET
        )
    except InputError:
        return None  # the algorithm needs another loss, or a constant


def rows(intercept: Any) -> np.ndarray:
    return np.c_[X, np.ones(len(X))] if intercept == "last" else X


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_coefficients_of_every_algorithm_are_those_of_predict_where_they_exist(
    name: str, half: int
) -> None:
    """One half of the settings by default: the other halves of two neighbours are in each."""
    for bounds, norm_bound, intercept in SETTINGS[(NAMES.index(name) + half) % 2 :: 2]:
        if intercept == "last" and bounds is not None and np.ndim(bounds[0]):
            continue
        model = regressor(name, bounds, norm_bound, intercept)
        if model is None:
            continue
        bent = registry[name].bounds_rows_by == "norm" and (bounds is None or norm_bound < 2.0)
        if not hasattr(model, "coef_"):
            assert bent and not hasattr(model, "intercept_")
            with pytest.raises(AttributeError, match="no coefficients of the rows as they are"):
                model.coef_  # noqa: B018
            continue
        inside = rows(intercept) if bounds is not None else np.clip(rows(intercept), 0.0, 1.0)
        by_hand, predicted = inside @ model.coef_ + model.intercept_, model.predict(inside)
        assert not bent
        assert r2_score(TARGET, by_hand) == pytest.approx(
            r2_score(TARGET, predicted), abs=1e-9, rel=1e-9
        )
        assert by_hand == pytest.approx(
            predicted, rel=1e-9, abs=1e-9 * (1.0 + np.abs(predicted).max())
        )
        if intercept is False:
            assert model.intercept_ == 0.0 and model.predict(np.zeros((1, 4)))[0] == 0.0


def test_terms_add_up_to_the_score_of_a_classifier_and_of_a_regressor() -> None:
    low, high = X.min(axis=0), X.max(axis=0)
    labels = np.where(TARGET > 4.0, 1, -1)
    settings = {"epsilon": 50.0, "bounds": (low, high), "n": 300}
    classifier = DPClassifier(classes=[-1, 1], **settings).fit(X, labels)
    regressor = DPRegressor(target_bounds=(LOW, HIGH), **settings).fit(X, TARGET)
    for model, scores in (
        (classifier, classifier.decision_function(X)),
        (regressor, regressor.predict(X)),
    ):
        said = model.explain()
        assert list(said.columns) == ["term", "at", "output", "value", "band", "importance"]
        total = np.full(len(X), said.attrs["constant"][""])
        for column in range(4):
            term = said[said["term"] == str(column)]
            total += np.interp(X[:, column], term["at"].astype(float), term["value"])
        assert total == pytest.approx(scores, abs=1e-6)
        assert said["band"].isna().all() and "curvature" in said.attrs["band"]


def test_terms_of_an_encoder_are_over_its_own_columns() -> None:
    """Also with the constant in the encoder; another encoder is refused."""
    frame = pd.DataFrame({"x": X[:, 0], "job": np.where(X[:, 1] > 0, "cook", "clerk")})
    columns = (
        Column(name="x", low=-2, high=3),
        Column(name="job", kind="categorical", levels=("cook", "clerk")),
    )
    for intercept, last in ((False, True), (True, "last")):
        encoder = Encoder(columns, "none", "hats(8)", intercept=intercept)
        rows, labels = encoder.transform(frame), np.where(TARGET > 4.0, 1, -1)
        blocks = encoder.design.blocks
        model = DPClassifier(classes=[-1, 1], n=300, intercept=last, blocks=blocks)
        said = model.fit(rows, labels).explain(encoder)
        assert set(said["term"]) == {"x", "job"}
        assert set(said[said["term"] == "job"]["at"]) == {"cook", "clerk"}
        assert said["importance"].max() > 0
        bare = model.explain()
        assert len(bare) == rows.shape[1] - int(intercept)
        with pytest.raises(InputError, match="encoder that made"):
            model.explain(Encoder(columns, "none", "hats(3)"))


@pytest.mark.parametrize("name", ["auto", "dp_sgd", "objective_perturbation"])
@pytest.mark.parametrize("bounds", [None, (-2.0, 3.0)])
def test_the_coefficients_of_a_classifier_give_its_labels(name: str, bounds: Any) -> None:
    classes = np.digitize(TARGET, np.quantile(TARGET, [0.4, 0.7]))
    inside = X if bounds is not None or name != "auto" else np.clip(X, 0.0, 1.0)
    for labels in (classes > 0, classes):
        model = DPClassifier(
            name, classes=np.unique(labels), n=300, epsilon=50.0, bounds=bounds
        ).fit(X, labels)
        scores = inside @ model.coef_.T + model.intercept_
        chosen = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        assert np.array_equal(model.classes_[chosen], model.predict(inside))


def test_a_ranker_has_coefficients_of_raw_features_alone() -> None:
    y, q = np.digitize(TARGET, [2.0, 5.0]), np.repeat(np.arange(30), 10)
    raw = DPRanker(features="raw", epsilon=50.0).fit(X, y, groups=q)
    assert raw.predict(X, q) == pytest.approx(X @ raw.coef_ + raw.intercept_)
    assert not hasattr(DPRanker(epsilon=50.0).fit(X, y, groups=q), "coef_")
    assert not hasattr(
        DPRanker(scorer="mlp", hidden=(3,), features="raw", steps=1).fit(X, y, groups=q), "coef_"
    )


@pytest.mark.parametrize("bounds", [None, (-1.0, 1.0), (0.0, 1.0), (-3.0, 2.0)])
def test_a_line_through_zero_is_found_without_a_constant(bounds: Any) -> None:
    """y = 3 x: the slope is 3 and nothing is shifted, whatever the bounds."""
    x = np.linspace(-1.0 if bounds is None else max(bounds[0], -1.0), 1.0, 200)[:, None]
    model = DPRegressor(
        "non_private",
        intercept=False,
        bounds=bounds,
        norm_bound=2.0,
        target_bounds=(-4.0, 8.0),
        n=200,
    )
    model.fit(x, 3.0 * x[:, 0])
    assert model.predict(x) == pytest.approx(3.0 * x[:, 0], abs=0.02)
    if bounds is not None:
        assert model.coef_[0] == pytest.approx(3.0, abs=0.02) and model.intercept_ == 0.0


@pytest.mark.parametrize("name", ["non_private", "dp_sgd"])
def test_a_classifier_through_zero_separates_what_zero_separates(name: str) -> None:
    x = np.random.default_rng(3).uniform(-4.0, 4.0, (1000, 2))
    labels = x[:, 0] > 0.0
    model = DPClassifier(
        name, intercept=False, bounds=(-4.0, 4.0), classes=[False, True], n=1000, epsilon=20.0
    )
    assert model.fit(x, labels).score(x, labels) > 0.95
    assert np.all(model.intercept_ == 0.0)
    sparse = model.fit(csr_array(x), labels)
    assert np.allclose(sparse.decision_function(csr_array(x)), sparse.decision_function(x))


def test_bounds_that_no_scale_brings_to_the_unit_interval_are_refused_in_words() -> None:
    with pytest.raises(InputError, match=r"low >= 0 for intercept=False.*dp_sgd"):
        DPClassifier(intercept=False, bounds=(-1, 1), classes=[0, 1], n=300).fit(X, X[:, 0] > 0)
    model = DPRegressor(intercept=False, bounds=(0, 4), target_bounds=(0, 20), n=300, epsilon=50.0)
    positive = np.abs(X)
    assert model.fit(positive, positive.sum(axis=1)).score(positive, positive.sum(axis=1)) > 0.8
    assert model.intercept_ == 0.0
