"""A worker knows the views of its shards from one pass to the next, and keeps nothing else."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.objective import compiled, fused
from dpcore.objective.shards import PerShard
from tasks.data import store, workers
from tasks.data.workers import Question, answer, forget
from tests.tasks.data.test_workers import lake as lake
from tests.tasks.data.test_workers import source_of


def test_norms_are_looked_up_once_a_scaling_though_every_question_brings_a_copy(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in one process: twice for rows in files, then read; those of another scaling are its own.
    What is kept is eight bytes a row in files without a name, of one scaling, until the end.
    """
    pytest.importorskip("numba")
    source = replace(source_of(lake), token="views", compiled=True, folder=str(tmp_path / "own"))
    looked: list[bool] = []
    norms = fused._norms

    def counted(*given: Any) -> tuple[np.ndarray, bool]:
        found = norms(*given)
        looked.append(not found[1])
        return found

    monkeypatch.setattr(fused, "_norms", counted)
    blocks, d = source.encoder.design.blocks, source.encoder.design.dimension
    rng = np.random.default_rng(5)
    w, (one, other) = rng.normal(size=d), rng.uniform(0.5, 2, (2, d))
    within, rows = ("within", (blocks,)), PerShard([np.arange(0, 100, 3)])

    def asked(scale: np.ndarray, *, batch: bool = False) -> list[np.ndarray]:
        views = [within, ("transform", (0.5 * scale, scale))]
        views = [("take", (rows,)), *views] if batch else views
        given = dict.fromkeys(range(3), (views, (w, 0.3)))
        told = answer(source, deepcopy(Question("train", "gradient_sum", given)))
        assert {state for state, _ in told.values()} == {"sums"}
        return [part for file in sorted(told) for part in told[file][1]]

    held = workers._held
    found = [asked(one) for _ in range(5)]
    assert looked == 6 * [True] + 9 * [False]
    assert all(np.array_equal(a, b) for late in found for a, b in zip(late, found[0], strict=True))
    batch = asked(one, batch=True)
    assert not any(looked[6:])  # rows of a batch have the norms of all rows
    views = held["views"].views
    assert [name for name, _ in views.values()] == ["within", "transform"]
    second = asked(other)
    assert all(looked[-3:]) and not np.allclose(second[0], found[0][0])
    forget("views")
    for scale, wanted in ((one, found[0]), (other, second)):
        assert all(np.array_equal(a, b) for a, b in zip(asked(scale), wanted, strict=True))
        forget("views")
    assert all(np.array_equal(a, b) for a, b in zip(asked(one, batch=True), batch, strict=True))
    for scale in rng.uniform(0.5, 2, (6, d)):
        for _ in range(3):
            asked(scale)
    mine = held["views"]
    assert len(mine.views) == workers.VIEWS
    for part in (part for sides in mine.files.values() for part in sides["train"]):
        kept = part.rows.table.kept["norms"][1]
        assert isinstance(kept, np.memmap) and kept.nbytes == store.NORM_BYTES * part.n
    assert not list((tmp_path / "own" / "rows").iterdir())
    forget("views")
    compiled.use(False)
