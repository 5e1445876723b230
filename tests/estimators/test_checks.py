"""scikit-learn's own checks. What contradicts privacy is listed with the reason; nothing else may fail."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from dpcore.estimators import DPClassifier, DPRegressor

FRESH = "fits the same data twice and wants equal models; noise is drawn afresh from the operating system for every fit"
CONTRADICT_PRIVACY = {
    "check_classifier_data_not_an_array": FRESH,
    "check_regressor_data_not_an_array": FRESH,
    "check_supervised_y_2d": FRESH,
    "check_regressors_int": FRESH,
    "check_fit_idempotent": FRESH,
}
ESTIMATORS = [DPClassifier(), DPRegressor(), DPClassifier("dp_sgd", epsilon=50.0), DPRegressor("dp_sgd", epsilon=50.0)]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda _: CONTRADICT_PRIVACY)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS[:2], ids=["classifier", "regressor"])
def test_the_whole_list_of_checks(estimator: Any) -> None:
    outcome = check_estimator(estimator, expected_failed_checks=CONTRADICT_PRIVACY, on_skip=None)
    assert {item["check_name"] for item in outcome if item["status"] == "xfail"} <= set(CONTRADICT_PRIVACY)
    assert {item["status"] for item in outcome} <= {"passed", "xfail", "skipped"}
