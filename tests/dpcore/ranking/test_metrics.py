"""MAP and NDCG: cases 01 and 02, hand values, every order of tied documents, scikit-learn, LETOR's
discount.
"""

from __future__ import annotations

import json
from itertools import pairwise, permutations

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from dpcore.errors import InputError
from dpcore.ranking.metrics import (
    PAPER,
    Conventions,
    discounts,
    mean_average_precision,
    ndcg,
    ranking_report,
    session_ap,
    session_ndcg,
)
from dpcore.ranking.sessions import Sessions


def read(path):
    """Labels, query ids and features of the small files of the cases, which have every feature on
    every line.
    """
    rows = [line.partition("#")[0].split() for line in path.read_text().splitlines()]
    X = np.array([[float(pair.split(":")[1]) for pair in row[2:]] for row in rows])
    return np.array([float(row[0]) for row in rows]), np.array([row[1] for row in rows]), X


@pytest.fixture
def undefined(shared):
    folder = shared / "cases/01-ranking-undefined-queries"
    y, queries, X = read(folder / "ranking.letor")
    return y, X @ np.array(json.loads((folder / "weights.json").read_text())), queries


RULES = {
    "zero": ([0.466667, 0.521038, 0.539768], 0.551111, 0.511111, 0.566667),
    "skip": ([0.777778, 0.868397, 0.899613], 0.918519, 0.851852, 0.944444),
    "one": ([0.866667, 0.921038, 0.939768], 0.951111, 0.911111, 0.966667),
}


@pytest.mark.parametrize("empty", RULES)
def test_case_01_means_under_each_rule(undefined, empty):
    y, scores, queries = undefined
    gains, whole, at_min, at_retrieved = RULES[empty]
    assert [ndcg(y, scores, queries, k, empty=empty) for k in (1, 3, 10)] == pytest.approx(
        gains, abs=1e-6
    )
    assert mean_average_precision(y, scores, queries, empty=empty) == pytest.approx(whole, abs=1e-6)
    assert mean_average_precision(y, scores, queries, 3, empty=empty) == pytest.approx(
        at_min, abs=1e-6
    )
    found = mean_average_precision(y, scores, queries, 3, empty=empty, divisor="retrieved")
    assert found == pytest.approx(at_retrieved, abs=1e-6)


def test_case_01_single_queries_and_record(undefined, shared):
    y, scores, queries = undefined
    X = scores[:, None]
    sessions = Sessions.from_rows(X, y, queries)
    offsets = sessions.documents.offsets
    for k, value in ((1, 0.333333), (3, 0.605191), (10, 0.698839)):
        assert session_ndcg(sessions.y, X[:, 0], offsets, k)[[0, 2, 4]] == pytest.approx(
            [value, 1, 1], abs=1e-6
        )
    assert session_ap(sessions.y, X[:, 0], offsets)[[0, 2, 4]] == pytest.approx(
        [0.755556, 1, 1], abs=1e-6
    )
    report = ranking_report(sessions, X[:, 0], conventions=PAPER)
    assert (report["queries"], report["empty_queries"]) == (5, 2)
    assert (
        report["conventions"]["empty"] == "zero" and report["conventions"]["divisor"] == "retrieved"
    )
    y, queries, X = read(shared / "cases/01-ranking-undefined-queries/negative_label.letor")
    with pytest.raises(InputError, match="label -1 in row 1"):
        Sessions.from_rows(X, y, queries)


def test_case_02_ties_do_not_depend_on_the_order_of_the_file(shared):
    folder = shared / "cases/02-ranking-ties"
    expected = {
        "average": ([0.266667, 0.469506, 0.649632], 0.5925),
        "worst": ([0, 0, 0.438244], 0.325),
    }
    for name in ("order_a", "order_b"):
        y, queries, X = read(folder / f"{name}.letor")
        scores = X @ np.array(json.loads((folder / "weights.json").read_text()))
        for ties, (gains, ap) in expected.items():
            assert [ndcg(y, scores, queries, k, ties=ties) for k in (1, 3, 5)] == pytest.approx(
                gains, abs=1e-6
            )
            assert mean_average_precision(y, scores, queries, ties=ties) == pytest.approx(
                ap, abs=1e-6
            )


