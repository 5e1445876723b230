"""Wine and bike, Huber regression, delta = 1e-8, add/remove: squared error of the methods that
clip, at defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import issparse, vstack

from dpcore.accounting import Target
from dpcore.algorithms import registry
from dpcore.losses import HuberRegression
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.train import plan, run
from dpcore.train.planning import encoding
from tasks.data import load
from tasks.schema import find_schema

pytestmark = pytest.mark.slow

DELTA, FOLDS = 1e-8, 3
FILES = {
    "wine": ["wine/winequality-red.csv", "wine/winequality-white.csv"],
    "bike": ["bike/hour.csv.gz"],
}
# data, algorithm: largest mean squared error at epsilon 0.05 and 0.4, of targets in [-1, 1]: about
# 1.3 times what was measured. The mean alone has 0.0305 on wine and 0.1316 on bike, the model
# without privacy 0.0218 and 0.0443.
BARS = {
    ("wine", "auto"): (0.038, 0.027), ("bike", "auto"): (0.100, 0.050),
    ("wine", "dp_sgd"): (0.036, 0.027), ("bike", "dp_sgd"): (0.115, 0.052),
    ("wine", "dp_adam"): (0.034, 0.027), ("bike", "dp_adam"): (0.120, 0.053),
    ("wine", "dp_agd"): (0.050, 0.033), ("bike", "dp_agd"): (0.125, 0.085),
    ("wine", "ssadmm"): (0.034, 0.028), ("bike", "ssadmm"): (0.115, 0.055),
    ("wine", "mpadmm"): (0.045, 0.029), ("bike", "mpadmm"): (0.115, 0.055),
    ("wine", "dp_blgd"): (0.039, 0.028), ("bike", "dp_blgd"): (0.130, 0.058),
}  # fmt: skip


def table(shared: Path, name: str, algorithm: str) -> tuple[Any, Any, np.ndarray]:
    """Design, rows and targets of all records of ``name`` in the encoding that goes with
    ``algorithm``.
    """
    schema = find_schema(name)
    encoder = schema.encoder(**encoding(algorithm, "huber_regression"))
    files = [str(shared / "data" / part) for part in FILES[name]]
    loaded = load(
        schema, encoder, files[0] if len(files) == 1 else str(shared / "data" / name), None
    )
    X, Z = loaded.train.X, loaded.test.X
    stacked = vstack([X, Z]).tocsr() if issparse(X) else np.vstack([X, Z])
    return encoder.design, stacked, np.concatenate([loaded.train.y, loaded.test.y])


@pytest.mark.parametrize(("name", "algorithm"), BARS, ids=lambda value: value)
def test_squared_error_at_the_defaults(shared: Path, name: str, algorithm: str) -> None:
    design, X, y = table(shared, name, algorithm)
    part = np.random.default_rng(0).permutation(len(y)) % FOLDS
    l2 = float(getattr(registry.get(algorithm), "default_l2", 0.0))
    for epsilon, bar in zip((0.05, 0.4), BARS[name, algorithm], strict=True):
        errors = []
        for fold in range(FOLDS):
            rows, held = (
                LinearObjective(X[part != fold], y[part != fold], HuberRegression()),
                part == fold,
            )
            problem = Problem(
                n=rows.n,
                dimension=design.dimension,
                loss=HuberRegression(),
                l2=l2,
                norm_bound=design.norm_bound,
                blocks=design.blocks,
                intercept=design.intercept,
            )
            weights = run(
                plan(algorithm, {}, problem, Target(epsilon, DELTA)), rows, seed=fold
            ).weights
            errors.append(float(np.mean((X[held] @ weights - y[held]) ** 2)))
        assert np.mean(errors) <= bar, (epsilon, errors)
