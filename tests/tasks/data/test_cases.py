"""Cases 03, 04 and 05 of the shared folder: each numbered expectation is a test."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml

from dpcore.errors import InputError
from dpcore.preprocess import encoder_from_json
from tasks.data import load
from tasks.schema import Schema


def schema_of(**keys) -> Schema:
    base = {"schema_version": 1, "name": "case", "public": {"n": 10}}
    return Schema.model_validate({**base, **keys})


# --- 03: LETOR
# -----------------------------------------------------------------------------------------------------


def letor(features: int = 4, group: dict | None = None, **keys) -> Schema:
    return schema_of(
        unit="session",
        source={"format": "letor"},
        features=[{"name": "f", "count": features, "low": -1, "high": 1, **(group or {})}],
        label={"kind": "relevance", "low": 0, "high": 2},
        **keys,
    )


def raw(path: Path, schema: Schema) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from tasks.readers import open_chunks

    [chunk] = open_chunks(schema, [path])
    return chunk.table.toarray(), chunk.labels.astype(float), chunk.queries


def test_case_03_1_reads_documents_features_and_queries(shared):
    X, y, q = raw(shared / "cases/03-letor-parsing/good.letor", letor())
    assert X.tolist() == [
        [0.5, 0.25, 0, 1.0], [0.1, 0, 0.3, 0], [0, 0.75, 0.125, 0], [0.2, 0.2, 0.2, 0.2], [0, 0, 0, 0.5],
        [0.001, -0.5, 0, 0],
    ]  # fmt: skip
    assert y.tolist() == [2, 0, 1, 0, 1, 0]
    assert q.tolist() == ["30", "10", "30", "10", "10", "30"]


def test_case_03_2_groups_by_id_not_by_runs(shared):
    schema = letor()
    sessions = load(
        schema, schema.encoder(intercept=False), shared / "cases/03-letor-parsing/good.letor"
    ).train
    assert sessions.n == 2
    grades = {q: sessions.y[a:b].tolist() for q, a, b in zip(
        sessions.queries, sessions.documents.offsets[:-1], sessions.documents.offsets[1:], strict=True)}  # fmt: skip
    assert grades == {"30": [2, 1, 0], "10": [0, 0, 1]}


@pytest.mark.parametrize("salt", [str(k) for k in range(8)])
def test_case_03_3_a_query_stays_on_one_side(shared, salt):
    schema = letor(split={"kind": "hash", "test_share": 0.5, "salt": salt})
    try:
        loaded = load(schema, schema.encoder(), shared / "cases/03-letor-parsing/good.letor")
    except InputError as error:  # both queries on the test side
        assert "no row belongs to the training part" in str(error)
        return
    test = set() if loaded.test is None else set(loaded.test.queries)
    assert set(loaded.train.queries) | test == {"10", "30"}
    assert not set(loaded.train.queries) & test


@pytest.mark.parametrize(
    ("name", "line"), [("label", 2), ("no_qid", 3), ("value", 2), ("index", 2)]
)
def test_case_03_4_bad_files_are_refused_with_file_and_line(shared, name, line):
    path = shared / f"cases/03-letor-parsing/bad_{name}.letor"
    schema = letor(2)
    with pytest.raises(InputError, match=rf"bad_{name}\.letor, line {line}\b"):
        load(schema, schema.encoder(), path)


@pytest.mark.parametrize("sparse", [False, True])
def test_case_03_4_null_is_filled_where_the_schema_declares_it(shared, sparse):
    path = shared / "cases/03-letor-parsing/bad_value.letor"
    schema = letor(2, {"low": 0, "fill": 0.25, "missing": ["NULL"]})
    encoder = schema.encoder(normalise="none", intercept=False, sparse=sparse)
    loaded = load(schema, encoder, path)
    assert loaded.report.train["filled"] == {"f": 1}
    assert np.asarray(loaded.train.documents.X).tolist() == [[0.5, 0.1], [0.4, 0.25]]
    assert encoder_from_json(encoder.to_json()).groups == encoder.groups
    assert letor(2, {"fill": 0.25}, missing=["NULL"]).groups[0].missing == ("NULL",)
    without = letor(2, {"fill": 0.25})
    with pytest.raises(InputError, match=r"line 2: '.*NULL'.*declare a fill of its features and"):
        load(without, without.encoder(), path)


def test_case_03_5_width_is_declared(tmp_path):
    path = tmp_path / "gap.letor"
    path.write_text("1 qid:1 2:0.5\n0 qid:1 3:0.25\n")
    X, _, _ = raw(path, letor(5))
    assert X.tolist() == [[0, 0.5, 0, 0, 0], [0, 0, 0.25, 0, 0]]
    with pytest.raises(InputError, match=r"line 2: '3:0\.25': indices go from 1 to the 2 declared"):
        raw(path, letor(2))


# --- 04: scaling
# ---------------------------------------------------------------------------------------------------

TRAIN = [(0, 0, 0, 0), (0.25, 0, 0.75, 0.25), (1, 0, 1, 1), (0.4, 0, 0, 0)]
TEST = [(1, 0, 1, 1), (0, 0, 0, 0), (0.5, 0, 0.5, 0.5)]
THIRD = 0.577350269189626
UNIT_TRAIN = [
    (0, 0, 0, 0),
    (0.301511344578, 0, 0.904534033733, 0.301511344578),
    (THIRD, 0, THIRD, THIRD),
    (1, 0, 0, 0),
]
UNIT_TEST = [(THIRD, 0, THIRD, THIRD), (0, 0, 0, 0), (THIRD, 0, THIRD, THIRD)]


def scaling(shared: Path, fill: float | None = None, bounds: bool = True) -> Schema:
    declared = yaml.safe_load(
        (shared / "cases/04-scaling-constant-zero-outofrange/bounds.yaml").read_text()
    )
    columns = {
        name: {
            "kind": "numeric",
            "fill": fill,
            **({"low": b["min"], "high": b["max"]} if bounds else {}),
        }
        for name, b in declared.items()
    }
    return schema_of(columns=columns, label={"column": "label", "positive": "1", "negative": "0"})


def encoded(shared: Path, name: str, schema: Schema, **settings) -> np.ndarray:
    """The case has no label column: encode the file's frame as prediction does."""
    import pandas as pd

    frame = pd.read_csv(shared / f"cases/04-scaling-constant-zero-outofrange/{name}.csv")
    return schema.encoder(intercept=False, sparse=False, **settings).transform(frame)


