"""What follows from declarations: the input example, what a released model does on such rows, and
the data set as MLflow shows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from math import isclose, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from dpcore.features import Column, FeatureGroup

# Decimals that a table keeps as JSON.
ROUNDED = 1e-9
# What the column of a kind with scores of its own says.
OWN = "see the code that is stored with the model"
# Columns that the page of a version lists.
MOST_COLUMNS = 60
# Levels of a column that are named in words.
SHOWN = 20
CALIBRATED = {
    True: "calibrated by a charged histogram of scores by label",
    False: "not calibrated, it orders rows; what the loss takes the score for",
}


def example_columns(encoder: Mapping[str, Any], query: str | None = None) -> dict[str, list[Any]]:
    """Columns of two rows, from an encoder as a dict: lower bounds and first levels, upper bounds
    and last levels.

    ``query`` names the column of a ranking that says which documents belong together: here both.
    """
    rows: dict[str, list[Any]] = {} if query is None else {query: ["q1", "q1"]}
    if encoder["encoder"] == "matrix":
        groups = [FeatureGroup(**group) for group in encoder["groups"]]
        return rows | {
            name: [float(group.low), float(group.high)] for group in groups for name in group.names
        }
    columns: list[Any] = [Column.from_dict(column) for column in encoder["columns"]]
    return rows | {column.name: _ends(column) for column in columns}


def _ends(column: Any) -> list[Any]:
    """The first and the last value that a column is declared to hold."""
    if column.buckets:
        return ["made up", "made up as well"]
    if column.levels:
        return [column.levels[0], column.levels[-1]]
    if column.kind == "flag":
        return [0.0, 1.0]
    if column.kind == "date":
        return [str(column.low), str(column.high)]
    return [float(column.low), float(column.high)]


class DataInput(NamedTuple):
    """The data set of a training as MLflow shows it among a run's inputs: declarations alone, which
    an audit derives again from the committed encoder.
    """

    name: str
    digest: str
    source_type: str
    source: str
    schema: str | None
    profile: str | None
    tags: tuple[tuple[str, str], ...]


DIGITS = 32  # of a digest; MLflow takes 36 at most
MOST_COLUMNS = 200  # that are listed


def data_input(name: str, encoder: bytes) -> DataInput:
    """The input of a training on data set ``name`` whose declared columns are the file ``encoder``.

    Its digest is that of the declarations: of rows it has neither hash, count nor place. Raises
    what reading a text that is no encoder raises.
    """
    columns = example_columns(json.loads(encoder))
    kinds = [
        {"type": _kind(values[0]), "name": column, "required": True}
        for column, values in columns.items()
    ]
    source = {"tags": {"mlflow.source.name": f"schema {name}", "mlflow.source.type": "LOCAL"}}
    return DataInput(
        name=name,
        digest=sha256(encoder).hexdigest()[:DIGITS],
        source_type="code",
        source=json.dumps(source),
        schema=json.dumps({"mlflow_colspec": kinds[:MOST_COLUMNS]}),
        profile=None,
        tags=(("mlflow.data.context", "training"),),
    )


def _kind(value: object) -> str:
    return "string" if isinstance(value, str) else "double"


def in_words(encoder: Mapping[str, Any], card: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in MLmodel for people: what each column takes, and what the model answers.

    ``columns`` are those of a table by name, or groups of numbered ones; ``answers`` in the order
    of the model's table.
    """
    if encoder["encoder"] == "matrix":
        groups = [FeatureGroup(**group) for group in encoder["groups"]]
        columns = {
            f"{one.names[0]} to {one.names[-1]}": f"number, cut to {one.low:g} .. {one.high:g}"
            for one in groups
        }
    else:
        columns = {one["name"]: taken(Column.from_dict(one)) for one in encoder["columns"]}
    if "query" in card["label"]:
        columns = {card["label"]["query"]: "name of the query of a document"} | columns
    return {
        "columns": columns,
        "answers": {name: words for name, (_, words) in answers(card).items()},
    }


def columns_words(encoder: Mapping[str, Any], card: Mapping[str, Any]) -> str:
    """What the columns take and what the model answers, as MLflow's page of a version shows it."""
    found = in_words(encoder, card)
    lines: list[str] = []
    for title, words in found.items():
        named = list(words.items())
        lines += [
            f"**{title}**",
            "",
            *(f"- `{name}`: {text}" for name, text in named[:MOST_COLUMNS]),
        ]
        if len(named) > MOST_COLUMNS:
            lines.append(f"- and {len(named) - MOST_COLUMNS} more, which MLmodel names")
        lines.append("")
    return "\n".join(lines)


def taken(column: Column) -> str:
    """What a cell of a column may hold, and what stands for no value."""
    if column.buckets:
        kind = "any text"
    elif column.levels:
        more = f" and {len(column.levels) - SHOWN} more" if len(column.levels) > SHOWN else ""
        kind = f"one of {', '.join(map(str, column.levels[:SHOWN]))}{more}"
    elif column.kind == "flag":
        kind = "0 or 1"
    elif column.kind == "date":
        kind = f"date as {column.format} from {column.low} to {column.high}"
    else:
        kind = f"number, cut to {column.low:g} .. {column.high:g}"
    return kind if column.fill is None else f"{kind}; no value counts as {column.fill}"


