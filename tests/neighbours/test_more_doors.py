"""Doors that draw more than noise, fixed by a seed: searches, canaries, comparisons; and blocks of
zoned moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest

from dpcore.objective import compiled, shards
from tasks.config.train import EngineSection
from tasks.data import store as spool
from tests.neighbours import schemas
from tests.neighbours.doors import (
    CLIP,
    canary_door,
    comparison_door,
    drift_door,
    metric_door,
    training_door,
    tuning_door,
)
from tests.neighbours.replay import Door, chosen
from tests.neighbours.test_doors import (
    BLOCK,
    RELATIONS,
    checked,
    nearly_one_class,
    neighbour_of,
    records,
)
from tests.neighbours.world import Row, World, Writer, write_arff, write_csv, write_parquet

REACHED = 0.1  # a bound that nothing comes near to would hide a missing row
DRAWN: dict[str, Callable[[str], Door]] = {
    "search": lambda relation: tuning_door(privacy={"adjacency": relation}),
    "canaries": lambda relation: canary_door(privacy={"adjacency": relation}),
    "comparison": lambda relation: comparison_door(adjacency=relation),
}


@pytest.mark.parametrize("door", DRAWN)
def test_one_record_of_the_other_class_decides_over_no_refusal_here_either(door: str) -> None:
    world = nearly_one_class()
    checked(DRAWN[door]("add_remove"), world, world.without(12), write_csv, schemas.table("record"))


@pytest.mark.parametrize("door", DRAWN)
def test_a_record_of_another_block_moves_nothing_that_is_drawn_and_released(door: str) -> None:
    """The other encodings that a search may draw, and all folds, are of the charged rows too."""
    world = World(tuple(replace(row, part=0) for row in records(8, 48).rows), "record")
    january = [row.block == "2026-01" for row in world.rows]
    data = {"privacy": {"adjacency": "add_remove"}, "data": {"blocks": ["2026-01"]}}
    run = {
        "search": lambda: tuning_door(**data),
        "canaries": lambda: canary_door(**data),
        "comparison": lambda: comparison_door(blocks=["2026-01"], adjacency="add_remove"),
    }[door]
    schema = schemas.table("record", **BLOCK)
    checked(run(), world, world.without(january.index(False)), write_csv, schema, charged=False)
    last = len(january) - 1 - january[::-1].index(True)
    assert max(checked(run(), world, world.without(last), write_csv, schema).ratios) > REACHED


# Local month and offset beside the month in UTC.
MOMENTS = (
    ("2026-01-15T12:00:00+0000", "2026-01"),
    ("2026-02-01T00:30:00+0200", "2026-01"),
    ("2025-12-31T23:30:00-0500", "2026-01"),
    ("2026-01-31T23:30:00-0500", "2026-02"),
    ("2026-01-01T00:30:00+0200", "2025-12"),
    ("2026-02-10T08:00:00+0530", "2026-02"),
)


def write_moments(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Parquet whose block column holds moments of one zone, far from UTC."""
    paths = write_parquet(rows, folder)
    for path in paths:
        frame = pd.read_parquet(path)
        frame["day"] = pd.to_datetime(frame["day"], utc=True).dt.tz_convert("Pacific/Auckland")
        frame.to_parquet(path, index=False)
    return paths


ZONED: dict[str, tuple[Writer, dict[str, Any]]] = {
    "csv": (write_csv, {}),
    "parquet texts": (write_parquet, {}),
    "parquet moments": (write_moments, {}),
    "arff": (write_arff, {"source": {"format": "arff"}}),
}


