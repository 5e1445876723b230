"""Two rows made up from declarations alone: the input example of a stored model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isclose
from typing import Any

from dpcore.features import Column, FeatureGroup

# Decimals that a table keeps as JSON.
ROUNDED = 1e-9


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
    for column in columns:
        if column.levels:
            rows[column.name] = [column.levels[0], column.levels[-1]]
        elif column.kind == "flag":
            rows[column.name] = [0.0, 1.0]
        elif column.kind == "date":
            rows[column.name] = [str(column.low), str(column.high)]
        else:
            rows[column.name] = [float(column.low), float(column.high)]
    return rows


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
