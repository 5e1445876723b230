"""Drafts for files of numbered features: LETOR with queries, SVMlight without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from dpcore.errors import InputError
from tasks.profile.labels import label_spec
from tasks.readers.chunk import open_text, require_rows


def pairs_values(path: Path, layout: str, bounds: Any, notes: list[str]) -> dict[str, Any]:
    """The fields of a schema for a LETOR or SVMlight file; ``bounds(cells, numbers)`` rounds
    outward.

    All features have the bounds of the widest: which of them are alike is not in the file. Absent
    features are 0.
    """
    require_rows(path)
    labels, queries = [], set()
    width, low, high = 0, 0.0, 0.0
    with open_text(path, "utf-8", "replace") as file:
        for number, line in enumerate(file, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            labels.append(words[0])
            for word in words[1:]:
                name, _, value = word.partition(":")
                if name == "qid":
                    queries.add(value)
                    continue
                try:
                    width, amount = max(width, int(name)), float(value)
                except ValueError:
                    raise InputError(
                        f"{path}, line {number}: {word!r} is no index:value; correct the line."
                    ) from None
                low, high = min(low, amount), max(high, amount)
    first, last = bounds(pd.Series([str(low), str(high)], name="features"), pd.Series([low, high]))
    notes.append(
        f"features: {width} of them, all with the bounds of the widest; give groups of "
        f"their own bounds"
    )
    cells = pd.Series(labels, name="label", dtype=object)
    values: dict[str, Any] = {"source": {"format": layout, "path": str(path)}}
    if layout == "letor":
        grades = pd.to_numeric(cells, errors="coerce")
        if grades.isna().any():
            raise InputError(
                f"{path}: Expected grades of relevance as labels, got "
                f"{cells[grades.isna()].iloc[0]!r}."
            )
        spec = {"column": "grade", "kind": "relevance", "low": 0, "high": max(1, int(grades.max()))}
        notes.append(f"{len(queries)} queries; a session is one query with its documents")
        values |= {"unit": "session", "public": {"n": len(queries)}}
    else:
        spec = label_spec(cells, bounds, notes)
        values |= {"public": {"n": len(labels)}}
    values["features"] = [{"name": "feature", "count": width, "low": first, "high": last}]
    return values | {"label": spec, "split": {"kind": "none"}}
