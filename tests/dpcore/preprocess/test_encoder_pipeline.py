"""The encoder where scikit-learn expects one: inside a Pipeline, cloned, before an estimator."""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from dpcore.features import Column
from dpcore.preprocess import Encoder


def test_the_encoder_works_in_a_pipeline() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(0, 100, 200), "city": rng.choice(["north", "south"], 200)}
    )
    y = (frame["age"] > 50).astype(int)
    columns = (
        Column(name="age", kind="numeric", low=0, high=100),
        Column(name="city", kind="categorical", levels=("north", "south")),
    )
    encoder = Encoder(columns)
    model = clone(make_pipeline(encoder, LogisticRegression(C=1e4))).fit(frame, y)
    assert model.score(frame, y) > 0.95
    alone = LogisticRegression(C=1e4).fit(encoder.fit(frame).transform(frame), y)
    assert np.allclose(model.predict_proba(frame), alone.predict_proba(encoder.transform(frame)))
