"""Levels by a hash: columns that never change, for codes too many to list; and levels that a file
lists.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare

from dpcore.errors import InputError
from dpcore.preprocess import Encoder
from dpcore.preprocess.parts import bucket_of
from tasks.data import load
from tasks.schema import Schema, find_schema

CODES = {"A01.0": 255, "Z99.9": 116, "1": 225, "gr\u00f6\u00dfe": 255}
COLUMN = {"name": "icd", "kind": "categorical", "buckets": 256}


def encoder(**column: object) -> Encoder:
    return Encoder([{**COLUMN, **column}], normalise="none", intercept=False, sparse=False)


def test_the_place_of_a_code_is_fixed_for_ever() -> None:
    """Computed once with sha256sum: echo -n A01.0 | sha256sum, first 16 hex digits, modulo 256."""
    assert {text: bucket_of(text, 256) for text in CODES} == CODES


def test_one_column_a_code_however_it_is_written() -> None:
    found = encoder().transform(
        pd.DataFrame({"icd": ["1", 1, 1.0, " 1.0 ", "gr\u00f6\u00dfe", "gro\u0308\u00dfe"]})
    )
    places = found.argmax(axis=1)
    assert (found.sum(axis=1) == 1).all()
    assert (
        places[:4].tolist() == [CODES["1"]] * 4
        and places[4:].tolist() == [CODES["gr\u00f6\u00dfe"]] * 2
    )
    assert encoder().design.names[:2] == ("icd#0", "icd#1") and encoder().design.norm_bound == 1.0


def test_codes_fall_evenly() -> None:
    """Chance of a false alarm 1e-6."""
    counts = np.bincount([bucket_of(f"code {k}", 64) for k in range(20_000)], minlength=64)
    assert chisquare(counts).pvalue > 1e-6


def test_a_gap_has_no_hash() -> None:
    rows = pd.DataFrame({"icd": ["?", None, "", "A01.0"]})
    filled = encoder(fill="zeros", missing=("?",)).transform(rows)
    assert filled.sum(axis=1).tolist() == [0, 0, 0, 1]
    with pytest.raises(InputError, match="data row 1, column 'icd'"):
        encoder(missing=("?",)).transform(rows)


def test_a_stored_encoder_keeps_it() -> None:
    stored = Encoder.from_json(encoder().to_json())
    rows = pd.DataFrame({"icd": list(CODES)})
    np.testing.assert_array_equal(stored.transform(rows), encoder().transform(rows))
    assert "buckets" not in Encoder([{"name": "a", "kind": "flag"}]).to_json()


@pytest.mark.parametrize(
    "wrong", [{"levels": ("a",)}, {"drop_first": True}, {"fill": "A01.0"}, {"kind": "ordinal"}]
)
def test_what_does_not_go_with_a_hash_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="hashed levels of 'icd'"):
        _ = encoder(**wrong).design


SCHEMA = """\
schema_version: 1
name: visits
public: {n: 4, public: true}
columns:
  icd: {kind: categorical, LEVELS}
label: {column: died, positive: 1, negative: 0}
"""
ROWS = "icd,died\nA01.0,1\n007,0\nZ99.9,1\nA01.0,0\n"


def declared(folder: Path, levels: str) -> Schema:
    (folder / "rows.csv").write_text(ROWS)
    (folder / "visits.yaml").write_text(SCHEMA.replace("LEVELS", levels))
    return find_schema(folder / "visits.yaml")


def test_a_schema_declares_hashed_levels(tmp_path: Path) -> None:
    schema = declared(tmp_path, "levels: hash(256)")
    X = load(schema, schema.encoder(sparse=False, normalise="none"), tmp_path / "rows.csv").train.X  # type: ignore[union-attr]
    assert X[:, :-1].argmax(axis=1).tolist() == [255, bucket_of("007", 256), 116, 255]
    assert schema.undeclared_columns == ()


@pytest.mark.parametrize(
    "text", ["A01.0\n007\nZ99.9\n", 'icd,words\nA01.0,typhoid\n007,"a, b"\nZ99.9,\n\n']
)
def test_a_file_lists_the_levels(tmp_path: Path, text: str) -> None:
    (tmp_path / "codes.csv").write_text(text)
    schema = declared(tmp_path, "levels_file: codes.csv")
    assert schema.columns["icd"].levels == ("A01.0", "007", "Z99.9")
    X = load(schema, schema.encoder(sparse=False, normalise="none"), tmp_path / "rows.csv").train.X  # type: ignore[union-attr]
    assert X[:, :-1].argmax(axis=1).tolist() == [0, 1, 2, 0]
    with pytest.raises(InputError, match=r"levels_file='none\.csv', which does not exist"):
        declared(tmp_path, "levels_file: none.csv")
