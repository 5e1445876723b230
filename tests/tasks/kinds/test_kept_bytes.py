"""What a training keeps a row is what its plan counts, for several classes too."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpcore.objective import compiled, shards
from dpcore.train import run
from tasks import training
from tasks.data import store
from tasks.data.load import load
from tasks.kinds.engine import choose, outlook
from tests.tasks.training.test_training import config_of

N, LEVELS = 300, ["a", "b", "c", "d"]


@pytest.fixture
def flowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of four classes, in shards of 64 rows."""
    for module in (shards, store):
        monkeypatch.setattr(module, "SHARD_ROWS", 64)
    rng = np.random.default_rng(3)
    lines = ["size,soil,kind"]
    for size, soil, kind in zip(
        rng.random(N), rng.choice(list("xy"), N), rng.choice(LEVELS, N), strict=True
    ):
        lines.append(f"{size:.6f},{soil},{kind}")
    (tmp_path / "flowers.csv").write_text("\n".join(lines) + "\n")
    schema = {
        "schema_version": 1,
        "name": "flowers",
        "public": {"n": N},
        "columns": {
            "size": {"kind": "numeric", "low": 0, "high": 1},
            "soil": {"kind": "categorical", "levels": ["x", "y"]},
        },
        "label": {"column": "kind", "kind": "classes", "levels": LEVELS},
    }
    place = tmp_path / "flowers.yaml"
    place.write_text(yaml.safe_dump(schema))
    return place


def kept(part: Any) -> int:
    """Bytes of the arrays with a number for each row that are held by an objective, its views
    among them.
    """
    found: dict[int, int] = {}
    seen, left = set(), [part]
    while left:
        one = left.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, np.ndarray):
            if one.shape[-1:] == (part.n,) and one.size:
                found[one.ctypes.data] = one.nbytes
            continue
        if isinstance(one, dict | list | tuple) or type(one).__module__.startswith("dpcore"):
            left += gc.get_referents(one)
    return sum(found.values())


@pytest.mark.parametrize(
    ("loss", "algorithm"),
    [
        ("logistic", {"name": "scaled_gd", "steps": 4, "sampling_rate": 1.0}),
        ("logistic", {"name": "dp_sgd", "steps": 4, "sampling_rate": 1.0}),
        ("softmax", {"name": "scaled_gd", "steps": 4, "sampling_rate": 1.0}),
    ],
)
def test_a_plan_counts_at_least_what_passes_keep(
    flowers: Path, tmp_path: Path, loss: str, algorithm: dict[str, Any]
) -> None:
    """Norms of the last scaling and labels of the class at hand, in files beside the rows."""
    pytest.importorskip("numba")
    job = training.prepare(
        config_of(flowers, algorithm=algorithm, objective={"loss": loss}, engine={"kind": "shards"})
    )
    planned, choice = training.plan_training(job), choose(job)
    data = load(
        job.schema,
        job.encoder,
        str(flowers.with_suffix(".csv")),
        spool=tmp_path / "spool",
        storage=choice.storage,
    )
    sums = job.kind.sums(job, data.train)
    compiled.use()
    held = []

    def look() -> None:
        held.append(sum(map(kept, sums._shards.parts)))

    run(planned, sums, seed=0, on_charge=look)
    look()
    compiled.use(False)
    counted = outlook(job, planned)["row_bytes"]
    coding = choice.storage.coding
    assert coding is not None and counted == coding.layout.row_bytes + 24
    assert len(held) > 4 and max(held) <= counted * N
    assert loss == "softmax" or max(held) == counted * N  # nothing is missed by the count
    assert list((tmp_path / "spool").iterdir()) == []
