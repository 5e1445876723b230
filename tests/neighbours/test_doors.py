"""Each door, reader and relation on neighbouring files: records, windows of blocks, sessions, units
without a name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.neighbours import schemas
from tests.neighbours.doors import drift_door, metric_door, profile_door, training_door
from tests.neighbours.replay import Compared, Door, chosen, compare, run
from tests.neighbours.tape import Tape
from tests.neighbours.world import (
    Row,
    World,
    Writer,
    write_arff,
    write_csv,
    write_letor,
    write_parquet,
)

READERS: dict[str, tuple[Writer, dict[str, Any]]] = {
    "csv": (write_csv, {}),
    "parquet": (write_parquet, {}),
    "arff": (write_arff, {"source": {"format": "arff"}}),
}
RELATIONS = ("add_remove", "replace_one")
BLOCK = {"block": {"column": "day", "by": "month"}}
HASH = {"split": {"kind": "hash", "test_share": 0.4}}
MONTHS = ("2026-01", "2026-02", "2026-12")


def records(seed: int, count: int = 24, spell: Callable[[str], str] = str) -> World:
    """Records of three months in two files, half of each class."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(count):
        month = MONTHS[int(rng.integers(3))]
        x = (round(rng.uniform(0.5, 1.0), 3), round(rng.uniform(), 3))
        rows.append(
            Row(
                k,
                str(100 + k),
                x,
                k % 2,
                spell(f"{month}-{k % 28 + 1:02d}"),
                month,
                int(rng.integers(2)),
            )
        )
    return World(tuple(rows), "record")


def neighbour_of(world: World, who: int, relation: str) -> World:
    return {
        "add_remove": world.without,
        "replace_one": world.replaced,
        "replace_labels": world.relabelled,
    }[relation](who)


def checked(
    door: Door,
    world: World,
    neighbour: World,
    write: Writer,
    schema: dict[str, Any],
    charged: bool = True,
) -> Compared:
    with tempfile.TemporaryDirectory() as folder:
        found = compare(door, world, neighbour, write, schema, Path(folder), charged)
    found.check()
    assert found.first.refused is None, found.first.refused
    assert found.ratios
    return found


def doors(relation: str, **data: Any) -> dict[str, Door]:
    sections: dict[str, Any] = {"privacy": {"adjacency": relation}, "data": data}
    return {
        "training": training_door(**sections),
        "metric": metric_door(**sections),
        "drift": drift_door("2026-01" if data else "all", **sections),
    }


def aside_often(door: str, reader: str) -> bool:
    """Every reader by a training, the other doors by one reader each."""
    return door == "training" or (door, reader) in (("metric", "parquet"), ("drift", "csv"))


@pytest.mark.parametrize(
    ("door", "reader"), chosen(product(("training", "metric", "drift"), READERS), aside_often)
)
def test_a_record_of_a_block_that_was_not_charged_moves_nothing(door: str, reader: str) -> None:
    write, more = READERS[reader]
    schema = schemas.table("record", **BLOCK, **HASH, **more)
    world = records(0)
    aside = [k for k, row in enumerate(world.rows) if row.block != "2026-01"]
    within = [k for k, row in enumerate(world.rows) if row.block == "2026-01"]
    for who in aside[:2]:
        chosen = doors("add_remove", blocks=["2026-01"])[door]
        checked(chosen, world, world.without(who), write, schema, charged=False)
    checked(
        doors("add_remove", blocks=["2026-01"])[door],
        world,
        world.without(within[0]),
        write,
        schema,
    )


@pytest.mark.parametrize("blank", [" {}", "{} ", "\t{}", "{}\u00a0"])
def test_blanks_around_a_date_change_no_block(blank: str) -> None:
    world = records(0, spell=lambda day: blank.format(day) if int(day[-1]) % 2 else day)
    schema = schemas.table("record", **BLOCK)
    who = next(k for k, row in enumerate(world.rows) if row.block == "2026-12")
    door = training_door(data={"blocks": ["2026-01"]})
    checked(door, world, world.without(who), write_csv, schema, charged=False)


