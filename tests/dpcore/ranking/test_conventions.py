"""Conventions of LETOR's script and of trec_eval on small tables whose numbers are worked out by
hand.
"""

from __future__ import annotations

from dataclasses import asdict
from math import log2
from typing import Any

import numpy as np
import pytest

from dpcore.errors import InputError
from dpcore.ranking.metrics import NAMED, mean_average_precision, ndcg

# Query a: five documents; query b: two; query c: three, none relevant. In the order of their
# scores.
Y = np.array([2, 0, 1, 0, 1, 0, 1, 0, 0, 0])
SCORES = np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
QUERIES = np.array(list("aaaaabbccc"))
LETOR, TREC = asdict(NAMED["letor"]), asdict(NAMED["trec_eval"])


def dcg(gains: list[float]) -> float:
    """LETOR's form: ranks 1 and 2 count whole."""
    return sum(gain / (1.0 if rank < 2 else log2(rank)) for rank, gain in enumerate(gains, 1))


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (1, (1.0 + 0.0 + 0.0) / 3),
        (2, (dcg([3, 0]) / dcg([3, 1]) + dcg([0, 1]) / dcg([1, 0]) + 0.0) / 3),
        # b has two documents: its NDCG@3 is 0
        (3, (dcg([3, 0, 1]) / dcg([3, 1, 1]) + 0.0 + 0.0) / 3),
        (5, (dcg([3, 0, 1, 0, 1]) / dcg([3, 1, 1, 0, 0]) + 0.0 + 0.0) / 3),
        (6, 0.0),
    ],
)
def test_letor(k: int, expected: float) -> None:
    assert ndcg(Y, SCORES, QUERIES, k, **LETOR) == pytest.approx(expected, abs=1e-12)


def test_a_short_query_counts_whole_unless_told() -> None:
    kept = ndcg(Y, SCORES, QUERIES, 6, discount="letor", empty="zero")
    assert kept == pytest.approx(
        (dcg([3, 0, 1, 0, 1]) / dcg([3, 1, 1]) + dcg([0, 1]) / dcg([1, 0])) / 3
    )


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (1, (1 / 3 + 0 + 0) / 3),  # one of three relevant documents of a stands first
        (3, ((1 + 2 / 3) / 3 + 1 / 2 + 0) / 3),
        (5, ((1 + 2 / 3 + 3 / 5) / 3 + 1 / 2 + 0) / 3),
        (None, ((1 + 2 / 3 + 3 / 5) / 3 + 1 / 2 + 0) / 3),
    ],
)
def test_trec_eval_divides_by_all_relevant_documents(k: int | None, expected: float) -> None:
    assert mean_average_precision(Y, SCORES, QUERIES, k, **TREC) == pytest.approx(
        expected, abs=1e-12
    )


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (1, (2 / 2 + 0 / 1 + 0) / 3),
        (3, ((2 + 1 / 2) / (2 + 1 / log2(3) + 1 / 2) + 1 / log2(3) + 0) / 3),
        (10, ((2 + 1 / 2 + 1 / log2(6)) / (2 + 1 / log2(3) + 1 / 2) + 1 / log2(3) + 0) / 3),
    ],
)
def test_trec_eval_takes_the_grade_itself_as_gain(k: int, expected: float) -> None:
    assert ndcg(Y, SCORES, QUERIES, k, **TREC) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"y": Y[:-1]}, "one score a label"),
        ({"scores": SCORES + 1j}, "real numbers as scores"),
        ({"scores": np.where(Y == 2, np.nan, SCORES)}, "finite scores"),
        ({"y": np.where(Y == 2, np.nan, Y)}, "label nan in row 0"),
        ({"y": -Y}, "label -2 in row 0"),
        ({"y": Y[:, None], "scores": SCORES[:, None]}, "one score a label"),
        ({"y": np.array(["x"] * 10)}, "real numbers as labels"),
        ({"groups": QUERIES[:-1]}, "groups"),
        ({"groups": np.where(Y == 2, np.nan, Y)}, "groups"),
        ({"k": 0}, "k >= 1"),
        ({"k": 2.5}, "k >= 1"),
        ({"tie": "worst"}, "did you mean 'ties'"),
        ({"ties": "best"}, "ties"),
        ({"divisor": "k"}, "divisor"),
        ({"short": "skip"}, "short"),
        ({"gain": "log"}, "gain"),
        ({"y": [], "scores": [], "groups": []}, "one score a label"),
    ],
)
@pytest.mark.parametrize("metric", [ndcg, mean_average_precision])
def test_bad_input_is_refused_in_words(metric: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        metric(**({"y": Y, "scores": SCORES, "groups": QUERIES, "k": 3} | change))
