"""A draft says why: bounds, codes that stand apart, skew, rare levels, people, periods; and it
loads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcore.estimators import DPClassifier, DPRegressor
from dpcore.metrics import roc_auc
from tasks.data import load
from tasks.profile import Draft, draft_schema
from tasks.schema import ColumnSpec, Schema, find_schema

ROWS = 400
NUMBERS = ("numeric", "flag", "ordinal")


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(20, 80, ROWS)
    age[:7] = 999
    children = rng.integers(0, 5, ROWS)
    children[:9] = -1
    pay = rng.uniform(0, 100, ROWS).round(2)
    pay[3] = 54321.5
    towns = [f"t{int(k):02d}" for k in np.minimum(rng.geometric(0.04, ROWS), 70)]
    return pd.DataFrame(
        {
            "patientId": [f"p{k % 150}" for k in range(ROWS)],
            "age": age,
            "children": children,
            "pay": pay,
            "town": towns,
            "admitted": [f"{1 + k % 28:02d}.{1 + k % 12:02d}.2026" for k in range(ROWS)],
            "code": ["01" if k % 2 else "1e3" for k in range(ROWS)],
            "note": [f"free text {k}" for k in range(ROWS)],
            "died": ["yes" if a > 50 else "no" for a in age],
        }
    )


def drafted(frame: pd.DataFrame, folder: Path) -> tuple[Draft, str]:
    frame.to_csv(folder / "visits.csv", index=False)
    draft = draft_schema(folder / "visits.csv", "died")
    return draft, draft.text


def test_a_draft_gives_its_reasons_and_loads(frame: pd.DataFrame, tmp_path: Path) -> None:
    draft, text = drafted(frame, tmp_path)
    notes = "\n".join(draft.notes)
    assert "  # seen 20 to 999, rounded outward to two digits\n  # 999 stands apart" in text
    assert "age: 999 stands apart from the other numbers: a code for no value?" in notes
    assert "children: -1 stands apart" in notes
    assert "pay: skewed: 95 % are at most" in notes
    assert (
        "patientId: 150 different ids: if it says whose row a row is, declare kind: user" in notes
    )
    assert "12 months: to train by periods declare kind: block and block: {column: admitted" in text
    assert "made by reading private rows" in text and "show it to nobody" in text
    (tmp_path / "draft.yaml").write_text(text, encoding="utf-8")
    schema = find_schema(tmp_path / "draft.yaml")
    assert schema == Schema.model_validate(draft.values)
    assert schema.columns["code"].levels == ("01", "1e3")
    assert schema.columns["patientId"].kind == "id" and schema.columns["note"].kind != "categorical"
    assert load(schema, schema.encoder()).report.rows_train > 200


def test_rare_levels_share_a_column(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame["town"] = [f"t{k % 8}" if k % 6 else f"rare{k}" for k in range(ROWS)]
    draft, text = drafted(frame, tmp_path)
    town = draft.values["columns"]["town"]
    assert town["levels"] == [f"t{k}" for k in range(8)] and town["unknown"] == "other"
    assert "  # 8 of 75 levels, 67 rarer ones share a column (unknown: other)" in text


@pytest.mark.parametrize(
    "name", ["visits.xlsx", "visits.dta", "visits.feather", "visits.parquet", "visits.csv.xz"]
)
def test_tables_of_other_programs_are_drafted_alike(
    frame: pd.DataFrame, tmp_path: Path, name: str
) -> None:
    frame = frame.drop(columns="admitted")
    path = tmp_path / name
    if name.endswith("xlsx"):
        pytest.importorskip("openpyxl")
        frame.to_excel(path, index=False)
    elif name.endswith("dta"):
        frame.to_stata(path, write_index=False)
    elif name.endswith("xz"):
        frame.to_csv(path, index=False)
    else:
        getattr(frame, f"to_{name.partition('.')[2]}")(path)
    draft = draft_schema(path, "died")
    expected, _ = drafted(frame, tmp_path)
    assert draft.values["columns"] == expected.values["columns"]
    schema = Schema.model_validate(draft.values)
    assert load(schema, schema.encoder()).report.rows_train > 200


def test_a_column_of_queries_and_small_grades_are_a_ranking(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = {"query": np.repeat(np.arange(30), 8), "bm25": rng.random(240).round(3)}
    frame = pd.DataFrame({**rows, "grade": rng.integers(0, 3, 240)})
    frame.to_csv(tmp_path / "lists.csv", index=False)
    draft = draft_schema(tmp_path / "lists.csv", "grade")
    schema = Schema.model_validate(draft.values)
    assert (schema.label.kind, schema.label.high, schema.unit) == ("relevance", 2.0, "session")
    found: Any = load(schema, schema.encoder())
    assert found.train.n + found.test.n == 30
    assert any("grades of documents of 30 queries" in note for note in draft.notes)


TABLES = [
    ("adult/adult.data.gz", "c15", "adult-train"),
    ("bank/bank-full.csv.gz", "y", "bank"),
    ("bank/bank-additional-full.csv.gz", "y", "bank-additional"),
    ("credit/credit-card-clients.csv.gz", "default payment", "credit"),
    ("bike/hour.csv.gz", "cnt", "bike"),
    ("wine/winequality-red.csv", "quality", "wine-good"),
    ("wine/winequality-white.csv", "quality", "wine-good"),
    ("awkward/telco_churn.csv.gz", "Churn", "telco-churn"),
    ("awkward/titanic_train.csv", "Survived", "titanic"),
    ("awkward/hr_attrition.csv", "Attrition", "hr-attrition"),
    ("awkward/employee_turnover.csv", "event", "employee-turnover"),
    ("awkward/compas-two-years.csv.gz", "two_year_recid", "compas"),
    ("awkward/german_credit.csv", "credit", "german-credit"),
    ("adult/adult.test.gz", "c15", None),
    ("bank/BANK.dat.gz", "c33", "bank-dat"),
    ("kdd99/kddcup.data_10_percent.gz", "c42", "kddcup99"),
    ("adult/a9a.gz", None, "a9a"),
    ("adult/a9a.t.gz", None, "a9a"),
    *((f"letor/MQ2008/S{k}.txt.gz", None, "mq2008") for k in (2, 3, 4, 5)),
    ("letor/MQ2008/S1.txt.gz", None, "mq2008"),
]


DRAWS = 6  # of which the mean is compared


def trained(schema: Schema, path: Path) -> float:
    """Area under the curve of two classes, mean recall of several, or the share of squared error
    that is left, on the rows of a private fit; the mean of some draws.
    """
    data: Any = load(schema, schema.encoder(), path).train
    many = DRAWS if len(data.y) < 100_000 else 1
    if schema.label.kind == "regression":
        bounds: Any = {"target_bounds": (-1, 1), "intercept": "last"}
        fits = [DPRegressor(epsilon=4.0, n=len(data.y), **bounds) for _ in range(many)]
        left = [np.mean((fit.fit(data.X, data.y).predict(data.X) - data.y) ** 2) for fit in fits]
        return float(np.mean(left) / np.var(data.y))
    classes = sorted(set(data.y))
    scores = []
    for _ in range(many):
        model = DPClassifier(epsilon=4.0, n=len(data.y), classes=classes, intercept="last")
        right = model.fit(data.X, data.y).predict(data.X) == data.y
        recall = np.mean([right[data.y == c].mean() for c in classes])
        two = len(classes) == 2
        scores.append(roc_auc(data.y, model.decision_function(data.X)) if two else recall)
    return float(np.mean(scores))


def alike(drafted: ColumnSpec, declared: ColumnSpec) -> bool:
    """Both numbers or both levels; two levels are a flag."""
    if (drafted.kind == "flag" or len(drafted.levels) == 2) and (
        declared.kind == "flag" or len(declared.levels) == 2
    ):
        return True
    return (drafted.kind in NUMBERS) == (declared.kind in NUMBERS)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "label", "declared"), TABLES)
def test_a_draft_of_a_real_table_trains(
    shared: Path, name: str, label: str | None, declared: str | None
) -> None:
    """Beside the declared schema: most columns that are numbers or levels there are so here."""
    path = shared / "data" / name
    if not path.is_file():
        pytest.skip(f"no {name} in {shared}")
    draft = draft_schema(path, label)
    schema = Schema.model_validate(draft.values)
    known = schema if declared is None else find_schema(declared)
    if schema.label.kind == "relevance":
        assert load(schema, schema.encoder(), path).train.n > 100  # type: ignore[union-attr]
        assert sum(g.count for g in schema.features) == sum(g.count for g in known.features)
        return
    score = trained(schema, path)
    kind, large = schema.label.kind, (schema.public.n or 0) > 5000  # where noise is small
    chance = 1 / len(schema.label.levels) if kind == "classes" else 1 / 2
    if large:
        assert score < 0.9 if kind == "regression" else score > 1.2 * chance
    if kind == known.label.kind and large and not known.source.tag:
        reference = trained(known, path)  # five points of the area, a tenth of the variance
        assert score <= reference + 0.1 if kind == "regression" else score >= reference - 0.05
    assert np.isfinite(score)
    both = [c for c in schema.columns if c in known.columns and known.columns[c].feature]
    agree = [alike(schema.columns[c], known.columns[c]) for c in both if schema.columns[c].feature]
    assert not both or sum(agree) >= 0.9 * len(both), (len(agree), len(both))
