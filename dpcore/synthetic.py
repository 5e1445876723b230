"""Public synthetic data: a mixed table that looks like a census extract, and the sparse linear
problem of the papers.

Both come from a fixed public seed (NumPy's PCG64), so that everybody has the same rows without a
download.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter
from scipy.special import expit

from dpcore.ranking.synthetic import search

CENSUS_SEED = 20260101
EDUCATION = (
    "none",
    "primary",
    "lower-secondary",
    "upper-secondary",
    "college",
    "bachelor",
    "master",
    "doctorate",
)
SECTOR = ("private", "public", "self-employed", "family-business", "not-working")
OCCUPATION = (
    "manager", "professional", "technician", "clerk", "service", "sales", "craft", "operator", "farming", "labourer",
)  # fmt: skip
MARITAL = ("single", "married", "cohabiting", "divorced", "widowed")
REGION = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "centre")
SEX = ("female", "male")


def census(rows: int = 40_000, seed: int = CENSUS_SEED) -> dict[str, np.ndarray]:
    """A table of 6 numeric and 6 text columns and the label ``income`` (``high`` or ``low``),
    ``rows`` long.

    Age, sex and region come first; education, marital state, sector, occupation, working hours,
    commuting time, children, savings and dividends depend on them; about 24 % have a high income,
    which depends on all of them.
    """
    rng = np.random.default_rng(seed)
    age = np.clip(np.round(17 + 60 * rng.beta(1.7, 2.4, rows)), 17, 90)
    male = rng.random(rows) < 0.52
    region = _pick(rng, np.tile(np.log([0.18, 0.08, 0.12, 0.1, 0.2, 0.09, 0.13, 0.1]), (rows, 1)))
    youth = np.clip((26 - age) / 9, 0, 1)
    ability = rng.normal(size=rows) - 0.9 * youth - 0.008 * (age - 40)
    schooling = np.searchsorted([-2.1, -1.5, -0.9, 0.1, 0.65, 1.35, 2.1], ability)
    marital = _pick(
        rng,
        np.column_stack(
            [
                3.2 - 0.09 * age,
                0.045 * age - 1.2 - 2 * youth,
                0.4 - 0.02 * age,
                0.02 * age - 1.6,
                0.08 * age - 6.2,
            ]
        ),
    )
    sector = _pick(
        rng,
        np.column_stack(
            [
                np.full(rows, 1.4),
                0.15 * schooling - 0.6,
                0.02 * age - 1.6,
                0 * age - 2.2,
                1.6 * youth - 1.6,
            ]
        ),
    )
    centres = np.array([5.2, 6.2, 4.6, 4.0, 3.0, 3.6, 2.8, 2.4, 1.6, 1.8])
    lean = np.array([0.35, 0.1, 0.2, -0.9, -1.0, -0.1, 1.1, 0.8, 0.7, 0.4])
    fit = -0.45 * (schooling[:, None] - centres) ** 2 + 0.5 * lean * np.where(male, 1, -1)[:, None]
    occupation = _pick(rng, fit)
    idle = sector == SECTOR.index("not-working")
    hours = (
        40
        + 4 * (occupation == 0)
        + 3 * male
        - 12 * youth
        - 0.25 * np.maximum(age - 62, 0)
        - 22 * idle
    )
    hours = np.clip(np.round(hours + 8 * rng.standard_t(5, rows)), 1, 99)
    commute = np.clip(np.round(rng.gamma(2.0, 14.0 + 4 * (region % 3), rows)), 0, 180)
    married = (marital == 1) | (marital == 2)
    children = np.minimum(rng.poisson(np.where(married & (age > 24), 1.3, 0.25)), 9).astype(float)
    wealth = 0.3 * schooling + 0.03 * (age - 40) + 0.4 * married + rng.normal(size=rows)
    savings = np.where(wealth > 0.4, np.round(np.expm1(5.5 + 1.3 * wealth)), 0.0).clip(0, 500_000)
    dividends = np.where(
        rng.random(rows) < expit(1.1 * wealth - 4.6), np.round(np.expm1(6 + 0.9 * wealth)), 0.0
    )
    dividends = dividends.clip(0, 100_000)
    rank = np.array([1.5, 1.3, 0.6, -0.1, -1.0, 0.2, 0.0, -0.3, -1.2, -0.9])[occupation]
    score = (
        0.62 * schooling + 0.95 * rank + 1.9 * married + 0.045 * (hours - 40) + 0.55 * male - 0.5 * idle
        - 0.0016 * (age - 50) ** 2 + 0.22 * np.log1p(dividends) + 0.07 * np.log1p(savings)
        + np.array([0.3, -0.2, 0.0, 0.1, -0.3, -0.1, 0.2, 0.5])[region] - 0.12 * children
    )  # fmt: skip
    income = np.where(rng.random(rows) < expit(1.03 * (score - 5.76)), "high", "low")
    texts = {
        "education": (EDUCATION, schooling), "sector": (SECTOR, sector), "occupation": (OCCUPATION, occupation),
        "marital": (MARITAL, marital), "region": (REGION, region), "sex": (SEX, male.astype(int)),
    }  # fmt: skip
    numbers = {
        "age": age, "hours": hours, "commute": commute, "children": children, "savings": savings,
        "dividends": dividends,
    }  # fmt: skip
    return {
        **numbers,
        **{k: np.array(levels, dtype=object)[code] for k, (levels, code) in texts.items()},
        "income": income,
    }


def sparse_linear(rows: int = 40_000, seed: int = 0, columns: int = 100) -> dict[str, np.ndarray]:
    """Chen (2020), 4.6.3: x ~ N(0, S), S_jk = 0.5^|j-k|; P[y = 1] = sigmoid(m @ x - iota), iota ~
    N(0, 1).

    m = (0.5, 1, ..., 5, -0.5, -1, ..., -5, 0, ..., 0): the first 20 columns matter. Columns ``x1``
    .. and ``y``. Half of the labels are positive, and the true model reaches about 0.97.
    """
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(rows, columns))
    steps[:, 1:] *= np.sqrt(0.75)  # x_j = x_{j-1} / 2 + sqrt(3/4) e_j has covariance 0.5^|j-k|
    x = lfilter([1.0], [1.0, -0.5], steps, axis=1)
    y = np.where(
        rng.random(rows) < expit(x @ sparse_model(columns) - rng.normal(size=rows)), 1.0, -1.0
    )
    return {**{f"x{j + 1}": x[:, j] for j in range(columns)}, "y": y}


def sparse_model(columns: int = 100) -> np.ndarray:
    """The true coefficients m of ``sparse_linear``, shape (columns,)."""
    ramp = np.arange(1, 11) / 2
    return np.concatenate([ramp, -ramp, np.zeros(columns - 20)])


GENERATORS: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    "census": census,
    "search": search,
    "sparse_linear": sparse_linear,
}


def _pick(rng: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    """One category a row, with probability proportional to exp(logits), by the Gumbel maximum."""
    picked: np.ndarray = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return picked
