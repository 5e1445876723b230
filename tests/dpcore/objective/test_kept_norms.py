"""Norms of coded rows are looked up once a scaling, and no bit of a sum changes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dpcore.losses import Logistic
from dpcore.objective import LinearObjective, compiled, fused
from dpcore.objective.coded import CodedRows, Table
from tests.dpcore.objective.test_coded import N, Y, encoded


def full(*_: object) -> None:
    raise OSError("no space left")


def norms_of(view: LinearObjective) -> np.ndarray | None:
    """What is kept of the norms of this view; of others of the same rows there must be nothing."""
    scaling = view.rows.scaling
    inner = view.rows if scaling is None else view.rows.inner
    asked = inner.plain_squares if scaling is None else inner.squares_of(*scaling)
    squares, norms = inner.table.kept.get("norms", (asked, None))
    return norms if squares is asked else None


def gradient_of(rows: CodedRows, shift, scale, w) -> np.ndarray:
    fresh = LinearObjective(CodedRows(Table(*parts_of(rows.table)), rows.layout), Y, Logistic())
    return fresh.transform(shift, scale).gradient_sum(w, 0.3)


def test_norms_of_rows_are_looked_up_once_and_no_bit_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last scaling alone; of rows in files in a file without a name, if there is room."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(7)
    compiled.use()
    room = fused._room

    def alone(rows: CodedRows, kind: type) -> np.ndarray:
        assert "norms" not in rows.table.kept  # those of the last scaling are let go before
        return room(rows, kind)

    monkeypatch.setattr(fused, "_room", alone)
    for normalise in ("none", "cap"):
        _, _, rows = encoded(normalise, single=True)
        w, scales = rng.normal(size=rows.width), rng.uniform(0.5, 3, (2, rows.width))
        parts = [np.memmap(tmp_path / f"{normalise}{k}", part.dtype, "w+", shape=part.shape)
                 for k, part in enumerate(parts_of(rows.table))]  # fmt: skip
        for mapped, part in zip(parts, parts_of(rows.table), strict=True):
            mapped[:] = part
        filed = CodedRows(Table(*parts, folder=tmp_path), rows.layout, rows.normalise)
        made, other = (LinearObjective(r, Y, Logistic()) for r in (rows, filed))
        files = len(list(tmp_path.iterdir()))
        ways = [lambda o: o] + [lambda o, s=s: o.transform(0.5 * s, s) for s in scales]
        for way in ways if normalise == "none" else ways[:1]:
            one, copy = way(made), way(other)
            assert norms_of(one) is None
            first = one.gradient_sum(w, 0.3)
            assert len(norms_of(one)) == N
            if normalise == "none":
                lengths = one.rows.lengths_at(slice(0, N))
                assert np.abs(norms_of(one) / lengths - 1.0).max() < 1e-12
            assert np.array_equal(one.gradient_sum(w, 0.3), first)
            for turn in range(3):  # looked up, looked up and kept, read
                assert np.array_equal(copy.gradient_sum(w, 0.3), first)
                assert (norms_of(copy) is None) == (turn == 0)
            kept = norms_of(copy)
            assert isinstance(kept, np.memmap) and len(list(tmp_path.iterdir())) == files
        if normalise == "none":  # two scalings of the same stored rows, in turn
            one = made.transform(0.5 * scales[0], scales[0])
            both = one, one.transform(scales[1], scales[1])
            wanted = [gradient_of(rows, *view.rows.scaling, w) for view in both]
            for view, sums in 2 * list(zip(both, wanted, strict=True)):
                assert np.array_equal(view.gradient_sum(w, 0.3), sums)
        full_disk = pytest.MonkeyPatch()
        full_disk.setattr(os, "posix_fallocate", full)
        again = Table(*parts, folder=tmp_path)
        bare = LinearObjective(CodedRows(again, filed.layout, normalise), Y, Logistic())
        sums = [bare.gradient_sum(w, 0.3) for _ in range(3)]
        assert norms_of(bare) is None and all(np.array_equal(one, sums[0]) for one in sums)
        full_disk.undo()
        bare = Table(*parts_of(rows.table))
        batches = LinearObjective(CodedRows(bare, rows.layout, rows.normalise), Y, Logistic())
        sums = [batches.take(np.arange(k, N, 3)).gradient_sum(w, 0.3) for k in (0, 1, 2, 0, 1, 2)]
        assert norms_of(batches) is not None  # as many rows were picked as there are
        assert all(np.array_equal(sums[k], sums[k + 3]) for k in range(3))
        assert np.allclose(sum(sums[:3]), made.gradient_sum(w, 0.3), rtol=1e-12, atol=1e-12)
    compiled.use(False)


def parts_of(table: Table) -> tuple[np.ndarray, ...]:
    return table.narrow, table.wide, table.fractions
