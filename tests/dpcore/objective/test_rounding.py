"""Norms that a price or a clip rests on are at least the exact ones, at any magnitude: a walk over
all of them.

Exact values are rational: every float is one, so a square and a sum of squares have no error.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import inf

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.features import FeatureGroup
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.rounding import bound_norms, row_norms, shortened
from dpcore.objective.users import UserObjective
from dpcore.preprocess.encoder import shorten
from dpcore.preprocess.matrix import MatrixEncoder

MAGNITUDES = (5e-324, 1e-320, 1e-310, 1e-200, 1e-160, 1e-3, 1.0, 1e5, 1e150, 1e200, 1e300)


def rows_of(width: int, dtype=np.float64) -> np.ndarray:
    """Rows of one magnitude each, of all mixed, of offset 1e5 with spread 1e-3, equal up to one
    ulp, and a zero row.
    """
    rng = np.random.default_rng(width)
    signs = np.where(rng.random((len(MAGNITUDES), width)) < 0.5, -1.0, 1.0)
    X = [
        *(np.array(MAGNITUDES)[:, None] * signs),
        *(m * rng.normal(size=width) for m in MAGNITUDES),
    ]
    X += [rng.choice(MAGNITUDES, width), 1e5 + 1e-3 * rng.random(width), np.zeros(width)]
    X += [
        np.full(width, 1.0 / 3.0),
        np.nextafter(np.full(width, 1.0 / 3.0), 1.0),
        0.1 * np.ones(width),
    ]
    with np.errstate(over="ignore"):
        found = np.array(X).astype(dtype)
    return found[np.isfinite(found).all(axis=1)]


def squares(row) -> Fraction:
    """The exact squared norm."""
    values = row.toarray().ravel() if hasattr(row, "toarray") else np.ravel(row)
    return sum((Fraction(float(value)) ** 2 for value in values if value), Fraction(0))


def assert_bounds(norms: np.ndarray, X: np.ndarray) -> None:
    for norm, row in zip(norms, X, strict=True):
        exact = squares(row)
        assert (norm == inf and exact > Fraction(1.79e308) ** 2) or Fraction(
            float(norm)
        ) ** 2 >= exact
        # No more than rounding is added, subnormal results (whose steps are coarse) aside.
        assert (
            norm < 1e-300
            or norm == inf
            or Fraction(float(norm)) ** 2 <= exact * (1 + Fraction(1, 10**11))
        )


WIDTHS = (1, 2, 17, 500)
FORMS: dict[str, Callable] = {"dense": np.asarray, "csr": csr_array}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_norms_of_rows(form: str, dtype) -> None:
    for width in WIDTHS:
        X = rows_of(width, dtype)
        data = FORMS[form](X)
        assert_bounds(row_norms(data), X)
        assert_bounds(LinearObjective(data, np.ones(len(X)), make_loss("logistic")).row_norms, X)


def test_norms_of_long_rows() -> None:
    X = rows_of(5000)[::4]
    assert_bounds(row_norms(X), X)


def test_norms_of_shifted_rows() -> None:
    """Rows next to the shift: what is left of 1e5 is 1e-3 or one ulp. The exact rows are s (x -
    m).
    """
    rng = np.random.default_rng(0)
    for width in WIDTHS[1:3]:
        for offset, spread in ((1e5, 1e-3), (1e5, 0.0), (0.5, 1e-9), (0.0, 1e-200)):
            X = offset + spread * rng.random((6, width))
            X[3] = np.nextafter(X[2], inf)
            shift, scale = X[0] * (1 + 1e-16), 10.0 ** rng.integers(-3, 4, width)
            exact = [
                sum(
                    (Fraction(s) * (Fraction(x) - Fraction(m))) ** 2
                    for x, m, s in zip(row, shift, scale, strict=True)
                )
                for row in X
            ]
            for form in FORMS.values():
                objective = LinearObjective(
                    form(X), np.ones(6), make_loss("logistic"), shift=shift, scale=scale
                )
                assert all(
                    Fraction(float(n)) ** 2 >= e
                    for n, e in zip(objective.row_norms, exact, strict=True)
                )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cap", [False, True])
def test_normalised_rows_are_at_most_one_long_and_keep_their_direction(
    form: str, cap: bool
) -> None:
    for width in WIDTHS:
        X = rows_of(width)
        found = shortened(FORMS[form](X), cap)
        found = found.toarray() if form == "csr" else found
        for before, after in zip(X, found, strict=True):
            assert squares(after) <= 1
            if squares(before) and not (cap and squares(before) <= 1):
                assert squares(after) > Fraction(999, 1000)
            elif cap:
                assert np.allclose(before, after, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("normalise", ["cap", "unit"])
def test_encoders_give_rows_of_at_most_one(normalise: str, dtype: str) -> None:
    X = rows_of(17)
    assert all(squares(row) <= 1 for row in shorten(np.abs(X), normalise, dtype))
    for low, high in ((0.0, 1.0), (0.0, 1e-310), (0.0, 1e300)):
        group = FeatureGroup(name="x", count=17, low=low, high=high)
        for sparse in (False, True):
            encoder = MatrixEncoder((group,), normalise=normalise, sparse=sparse, dtype=dtype)
            for intercept in (False, True):
                rows = encoder.set_params(intercept=intercept).fit_transform(np.abs(X))
                assert all(squares(rows[[i]]) <= 1 for i in range(len(X)))


@pytest.mark.parametrize("bound", [1e-150, 1e-12, 1e-3, 1.0, 1e5, 1e290])
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_brought_within_a_bound(form: str, bound: float) -> None:
    for dtype in (np.float64, np.float32):
        for width in WIDTHS[:3]:
            X = rows_of(width, dtype)
            if dtype is np.float32 and bound < 1e-30:
                continue
            found, _ = bound_norms(FORMS[form](X), bound)
            assert all(squares(found[[i]]) <= Fraction(bound) ** 2 for i in range(len(X)))


@np.errstate(all="ignore")
def test_clipped_terms_of_single_records() -> None:
    """One record's term of every objective, at rows and weights of all sizes: at most the clip,
    exactly.
    """
    rng = np.random.default_rng(0)
    for width in (1, 17):
        X = rows_of(width)
        for size in (0.0, 1e-200, 1.0, 1e30):
            w = size * rng.normal(size=width)
            for clip in (1e-9, 1.0):
                for i in range(0, len(X), 2):
                    for form in FORMS.values():
                        row, one = form(X[[i]]), np.ones(1)
                        terms = [
                            LinearObjective(row, one, make_loss("logistic")).gradient_sum(w, clip),
                            MulticlassObjective(row, 0 * one, Softmax()).gradient_sum(
                                np.tile(w, 3), clip
                            ),
                            UserObjective(
                                LinearObjective(row, one, make_loss("logistic")), one, 2
                            ).gradient_sum(w, clip),
                        ]
                        for term in terms:
                            assert np.isfinite(term).all() and squares(term) <= Fraction(clip) ** 2
                            values = LinearObjective(row, one, make_loss("logistic")).value_sum(
                                w, clip
                            )
                            assert 0.0 <= values[0] <= clip
