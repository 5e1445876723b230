"""People and their rows as a test knows them, beside the cells in which files spell them."""

from __future__ import annotations

import csv
import io
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.neighbours.schemas import FEATURES


@dataclass(frozen=True)
class Row:
    """One record: ``who`` and ``block`` are the truth, ``name`` and ``day`` the cells that say so
    in a file.

    ``x`` are features in [0, 1], ``y`` is 0 or 1 (of documents a grade), ``part`` the file that
    holds the row.
    """

    who: int
    name: Any
    x: tuple[float, float]
    y: int
    day: str = "2026-01-01"
    block: str = "2026-01"
    part: int = 0


@dataclass(frozen=True)
class World:
    """Rows in file order; ``unit`` says whose promise a neighbour breaks: user, session or
    record.
    """

    rows: tuple[Row, ...]
    unit: str = "user"

    def without(self, who: int) -> World:
        """The neighbour under add/remove: one user or session is gone, or, of records, the row
        number ``who``.
        """
        if self.unit == "record":
            return replace(self, rows=self.rows[:who] + self.rows[who + 1 :])
        return replace(self, rows=tuple(row for row in self.rows if row.who != who))

    def replaced(self, who: int) -> World:
        """The neighbour under replace-one: other features and labels; which block and side a row
        has stays.
        """
        mine = [
            k == who if self.unit == "record" else row.who == who for k, row in enumerate(self.rows)
        ]
        other = [replace(r, x=(1.0 - r.x[0], 1.0 - r.x[1]), y=1 - min(r.y, 1)) for r in self.rows]
        return replace(
            self, rows=tuple(o if m else r for r, o, m in zip(self.rows, other, mine, strict=True))
        )

    def relabelled(self, who: int) -> World:
        """The neighbour under replace-labels: other grades for the documents of one session."""
        rows = (replace(r, y=2 - r.y) if r.who == who else r for r in self.rows)
        return replace(self, rows=tuple(rows))

    def blocks_of(self, who: int) -> set[str]:
        """The blocks that hold rows of a unit."""
        return {
            row.block
            for k, row in enumerate(self.rows)
            if (k if self.unit == "record" else row.who) == who
        }


Writer = Callable[[Sequence[Row], Path], list[Path]]


def frame_of(rows: Iterable[Row], names: Sequence[Any]) -> pd.DataFrame:
    """The rows as a frame with ids as they are given."""
    rows = list(rows)
    columns: dict[str, Any] = {"who": list(names), "day": [r.day for r in rows]}
    for k, feature in enumerate(FEATURES):
        columns[feature] = [r.x[k] for r in rows]
    return pd.DataFrame(columns | {"y": [r.y for r in rows]})


def parts_of(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each file, without empty files."""
    parts = [[row for row in rows if row.part == part] for part in (0, 1)]
    return [part for part in parts if part]


def write_csv(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Every part as CSV, ids as they are spelled; a BOM before the second part."""
    paths = []
    for number, part in enumerate(parts_of(rows)):
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["who", "day", *FEATURES, "y"])
        writer.writerows([row.name, row.day, *row.x, row.y] for row in part)
        paths.append(folder / f"part{number}.csv")
        paths[-1].write_text(
            ("\ufeff" if number else "") + text.getvalue(), encoding="utf-8", newline=""
        )
    return paths


def write_parquet(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Every part as Parquet with ids as texts."""
    return _parquet(rows, folder, (str, str))


def _parquet(
    rows: Sequence[Row], folder: Path, kinds: Sequence[Callable[[Any], Any]]
) -> list[Path]:
    paths = []
    for number, (part, kind) in enumerate(zip(parts_of(rows), kinds, strict=False)):
        paths.append(folder / f"part{number}.parquet")
        names = pd.Series([kind(row.name) for row in part])
        frame_of(part, names).to_parquet(paths[-1], index=False)
    return paths


def typed(kinds: str) -> Writer:
    """Parquet whose two parts hold ids of two types, for worlds in which every id is a whole
    number.
    """
    casts: dict[str, Callable[[Any], Any]] = {
        "int": lambda name: int(float(name)),
        "float": float,
        "float32": lambda name: np.float32(float(name)),
        "text": str,
        "decimal": lambda name: Decimal(str(int(float(name)))).quantize(Decimal("0.01")),
    }
    return lambda rows, folder: _parquet(rows, folder, [casts[kind] for kind in kinds.split("+")])


def write_arff(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Every part as ARFF, ids as numbers."""
    paths = []
    for number, part in enumerate(parts_of(rows)):
        days = ",".join(sorted({row.day.strip() for row in part}))
        head = ["@relation t", "@attribute who numeric", f"@attribute day {{{days}}}"]
        head += [f"@attribute {name} numeric" for name in FEATURES] + [
            "@attribute y {0,1,2}",
            "@data",
        ]
        lines = [f"{row.name},{row.day.strip()},{row.x[0]},{row.x[1]},{row.y}" for row in part]
        paths.append(folder / f"part{number}.arff")
        paths[-1].write_text("\n".join(head + lines) + "\n")
    return paths


def write_letor(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Every part as LETOR or SVMlight lines, query ids as they are spelled."""
    paths = []
    for number, part in enumerate(parts_of(rows)):
        lines = [f"{row.y} qid:{row.name} 1:{row.x[0]} 2:{row.x[1]}" for row in part]
        paths.append(folder / f"part{number}.txt")
        paths[-1].write_text("\n".join(lines) + "\n")
    return paths


def framed(ending: str, write: Callable[[pd.DataFrame, Path], Any]) -> Writer:
    """Every part as a table of another program, ids as texts."""

    def written(rows: Sequence[Row], folder: Path) -> list[Path]:
        paths = []
        for number, part in enumerate(parts_of(rows)):
            paths.append(folder / f"part{number}.{ending}")
            write(frame_of(part, [str(row.name) for row in part]), paths[-1])
        return paths

    return written


def write_spss(frame: pd.DataFrame, path: Path) -> None:
    pytest.importorskip("pyreadstat").write_sav(frame, str(path))


def write_sas(frame: pd.DataFrame, path: Path) -> None:
    pytest.importorskip("pyreadstat").write_xport(frame, str(path), file_format_version=5)


def write_excel(frame: pd.DataFrame, path: Path) -> None:
    pytest.importorskip("openpyxl")
    frame.to_excel(path, index=False)


FRAMED: dict[str, tuple[str, Callable[[pd.DataFrame, Path], Any]]] = {
    "feather": ("feather", lambda frame, path: frame.to_feather(path)),
    "excel": ("xlsx", write_excel),
    "stata": ("dta", lambda frame, path: frame.to_stata(path, write_index=False)),
    "spss": ("sav", write_spss),
    "sas": ("xpt", write_sas),
}
URL = "DPFLOWS_SOURCE_URL"


def write_sql(rows: Sequence[Row], folder: Path) -> list[Path]:
    """All parts as one table of a database, whose address stands in the environment from then on;
    who calls this puts the old one back.
    """
    path = folder / "rows.db"
    ordered = [row for part in parts_of(rows) for row in part]
    to_sqlite(frame_of(ordered, [str(row.name) for row in ordered]), path)
    return [path]


def to_sqlite(frame: pd.DataFrame, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        frame.to_sql("visits", connection, index=False)
        connection.commit()
    os.environ[URL] = f"sqlite:///{path}"
