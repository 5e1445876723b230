"""A table in parts: files, lists, globs, folders, other file systems and packings give the model of one file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpcore.errors import InputError
from tasks.config.read import parse_config
from tasks.data import Loaded, load
from tasks.ledger import Ledger
from tasks.readers import open_chunks, source_paths
from tasks.readers.chunk import packing
from tasks.readers.parts import Remote
from tasks.schema import Schema

SCHEMA = Schema.model_validate(
    {
        "schema_version": 1,
        "name": "visits",
        "public": {"n": 90, "public": True},
        "columns": {
            "ward": {"kind": "categorical", "levels": ["A", "B"]},
            "age": {"kind": "numeric", "low": 0, "high": 100},
            "day": {"kind": "date", "low": "2026-01-01", "high": "2026-01-31"},
        },
        "label": {"column": "died", "positive": "yes", "negative": "no"},
        "undeclared": "ignore",
    }
)
ROWS = pd.DataFrame(
    {
        "ward": ["A", "B", "B"] * 30,
        "age": np.linspace(1.0, 99.0, 90) / 3.0,
        "day": ["2026-01-10"] * 40 + ["2026-01-20"] * 50,
        "note": ["x, \u00e9"] * 90,
        "died": ["yes", "no"] * 45,
    }
)
CUT = {
    "day=2026-01-10/ward=A/p-0": (ROWS["day"] < "2026-01-15") & (ROWS["ward"] == "A"),
    "day=2026-01-10/ward=B/p-0": (ROWS["day"] < "2026-01-15") & (ROWS["ward"] == "B"),
    "day=2026-01-20/ward=A/p-0": (ROWS["day"] > "2026-01-15") & (ROWS["ward"] == "A"),
    "day=2026-01-20/ward=B/p-0": (ROWS["day"] > "2026-01-15") & (ROWS["ward"] == "B"),
}
ONE = pd.concat([ROWS[rows] for rows in CUT.values()])


def loaded(path: object, schema: Schema = SCHEMA) -> Loaded:
    return load(schema, schema.encoder(), path)  # type: ignore[arg-type]


def same(found: Loaded, one: Loaded) -> None:
    """The same rows to the bit, so the same model of equal noise."""
    assert found.train.X.tobytes() == one.train.X.tobytes()  # type: ignore[union-attr]
    assert found.train.y.tobytes() == one.train.y.tobytes()  # type: ignore[union-attr]


@pytest.fixture
def one(tmp_path: Path) -> Path:
    ONE.to_csv(tmp_path / "one.csv", index=False)
    return tmp_path / "one.csv"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Parts in Hive's folders, of two formats and a packing, and what is no part."""
    folder = tmp_path / "lake"
    for k, (name, rows) in enumerate(CUT.items()):
        piece = ROWS[rows].drop(columns=["day", "ward"])
        place = folder / name
        place.parent.mkdir(parents=True)
        if k % 2:
            piece.to_parquet(place.with_suffix(".parquet"))
        else:
            piece.to_csv(place.with_suffix(".csv.gz"), index=False)
    piece.iloc[:0].to_parquet(folder / "day=2026-01-20" / "ward=B" / "p-1.parquet")
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / ".p.crc").write_bytes(b"\0")
    (folder / "visits.yaml").write_text("schema_version: 1\n")
    return folder


def test_a_folder_of_parts_is_one_file(one: Path, lake: Path) -> None:
    same(loaded(lake), loaded(one))
    same(loaded(str(lake / "*" / "ward=*" / "p-*")), loaded(one))
    same(loaded(str(lake / "**" / "p-*")), loaded(one))
    same(loaded(f"{lake}/**"), loaded(one))
    same(loaded([lake / "day=2026-01-10", str(lake / "day=2026-01-20")]), loaded(one))
    parts = source_paths(SCHEMA, lake, ())
    assert [str(part.relative_to(lake)).split(".")[0] for part in parts] == [
        *CUT,
        "day=2026-01-20/ward=B/p-1",
    ]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["adult.data", "train-images-idx3-ubyte", "packed.gz"])
def test_a_folder_with_the_declared_files_stands_for_those_alone(tmp_path: Path, name: str) -> None:
    for there in (name.removesuffix(".gz"), "schema.yaml", "other"):
        (tmp_path / there).write_text("1\n")
    found = source_paths(SCHEMA, tmp_path, (f"far/{name}",))
    assert found == [tmp_path / name.removesuffix(".gz")]
    # declared was a folder of parts
    assert len(source_paths(SCHEMA, tmp_path, ("visits",))) == 2


