"""How good a model is. All functions take labels and scores; a score above 0 predicts the positive class.

Computed on private records these numbers are internal: nothing here adds noise.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from dpcore.losses import Array
from dpcore.ranking_metrics import mean_average_precision, ndcg
from dpcore.selection import coverage, support_precision_recall

__all__ = [
    "accuracy",
    "balanced_accuracy",
    "coverage",
    "mean_average_precision",
    "mean_squared_error",
    "ndcg",
    "roc_auc",
    "support_precision_recall",
]


def accuracy(y: Array, score: Array) -> float:
    """Share of records whose sign is predicted right; ``y`` (n,) in {-1, +1}. A score of 0 predicts +1."""
    return float(np.mean((np.asarray(score) >= 0.0) == (np.asarray(y) > 0.0)))


def balanced_accuracy(y: Array, score: Array) -> float:
    """Mean of the two classes' accuracies, so that the majority class alone gets 0.5; NaN where a class is absent."""
    right = (np.asarray(score) >= 0.0) == (np.asarray(y) > 0.0)
    positive = np.asarray(y) > 0.0
    if positive.all() or not positive.any():
        return float("nan")
    return float((right[positive].mean() + right[~positive].mean()) / 2.0)


def roc_auc(y: Array, score: Array) -> float:
    """Chance that a positive record scores above a negative one, ties count half; NaN where a class is absent.

    The rank-sum statistic: Mann & Whitney (1947).
    """
    positive = np.asarray(y) > 0.0
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if ones == 0 or zeros == 0:
        return float("nan")
    ranks = rankdata(score)
    return float((ranks[positive].sum() - ones * (ones + 1) / 2.0) / (ones * zeros))


def mean_squared_error(y: Array, prediction: Array) -> float:
    """Mean of the squared residuals."""
    residual = np.asarray(prediction, dtype=np.float64) - np.asarray(y, dtype=np.float64)
    return float(np.mean(residual**2))
