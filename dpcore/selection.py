"""Which columns a sparse model selects, and how well it finds the relevant ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpcore.checks import require_count
from dpcore.errors import InputError
from dpcore.losses import Array
from dpcore.problem import Problem
from dpcore.proximal import features

# Summed step sizes of descent that ranks columns, in units of (norm_bound * noise of the whole run)^-1: for a ranking
# shrinkage is worth more than convergence. Measured on sparse Gaussian columns, where the optimum is flat.
RANKING_HORIZON = 0.08


def ranks_columns(problem: Problem) -> bool:
    """Whether defaults should rank columns rather than converge: an L1 penalty, and no column declared in [0, 1].

    Columns in [0, 1] (blocks) have means far from 0, which lead every gradient until descent has come a long way; on
    columns about 0 the first gradients are covariances with the label already.
    """
    return problem.l1 > 0 and not problem.blocks


def ranked_columns(weights: Array, intercept: bool = False) -> Array:
    """Column numbers by falling |weight|, shape (d,) without the constant column; equal sizes keep their order.

    ``weights`` (d,) or, for several classes, (k, d): a column then counts by its largest weight. Weights compare only
    where the columns have one scale, as standardised or one-hot columns have.
    """
    return np.argsort(-_sizes(weights, intercept), kind="stable")


def ranked_features(weights: Array, names: Sequence[str], intercept: bool = False) -> list[str]:
    """The names of the columns by falling |weight|, the constant column left out."""
    return [names[column] for column in ranked_columns(weights, intercept)]


def top_columns(scores: Array, count: int, intercept: bool = False) -> Array:
    """The ``count`` columns of largest |score| in rising order, with the constant column kept beside them."""
    require_count(count=count)
    chosen = ranked_columns(scores, intercept)[:count]
    if intercept:
        chosen = np.append(chosen, scores.shape[-1] - 1)
    return np.sort(chosen)


def coverage(weights: Array, relevant: Sequence[int] | Array, count: int, intercept: bool = False) -> float:
    """Share of the relevant columns among the ``count`` of largest |weight|: xi_K of Chen (2020), Section 4.6.6.

    Columns of equal size at the cut (a sparse model has many zeros) count with the chance that a random order would
    take them, so a model gains nothing from the place of its columns. ``relevant`` are column numbers from 0.
    """
    require_count(count=count)
    sizes = _sizes(weights, intercept)
    truth = _relevant(relevant, len(sizes))
    count = min(count, len(sizes))
    cut = np.sort(sizes)[-count]
    above, tied = sizes > cut, sizes == cut
    chance = (count - above.sum()) / tied.sum()
    return float((above & truth).sum() + chance * (tied & truth).sum()) / int(truth.sum())


def support_precision_recall(
    weights: Array, relevant: Sequence[int] | Array, intercept: bool = False
) -> tuple[float, float]:
    """Precision and recall of the support {j : w_j != 0} for the relevant columns; precision is 1 for no support."""
    support = _sizes(weights, intercept) > 0
    truth = _relevant(relevant, len(support))
    hits = float((support & truth).sum())
    return hits / support.sum() if support.any() else 1.0, hits / truth.sum()


def _sizes(weights: Array, intercept: bool) -> Array:
    sizes = np.abs(np.atleast_2d(features(np.asarray(weights, dtype=np.float64), intercept)))
    return sizes.max(axis=0)


def _relevant(relevant: Sequence[int] | Array, columns: int) -> Array:
    chosen = np.asarray(relevant, dtype=int)
    if chosen.size == 0 or chosen.min() < 0 or chosen.max() >= columns:
        raise InputError(f"Expected relevant columns between 0 and {columns - 1}, got relevant={list(relevant)!r}.")
    truth = np.zeros(columns, dtype=bool)
    truth[chosen] = True
    return truth
