"""``dpflows profile``: a draft to review, its price when it is private, and bad input on one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flows.cli import run
from tasks.schema import find_schema


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"{rng.integers(18, 80)},{rng.choice(['a', 'b', 'c'])},{rng.choice(['yes', 'no'])}" for _ in range(3000)]
    path = tmp_path / "visits.csv"
    path.write_text("age,ward,again\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_a_draft_is_a_schema_and_says_what_it_read(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = table.with_name("visits.yaml")
    assert run(["profile", str(table), "--label", "again", "-o", str(output)]) == 0
    assert "read private rows" in capsys.readouterr().err
    schema = find_schema(str(output))
    assert schema.columns["age"].kind == "numeric"
    assert set(schema.columns["ward"].levels) == {"a", "b", "c"}
    assert run(["profile", str(table), "-o", str(output)]) == 2
    assert "which exists" in capsys.readouterr().err


def test_a_private_draft_says_its_price(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["profile", str(table), "--private", "--epsilon", "4", "--json"]
    assert run(arguments) == 2
    assert "--label" in capsys.readouterr().err
    assert run([*arguments, "--label", "again"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["spent"] == {"epsilon": 4.0, "delta": 1e-7, "adjacency": "add_remove"}
    assert "cost (4, 1e-07)" in err


@pytest.mark.parametrize(("arguments", "words"), [(["nowhere.csv"], "no file"), (["{}", "--label", "x"], "label='x'")])
def test_bad_input(table: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", *[item.format(table) for item in arguments]]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.strip().splitlines()) == 1
