"""Rounding in long sums: one record more moves a sum of clipped gradients by no more than its clip,
for records chosen against one running sum over all rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from scipy.sparse import csr_array

from dpcore.losses import make_loss
from dpcore.objective import LinearObjective, compiled
from dpcore.objective.users import UserObjective

CLIP = 0.5
EDGE = 2.0**18


def chosen() -> tuple[np.ndarray, np.ndarray]:
    """Rows of one column and labels whose running sum of x y / 2 stops a quarter below a power of
    two; what follows rounds to nothing below it, and to one unit a pair of rows above it.
    """
    ulp = EDGE * 2.0**-52
    filled = int(EDGE / CLIP)
    ahead, pairs = np.append(np.ones(filled - 1), 0.5), filled
    x = np.concatenate([ahead, np.tile([2 * 0.51 * ulp, 2 * 0.49 * ulp], pairs)])
    y = np.concatenate([np.ones(len(ahead)), np.tile([1.0, -1.0], pairs)])
    return x, y


@pytest.fixture(params=["plain", "compiled"])
def passes(request: pytest.FixtureRequest) -> Iterator[str]:
    before = compiled.in_use()
    if request.param == "compiled" and not compiled.available():
        pytest.skip("numba, of the extra fast, is not installed")
    compiled.use(request.param == "compiled")
    yield request.param
    compiled.use(before)


def total(kind: str, x: np.ndarray, y: np.ndarray) -> float:
    matrix = x[:, None] if kind == "dense" else csr_array(x[:, None])
    rows = LinearObjective(matrix, y, make_loss("logistic"))
    batch = rows.take(np.arange(len(y))) if kind == "batch" else rows
    return float(batch.gradient_sum(np.zeros(1), CLIP)[0])


@pytest.mark.parametrize("kind", ["csr", "batch", "dense"])
def test_a_record_moves_a_long_sum_by_its_clip(kind: str, passes: str) -> None:
    x, y = chosen()
    moved = total(kind, np.append(1.0, x), np.append(1.0, y)) - total(kind, x, y)
    assert abs(moved) <= CLIP * (1.0 + 1e-6)


def test_users_are_summed_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpcore.objective.users.STRETCH", 32)
    rng = np.random.default_rng(4)
    records = LinearObjective(rng.normal(size=(200, 3)), np.ones(200), make_loss("logistic"))
    users = UserObjective(records, np.repeat(np.arange(100), 2), 2)
    w = rng.normal(size=3)
    pieces = [users.take(slice(start, start + 32)) for start in range(0, 100, 32)]
    together = sum(piece.gradient_sum(w, 0.3) for piece in pieces)
    np.testing.assert_array_equal(users.gradient_sum(w, 0.3), together)
