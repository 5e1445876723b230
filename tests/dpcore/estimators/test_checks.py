"""scikit-learn's own checks over all estimators. What contradicts privacy is listed by name;
nothing else may fail.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from dpcore.estimators import DPClassifier, DPRanker, DPRegressor

FRESH = (
    "fits the same data twice and wants equal models; noise is drawn afresh from the operating "
    "system for every fit"
)
COMPARE_TWO_FITS = {
    "check_classifier_data_not_an_array": FRESH,
    "check_regressor_data_not_an_array": FRESH,
    "check_supervised_y_2d": FRESH,
    "check_regressors_int": FRESH,
    "check_fit_idempotent": FRESH,
}


class OneQueryEachFive(DPRanker):
    """A ranker that is told its queries: the checks know of no ``groups``."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> OneQueryEachFive:
        return super().fit(X, y, groups=fives(X) if groups is None and np.ndim(X) else groups)

    def score(self, X: Any, y: Any, groups: Any = None) -> float:
        return super().score(X, y, fives(X) if groups is None else groups)


def fives(X: Any) -> np.ndarray:
    return np.arange(np.shape(X)[0]) // 5


def excepted(estimator: Any) -> dict[str, str]:
    """Checks that an estimator cannot pass; without noise it passes all."""
    return {} if estimator.algorithm == "non_private" else COMPARE_TWO_FITS


# Whoever passes a check that is excepted here is taken off the list (scikit-learn 1.8 or later).
STRICT: dict[str, Any] = (
    {"xfail_strict": True}
    if "xfail_strict" in signature(parametrize_with_checks).parameters
    else {}
)
SETTINGS = [
    DPClassifier(),
    DPClassifier(intercept=False),
    DPClassifier(bounds=(-10.0, 10.0)),
    DPClassifier("dp_sgd", epsilon=50.0),
    DPClassifier("objective_perturbation", adjacency="replace_one"),
    DPClassifier(
        "objective_perturbation", intercept=False, bounds=(-10.0, 10.0), adjacency="replace_one"
    ),
    DPClassifier("output_gd", adjacency="replace_one", norm_bound=2.0, n=None),
    DPClassifier("output_gd", "huber_hinge", l2=0.1, adjacency="replace_one"),
    DPClassifier("non_private"),
    DPRegressor(),
    DPRegressor("dp_sgd", epsilon=50.0),
    DPRegressor(target_bounds=(-5.0, 5.0), l2=0.1),
    DPRegressor(loss="huber_regression"),
    DPRegressor("dp_sgd", "huber_regression", intercept=False, bounds=(-10.0, 10.0)),
    DPRegressor("dp_sgd", adjacency="replace_one", norm_bound=3.0, target_bounds=(-9.0, 9.0)),
    DPRegressor("non_private"),
    OneQueryEachFive(features="raw"),
    OneQueryEachFive("privbr", features="raw"),
    OneQueryEachFive("dp_sgd", adjacency="add_remove", features="raw"),
    OneQueryEachFive("dp_sgd", adjacency="replace_one", loss="listmle", features="raw"),
    OneQueryEachFive("best_feature", features="raw"),
    OneQueryEachFive("non_private", features="raw", l2=0.1),
]


# One of each kind goes through all checks by default, half of the others through those of the
# interface; slowly, every setting goes through all.
FIRST = [SETTINGS[0], SETTINGS[9], SETTINGS[16]]
REST = [setting for setting in SETTINGS if all(setting is not one for one in FIRST)]


def by_chance(estimator: Any) -> bool:
    """Whether two fits may give the same answers: labels of few rows, or one column chosen."""
    return isinstance(estimator, DPClassifier) or estimator.algorithm == "best_feature"


CERTAIN = [setting for setting in REST if not by_chance(setting)]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(FIRST[1:], expected_failed_checks=excepted, **STRICT)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(FIRST[:1], expected_failed_checks=excepted)
def test_scikit_learn_check_of_a_classifier(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(REST[::2], legacy=False, expected_failed_checks=excepted)
def test_scikit_learn_check_of_the_interface(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(CERTAIN, expected_failed_checks=excepted, **STRICT)
def test_every_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(list(filter(by_chance, REST)), expected_failed_checks=excepted)
def test_every_scikit_learn_check_where_fits_may_agree(estimator: Any, check: Any) -> None:
    check(estimator)


def test_there_are_enough_settings_of_every_estimator() -> None:
    assert len({repr(setting) for setting in SETTINGS}) >= 20
    assert {type(setting) for setting in SETTINGS} == {DPClassifier, DPRegressor, OneQueryEachFive}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", [DPClassifier(), DPRegressor()], ids=["classifier", "regressor"]
)
def test_the_whole_list_of_checks(estimator: Any) -> None:
    outcome = check_estimator(estimator, expected_failed_checks=COMPARE_TWO_FITS, on_skip=None)
    assert {item["check_name"] for item in outcome if item["status"] == "xfail"} <= set(
        COMPARE_TWO_FITS
    )
    assert {item["status"] for item in outcome} <= {"passed", "xfail", "skipped"}
