"""Chunks of rows: their order, their bits and their errors are the same for any number of threads."""

from __future__ import annotations

import threading
from time import sleep

import numpy as np
import pytest

from dpcore.losses import Logistic
from dpcore.objective import LinearObjective, compiled, fused
from tests.dpcore.objective.test_coded import RNG, Y, encoded


def test_chunks_come_back_in_their_order_and_what_breaks_one_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused, "CHUNK", 10)
    monkeypatch.setattr(fused, "THREADED", 20)
    pieces = [(k, min(k + 10, 95)) for k in range(0, 95, 10)]
    for workers in (1, 2, 7, 40):
        assert fused.in_chunks(95, lambda *piece: piece, workers) == pieces
        for broken in (0, 90):

            def work(begin: int, end: int, broken: int = broken) -> None:
                if begin == broken:
                    raise ZeroDivisionError(end)

            with pytest.raises(ZeroDivisionError):
                fused.in_chunks(95, work, workers)


def test_after_an_error_no_chunk_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "CHUNK", 1)
    monkeypatch.setattr(fused, "THREADED", 1)
    caller, begun = threading.get_ident(), []

    def work(begin: int, end: int) -> None:
        begun.append(begin)
        if threading.get_ident() == caller:
            raise KeyboardInterrupt
        sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        fused.in_chunks(20_000, work, 2)
    assert len(begun) < 10_000


def test_threads_and_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    _, X, rows = encoded(single=True)
    monkeypatch.setattr(fused, "CHUNK", 512)
    monkeypatch.setattr(fused, "THREADED", 1)
    compiled.use()
    w, W = RNG.normal(size=X.shape[1]), RNG.normal(size=(3, X.shape[1]))
    for stored in (rows, X, X.toarray().astype(np.float32)):
        made = LinearObjective(stored, Y, Logistic())
        one, *others = (
            fused.gradient(made.rows, Y, Logistic(), w, 0.3, workers) for workers in (1, 2, 3, 8)
        )
        assert all(np.array_equal(one, other) for other in others)
    one, other = (fused.values(rows, Y, Logistic(), W, 1.0, workers) for workers in (1, 4))
    assert np.array_equal(one, other)
    double = encoded(single=False)[2]  # fractions that no training stores are summed in numpy
    assert fused.gradient(double, Y, Logistic(), w, 0.3) is None
    assert fused.values(double, Y, Logistic(), W, 1.0) is None
    compiled.use(False)
