"""Rows of blocks that a run is not charged on move nothing that it releases, not even a refusal;
see ``replay``.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpcore.errors import InputError
from tasks.data import Reading
from tasks.schema import find_schema
from tests.neighbours import schemas
from tests.neighbours.block_doors import blocks_training_door, bounds_door, drift_door, metric_door
from tests.neighbours.replay import Door, chosen, compare
from tests.neighbours.schemas import write_schema
from tests.neighbours.world import (
    FRAMED,
    URL,
    Row,
    World,
    Writer,
    frame_of,
    to_sqlite,
    write_arff,
    write_csv,
    write_parquet,
)

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
        Row(
            k,
            f"p{k}",
            tuple(rng.random(2)),
            k % 2,
            DAYS[block].format(k % 10),
            block,
            part=(k // 2) % 2,
        )  # type: ignore[arg-type]
        for k, block in enumerate(blocks)
    ]
    return World(tuple(rows), "record")


def declared(door: str, split: str, reader: str) -> dict[str, Any]:
    ending = "csv" if reader == "csv" else "parquet"
    own = {**SPLITS[split]} | ({"path": [f"part1.{ending}"]} if split == "file" else {})
    table = schemas.table(
        "record", split=own, block={"column": "day", "by": "month"}, public={"rows_per_block": 10}
    )
    table["source"] = {"path": f"part0.{ending}"}
    if door == "bounds":
        open_columns = {name: {"kind": "numeric"} for name in schemas.FEATURES}
        table |= {"bounds": "private", "columns": table["columns"] | open_columns}
    return table


def cases() -> list[Any]:
    """Each split through one of the readers, for every door; without a split metric and drift are
    slow.
    """
    pairs = (("hash", "csv"), ("file", "parquet"), ("none", "csv"))
    every = [(door, *pair) for door in DOORS for pair in pairs]
    return chosen(
        every, lambda door, split, _: split != "none" or door not in ("released metric", "drift")
    )


@pytest.mark.parametrize(("door", "split", "reader"), cases())
def test_a_record_of_another_block_moves_nothing(
    door: str, split: str, reader: str, tmp_path: Path
) -> None:
    """A record of December, on either side of the split, where January alone is charged."""
    world, schema = people(), declared(door, split, reader)
    for number in (21, 22):  # of December, in both files
        assert world.rows[number].block == "2025-12"
        folder = tmp_path / str(number)
        found = compare(
            DOORS[door]("2026-01"),
            world,
            world.without(number),
            READERS[reader],
            schema,
            folder,
            False,
        )
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
def test_a_fault_in_another_block_refuses_nothing_and_moves_nothing(
    door: str, spoil: str, tmp_path: Path
) -> None:
    """Whether a run is refused must not tell about rows that it does not pay for."""
    world, schema = people(), declared(door, "hash", "csv")
    rows = list(world.rows)
    rows[23] = replace(rows[23], **SPOILED[spoil])  # type: ignore[arg-type]
    spoiled = World(tuple(rows), "record")
    found = compare(DOORS[door]("2026-01"), world, spoiled, write_csv, schema, tmp_path, False)
    assert found.first.refused is None and found.second.refused is None, found.second.refused
    found.check()


# What can be wrong with one line of a file, as bytes in place of the line.
LINES: dict[str, Callable[[bytes], bytes]] = {
    "one cell too few": lambda line: line.rsplit(b",", 1)[0],
    "two cells alone": lambda line: b",".join(line.split(b",")[:2]),
    "one cell too many": lambda line: line + b",1",
    "bytes of another encoding": lambda line: line.replace(b"p", b"\xff\xfe", 1),
    "bytes of another encoding in a number": lambda line: line.replace(b"0.", b"\xb5.", 1),
    "a text in a number": lambda line: line.replace(b",0.", b",north", 1),
    "another label": lambda line: line[:-1] + b"7",
    "a blank line before it": lambda line: b"\n" + line.rsplit(b",", 1)[0],
    "a NUL": lambda line: line.replace(b"0.", b"\0.", 1),
    "a mark of a quote": lambda line: line.replace(b"p", b'"p"x', 1),
}
FORMS: dict[str, tuple[Writer, dict[str, Any]]] = {
    "csv": (write_csv, {}),
    "csv, packed": (write_csv, {}),
    "csv, decimal comma": (write_csv, {"text": {"separator": ";", "decimal": ","}}),
    "csv, without header": (
        write_csv,
        {"text": {"header": False, "names": ["who", "day", "a", "b", "y"]}},
    ),
    "arff": (write_arff, {"source": {"format": "arff", "path": "part0.arff"}}),
}


def rewritten(path: Path, form: str, number: int, change: Callable[[bytes], bytes]) -> None:
    """Change the line of row ``number`` of a file, which is laid out as ``form`` says."""
    lines = path.read_bytes().split(b"\n")
    head = lines.index(b"@data") + 1 if path.suffix == ".arff" else 1
    lines[head + number] = change(lines[head + number])
    if "header" in form:
        del lines[0]
    whole = b"\n".join(lines)
    if "comma" in form:
        whole = whole.replace(b",", b";").replace(b"0.", b"0,")
    path.write_bytes(gzip.compress(whole) if "packed" in form else whole)


def read_with(form: str, number: int, change: Callable[[bytes], bytes], folder: Path) -> Any:
    """The rows of January where one line of the file is changed."""
    folder.mkdir()
    write, more = FORMS[form]
    rows = [replace(row, part=0) for row in people().rows]
    rows = rows[20:40] + rows[:20] + rows[40:]  # a line of December comes first
    names = [replace(row, name=f"{row.who}" if "arff" in form else row.name) for row in rows]
    [path] = write(names, folder)
    rewritten(path, form, number, change)
    schema = (
        schemas.table(
            "record", block={"column": "day", "by": "month"}, public={"rows_per_block": 10}
        )
        | more
    )
    found = find_schema(write_schema(schema, folder))
    loaded = Reading(found, path, blocks=("2026-01",)).load(found.encoder())
    return loaded.train.X, loaded.train.y, list(loaded.blocks)


@pytest.mark.parametrize(
    ("form", "fault", "number"),
    chosen(
        product(FORMS, LINES, (0, 3, 59)),
        lambda form, fault, number: number == (0 if "cell" in fault else 59),
    ),
)
def test_no_fault_of_a_line_of_another_block_refuses_or_moves_anything(
    form: str, fault: str, number: int, tmp_path: Path
) -> None:
    """Rows of December and February are not decoded, whatever is wrong with them, first and last
    line included.
    """
    plain = read_with(form, number, lambda line: line, tmp_path / "plain")
    spoiled = read_with(form, number, LINES[fault], tmp_path / "spoiled")
    assert len(plain[1]) == 20
    for mine, same in zip(plain, spoiled, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(same))


@pytest.mark.parametrize(
    "fault", [name for name in LINES if "quote" not in name and "NUL" not in name]
)
@pytest.mark.parametrize("form", FORMS)
def test_the_same_fault_in_a_line_of_the_charged_block_is_refused(
    form: str, fault: str, tmp_path: Path
) -> None:
    if form == "arff" and fault in ("bytes of another encoding", "one cell too many"):
        return  # an id that is a number has no letters, and SciPy reads over a cell behind the last
    with pytest.raises(InputError, match=r"part0\.\w+"):
        read_with(form, 25, LINES[fault], tmp_path / "spoiled")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: b"p1", "every row needs a block"),  # the line ends before its block
        (lambda line: line.replace(b"2025", b"\xff\xff25"), "every row needs a block"),
        (lambda line: line.replace(b"p2", b'"p2'), "a quote that does not end on its line"),
    ],
)
def test_a_line_whose_block_cannot_be_read_is_the_operators(
    change: Any, words: str, tmp_path: Path
) -> None:
    """It may be of any block, and so may the lines that an open quote takes with it."""
    with pytest.raises(InputError, match=words):
        read_with("csv", 3, change, tmp_path / "spoiled")


@pytest.mark.parametrize("column", ["who", "day"])
def test_texts_of_parquet_that_are_no_texts_are_refused_in_charged_rows_alone(
    column: str, tmp_path: Path
) -> None:
    rows = [replace(row, part=0) for row in people().rows]
    [path] = write_parquet(rows, tmp_path)
    schema = schemas.table(
        "record", block={"column": "day", "by": "month"}, public={"rows_per_block": 10}
    )
    found = find_schema(write_schema(schema | {"source": {"path": "part0.parquet"}}, tmp_path))

    def read(number: int) -> Any:
        table = pq.read_table(path)
        cells = [c.encode() for c in table[column].to_pylist()]
        cells[number] = b"\xff\xfe"
        place = table.schema.get_field_index(column)
        other = tmp_path / f"{number}.parquet"
        spoiled = pa.array(cells, pa.binary()).view(pa.string())
        pq.write_table(table.set_column(place, column, spoiled), other)
        return Reading(found, other, blocks=("2026-01",)).load(found.encoder())

    if column == "day":
        with pytest.raises(InputError, match="every row needs a block"):
            read(23)
        return
    assert read(23).train.n == 20
    with pytest.raises(InputError, match=r"data row 6, column 'who': bytes that are no UTF-8"):
        read(5)


@pytest.mark.parametrize("door", DOORS)
def test_a_fault_in_the_charged_block_is_named(door: str, tmp_path: Path) -> None:
    world, schema = people(), declared(door, "none", "csv")
    rows = list(world.rows)
    rows[3] = replace(rows[3], x=("north", 0.5))  # type: ignore[arg-type]
    found = compare(
        DOORS[door]("2026-01"), world, World(tuple(rows), "record"), write_csv, schema, tmp_path
    )
    assert found.second.refused is not None and "'north' is not a number" in found.second.refused
    assert "data row" in found.second.refused and "column 'a'" in found.second.refused


def csv_with(**options: Any) -> Callable[[pd.DataFrame, Path], Any]:
    return lambda frame, path: frame.to_csv(path, index=False, **options)


def arff_of(frame: pd.DataFrame, path: Path) -> None:
    kinds = {"a": "numeric", "b": "numeric"}
    head = [f"@attribute {name} {kinds.get(name, 'string')}" for name in frame]
    lines = [",".join(map(str, row)) for row in frame.itertuples(index=False)]
    path.write_text("\n".join(["@relation t", *head, "@data", *lines]) + "\n")


# Every program's table, as what writes it and what the schema says of it.
PROGRAMS: dict[str, tuple[str, Callable[[pd.DataFrame, Path], Any], dict[str, Any]]] = {
    "csv": ("csv", csv_with(), {}),
    "csv, thousands": ("csv", csv_with(sep=";"), {"text": {"separator": ";", "thousands": "'"}}),
    "csv, old letters": ("csv", csv_with(encoding="cp1252"), {"text": {"encoding": "cp1252"}}),
    "parquet": ("parquet", lambda frame, path: frame.to_parquet(path), {}),
    "arff": ("arff", arff_of, {}),
    "sql": ("db", to_sqlite, {"source": {"kind": "sql", "table": "visits"}}),
    **{name: (*made, {}) for name, made in FRAMED.items()},
}
FOLDED = ("csv", "csv, thousands", "parquet", "arff", "excel")


def read_table_with(
    program: str, folder: Path, spoiled: int | None, folded: bool, by: str = "month"
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of January, one of which, or of others, says a word in a column of numbers."""
    ending, write, more = PROGRAMS[program]
    folder.mkdir()
    frame = frame_of(people().rows, [f"p{row.who}" for row in people().rows])
    frame["a"] = frame["a"].round(3).astype(str)
    if spoiled is not None:
        frame.loc[spoiled, "a"] = "north"
    shape = {"block": {"column": "day", "by": by}, "public": {"rows_per_block": 10}}
    declared = schemas.table("record", **{**shape, "source": {}, **more})
    schema = find_schema(write_schema(declared, folder))
    if folded:
        for month, part in frame.groupby(frame["day"].str[:7]):
            place = folder / "lake" / f"day={month}-15"
            place.mkdir(parents=True)
            write(part.drop(columns="day").reset_index(drop=True), place / f"p.{ending}")
        path: Any = folder / "lake"
    else:
        write(frame, folder / f"t.{ending}")
        path = None if program == "sql" else folder / f"t.{ending}"
    loaded = Reading(schema, path, blocks=("2026-01",)).load(schema.encoder())
    return np.asarray(loaded.train.X), np.asarray(loaded.train.y)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_word_for_a_number_in_another_block_refuses_nothing_in_any_table(
    program: str, folded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where a folder names the block of all rows of a part; in the charged block it does."""
    if folded and program not in FOLDED:
        return
    monkeypatch.setenv(URL, "")
    plain = read_table_with(program, tmp_path / "plain", None, folded)
    assert len(plain[0]) == 20
    spoiled = read_table_with(program, tmp_path / "spoiled", 23, folded)
    for one, other in zip(plain, spoiled, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(InputError, match=r"data row 8, column 'a': 'north' is not"):
        read_table_with(program, tmp_path / "mine", 7, folded)
