"""The stored scorer groups documents by the identity rule, as the training did."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dpcore.errors import InputError
from dpcore.preprocess import FeatureGroup, MatrixEncoder
from tasks.record.scoring import LinearScorer


def scorer() -> LinearScorer:
    made = LinearScorer()
    made.encoder = MatrixEncoder(
        (FeatureGroup(name="f", count=2),), normalise="none", intercept=False
    )
    made.card = {
        "label": {"kind": "relevance", "query": "query"},
        "ranker": {"features": ["raw", "rank"]},
    }
    made.weights, made.network = np.array([1.0, -0.5, 0.25, 2.0]), None
    return made


def test_a_query_however_spelled_is_one_ranking() -> None:
    numbers = np.random.default_rng(0).random((6, 2))
    spelled = pd.DataFrame(numbers, columns=["f1", "f2"]).assign(
        query=["7", "7.0", " 7", "007", "q", "q "]
    )
    plain = spelled.assign(query=["7", "7", "7", "007", "q", "q"])
    found = scorer().ranked(spelled, "query")
    pd.testing.assert_frame_equal(found, scorer().ranked(plain, "query"))
    assert sorted(found["rank"][:3]) == [1, 2, 3] and found["rank"][3] == 1
    assert list(found["query"]) == list(plain["query"])


@pytest.mark.parametrize("nobody", [None, "", " ", float("nan")])
def test_a_document_without_a_query_is_refused(nobody: object) -> None:
    frame = pd.DataFrame({"f1": [0.1, 0.2], "f2": [0.3, 0.4], "query": ["q", nobody]})
    with pytest.raises(InputError, match="id in every row of column 'query'"):
        scorer().ranked(frame, "query")