def test_a_row_of_a_second_file_moves_what_leaves_by_what_was_charged() -> None:
    """The test part is a file of its own, with rows of other blocks: the metric of a window is of
    the window.
    """
    world = records(3)
    beside = tuple(replace(row, part=0) for row in records(4).rows)
    schema = schemas.table("record", **BLOCK, split={"kind": "file", "path": "test.csv"})

    def write(rows: Any, folder: Path) -> list[Path]:
        first = tuple(row for row in rows if row.who < 1000)
        [test] = write_csv([row for row in rows if row.who >= 1000], folder)
        test.rename(folder / "test.csv")
        return write_csv([replace(row, part=0) for row in first], folder)

    both = World(world.rows + tuple(replace(row, who=1000 + row.who) for row in beside), "record")
    door = metric_door(data={"blocks": ["2026-01"]}, privacy={"adjacency": "add_remove"})
    for who in range(len(world.rows), len(both.rows), 9):
        charged = both.rows[who].block == "2026-01"
        checked(door, both, both.without(who), write, schema, charged)


@pytest.mark.parametrize("relation", RELATIONS)
def test_each_user_moves_a_private_profile_by_what_was_charged(relation: str) -> None:
    """Of each person two rows are read, however they are spelled."""
    world = World(tuple(replace(row, part=0) for row in visits(2).rows), "user")
    schema = schemas.table("user", public={"n": 10, "rows_per_user": 2})
    found = [
        checked(
            profile_door(relation, "user"),
            world,
            neighbour_of(world, who, relation),
            write_csv,
            schema,
        )
        for who in range(0, 10, 4)
    ]
    assert max(max(one.ratios) for one in found) > 0.4


def documents(seed: int, part: int | None = None) -> World:
    """Six sessions of two to four documents with grades, in two files, ids spelled in two ways."""
    rng = np.random.default_rng(seed)
    rows = []
    for who in range(6):
        for k in range(int(rng.integers(2, 5))):
            x = (round(rng.uniform(), 3), round(rng.uniform(), 3))
            place = int(rng.integers(2)) if part is None else part
            rows.append(
                Row(who, f"{who}.0" if k % 2 else str(who), x, int(rng.integers(0, 3)), part=place)
            )
    return World(tuple(rows[int(k)] for k in rng.permutation(len(rows))), "session")


def renamed(write: Writer) -> Writer:
    """The same files with the id column called ``query``."""
    import pandas as pd

    def written(rows: Any, folder: Path) -> list[Path]:
        paths = write(rows, folder)
        for path in paths:
            if path.suffix in (".csv", ".arff"):
                path.write_text(
                    path.read_text(encoding="utf-8").replace("who", "query", 1), encoding="utf-8"
                )
            else:
                pd.read_parquet(path).rename(columns={"who": "query"}).to_parquet(path, index=False)
        return paths

    return written


@pytest.mark.parametrize("name", ["?", " ? ", "", " ", "nan", "None"])
@pytest.mark.parametrize("reader", ["csv", "parquet"])
def test_rows_that_name_no_user_are_refused_in_every_reader(
    reader: str, name: str, tmp_path: Path
) -> None:
    rows = (*(Row(k, str(k), (0.5, 0.5), k % 2) for k in range(80)), Row(99, name, (0.5, 0.5), 1))
    world = World(rows, "user")
    write, more = READERS[reader]
    found = run(
        training_door(), world, write, schemas.table("user", **more), tmp_path / "one", Tape()
    )
    assert found.refused is not None and not found.log
    assert (
        "data row 81, column 'who'" in found.refused and "every row needs its user" in found.refused
    )


