"""Which group of a declared column a row belongs to: for quality by group, an internal number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dpcore.errors import InputError, unknown_name
from dpcore.preprocess.parts import factors, named, parse_number

if TYPE_CHECKING:
    from tasks.schema import Schema

KINDS = ("categorical", "ordinal", "flag", "numeric", "ignore", "block")
PARTS = 4
NO_VALUE = "(no value)"


def check_group(schema: Schema, name: str) -> None:
    """Raise ``InputError`` for a column that is not declared or does not make groups."""
    if schema.label.kind == "relevance" or not schema.columns:
        raise InputError(
            f"Expected a table of declared columns for evaluate.subgroup={name!r}, got {schema.name!r}, which has none;"
            " leave it out."
        )
    if name not in schema.columns:
        raise unknown_name("column of evaluate.subgroup", name, schema.columns)
    spec = schema.columns[name]
    if spec.kind not in KINDS:
        raise InputError(
            f"Expected a column of kind {', '.join(KINDS)} for evaluate.subgroup, got {name!r} of kind {spec.kind};"
            " name another."
        )
    if spec.kind == "numeric" and not (isinstance(spec.low, int | float) and isinstance(spec.high, int | float)):
        raise InputError(f"Expected declared low and high of the evaluate.subgroup column {name!r}; declare them.")


def group_names(schema: Schema, name: str, cells: pd.Series) -> np.ndarray:
    """The group of each cell as text, shape (n,): its value, or the quarter of the declared bounds that it lies in."""
    spec = schema.columns[name]
    codes, texts = named(cells, schema.text.strip)
    if spec.kind == "numeric":
        column = spec.column(name, schema.missing)
        low, high = float(spec.low or 0.0), float(spec.high or 0.0)
        values = [parse_number(column, value, schema.text.strip) for value in factors(cells)[1]]
        texts = [*(_quarter(value, low, high) for value in values), NO_VALUE]
    else:
        blank = schema.marks(name) | {""}
        texts = [NO_VALUE if text in blank else text for text in texts]
    return np.array(texts, dtype=object)[codes]


def _quarter(number: float, low: float, high: float) -> str:
    if not np.isfinite(number):
        return NO_VALUE
    width = (high - low) / PARTS or 1.0
    part = min(max(int((number - low) / width), 0), PARTS - 1)
    return f"{low + part * width:g} to {low + (part + 1) * width:g}"
