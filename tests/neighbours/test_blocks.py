"""Rows of blocks that a run is not charged on move nothing that it releases, not even a refusal; see ``replay``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.neighbours import schemas
from tests.neighbours.block_doors import blocks_training_door, bounds_door, drift_door, metric_door
from tests.neighbours.replay import Door, chosen, compare
from tests.neighbours.world import Row, World, Writer, write_csv, write_parquet

# The configuration of these tests names several files, which a text in YAML could not.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")

DAYS = {"2026-01": "2026-01-1{}", "2025-12": "2025-12-2{}", "2026-02": "2026-02-1{}"}
READERS: dict[str, Writer] = {"csv": write_csv, "parquet": write_parquet}
DOORS: dict[str, Callable[..., Door]] = {
    "training and exact metrics": blocks_training_door,
    "released metric": metric_door,
    "drift": drift_door,
    "bounds": bounds_door,
}
SPLITS: dict[str, dict[str, Any]] = {
    "hash": {"kind": "hash", "by": ["who"], "test_share": 0.5},
    "file": {"kind": "file", "path": ["part1.csv"]},
    "none": {"kind": "none"},
}


def people() -> World:
    """Sixty records of three months in two files, with labels of both classes on every side."""
    rng = np.random.default_rng(3)
    blocks = [block for block in DAYS for _ in range(20)]
    rows = [
        Row(k, f"p{k}", tuple(rng.random(2)), k % 2, DAYS[block].format(k % 10), block, part=(k // 2) % 2)  # type: ignore[arg-type]
        for k, block in enumerate(blocks)
    ]
    return World(tuple(rows), "record")


def declared(door: str, split: str, reader: str) -> dict[str, Any]:
    ending = "csv" if reader == "csv" else "parquet"
    own = {**SPLITS[split]} | ({"path": [f"part1.{ending}"]} if split == "file" else {})
    table = schemas.table("record", split=own, block={"column": "day", "by": "month"}, public={"rows_per_block": 10})
    table["source"] = {"path": f"part0.{ending}"}
    if door == "bounds":
        open_columns = {name: {"kind": "numeric"} for name in schemas.FEATURES}
        table |= {"bounds": "private", "columns": table["columns"] | open_columns}
    return table


def cases() -> list[Any]:
    """Each split through one of the readers, for every door; without a split metric and drift are slow."""
    pairs = (("hash", "csv"), ("file", "parquet"), ("none", "csv"))
    every = [(door, *pair) for door in DOORS for pair in pairs]
    return chosen(every, lambda door, split, _: split != "none" or door not in ("released metric", "drift"))


@pytest.mark.parametrize(("door", "split", "reader"), cases())
def test_a_record_of_another_block_moves_nothing(door: str, split: str, reader: str, tmp_path: Path) -> None:
    """A record of December, on either side of the split, where January alone is charged."""
    world, schema = people(), declared(door, split, reader)
    for number in (21, 22):  # of December, in both files
        assert world.rows[number].block == "2025-12"
        folder = tmp_path / str(number)
        found = compare(DOORS[door]("2026-01"), world, world.without(number), READERS[reader], schema, folder, False)
        assert found.first.refused is None, found.first.refused
        assert found.first.log
        found.check()


@pytest.mark.parametrize(("door", "split", "reader"), cases())
def test_a_record_of_the_charged_block_moves_what_is_charged(
    door: str, split: str, reader: str, tmp_path: Path
) -> None:
    world, schema = people(), declared(door, split, reader)
    ratios = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        run = DOORS[door]("2026-01")
        if door == "training and exact metrics":  # exact numbers stay inside and follow the record
            inner = run
            run = lambda s, p, inner=inner: inner(s, p)[0]  # noqa: E731
        found = compare(run, world, world.without(number), READERS[reader], schema, folder)
        assert found.first.refused is None, found.first.refused
        found.check()
        ratios.append(max(found.ratios))
    assert max(ratios) > 0.2  # the record is seen where it is charged


SPOILED = {
    "label": {"y": 7},
    "number": {"x": ("north", 0.5)},
    "no user": {"name": ""},
    "infinite": {"x": (float("inf"), 0.5)},
}


def spoiled_often(door: str, spoil: str) -> bool:
    """Every fault before a training, the other doors before one that a reader meets."""
    return door == "training and exact metrics" or spoil == "number"


@pytest.mark.parametrize(("door", "spoil"), chosen(product(DOORS, SPOILED), spoiled_often))
def test_a_fault_in_another_block_refuses_nothing_and_moves_nothing(door: str, spoil: str, tmp_path: Path) -> None:
    """Whether a run is refused must not tell about rows that it does not pay for."""
    world, schema = people(), declared(door, "hash", "csv")
    rows = list(world.rows)
    rows[23] = replace(rows[23], **SPOILED[spoil])  # type: ignore[arg-type]
    spoiled = World(tuple(rows), "record")
    found = compare(DOORS[door]("2026-01"), world, spoiled, write_csv, schema, tmp_path, False)
    assert found.first.refused is None and found.second.refused is None, found.second.refused
    found.check()


@pytest.mark.parametrize("door", DOORS)
def test_a_fault_in_the_charged_block_is_named(door: str, tmp_path: Path) -> None:
    world, schema = people(), declared(door, "none", "csv")
    rows = list(world.rows)
    rows[3] = replace(rows[3], x=("north", 0.5))  # type: ignore[arg-type]
    found = compare(DOORS[door]("2026-01"), world, World(tuple(rows), "record"), write_csv, schema, tmp_path)
    assert found.second.refused is not None and "'north' is not a number" in found.second.refused
    assert "data row" in found.second.refused and "column 'a'" in found.second.refused
