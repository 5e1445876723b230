"""Average precision, Brier score, recall of several classes, groups: scikit-learn, hand values, the
undefined.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    r2_score,
)
from sklearn.metrics import log_loss as sklearn_log_loss

from dpcore.errors import InputError
from dpcore.losses import losses
from dpcore.metrics import (
    OTHERS,
    average_precision,
    brier_score,
    group_means,
    less_is_better,
    log_loss,
    mean_recall,
    probabilities,
    r2,
)
from tasks.compare.grouping import lower_is_better
from tasks.kinds.quality import BY_LABEL
from tasks.release.gate import direction

RNG = np.random.default_rng(5)
Y = np.where(RNG.random(500) < 0.3, 1.0, -1.0)
SCORE = np.round(RNG.normal(size=500) + 0.7 * Y, 1)  # with ties


def test_binary_against_scikit_learn() -> None:
    assert average_precision(Y, SCORE) == pytest.approx(
        average_precision_score(Y, SCORE), rel=1e-12
    )
    assert brier_score(Y, expit(SCORE)) == pytest.approx(
        brier_score_loss(Y > 0, expit(SCORE)), rel=1e-12
    )
    assert log_loss(Y, SCORE) == pytest.approx(sklearn_log_loss(Y > 0, expit(SCORE)), rel=1e-12)


def test_log_loss_of_classes_and_the_share_of_variance_against_scikit_learn() -> None:
    scores, label = RNG.normal(size=(60, 3)), RNG.integers(0, 3, 60)
    assert log_loss(label, scores) == pytest.approx(
        sklearn_log_loss(label, softmax(scores, axis=1)), rel=1e-12
    )
    assert log_loss(label, np.zeros((60, 3))) == pytest.approx(np.log(3.0))
    assert log_loss(np.ones(1), np.array([-800.0])) == 800.0  # no overflow
    target = RNG.normal(size=60)
    for guess in (target + 0.1, RNG.normal(size=60), np.full(60, target.mean())):
        assert r2(target, guess) == pytest.approx(r2_score(target, guess), abs=1e-12)
    assert np.isnan(r2(np.ones(4), np.zeros(4)))


def test_the_gate_and_a_comparison_know_of_which_metrics_less_is_better() -> None:
    lower = {"brier_score", "log_loss", *BY_LABEL["regression"]} - {"r2"}
    for name in {name for names in BY_LABEL.values() for name in names}:
        assert less_is_better(name) == lower_is_better(name) == (name in lower)
        assert direction(name) == (-1 if name in lower else 1)


@given(st.lists(st.tuples(st.booleans(), st.integers(-2, 2)), min_size=1, max_size=12))
def test_average_precision_with_any_ties(pairs: list[tuple[bool, int]]) -> None:
    y = np.array([1.0 if positive else -1.0 for positive, _ in pairs])
    score = np.array([float(value) for _, value in pairs])
    if (y < 0).all():
        assert np.isnan(average_precision(y, score))
    else:
        assert average_precision(y, score) == pytest.approx(
            average_precision_score(y, score), rel=1e-12
        )


def test_average_precision_by_hand() -> None:
    # Ranks 1 and 3 are positive: (1/1 + 2/3) / 2. All equal: the share of positives.
    assert average_precision(np.array([1, -1, 1, -1]), np.array([4.0, 3, 2, 1])) == pytest.approx(
        5 / 6
    )
    assert average_precision(Y, np.zeros(500)) == pytest.approx(np.mean(Y > 0))
    assert average_precision(np.ones(3), np.arange(3.0)) == 1.0


def test_brier_by_hand() -> None:
    assert brier_score(np.array([1, -1]), np.array([0.75, 0.5])) == pytest.approx(
        (0.0625 + 0.25) / 2
    )
    assert brier_score(np.array([-1.0, -1.0]), np.array([0.0, 0.0])) == 0.0
    assert brier_score(np.array([0, 2]), np.array([[1.0, 0, 0], [0.5, 0.5, 0]])) == pytest.approx(
        1.5 / 2
    )


def test_several_classes_against_scikit_learn() -> None:
    y, scores = RNG.integers(0, 3, 200), RNG.normal(size=(200, 3))
    found = probabilities("softmax", scores)
    assert found is not None
    expected = brier_score_loss(y, found, labels=[0, 1, 2], scale_by_half=False)
    assert brier_score(y, found) == pytest.approx(expected, rel=1e-12)
    predicted = scores.argmax(axis=1)
    assert mean_recall(y, predicted) == pytest.approx(
        balanced_accuracy_score(y, predicted), rel=1e-12
    )
    assert mean_recall(np.array([1, 1]), np.array([1, 0])) == 0.5


def test_what_does_not_exist_is_nan_and_what_is_no_probability_is_refused() -> None:
    assert np.isnan(average_precision(-np.ones(3), np.arange(3.0)))
    assert np.isnan(average_precision(np.ones(2), np.array([1.0, np.nan])))
    assert np.isnan(brier_score(np.ones(2), np.array([1.0, np.nan])))
    with pytest.raises(InputError, match=r"probabilities in \[0, 1\]"):
        brier_score(np.ones(1), np.array([1.5]))


def test_only_losses_that_estimate_probabilities_give_them() -> None:
    assert [
        name for name in (*losses, "softmax") if probabilities(name, np.zeros((2, 2))) is not None
    ] == [
        "logistic",
        "softmax",
    ]
    assert probabilities("logistic", np.array([-800.0, 0.0, 800.0])) == pytest.approx(
        [0.0, 0.5, 1.0]
    )


def test_groups_are_counted_and_small_ones_put_together() -> None:
    groups = np.array(["a"] * 4 + ["b"] * 3 + ["c"] + ["d"] * 2, dtype=object)
    values = np.array([1, 1, 1, 0, 1, 0, 0, 1, 0, 0.5])
    assert group_means(values, groups, 3) == {
        "a": (4, 0.75),
        "b": (3, pytest.approx(1 / 3)),
        OTHERS: (3, 0.5),
    }
    assert set(group_means(values, groups, 4)) == {"a", OTHERS}
    assert group_means(values, groups, 5) == {OTHERS: (10, pytest.approx(0.55))}
    assert group_means(values[:3], groups[:3], 5) == {}
