"""Metrics agree with scikit-learn and with hand values."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from dpcore.metrics import accuracy, balanced_accuracy, mean_squared_error, roc_auc

RNG = np.random.default_rng(0)
Y = np.where(RNG.random(500) < 0.3, 1.0, -1.0)
SCORE = np.round(RNG.normal(size=500) + 0.7 * Y, 1)  # with ties


def test_against_scikit_learn() -> None:
    predicted = np.where(SCORE >= 0, 1.0, -1.0)
    assert accuracy(Y, SCORE) == pytest.approx(np.mean(predicted == Y))
    assert balanced_accuracy(Y, SCORE) == pytest.approx(balanced_accuracy_score(Y, predicted))
    assert roc_auc(Y, SCORE) == pytest.approx(roc_auc_score(Y, SCORE))


def test_a_constant_score_is_the_majority_class_and_no_more() -> None:
    assert accuracy(Y, -np.ones(500)) == np.mean(Y < 0)
    assert balanced_accuracy(Y, -np.ones(500)) == 0.5
    assert roc_auc(Y, np.zeros(500)) == 0.5


def test_one_class_alone_is_undefined_where_two_are_compared() -> None:
    assert np.isnan(roc_auc(np.ones(3), np.arange(3)))
    assert np.isnan(balanced_accuracy(-np.ones(3), np.arange(3)))


def test_mean_squared_error() -> None:
    assert mean_squared_error(np.array([1.0, 2.0]), np.array([2.0, 4.0])) == 2.5
