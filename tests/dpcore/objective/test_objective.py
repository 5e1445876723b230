"""The closed forms of LinearObjective equal sums over materialised per-example gradients."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.errors import InputError
from dpcore.losses import losses, make_loss
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.problem import Block, Problem
from tests.tape import ConstantSlope

RNG = np.random.default_rng(0)
N, D = 40, 7
X = RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.5)
X[3] = 0.0
Y = np.where(RNG.random(N) < 0.4, 1.0, -1.0)
W = RNG.normal(size=D)
SHIFT, SCALE = RNG.normal(size=D) * 0.3, RNG.random(D) + 0.5


def per_example(loss, rows: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Gradients of single records, shape (n, d), straight from the definition."""
    z = rows @ w
    slope = y * loss.slope(y * z) if loss.argument == "margin" else loss.slope(z - y)
    return slope[:, None] * rows


def facts(norm_bound: float, loss=None, **others: int) -> Problem:
    given = {
        "n": N,
        "dimension": D,
        "loss": loss or make_loss("logistic"),
        "norm_bound": norm_bound,
    }
    return Problem(**(given | others))


def clipped(gradients: np.ndarray, clip_norm: float) -> np.ndarray:
    norms = np.linalg.norm(gradients, axis=1)
    return gradients * np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))[:, None]


@pytest.mark.parametrize("clip_norm", [np.inf, 1.0, 0.1])
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("kind", ["dense64", "dense32", "csr64", "csr32"])
@pytest.mark.parametrize("name", sorted(losses))
def test_gradient_sum(name: str, kind: str, transformed: bool, clip_norm: float) -> None:
    loss = make_loss(name)
    dtype = np.float32 if kind.endswith("32") else np.float64
    matrix = csr_array(X.astype(dtype)) if kind.startswith("csr") else X.astype(dtype)
    objective = LinearObjective(matrix, Y, loss)
    rows = X.astype(dtype).astype(np.float64)
    if transformed:
        objective, rows = objective.transform(SHIFT, SCALE), (rows - SHIFT) * SCALE
    expected = clipped(per_example(loss, rows, Y, W), clip_norm).sum(axis=0)
    got = objective.gradient_sum(W, clip_norm)
    assert got.dtype == np.float64
    close = {"rtol": 2e-4, "atol": 2e-4} if dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-9}
    np.testing.assert_allclose(got, expected, **close)
    batch = objective.take(np.array([1, 3, 5]))
    part = clipped(per_example(loss, rows[[1, 3, 5]], Y[[1, 3, 5]], W), clip_norm).sum(axis=0)
    np.testing.assert_allclose(batch.gradient_sum(W, clip_norm), part, **close)


def test_a_batch_of_single_precision_keeps_the_margin_of_its_norms() -> None:
    objective = LinearObjective(csr_array(X.astype(np.float32)), Y, ConstantSlope())
    gradient = objective.take(np.array([0])).gradient_sum(np.zeros(D), 0.01)
    assert np.linalg.norm(gradient) <= 0.01 * (1 - 0.9e-5)