def travels() -> World:
    """Records whose local month is not always that of their block, five of each moment."""
    rng = np.random.default_rng(11)
    rows = []
    for k in range(5 * len(MOMENTS)):
        day, block = MOMENTS[k % len(MOMENTS)]
        x = (round(rng.uniform(0.5, 1.0), 3), round(rng.uniform(), 3))
        rows.append(Row(k, str(100 + k), x, (k // len(MOMENTS)) % 2, day, block, part=k % 2))
    return World(tuple(rows), "record")


def often(door: str, reader: str, relation: str) -> bool:
    """Every reader by a training under one relation each, the other doors by one reader each."""
    if door == "training":
        return (relation == "add_remove") == (reader != "parquet texts")
    return (door, reader, relation) in (
        ("metric", "csv", "add_remove"),
        ("drift", "parquet moments", "replace_one"),
    )


@pytest.mark.parametrize(
    ("door", "reader", "relation"),
    chosen(product(("training", "metric", "drift"), ZONED, RELATIONS), often),
)
def test_a_moment_with_a_zone_is_charged_to_its_month_in_utc(
    door: str, reader: str, relation: str
) -> None:
    """Records of February by UTC, whose own clocks say January, move nothing where January is
    charged.
    """
    write, more = ZONED[reader]
    world, january = (
        travels(),
        {"data": {"blocks": ["2026-01"]}, "privacy": {"adjacency": relation}},
    )
    mine = sum(row.block == "2026-01" for row in world.rows)
    schema = schemas.table("record", public={"rows_per_block": mine}, **more)
    schema["block"] = {**BLOCK["block"], "format": "%Y-%m-%dT%H:%M:%S%z"}
    run = {
        "training": lambda: training_door(**january),
        "metric": lambda: metric_door(**january),
        "drift": lambda: drift_door("2026-01", **january),
    }[door]
    for who in (3, 4):
        checked(run(), world, neighbour_of(world, who, relation), write, schema, charged=False)
    found = [
        checked(run(), world, neighbour_of(world, who, relation), write, schema) for who in (1, 2)
    ]
    assert max(max(one.ratios) for one in found) > REACHED


ENGINES = ("memory", "codes", "shards")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("door", "algorithm", "relation"),
    [
        ("training", "scaled_gd", "add_remove"),
        ("training", "dp_agd", "replace_one"),
        ("training", "sampled", "add_remove"),
        ("metric", "dp_sgd", "replace_one"),
    ],
)
def test_a_record_in_codes_and_in_shards_moves_what_leaves_by_what_was_charged(
    door: str, algorithm: str, relation: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files to shards of 7 rows, encoded 5 at a time, with the record behind a border; and to
    codes in memory for compiled sums.
    """
    for module in (shards, spool):
        monkeypatch.setattr(module, "SHARD_ROWS", 7)
    monkeypatch.setattr(spool, "SLICE", 5)
    if engine == "codes":
        pytest.importorskip("numba")
        monkeypatch.setattr(compiled, "WORTH", 0.0)
    named = {
        "scaled_gd": {"name": "scaled_gd", "steps": 2, "clip_norm": CLIP},
        "dp_agd": {"name": "dp_agd", "rounds": 2, "clip_norm": CLIP},
        "sampled": {"name": "scaled_gd", "steps": 3, "clip_norm": CLIP, "sampling_rate": 1.0},
        "dp_sgd": {"name": "dp_sgd", "steps": 2, "clip_norm": CLIP, "learning_rate": 0.5},
    }[algorithm]
    run = {
        "privacy": {"adjacency": relation},
        "algorithm": named,
        "preprocess": {"numeric": "hats(3)"},
        "engine": {"kind": "auto" if engine == "codes" else engine},
    }
    made = {"training": training_door, "metric": metric_door}[door](**run)
    world = World(tuple(replace(row, part=0) for row in records(8, 48).rows), "record")
    schema = schemas.table("record", public={"n": 48})
    found = [
        checked(made, world, neighbour_of(world, who, relation), write_csv, schema)
        for who in (7, 47)
    ]
    assert max(max(one.ratios) for one in found) > REACHED


def test_every_engine_is_walked_through() -> None:
    """Workers hold shards, and give the sums of shards in one process bit for bit."""
    kinds = set(get_args(EngineSection.model_fields["kind"].annotation))
    assert kinds == {"auto", "memory", "shards", "dask"} and {"memory", "shards"} < set(ENGINES)
