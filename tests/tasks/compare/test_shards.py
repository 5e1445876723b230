"""Folds of rows in shards and on workers: the same folds as in memory, and what needs single rows is
refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.errors import InputError
from dpcore.objective import compiled, shards
from flows.compare_cells import task_runner
from tasks.compare import resume
from tasks.compare.batch import batches_of, run_batch
from tasks.data import store as spool
from tasks.home import Home
from tests.tasks.compare.test_engine import bench_of, comparison_of, public


def made(small: Path, home: Home, engine: dict[str, Any] | None) -> resume.Comparison:
    given = {} if engine is None else {"engine": engine}
    config = comparison_of(
        small,
        privacy={"epsilon": [1.0], "delta": 1e-4},
        algorithms=["scaled_gd", {"name": "dp_agd", "parameters": {"rounds": 4}}],
        protocol={"repeats": 1, "folds": 2},
        reproducible=True,
        **given,
    )
    return resume.make_comparison(config, home, fresh=True)


def records(comparison: resume.Comparison) -> list[dict[str, Any]]:
    """Every cell, with noise of the seed, which hangs on the configuration."""
    found = [
        record
        for batch in batches_of(comparison.cells, 1)
        for record in run_batch(batch, bench_of(comparison))
    ]
    assert [record["error"] for record in found] == [None] * len(found)
    return found


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (shards, spool):
        monkeypatch.setattr(module, "SHARD_ROWS", 64)
    monkeypatch.setattr(compiled, "available", lambda: False)


def test_folds_in_shards_are_those_in_memory(small: Path, home: Home, short: None) -> None:
    public(small)
    here, there = made(small, home, None), made(small, home, {"kind": "shards"})
    assert len(here.cells) == len(there.cells) >= 6
    for mine, theirs in zip(here.cells, there.cells, strict=True):
        one, other = here.rows.part(mine), there.rows.part(theirs)
        assert isinstance(other.objective, shards.ShardedObjective)
        w = np.linspace(-1.0, 1.0, one.objective.dimension)
        assert (one.objective.n, one.test.n) == (other.objective.n, other.test.n)
        difference = one.objective.gradient_sum(w, 0.3) - other.objective.gradient_sum(w, 0.3)
        assert np.abs(difference).max() < 1e-4  # fractions are kept in single precision
    for mine, theirs in zip(records(here), records(there), strict=True):
        assert set(mine["metrics"]) >= set(theirs["metrics"]) >= {"accuracy"}
        if not mine["private"]:
            for name, value in theirs["metrics"].items():
                assert abs(mine["metrics"][name] - value) < 0.014  # two rows of a fold


@pytest.mark.slow
def test_folds_on_workers_are_those_in_shards(small: Path, home: Home) -> None:
    pytest.importorskip("distributed")
    public(small)
    here, there = made(small, home, {"kind": "shards"}), made(small, home, {"kind": "dask"})
    for mine, theirs in zip(here.cells, there.cells, strict=True):
        one, other = here.rows.part(mine), there.rows.part(theirs)
        w = np.linspace(-1.0, 1.0, one.objective.dimension)
        assert np.array_equal(
            one.objective.gradient_sum(w, 0.3), other.objective.gradient_sum(w, 0.3)
        )
    assert len(records(there)) == len(there.cells)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"runner": "processes"}, "Expected runner: threads for engine.kind=shards"),
        ({"runner": "dask"}, "Expected runner: threads for engine.kind=shards"),
        (
            {"runner": "dask", "engine": {"kind": "dask"}},
            "Expected runner: threads for engine.kind=dask",
        ),
        ({"metrics": ["minimisation_error"]}, "second derivatives"),
        ({"peers": {"libraries": [{"name": "opacus"}]}}, "beside peers"),
        ({"algorithms": ["rsgd_ar"], "objective": {"l2": 0.1}}, "order of its own"),
    ],
)
def test_what_needs_single_rows_is_refused(
    small: Path, home: Home, values: dict[str, Any], words: str
) -> None:
    public(small)
    if values.get("runner") == "dask":
        pytest.importorskip("prefect_dask")
    if "algorithms" in values:
        values |= {"privacy": {"epsilon": [1.0], "delta": 1e-4, "adjacency": ["replace_one"]}}
    config = comparison_of(small, **{"engine": {"kind": "shards"}, **values})
    with pytest.raises(InputError, match=words):
        resume.make_comparison(config, home)


def test_a_runner_elsewhere_is_reached_by_tls_alone(small: Path) -> None:
    pytest.importorskip("prefect_dask")
    for address, words in (("tcp://10.0.0.5:1", "tls://"), ("tls://10.0.0.5:1", r"engine\.ca")):
        config = comparison_of(small, runner="dask", engine={"kind": "memory", "address": address})
        with pytest.raises(InputError, match=words):
            task_runner(config)


def test_a_runner_that_asks_no_scheduler_refuses_its_address(small: Path, home: Home) -> None:
    public(small)
    engine = {"kind": "memory", "address": "tcp://127.0.0.1:8786"}
    for runner in ("processes", "threads"):
        config = comparison_of(small, runner=runner, engine=engine)
        with pytest.raises(InputError, match=r"no engine\.address beside engine\.kind=memory"):
            resume.make_comparison(config, home)