@pytest.mark.parametrize("sparse", [False, True])
def test_value_sum_serves_many_candidates_and_cuts_each_loss(sparse: bool) -> None:
    loss = make_loss("logistic")
    objective = LinearObjective(csr_array(X) if sparse else X, Y, loss)
    candidates = RNG.normal(size=(3, D))
    values = loss.value(Y[:, None] * (X @ candidates.T))
    np.testing.assert_allclose(objective.value_sum(candidates), values.sum(axis=0))
    np.testing.assert_allclose(
        objective.value_sum(candidates, 0.5), np.minimum(values, 0.5).sum(axis=0)
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_column_sum_uses_the_real_count(sparse: bool) -> None:
    objective = LinearObjective(csr_array(X) if sparse else X, Y, make_loss("logistic"))
    np.testing.assert_allclose(objective.column_sum(SHIFT), (X - SHIFT).sum(axis=0), atol=1e-12)


def test_blocks_of_rows_do_not_change_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LinearObjective(X, Y, make_loss("logistic")).gradient_sum(W, 0.3)
    monkeypatch.setattr("dpcore.objective.rows.BLOCK_ROWS", 7)
    np.testing.assert_allclose(
        LinearObjective(X, Y, make_loss("logistic")).gradient_sum(W, 0.3), whole, rtol=1e-12
    )


def test_weights_that_are_no_numbers_leave_each_record_its_score() -> None:
    sums = LinearObjective(np.full((1, 2), 0.5), np.ones(1), make_loss("logistic"))
    np.testing.assert_allclose(sums.gradient_sum(np.array([np.inf, -np.inf])), [-0.25, -0.25])


def test_an_empty_batch_gives_zero() -> None:
    for matrix in (X, csr_array(X)):
        batch = LinearObjective(matrix, Y, make_loss("logistic")).take(np.array([], dtype=np.intp))
        assert np.array_equal(batch.gradient_sum(W, 1.0), np.zeros(D))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_bad_number_is_refused_by_record(bad: float, sparse: bool) -> None:
    broken = X.copy()
    broken[12, 2] = bad
    objective = LinearObjective(csr_array(broken) if sparse else broken, Y, make_loss("logistic"))
    with pytest.raises(InputError, match="record 12"):
        objective.check_rows(facts(100.0))


def test_long_rows_are_refused() -> None:
    with pytest.raises(InputError, match="norm_bound"):
        LinearObjective(X, Y, make_loss("logistic")).check_rows(facts(0.5))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(("dtype", "share"), [(np.float64, 9e-10), (np.float32, 9e-7)])
def test_rows_admitted_above_the_bound_are_scaled_down_to_it_and_no_others(
    dtype: type, share: float, sparse: bool
) -> None:
    rows = (X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300)).astype(dtype)
    rows[7] = rows[7] * dtype(1.0 + share)
    given = csr_array(rows) if sparse else rows.copy()
    objective = MulticlassObjective(given, np.arange(N) % 3, Softmax())
    loss = make_loss("logistic")
    before = objective.against_rest(0, loss)
    objective.check_rows(facts(1.0, Softmax(), outputs=3))
    objective.check_rows(facts(1.0, Softmax(), outputs=3))
    for held in (objective, objective.against_rest(0, loss)):
        stored = held.X.toarray() if sparse else held.X
        exact = [sum(Fraction(float(value)) ** 2 for value in row) for row in stored]
        assert max(exact) <= (1 + 4 * Fraction(D + 8) / 2**53) ** 2
        longer = [
            sum(Fraction(float(value)) ** 2 for value in row) > (1 + Fraction(1, 10**13)) ** 2
            for row in rows
        ]
        assert longer[7]
        assert np.array_equal(stored[~np.array(longer)], rows[~np.array(longer)])
    assert np.array_equal(given.toarray() if sparse else given, rows)
    assert np.array_equal(before.X.toarray() if sparse else before.X, rows)


