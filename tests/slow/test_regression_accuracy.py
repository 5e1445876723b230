"""Wine and bike, Huber regression, delta = 1e-8, add/remove: squared error of the methods that
clip, at defaults; and the share of variance that ``auto`` explains, with crosses, beside AdaSSP.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.sparse import issparse, vstack
from scipy.stats import norm

from dpcore.accounting import Target
from dpcore.algorithms import registry
from dpcore.losses import HuberRegression
from dpcore.metrics import r2
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.train import plan, run
from dpcore.train.planning import encoding
from tasks.data import load
from tasks.schema import find_schema
from tests.test_auto_accuracy import FINE

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


def table(shared: Path, name: str, algorithm: str, **given: Any) -> tuple[Any, Any, np.ndarray]:
    """Design, rows and targets of all records of ``name`` in the encoding that goes with
    ``algorithm``, or in the one that is ``given``.
    """
    schema = find_schema(name)
    encoder = schema.encoder(**(given or encoding(algorithm, "huber_regression")))
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


def adassp(X: Any, y: np.ndarray, bound: float, mu: float) -> np.ndarray:
    """Weights by adaptive sufficient statistics, Wang (2018), Algorithm 2, of rows of norm <=
    ``bound`` and targets in [-1, 1] under add/remove: least eigenvalue, X'X and X'y with Gaussian
    noise, a third of mu^2 each.
    """
    rng, rows = np.random.default_rng(7), X.toarray() if issparse(X) else X
    size, share, chance = rows.shape[1], mu / np.sqrt(3.0), 0.05
    noise = bound**2 / share
    errors = np.triu(rng.normal(scale=noise / np.sqrt(2.0), size=(size, size)), 1)
    errors = errors + errors.T + np.diag(rng.normal(scale=noise, size=size))
    moments = rows.T @ rows
    least = np.linalg.eigvalsh(moments)[0] + noise * rng.normal()
    least = max(least - noise * np.sqrt(2.0 * np.log(2.0 / chance)), 0.0)
    ridge = max(noise * np.sqrt(size * np.log(2.0 * size**2 / chance)) - least, 0.0)
    correlations = rows.T @ y + rng.normal(scale=bound / share, size=size)
    return np.linalg.solve(moments + errors + ridge * np.eye(size), correlations)


BIKE = [
    ["hr", "workingday"],
    ["hr", "weekday"],
    ["yr", "mnth"],
    ["workingday", {"temp": "bins(6)"}],
]


# Least share of the variance at epsilon 0.4 and 1.6 (measured on two folds: bike 0.65 and 0.66,
# with crosses by meaning 0.80 and 0.82; wine 0.29 and 0.31), and that AdaSSP stays behind.
@pytest.mark.parametrize(
    ("name", "crosses", "bars"),
    [("wine", [], (0.22, 0.27)), ("bike", [], (0.62, 0.64)), ("bike", BIKE, (0.77, 0.80))],
)
def test_explained_variance_beside_adassp(
    shared: Path, name: str, crosses: list, bars: tuple[float, float]
) -> None:
    design, X, y = table(shared, name, "auto", normalise="none", numeric=FINE, crosses=crosses)
    plain, Z, _ = table(shared, name, "auto", normalise="none", numeric="hats(8)")
    held = np.random.default_rng(0).permutation(len(y)) % FOLDS == 0
    rows = LinearObjective(X[~held], y[~held], HuberRegression())
    facts = {"blocks": design.blocks, "intercept": design.intercept}
    problem = Problem(
        n=rows.n,
        dimension=design.dimension,
        loss=HuberRegression(),
        norm_bound=design.norm_bound,
        **facts,
    )
    for epsilon, bar in zip((0.4, 1.6), bars, strict=True):
        ours = r2(
            y[held], X[held] @ run(plan("auto", {}, problem, Target(epsilon, DELTA)), rows).weights
        )
        weights = adassp(Z[~held], y[~held], plain.norm_bound, mu_of(epsilon, DELTA))
        theirs = r2(y[held], Z[held] @ weights)
        print(f"{name} {len(crosses)} crosses, {epsilon}: R2 {ours:.3f}, AdaSSP {theirs:.3f}")  # noqa: T201
        assert ours >= bar and ours > theirs


def mu_of(epsilon: float, delta: float) -> float:
    """The mu whose Gaussian guarantee is (epsilon, delta). Dong, Roth & Su (2022), Corollary
    2.13.
    """

    def excess(mu: float) -> float:
        above, below = norm.cdf(mu / 2 - epsilon / mu), norm.cdf(-mu / 2 - epsilon / mu)
        return float(above - np.exp(epsilon) * below - delta)

    return float(brentq(excess, 1e-4, 20.0))
