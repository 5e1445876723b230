"""How good a model is. All functions take labels and scores; a score above 0 predicts the positive
class.

Computed on private records these numbers are internal: nothing here adds noise.

Which columns a sparse model selects, and how well it finds the relevant ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit, logsumexp, softmax
from scipy.stats import rankdata

from dpcore.errors import InputError, require_count
from dpcore.penalties import Array, column_sizes
from dpcore.ranking.metrics import mean_average_precision, ndcg


def coverage(
    weights: Array, relevant: Sequence[int] | Array, count: int, intercept: bool = False
) -> float:
    """Share of the relevant columns among the ``count`` of largest |weight|: xi_K of Chen (2020),
    Section 4.6.6.

    Columns of equal size at the cut (a sparse model has many zeros) count with the chance that a
    random order would take them, so a model gains nothing from the place of its columns.
    ``relevant`` are column numbers from 0.
    """
    require_count(count=count)
    sizes = column_sizes(weights, intercept)
    truth = _relevant(relevant, len(sizes))
    count = min(count, len(sizes))
    cut = np.sort(sizes)[-count]
    above, tied = sizes > cut, sizes == cut
    chance = (count - above.sum()) / tied.sum()
    return float((above & truth).sum() + chance * (tied & truth).sum()) / int(truth.sum())


def support_precision_recall(
    weights: Array, relevant: Sequence[int] | Array, intercept: bool = False
) -> tuple[float, float]:
    """Precision and recall of the support {j : w_j != 0} for the relevant columns; precision is 1
    for no support.
    """
    support = column_sizes(weights, intercept) > 0
    truth = _relevant(relevant, len(support))
    hits = float((support & truth).sum())
    return hits / support.sum() if support.any() else 1.0, hits / truth.sum()


def _relevant(relevant: Sequence[int] | Array, columns: int) -> Array:
    chosen = np.asarray(relevant, dtype=int)
    if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= columns:
        raise InputError(
            f"Expected relevant columns between 0 and {columns - 1}, got "
            f"relevant={list(relevant)!r}."
        )
    truth = np.zeros(columns, dtype=bool)
    truth[chosen] = True
    return truth


__all__ = [
    "accuracy",
    "average_precision",
    "balanced_accuracy",
    "brier_score",
    "coverage",
    "group_means",
    "less_is_better",
    "log_loss",
    "mean_absolute_error",
    "mean_average_precision",
    "mean_recall",
    "mean_squared_error",
    "ndcg",
    "probabilities",
    "r2",
    "roc_auc",
    "support_precision_recall",
]

OTHERS = "all others"
# How the names of metrics end of which less is better.
ERRORS = ("error", "loss", "brier_score")


def less_is_better(metric: str) -> bool:
    """Whether less of the metric of this name is better, a baseline's or a subgroup's too."""
    return metric.endswith(ERRORS)


def accuracy(y: Array, score: Array) -> float:
    """Share of records whose sign is predicted right; ``y`` (n,) in {-1, +1}. A score of 0 predicts
    +1.
    """
    return float(np.mean((np.asarray(score) >= 0.0) == (np.asarray(y) > 0.0)))


def balanced_accuracy(y: Array, score: Array) -> float:
    """Mean of the two classes' accuracies, so that the majority class alone gets 0.5; NaN where a
    class is absent.
    """
    right = (np.asarray(score) >= 0.0) == (np.asarray(y) > 0.0)
    positive = np.asarray(y) > 0.0
    if positive.all() or not positive.any():
        return float("nan")
    return float((right[positive].mean() + right[~positive].mean()) / 2.0)


def roc_auc(y: Array, score: Array) -> float:
    """Chance that a positive record scores above a negative one, ties count half; NaN where a class
    is absent.

    The rank-sum statistic: Mann & Whitney (1947).
    """
    positive = np.asarray(y) > 0.0
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if ones == 0 or zeros == 0:
        return float("nan")
    ranks = rankdata(score)
    return float((ranks[positive].sum() - ones * (ones + 1) / 2.0) / (ones * zeros))


def mean_absolute_error(y: Array, prediction: Array) -> float:
    """Mean of the absolute residuals."""
    residual = np.asarray(prediction, dtype=np.float64) - np.asarray(y, dtype=np.float64)
    return float(np.mean(np.abs(residual)))


def mean_squared_error(y: Array, prediction: Array) -> float:
    """Mean of the squared residuals."""
    residual = np.asarray(prediction, dtype=np.float64) - np.asarray(y, dtype=np.float64)
    return float(np.mean(residual**2))


def r2(y: Array, prediction: Array) -> float:
    """Share of the labels' variance that predictions explain, 1 - MSE / variance; below 0 where
    their mean says more.

    The variance is that of the given labels about their own mean; NaN where they are all equal.
    """
    variance = float(np.var(np.asarray(y, dtype=np.float64))) if len(y) else 0.0
    return 1.0 - mean_squared_error(y, prediction) / variance if variance > 0.0 else float("nan")


def log_loss(y: Array, score: Array) -> float:
    """Mean of -log of the probability of what happened, where scores are log-odds of +1, (n,), or
    log-probabilities of the classes up to a constant, (n, K) with ``y`` in 0..K-1.

    log 2 (log K) for whoever says nothing; a rare event that is called impossible costs much.
    """
    score = np.asarray(score, dtype=np.float64)
    if score.ndim == 1:
        return float(np.mean(np.logaddexp(0.0, -np.sign(np.asarray(y)) * score)))
    happened = np.take_along_axis(score, np.asarray(y, dtype=int)[:, None], axis=1)[:, 0]
    return float(np.mean(logsumexp(score, axis=1) - happened))


def average_precision(y: Array, score: Array) -> float:
    """Area under precision against recall as a step function: sum over thresholds of (R_k -
    R_{k-1}) P_k.

    Records of equal score pass a threshold together. NaN where no record is positive, or a score is
    NaN.
    """
    score = np.asarray(score, dtype=np.float64)
    positive = np.asarray(y) > 0.0
    if not positive.any() or np.isnan(score).any():
        return float("nan")
    order = np.argsort(-score, kind="stable")
    found, sorted_score = np.cumsum(positive[order]), score[order]
    ends = np.flatnonzero(np.append(sorted_score[1:] != sorted_score[:-1], True))
    precision, recall = found[ends] / (ends + 1.0), found[ends] / found[-1]
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def probabilities(loss: str, score: Array) -> Array | None:
    """What a loss takes its scores for: P(y = +1), shape (n,), or one column a class, shape (n, K).

    The minimiser of ``logistic`` is the log-odds of +1, that of ``softmax`` the log-probabilities
    up to a constant. Other losses (a hinge, a squared residual) estimate no probability: None.
    """
    if loss == "logistic":
        return np.asarray(expit(np.asarray(score, dtype=np.float64)))
    return (
        np.asarray(softmax(np.asarray(score, dtype=np.float64), axis=1))
        if loss == "softmax"
        else None
    )


def brier_score(y: Array, probability: Array) -> float:
    """Mean squared distance between what happened and its probability; 0 is best. Brier (1950).

    ``probability`` (n,) is that of +1 for ``y`` in {-1, +1}: mean (p - 1[y = +1])^2, between 0 and
    1. Of several classes ``probability`` is (n, K) and ``y`` holds 0..K-1: mean sum_k (p_k - 1[y =
       k])^2, between 0 and 2.
    NaN where a probability is NaN. Raises ``InputError`` for one outside [0, 1].
    """
    p = np.asarray(probability, dtype=np.float64)
    if np.any((p < 0.0) | (p > 1.0)):
        raise InputError(
            "Expected probabilities in [0, 1], got others; turn scores into probabilities first."
        )
    if p.ndim == 1:
        return float(np.mean((p - (np.asarray(y) > 0.0)) ** 2))
    happened = np.asarray(y)[:, None] == np.arange(p.shape[1])
    return float(np.mean(np.sum((p - happened) ** 2, axis=1)))


def mean_recall(y: Array, predicted: Array) -> float:
    """Balanced accuracy of several classes: the mean, over the classes that occur in ``y``, of the
    share found.
    """
    y, right = np.asarray(y), np.asarray(predicted) == np.asarray(y)
    return float(np.mean([right[y == label].mean() for label in np.unique(y)]))


def group_means(values: Array, groups: Array, least: int) -> dict[str, tuple[int, float]]:
    """Size and mean of ``values`` (n,) in each group of ``groups`` (n,), by name; the largest group
    first.

    Groups of fewer than ``least`` records are put together as ``OTHERS``, and left out where even
    those are fewer.
    """
    names, member, sizes = np.unique(
        np.asarray(groups, dtype=str), return_inverse=True, return_counts=True
    )
    small = sizes < least
    values = np.asarray(values, dtype=np.float64)
    shown = sorted(np.flatnonzero(~small), key=lambda k: (-sizes[k], names[k]))
    found = {str(names[k]): (int(sizes[k]), float(values[member == k].mean())) for k in shown}
    rest = small[member]
    if rest.sum() >= least:
        found[OTHERS] = (int(rest.sum()), float(values[rest].mean()))
    return found
