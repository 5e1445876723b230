"""Sessions: grouping, splits and within-session ranks."""

from __future__ import annotations

import numpy as np
import pytest

from dpcore.errors import InputError
from dpcore.ranking.sessions import Documents, Sessions, join
from tests.dpcore.ranking.cells import partition_folds


def make(n: int = 20, seed: int = 0, p: int = 3, first: int = 0) -> Sessions:
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n) + first, rng.integers(1, 6, n))
    shuffled = rng.permutation(len(groups))
    return Sessions.from_rows(
        rng.normal(size=(len(groups), p)), rng.integers(0, 3, len(groups)), groups[shuffled]
    )


def test_interleaved_queries_are_grouped_in_order_of_appearance():
    X = np.arange(12.0).reshape(6, 2)
    sessions = Sessions.from_rows(X, [2, 0, 1, 0, 1, 0], ["30", "10", "30", "10", "10", "30"])
    assert list(sessions.queries) == ["30", "10"]
    assert list(sessions.documents.offsets) == [0, 3, 6]
    assert list(sessions.y) == [2, 1, 0, 0, 0, 1]
    assert np.array_equal(sessions.documents.X[:3], X[[0, 2, 5]])


def test_take_keeps_sessions_whole_and_in_order():
    sessions = make()
    part = sessions.take(np.array([7, 2]))
    for place, j in enumerate((7, 2)):
        rows = slice(*sessions.documents.offsets[j : j + 2])
        mine = slice(*part.documents.offsets[place : place + 2])
        assert np.array_equal(part.documents.X[mine], sessions.documents.X[rows])
        assert np.array_equal(part.y[mine], sessions.y[rows])
    assert sessions.take(np.array([], dtype=int)).n == 0


def test_split_and_folds_never_share_a_query():
    train, test = make().split(0.3, seed=1)
    assert not set(train.queries) & set(test.queries) and (train.n, test.n) == (14, 6)
    parts = [make(4, seed=i, first=100 * i) for i in range(5)]
    folds = list(partition_folds(parts, validate=True))
    assert list(folds[0].train.queries // 100)[::4] == [0, 1, 2]
    assert (folds[0].validation.queries[0] // 100, folds[0].test.queries[0] // 100) == (3, 4)
    assert (folds[1].train.queries[0] // 100, folds[1].test.queries[0] // 100) == (1, 0)
    assert all(fold.train.n == 16 for fold in partition_folds(parts))
    with pytest.raises(InputError, match="in two"):
        join([parts[0], parts[0]])


def test_ranks_are_bounded_symmetric_and_ties_share_a_place():
    documents = Documents(np.array([[3.0], [1.0], [1.0], [9.0], [5.0]]), np.array([0, 4, 5]))
    assert documents.ranks()[:, 0] == pytest.approx([1 / 6, -1 / 3, -1 / 3, 0.5, 0.0])
    sessions = make().features("raw", "rank")
    ranks = sessions.documents.X[:, 3:]
    assert np.abs(ranks).max() <= 0.5
    assert np.add.reduceat(ranks, sessions.documents.offsets[:-1]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.ones((2, 1)), [0, -1], "label -1 in row 1"),
        (np.ones((2, 1)), [np.nan, 1], "label nan in row 0"),
        (np.ones((2, 1)), [0, 2000], "label 2000 in row 1"),
        (np.array([[1.0], [np.inf]]), [0, 1], "row 1"),
        (np.array([[1e200], [1.0]]), [0, 1], "row 0"),
        (np.ones((3, 1)), [0, 1], "one label and one query id a row"),
    ],
)
def test_bad_rows_are_refused_by_number(X, y, words):
    with pytest.raises(InputError, match=words):
        Sessions.from_rows(X, y, np.zeros(2))


def test_unknown_features_and_empty_sessions_are_refused():
    with pytest.raises(InputError, match="features among raw, rank"):
        make().features("log")
    with pytest.raises(InputError, match="at least one document"):
        Documents(np.ones((1, 1)), np.array([0, 0, 1]))