def test_case_09_clipping_by_the_whole_gradient() -> None:
    """Per-example gradients (3,0,4), (0.3,-0.4,0), 0 and (-1,2,-2) at C = 1, from a loss of slope
    -1.
    """
    gradients = np.array([[3.0, 0.0, 4.0], [0.3, -0.4, 0.0], [0.0, 0.0, 0.0], [-1.0, 2.0, -2.0]])
    objective = LinearObjective(-gradients, np.ones(4), ConstantSlope())
    total = objective.gradient_sum(np.zeros(3), 1.0)
    np.testing.assert_allclose(total, [0.566667, 0.266667, 0.133333], atol=1e-6)
    np.testing.assert_allclose(total / 5, [0.113333, 0.053333, 0.026667], atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_case_09_bad_gradients_are_named(value: float) -> None:
    gradients = np.array([[0.1, 0.2, 0.2], [value, 0.0, 0.0]])
    with pytest.raises(InputError, match="record 1"):
        LinearObjective(gradients, np.ones(2), ConstantSlope()).check_rows(facts(10.0, dimension=3))


def test_a_sparse_batch_does_everything_that_its_matrix_does() -> None:
    whole = LinearObjective(csr_array(X), Y, make_loss("logistic"))
    rows = np.array([7, 1, 30, 3])
    batch, matrix = (
        whole.take(rows),
        LinearObjective(csr_array(X[rows]), Y[rows], make_loss("logistic")),
    )
    assert (batch.n, batch.dimension) == (matrix.n, matrix.dimension)
    np.testing.assert_allclose(batch.gradient_sum(W, 0.3), matrix.gradient_sum(W, 0.3), rtol=1e-12)
    np.testing.assert_allclose(batch.value_sum(W), matrix.value_sum(W))
    np.testing.assert_allclose(batch.column_sum(SHIFT), matrix.column_sum(SHIFT))
    np.testing.assert_allclose(
        batch.take(np.array([2, 0])).gradient_sum(W), matrix.take([2, 0]).gradient_sum(W)
    )
    view = batch.transform(SHIFT, SCALE)
    np.testing.assert_allclose(
        view.gradient_sum(W, 0.3), matrix.transform(SHIFT, SCALE).gradient_sum(W, 0.3)
    )
    with pytest.raises(AttributeError, match="no attribute 'Z'"):
        _ = batch.Z


@pytest.mark.parametrize("kind", ["dense64", "dense32", "csr64", "csr32"])
def test_views_of_a_batch_are_those_of_its_rows_alone(kind: str) -> None:
    """They are taken from the views of all rows, which all steps share: bit for bit the same, in
    any order and with rows twice, and not once a row was cut down to its bound.
    """
    dtype = np.float32 if kind.endswith("32") else np.float64
    X_ = (RNG.random((N, D)) * 1.3 - 0.1).astype(dtype)  # some values and sums are out of bounds
    X_ = csr_array(X_) if kind.startswith("csr") else X_
    blocks = (Block((0, 1, 2), "one_hot"), Block((3,), "numeric"))
    picked = np.array([7, 3, 3, 39, 0, 12])
    whole = LinearObjective(X_, Y, make_loss("logistic"))
    views = (
        lambda o: o.within(blocks),
        lambda o: o.transform(SHIFT, SCALE),
        lambda o: o.within(blocks).transform(SHIFT, SCALE),
        lambda o: o.take(np.array([4, 1])).within(blocks).transform(SHIFT, SCALE),
        lambda o: o.take(slice(1, 4)).within(blocks).transform(SHIFT, SCALE),
    )

    def alone() -> LinearObjective:
        return LinearObjective(X_[picked], Y[picked], whole.loss)

    for view in views:
        for _ in range(2):
            batch = view(whole.take(picked))
            norms = batch.row_norms, view(alone()).row_norms
            assert np.array_equal(*norms) or (kind == "csr32" and np.allclose(*norms, rtol=1e-6))
            found = batch.gradient_sum(W, 0.05), view(alone()).gradient_sum(W, 0.05)
            # batches of sparse rows are held in double, so their norms need no margin
            assert np.allclose(*found, rtol=2e-5 if kind == "csr32" else 1e-13, atol=1e-13)
    if kind == "csr32":  # the norms of its batches have a margin, more than may be cut
        return
    batch, other = whole.take(picked), alone()
    bound = float(other.row_norms.max()) * (1.0 - 3e-7 if kind.endswith("32") else 1.0 - 3e-10)
    for one in (batch, other):
        one.check_rows(facts(bound))
    assert other.row_norms.max() <= bound * (1 + 1e-12)
    assert np.array_equal(views[1](batch).row_norms, views[1](other).row_norms)
