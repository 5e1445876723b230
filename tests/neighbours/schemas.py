"""Declarations of the tables of ``world``, as YAML that a person would write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FEATURES = ("a", "b")
N = 50  # the declared count; add/remove data have whatever number of units they have


def table(unit: str, **sections: Any) -> dict[str, Any]:
    """A table of people with two numbers and a label; ``sections`` go over it."""
    kind = {"user": "user", "record": "id", "session": "id"}[unit]
    public = {"n": N} | ({"rows_per_user": 2} if unit == "user" else {})
    numbers = {name: {"kind": "numeric", "low": 0, "high": 1} for name in FEATURES}
    return {
        "schema_version": 1,
        "name": "visits",
        "unit": unit,
        "public": public,
        "missing": ["?"],
        "columns": {"who": {"kind": kind}, "day": {"kind": "block"}, **numbers},
        "label": {"column": "y", "positive": 1, "negative": 0},
        "source": {"path": "part0.csv"},
    } | sections


def sessions(form: str, **sections: Any) -> dict[str, Any]:
    """Documents with grades: a file of LETOR or SVMlight lines, or a table with a column
    ``query``.
    """
    shape: dict[str, Any] = {
        "schema_version": 1,
        "name": "shown",
        "unit": "session",
        "public": {"n": N},
        "missing": ["?"],
        "label": {"kind": "relevance", "low": 0, "high": 2},
        "source": {"format": form, "path": "part0.txt"},
        "features": [{"name": "f", "count": 2}],
    }
    return shape | sections


def write_schema(values: dict[str, Any], folder: Path) -> Path:
    """Write the declaration with a ledger of its own beside it."""
    path = folder / "schema.yaml"
    path.write_text(
        yaml.safe_dump(values | {"ledger": f"sqlite:///{folder / 'ledger.db'}"}, sort_keys=False)
    )
    return path
