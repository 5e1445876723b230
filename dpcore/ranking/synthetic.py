"""Public synthetic search sessions: what a search engine logs, without a download."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

SEARCH_SEED = 20260102
FEATURES = 24


def search(sessions: int = 1500, seed: int = SEARCH_SEED) -> dict[str, np.ndarray]:
    """Columns ``query``, ``grade`` (0, 1, 2) and ``feature_1`` to ``feature_24`` in [0, 1], one row
    a shown document.

    Every document has a hidden usefulness made of topical match, quality and freshness. Features
    1-8 are match scores of several fields on scales that differ between queries, 9-14 link and
    quality counts with heavy tails, 15-18 click statistics, the rest says nothing about usefulness.
    Lists hold 5 to 40 documents; in about a quarter of the sessions nothing is relevant. PCG64 with
    a fixed public seed: everybody has the same rows.
    """
    rng = np.random.default_rng(seed)
    lengths = 5 + np.minimum(rng.geometric(0.1, sessions), 35)
    owner = np.repeat(np.arange(sessions), lengths)
    count = len(owner)
    match, quality, fresh = rng.normal(size=(3, count))
    usefulness = 1.3 * match + 0.7 * quality + 0.3 * fresh + 0.9 * rng.normal(size=count)
    demand = rng.normal(2.0, 0.9, sessions)[owner]
    grade = (usefulness > demand).astype(float) + (usefulness > demand + 0.8)
    scale, level = rng.uniform(0.3, 1.0, sessions)[owner], rng.normal(0.0, 0.6, sessions)[owner]
    columns = [
        scale * expit(match + level + s * rng.normal(size=count)) for s in np.linspace(0.7, 2.0, 8)
    ]
    columns += [
        np.minimum(np.exp(1.2 * (quality + s * rng.normal(size=count))) / 60, 1.0)
        for s in np.linspace(0.5, 1.8, 6)
    ]
    columns += [
        expit(0.5 * match + 0.5 * quality + 0.4 * fresh + s * rng.normal(size=count))
        for s in (1.0, 1.5, 2.0, 2.5)
    ]
    columns += [rng.beta(0.5, 2.0, count) for _ in range(FEATURES - len(columns))]
    table = {"query": owner.astype(np.int64), "grade": grade}
    return table | {f"feature_{i}": np.round(values, 6) for i, values in enumerate(columns, 1)}