def brute_ap(y, order, k, divisor):
    """AP@k of one order, written out."""
    hits, total = 0, 0.0
    for place, i in enumerate(order[:k], 1):
        if y[i] >= 1:
            hits += 1
            total += hits / place
    relevant = min(k, int((y >= 1).sum())) if divisor == "min_k" else hits
    return total / relevant if relevant else 0.0


@pytest.mark.parametrize("divisor", ["min_k", "retrieved"])
def test_average_over_ties_is_the_mean_over_all_orders(divisor):
    rng = np.random.default_rng(1)
    for _ in range(60):
        n = int(rng.integers(1, 7))
        y, scores, k = (
            rng.integers(0, 3, n).astype(float),
            rng.integers(0, 3, n).astype(float),
            int(rng.integers(1, 8)),
        )
        orders = [
            o for o in permutations(range(n)) if all(scores[a] >= scores[b] for a, b in pairwise(o))
        ]
        expected = np.mean([brute_ap(y, order, k, divisor) for order in orders])
        found = session_ap(y, scores, np.array([0, n]), k, Conventions(divisor=divisor))[0]
        assert found == pytest.approx(expected, abs=1e-12)
        gain = 2.0**y - 1
        weight = np.where(np.arange(1, n + 1) <= k, discounts(np.arange(1, n + 1)), 0)
        best = np.sort(gain)[::-1] @ weight
        dcg = np.mean([gain[list(order)] @ weight for order in orders])
        assert session_ndcg(y, scores, np.array([0, n]), k)[0] == pytest.approx(
            dcg / best if best else 0, abs=1e-12
        )


def test_agrees_with_scikit_learn_ties_included():
    rng = np.random.default_rng(0)
    y, scores = rng.integers(0, 3, 12).astype(float), np.round(rng.normal(size=12), 0)
    for k in (1, 4, 20):
        expected = ndcg_score([2**y - 1], [scores], k=k)
        assert session_ndcg(y, scores, np.array([0, 12]), k)[0] == pytest.approx(
            expected, abs=1e-12
        )


def test_letor_discount_leaves_the_first_two_ranks_alone():
    assert discounts(np.arange(1, 5), "letor") == pytest.approx([1, 1, 1 / np.log2(3), 0.5])
    y, scores = np.array([0.0, 1.0, 2.0]), np.array([3.0, 2.0, 1.0])
    expected = (1 + 3 / np.log2(3)) / (3 + 1)
    assert ndcg(y, scores, np.zeros(3), 3, discount="letor") == pytest.approx(expected)


def test_a_mean_over_no_query_is_no_number_and_bad_input_is_refused():
    for metric in (mean_average_precision, ndcg):
        assert np.isnan(metric(np.zeros(3), np.arange(3.0), np.zeros(3)))
        assert metric(np.zeros(3), np.arange(3.0), np.zeros(3), empty="zero") == 0.0
        for k in (0, -1, 1.5, True):
            with pytest.raises(InputError, match="whole number k >= 1"):
                metric(np.ones(2), np.ones(2), np.zeros(2), k)
        for label in (-1.0, np.nan, 2000.0, np.inf):
            with pytest.raises(InputError, match="labels from 0 to 30"):
                metric(np.array([1.0, label]), np.ones(2), np.zeros(2))
    empty = Sessions.from_rows(np.ones((2, 1)), np.zeros(2), np.zeros(2))
    report = ranking_report(empty, np.ones(2))
    assert np.isnan(report["map"]) and np.isnan(report["ndcg@8"]) and report["empty_queries"] == 1
    with pytest.raises(InputError, match="finite scores"):
        ndcg(np.ones(2), np.array([np.nan, 1.0]), np.zeros(2))
    with pytest.raises(InputError, match="empty"):
        ndcg(np.ones(2), np.ones(2), np.zeros(2), empty="drop")