def answers(card: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The columns of a model's answer in their order: MLflow's type, and what the column says."""
    if "outputs" in card:  # a kind with scores of its own says so itself
        return {str(name): (str(kind), OWN) for name, kind in card["outputs"].items()}
    label = card["label"]
    kind = label["kind"]
    if kind == "relevance":
        return {
            label["query"]: ("string", "the query"),
            "score": ("double", "higher is better, within the query"),
            "rank": ("long", "within the query, 1 for the best"),
        }
    if kind == "regression":
        words = f"predicted {label['column']}, in its own unit"
        return {"label": ("double", words), "score": ("double", "the same number")}
    found = {"label": ("string", f"predicted {label['column']}")}
    several = kind == "classes"
    if stated := card.get("probability"):
        of = "the label" if several else repr(label["positive"])
        found["probability"] = ("double", f"of {of}: {CALIBRATED[stated['calibrated']]}")
    score = (
        "largest score of a class, the one of the label"
        if several
        else f"margin: {label['positive']!r} from 0 on{_log_odds(card)}"
    )
    return found | {"score": ("double", score)}


def _log_odds(card: Mapping[str, Any]) -> str:
    return ", the log-odds of the probability" if card.get("probability") else ""


def is_example(stored: bytes, encoder: Mapping[str, Any], query: str | None = None) -> bool:
    """Whether a stored input example (JSON: ``columns``, ``data`` by rows) is the one made from the
    declarations.

    Raises what reading a text that is none raises: ``ValueError``, ``KeyError`` or ``TypeError``.
    """
    found, expected = json.loads(stored), example_columns(encoder, query)
    rows = list(zip(*expected.values(), strict=True))
    return list(found["columns"]) == list(expected) and _same_rows(found["data"], rows)


def _same_rows(found: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> bool:
    sizes = [len(row) for row in found] == [len(row) for row in expected]
    return sizes and all(
        _same(*pair)
        for rows in zip(found, expected, strict=True)
        for pair in zip(*rows, strict=True)
    )


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return isinstance(found, int | float) and isclose(
            found, expected, rel_tol=ROUNDED, abs_tol=ROUNDED
        )
    return bool(found == expected)


ROWS = 64
# Scores that differ by less than this share of their size differ by rounding.
ROUNDING = 1e-9


def fault(model: Mapping[str, bytes]) -> str:
    """Why a model is of no use on ``ROWS`` made-up rows, given its files; empty where it is of
    some.

    A model that gives every row one score ranks nothing and predicts one class or one number.
    Weights are released, and rows come from declared bounds and levels, so this reads no record.
    """
    card = json.loads(model["model.json"])
    with np.load(BytesIO(model["weights.npz"]), allow_pickle=False) as arrays:
        if not np.isfinite(arrays["weights"]).all():
            return "its weights are not numbers"
    _, found = scored_example(model)
    scores = found["score"].to_numpy(dtype=np.float64)
    if not np.isfinite(scores).all():
        return "its scores are too large to be numbers"
    spread, size = float(np.ptp(scores)), float(np.abs(scores).max())
    same_label = (
        "label" not in found
        or found["label"].nunique() == 1
        or card["label"]["kind"] == "regression"
    )
    if spread <= ROUNDING * size and same_label:
        return (
            "it gives every row the same score: "
            f"{'it orders nothing' if 'rank' in found else 'it tells nothing'}"
        )
    return ""


def scored_example(model: Mapping[str, bytes]) -> tuple[Any, Any]:
    """``ROWS`` made-up rows and what the model answers for them, as frames, given its files."""
    from pandas import DataFrame  # an auditor, who verifies a bundle, may not have it

    from tasks.kinds import own_scores
    from tasks.record.scoring import LinearScorer

    card = json.loads(model["model.json"])
    with TemporaryDirectory() as folder:
        for name, data in model.items():
            if "/" not in name:
                (Path(folder) / name).write_bytes(data)
        scorer = LinearScorer()
        scorer.read(Path(folder), own_scores(card))
        rows = DataFrame(made_up(json.loads(model["encoder.json"]), card["label"].get("query")))
        return rows, scorer.scored(rows)


def _numbers(rng: np.random.Generator, column: Column | None, first: float, last: float) -> Any:
    if column is not None and column.kind == "flag":
        return rng.integers(0, 2, ROWS).astype(float)
    return rng.uniform(first, last, ROWS)


def made_up(encoder: Mapping[str, Any], query: str | None) -> dict[str, Any]:
    """Columns of rows between the declared bounds and of the declared levels; of a ranking all
    documents of one query.
    """
    rng = np.random.default_rng(0)
    declared = [] if encoder["encoder"] == "matrix" else encoder["columns"]
    columns = {one["name"]: Column.from_dict(one) for one in declared}
    rows: dict[str, Any] = {}
    for name, (first, last) in example_columns(encoder, query).items():
        column = columns.get(name)
        if isinstance(first, float) and isfinite(first) and isfinite(last) and name != query:
            rows[name] = _numbers(rng, column, first, last)
        else:
            levels = () if column is None else column.levels
            values = np.array(list(levels) or [first, last], dtype=object)
            rows[name] = values[rng.integers(0, len(values), ROWS)]
    return rows
