"""Tables of every program, packed or in parts, draft a schema that reads them back."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest

from dpcore.errors import InputError
from tasks.data import load
from tasks.profile import draft_schema
from tasks.schema import Schema
from tests.neighbours.world import FRAMED

ROWS = pd.DataFrame(
    {
        "age": [float(20 + k % 60) for k in range(120)],
        "ward": [("A", "B", "North ward")[k % 3] for k in range(120)],
        "day": [f"2026-01-{1 + k % 28:02d}" for k in range(120)],
        "patient": [f"p{k % 40}" for k in range(120)],
        "died": [("no", "yes")[k % 5 == 0] for k in range(120)],
    }
)


def gzipped(frame: pd.DataFrame, path: Path) -> None:
    path.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))


def zipped(frame: pd.DataFrame, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("t.csv", frame.to_csv(index=False))


def arff(frame: pd.DataFrame, path: Path) -> None:
    kinds = {"age": "numeric", "died": "{no,yes}"}
    head = [f"@attribute {name} {kinds.get(name, 'string')}" for name in frame]
    lines = [",".join(f"'{cell}'" for cell in row) for row in frame.itertuples(index=False)]
    path.write_text("\n".join(["@relation t", *head, "@data", *lines]) + "\n")


PROGRAMS: dict[str, tuple[str, Callable[[pd.DataFrame, Path], Any]]] = {
    "csv": ("csv", lambda frame, path: frame.to_csv(path, index=False)),
    "gzip": ("csv.gz", gzipped),
    "zip": ("zip", zipped),
    "parquet": ("parquet", lambda frame, path: frame.to_parquet(path)),
    "arff": ("arff", arff),
    **FRAMED,
}


def drafted(place: Path | str) -> tuple[Schema, list[str]]:
    draft = draft_schema(place, "died")
    schema = Schema.model_validate(draft.values)
    found = load(schema, schema.encoder())
    assert found.train.n + (found.test.n if found.test else 0) == 120
    assert not found.report.train["unknown"] and not found.report.train["clipped"]
    return schema, draft.notes


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_table_of_any_program_is_drafted_and_read_back(program: str, tmp_path: Path) -> None:
    ending, write = PROGRAMS[program]
    write(ROWS, tmp_path / f"visits.{ending}")
    schema, notes = drafted(tmp_path / f"visits.{ending}")
    assert schema.name == "visits" and schema.columns["age"].kind == "numeric"
    assert schema.columns["ward"].levels == ("A", "B", "North ward")
    assert (schema.columns["day"].kind, schema.columns["day"].format) == ("date", "%Y-%m-%d")
    assert (schema.label.positive, schema.label.negative) == (("yes",), ("no",))
    assert any(note.startswith("patient: 40 different ids") for note in notes)


@pytest.mark.parametrize("program", ["csv", "gzip", "parquet", "excel", "arff"])
def test_parts_are_drafted_as_one_table(program: str, tmp_path: Path) -> None:
    ending, write = PROGRAMS[program]
    for ward, rows in ROWS.groupby("ward"):
        place = tmp_path / "my visits" / f"ward={ward}" / f"p.{ending}"
        place.parent.mkdir(parents=True)
        write(rows.drop(columns="ward").reset_index(drop=True), place)
    for place in (tmp_path / "my visits", str(tmp_path / "my visits" / "*" / "p*")):
        schema, notes = drafted(place)
        assert schema.name == "my-visits"
        assert schema.columns["ward"].levels == ("A", "B", "North ward")
        assert "3 parts, read in the order of their paths" in notes
    write(ROWS.drop(columns="ward"), tmp_path / "my visits" / f"z.{ending}")
    with pytest.raises(InputError, match=r"Expected a part with the columns as .* is, got another"):
        draft_schema(tmp_path / "my visits", "died")


def test_a_url_is_drafted(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/drafted/visits.csv", ROWS.to_csv(index=False).encode())
    assert drafted("memory://drafted/visits.csv")[0].name == "visits"


def test_numbers_of_files_in_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for part in ("a", "b"):
        lines = [f"{k % 2} 1:{rng.random():.3f} 3:{k}" for k in range(30)]
        (tmp_path / f"{part}.svm").write_text("\n".join(lines) + "\n")
    schema = Schema.model_validate(draft_schema(tmp_path).values)
    assert (schema.features[0].count, schema.public.n) == (3, 60)
    assert load(schema, schema.encoder()).train.n == 60
