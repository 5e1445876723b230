"""The commented schema of every key: it is complete, loads, and reads and trains the table that it
describes.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from flows.cli import run
from tasks.data import load
from tasks.home import CONF, Home
from tasks.schema import SECTIONS, Schema, find_schema
from tasks.schema.sections import WeightSpec

TEXT = (CONF / "data" / "example.yaml").read_text(encoding="utf-8")
HEAD = (
    "Report of the "
    "ward\npatient;day;age;income;smoker;ward;triage;diagnosis;admitted;note;died;extra\n"
)


def write_visits(folder: Path) -> None:
    """Two parts of 40 persons with some visits each, in the layout that the schema declares."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for month in (1, 2):
        rows = []
        for k in range(400):
            age = int(rng.integers(20, 90))
            cells = (
                *(
                    f"p{month}-{k % 100:03d}",
                    f"2026-{month:02d}-{1 + k % 28:02d}",
                    age if k % 9 else "-",
                ),
                *(
                    f"{rng.integers(1, 190)}.{rng.integers(0, 999):03d},50",
                    k % 2,
                    ("A", "B", "01", "Z", "?")[k % 5],
                ),
                *(("low", "middle", "high", "NA")[k % 4], f"I{rng.integers(10, 99)}.{k % 10}"),
                *(f"{1 + k % 28:02d}.{month:02d}.2026", "x", ("YES" if age > 60 else "no."), "y"),
            )
            rows.append(";".join(map(str, cells)))
        (folder / f"part-{month}.csv").write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")


@pytest.mark.parametrize("model", [Schema, *SECTIONS.values(), WeightSpec])
def test_every_key_is_there(model: type[BaseModel]) -> None:
    said = set(
        re.findall(
            r"([a-z_]+):(?= "
            r"|$)",
            TEXT,
            flags=re.M,
        )
    ) | set(re.findall(r"\b([a-z_]+)\b", TEXT))
    assert set(model.model_fields) <= said


def test_its_table_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_visits(tmp_path / "visits")
    schema = find_schema("example")
    found = load(schema, schema.encoder(sparse=False), blocks=["2026-02"])
    assert found.users is not None and found.blocks is not None
    assert set(found.blocks) == {"2026-02"} and len(set(found.users)) > 60
    assert set(found.train.y) == {-1.0, 1.0} and found.report.train["unknown"]["ward"] > 0
    whole = load(schema, schema.encoder(sparse=False))
    assert whole.report.rows_train + whole.report.rows_test == 800


OPEN = ["ledger", "init", "example", "--epsilon", "3", "--delta", "1e-6", "--one-block-per-person"]
ASKED = ["--set", "data.name=example", "--set", "data.blocks=[2026-01, 2026-02]"]


def test_it_plans(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFLOWS_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    write_visits(tmp_path / "visits")
    assert run(OPEN) == 0
    assert run(["plan", *ASKED]) == 0


@pytest.mark.slow
def test_it_trains(
    home: Home, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFLOWS_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    write_visits(tmp_path / "visits")
    assert run(OPEN) == 0
    assert run(["train", *ASKED, "--set", "privacy.delta=1e-6"]) == 0