@pytest.mark.parametrize(
    ("name", "scaled", "unit"), [("train", TRAIN, UNIT_TRAIN), ("test", TEST, UNIT_TEST)]
)
def test_case_04_1_to_4_right_values(shared, name, scaled, unit):
    schema = scaling(shared)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = encoded(shared, name, schema, normalise="none")
        unit_rows = encoded(shared, name, schema, normalise="unit")
        capped = encoded(shared, name, schema, normalise="cap")
    np.testing.assert_allclose(plain, scaled, atol=1e-9)
    np.testing.assert_allclose(unit_rows, unit, atol=1e-9)
    assert (np.linalg.norm(unit_rows, axis=1) <= 1 + 1e-12).all()
    norms = np.linalg.norm(np.array(scaled, float), axis=1, keepdims=True)
    np.testing.assert_allclose(capped, scaled / np.maximum(norms, 1), atol=1e-9)
    assert (np.linalg.norm(capped, axis=1) <= 1 + 1e-12).all()


def test_case_04_5_bad_cells_are_named_with_column_and_row(shared, tmp_path):
    schema = scaling(shared)
    path = tmp_path / "bad_cells.csv"
    lines = (
        (shared / "cases/04-scaling-constant-zero-outofrange/bad_cells.csv")
        .read_text()
        .splitlines()
    )
    path.write_text("\n".join([lines[0] + ",label", *(line + ",1" for line in lines[1:])]) + "\n")
    with pytest.raises(InputError) as caught:
        load(schema, schema.encoder(), path)
    message = str(caught.value)
    assert "\n" not in message
    for cell in (
        "data row 2, column 'balance'",
        "data row 3, column 'income'",
        "data row 4, column 'income'",
    ):
        assert cell in message
    assert "bad_cells.csv" in message and "fill" in message


def test_case_04_5_a_declared_fill_is_used(shared):
    X = encoded(shared, "bad_cells", scaling(shared, fill=0.0), normalise="none")
    np.testing.assert_allclose(X[:, 2:], [[0.5, 1e-4], [0.5, 2e-4], [0.5, 0], [0.5, 0]], atol=1e-12)


def test_case_04_6_missing_bounds_are_refused(shared):
    with pytest.raises(
        ValueError, match="Expected declared bounds low and high for column 'amount'"
    ):
        scaling(shared, bounds=False)


# --- 05: categories and labels
# -------------------------------------------------------------------------------------


def census(unknown: str = "zeros", strip_end: str = ".", **keys) -> Schema:
    return schema_of(
        columns={
            "sector": {
                "kind": "categorical",
                "levels": ["Gov", "NA", "Private"],
                "unknown": unknown,
            },
            "hours": {"kind": "numeric", "low": 0, "high": 80},
        },
        label={"column": "income", "positive": ">50K", "negative": "<=50K", "strip_end": strip_end},
        split={"kind": "file", "path": "test.csv"},
        **keys,
    )


@pytest.fixture
def case05(shared) -> Path:
    return shared / "cases/05-csv-categories-labels"


def test_case_05_1_to_5_right_values(case05):
    schema = census()
    encoder = schema.encoder(normalise="none", intercept=False, sparse=False)
    assert encoder.design.names == ("sector=Gov", "sector=NA", "sector=Private", "hours")
    loaded = load(schema, encoder, case05 / "train.csv")
    assert loaded.train.X[:, :3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    np.testing.assert_allclose(loaded.train.X[:, 3], [0.5, 0.25, 1, 0], atol=1e-12)
    assert loaded.train.y.tolist() == [-1, 1, -1, 1]
    assert loaded.test.X[:, :3].tolist() == [[0, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(loaded.test.X[:, 3], [0.75, 1], atol=1e-12)
    assert loaded.test.y.tolist() == [1, -1]
    assert loaded.report.test["unknown"] == {"sector": 1}
    assert loaded.report.test["clipped"] == {"hours": 1}
    counts = {"rows_train": 4.0, "rows_test": 2.0, "unknown_test": 1.0, "clipped_test": 1.0}
    assert loaded.report.counts() == counts  # what every run logs as internal metrics


def test_case_05_4_unknown_level_without_a_rule_is_refused(case05):
    schema = census(unknown="refuse")
    with pytest.raises(
        InputError,
        match=r"test\.csv: data row 2, column 'sector': 'Unpaid' is not "
        r"a declared level",
    ):
        load(schema, schema.encoder(), case05 / "train.csv")


def test_case_05_5_full_stop_needs_a_declaration(case05):
    schema = census(strip_end="")
    with pytest.raises(
        InputError,
        match=r"data row 1, column 'income': '>50K\.' is not a declared "
        r"label",
    ):
        load(schema, schema.encoder(), case05 / "train.csv")


def test_case_05_6_undeclared_label_is_refused(case05):
    schema = census()
    with pytest.raises(
        InputError,
        match=r"bad_label\.csv: data row 2, column 'income': '50K\+' is "
        r"not a declared",
    ):
        load(schema, schema.encoder(), case05 / "bad_label.csv")