@pytest.mark.parametrize("form", ["letor", "svmlight"])
def test_a_declared_mark_is_no_session(form: str, tmp_path: Path) -> None:
    rows = (*documents(0).rows, Row(99, "?", (0.5, 0.5), 1))
    door = training_door(objective={"loss": "listnet"}, privacy={"adjacency": "add_remove"})
    found = run(
        door, World(rows, "session"), write_letor, schemas.sessions(form), tmp_path / "one", Tape()
    )
    assert found.refused is not None and "'?'; every row needs its query" in found.refused


def nearly_one_class() -> World:
    """Twelve records of one class, and a last one of the other."""
    rows = tuple(replace(row, y=0) for row in records(7, 12).rows)
    return World((*rows, replace(rows[0], y=1, name="999", part=1)), "record")


@pytest.mark.parametrize(
    ("door", "reader"),
    chosen(
        product(("training", "metric", "drift"), READERS),
        lambda d, r: d == "training" or r == "csv",
    ),
)
def test_one_record_of_the_other_class_decides_over_no_refusal(door: str, reader: str) -> None:
    write, more = READERS[reader]
    world = nearly_one_class()
    checked(
        doors("add_remove")[door], world, world.without(12), write, schemas.table("record", **more)
    )


@pytest.mark.parametrize("form", ["letor", "svmlight"])
def test_documents_without_a_session_are_refused_with_their_line(form: str, tmp_path: Path) -> None:
    def write(rows: Any, folder: Path) -> list[Path]:
        [path] = write_letor(rows, folder)
        path.write_text(path.read_text() + "1 1:0.5 2:0.5\n" * 3)
        return [path]

    world = documents(0, part=0)
    door = training_door(objective={"loss": "listnet"}, privacy={"adjacency": "add_remove"})
    found = run(door, world, write, schemas.sessions(form), tmp_path / "one", Tape())
    assert (
        found.refused is not None
        and f"part0.txt, line {len(world.rows) + 1}: no query id" in found.refused
    )


def test_a_block_is_charged_by_the_name_that_its_rows_have() -> None:
    """A configuration that spells block 7 as 7.0 reads and pays block 7, not a fresh one."""
    named = [
        replace(row, day=("7", "7.0", " 7 ", "8")[k % 4]) for k, row in enumerate(records(0).rows)
    ]
    world = World(
        tuple(replace(row, block=row.day.strip().removesuffix(".0")) for row in named), "record"
    )
    schema = schemas.table("record", block={"column": "day", "by": "value"})
    for who in (0, 1, 2, 3):
        charged = world.rows[who].block == "7"
        checked(
            training_door(data={"blocks": ["7.0"]}),
            world,
            world.without(who),
            write_csv,
            schema,
            charged,
        )


def visits(seed: int, people: int = 10) -> World:
    """Users with one to four visits in three months and two files, ids spelled with and without
    decimals.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for who in range(people):
        for k in range(int(rng.integers(1, 5))):
            x = (round(rng.uniform(0.5, 1.0), 3), round(rng.uniform(), 3))
            rows.append(
                Row(who, f"{who}.0" if k % 2 else str(who), x, who % 2, part=int(rng.integers(2)))
            )
    return World(tuple(rows[int(k)] for k in rng.permutation(len(rows))), "user")


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("reader", READERS)
def test_one_user_moves_a_training_on_blocks_by_what_was_charged(
    reader: str, relation: str
) -> None:
    """With blocks by a hash of the id all rows of a user, however spelled, are in one block."""
    write, more = READERS[reader]
    world = visits(1)
    schema = schemas.table("user", public={"n": 10, "rows_per_user": 2}, **more)
    schema["block"] = {"column": "who", "by": "hash", "count": 2}
    data: dict[str, Any] = {"blocks": ["h0", "h1"] if relation == "replace_one" else ["h0"]}
    door = training_door(privacy={"adjacency": relation}, data=data)
    for who in range(0, 10, 4):
        checked(door, world, neighbour_of(world, who, relation), write, schema)