def test_columns_that_are_not_declared_are_not_read(lake: Path) -> None:
    for chunk in open_chunks(SCHEMA, source_paths(SCHEMA, lake, ())):
        assert set(chunk.table.columns) == {"ward", "age", "day", "died"}


def test_a_part_and_its_row_are_named(lake: Path) -> None:
    piece = ROWS.iloc[:3].drop(columns=["day", "ward"]).assign(age=["1", "old", "2"])
    piece.to_csv(lake / "day=2026-01-20" / "ward=B" / "p-9.csv", index=False)
    with pytest.raises(
        InputError, match=r"p-9\.csv: data row 2, column 'age': 'old' is not a number"
    ):
        loaded(lake)
    with pytest.raises(InputError, match=r"got .* twice, whose records would count twice"):
        loaded([lake, lake / "day=2026-01-20"])


COPIES: dict[str, Callable[[Path, Path], object]] = {
    "link.csv": lambda one, other: other.symlink_to(one),
    "hard.csv": lambda one, other: other.hardlink_to(one),
    "copy.csv": lambda one, other: other.write_bytes(one.read_bytes()),
    "packed.csv.gz": lambda one, other: other.write_bytes(gzip.compress(one.read_bytes())),
    "packed.txt": lambda one, other: other.write_bytes(bz2.compress(one.read_bytes())),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("how", ["folder", "list", "other file system"])
def test_a_file_under_two_names_is_refused(one: Path, name: str, how: str) -> None:
    """By a link, as a copy, packed or not: each of its records would be two."""
    COPIES[name](one, one.parent / name)
    places = {
        "folder": one.parent,
        "list": [one, one.parent / name],
        "other file system": f"local://{one.parent}/*",
    }
    with pytest.raises(InputError, match="count twice") as raised:
        loaded(places[how])
    assert {"one.csv", name} <= {word.rpartition("/")[2] for word in str(raised.value).split("'")}


def test_parts_that_look_alike_and_are_none_twice(lake: Path) -> None:
    """Their folders tell rows of equal cells apart, and a header alone holds none."""
    place = lake / "day=2026-01-20" / "ward=B" / "p-7.csv"
    pd.DataFrame({"age": [3.0], "note": ["x"], "died": ["no"]}).to_csv(place, index=False)
    other = lake / "day=2026-01-20" / "ward=A" / "p-7.csv"
    other.write_bytes(place.read_bytes())
    for k in range(3):
        (place.parent / f"q-{k}.csv").write_text("age,note,died\n")
    assert loaded(lake).train.n == 92
    (place.parent / "p-8.csv").write_bytes(place.read_bytes())
    with pytest.raises(InputError, match=r"ward=B/p-7\.csv.*ward=B/p-8\.csv"):
        loaded(lake)
    (place.parent / "p-8.csv").unlink()
    other.unlink()
    other.hardlink_to(place)  # one file in two folders: its rows are told apart, its people not
    with pytest.raises(InputError, match=r"p-7\.csv', one file"):
        loaded(lake)


def test_files_that_differ_behind_a_common_beginning_are_read_whole(tmp_path: Path) -> None:
    rows = pd.concat([ROWS] * 40)
    for k in range(3):
        rows.assign(age=rows["age"].where(np.arange(len(rows)) < len(rows) - 1, k)).to_csv(
            tmp_path / f"p-{k}.csv", index=False
        )
    assert loaded(tmp_path).train.n == 3 * len(rows)


def test_a_file_in_a_folder_that_is_no_table_is_refused_by_its_name(lake: Path) -> None:
    (lake / "README.md").write_text("# Visits\n\nOne row a visit.\n")
    with pytest.raises(InputError, match=r"README\.md"):
        loaded(lake)


def test_another_file_system_is_read_alike(one: Path, lake: Path) -> None:
    memory = fsspec.filesystem("memory")
    for file in source_paths(SCHEMA, lake, ()):
        assert isinstance(file, Path)
        memory.pipe(f"/parts-of-visits/{file.relative_to(lake).as_posix()}", file.read_bytes())
    for place in ("memory://parts-of-visits", "memory://parts-of-visits/**/p-*"):
        parts = source_paths(SCHEMA, place, ())
        assert all(isinstance(part, Remote) for part in parts) and len(parts) == 5
        same(loaded(place), loaded(one))
    with pytest.raises(InputError, match=r"Expected no user or password in data\.path") as refused:
        loaded("https://me:secret@example.org/t.csv")
    assert "secret" not in str(refused.value)
    with pytest.raises(InputError, match=r"'memory://parts-of-visits/none\.csv', got none"):
        loaded("memory://parts-of-visits/none.csv")


def test_a_fingerprint_covers_every_part_here_and_there(tmp_path: Path, lake: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    parts = source_paths(SCHEMA, lake, ())
    marks = ledger.fingerprint(parts)
    assert len(marks.each) == 5 and marks == ledger.fingerprint(parts[::-1])
    memory = fsspec.filesystem("memory")
    for file in parts:
        assert isinstance(file, Path)
        memory.pipe(f"/marks/{file.relative_to(lake).as_posix()}", file.read_bytes())
    remote = source_paths(SCHEMA, "memory://marks", ())
    assert ledger.fingerprint(remote) == marks
    (lake / "day=2026-01-10" / "ward=A" / "p-0.csv.gz").write_bytes(
        gzip.compress(b"age,died\n1,no\n")
    )
    assert len(set(ledger.fingerprint(parts).each) & set(marks.each)) == 4
    assert ledger.fingerprint(parts).whole != marks.whole


def zipped(path: Path, data: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("table.csv", data)


PACKERS: dict[str, Callable[[Path, bytes], object]] = {
    "gzip": lambda path, data: path.write_bytes(gzip.compress(data)),
    "bzip2": lambda path, data: path.write_bytes(bz2.compress(data)),
    "xz": lambda path, data: path.write_bytes(lzma.compress(data)),
    "zstd": lambda path, data: path.write_bytes(pa.compress(data, codec="zstd", asbytes=True)),
    "lz4": lambda path, data: path.write_bytes(pa.compress(data, codec="lz4", asbytes=True)),
    "zip": zipped,
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
@pytest.mark.parametrize("packed", PACKERS)
def test_packed_files_are_read_whatever_they_are_called(
    tmp_path: Path, one: Path, packed: str, encoding: str
) -> None:
    path = tmp_path / "t.csv"
    PACKERS[packed](path, one.read_text(encoding="utf-8").encode(encoding))
    assert packing(path) == packed
    text = {"encoding": "utf-8" if encoding.startswith("utf-8") else encoding}
    schema = Schema.model_validate({**SCHEMA.model_dump(), "text": text})
    np.testing.assert_allclose(loaded(path, schema).train.X, loaded(one).train.X, rtol=1e-15)  # type: ignore[union-attr]
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"t\.csv"):
        loaded(path, schema)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t"])
def test_a_binary_table_is_known_by_its_first_bytes(tmp_path: Path, one: Path, name: str) -> None:
    ONE.to_parquet(tmp_path / name)
    same(loaded(tmp_path / name), loaded(one))
    ONE.reset_index(drop=True).to_feather(tmp_path / name)
    same(loaded(tmp_path / name), loaded(one))


def test_an_archive_of_two_tables_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("a.csv", "x")
        archive.writestr("b.csv", "x")
    with pytest.raises(InputError, match="Expected one table in a zip archive, got 2 files"):
        loaded(tmp_path / "t.zip")


@pytest.mark.parametrize("path", ["t.csv", ["a.csv", "b.csv"], None])
def test_a_configuration_names_one_place_or_several(path: object) -> None:
    found = parse_config({"data": {"path": path}}).data.path
    assert found == (tuple(path) if isinstance(path, list) else path)


@pytest.mark.parametrize("path", [3, [], ["a", 3], ""])
def test_what_names_no_place_is_refused(path: object) -> None:
    with pytest.raises(InputError, match="Expected a file, a glob, a folder, a URL, or a list of"):
        parse_config({"data": {"path": path}})


@pytest.mark.parametrize("line", ["secret,17,2026-01-03,yes", "17,17,x,yes", "secret;17;x;yes"])
def test_a_first_line_that_may_be_a_record_is_not_told(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows.csv").write_text(f"{line}\n" * 3)
    with pytest.raises(InputError, match=r"first line .* declare text\.") as raised:
        loaded(tmp_path / "rows.csv")
    assert not {"secret", "17", "yes"} & set(str(raised.value).replace("'", " ").split())
