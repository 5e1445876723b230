"""Whose row a row is: users, sessions and blocks by the identity rule; a row that names nobody is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from dpcore.identity import NO_VALUE, plain_texts
from dpcore.preprocess.column_encoders import named
from dpcore.preprocess.design import Tally
from tasks.schema import Schema


def unit_names(schema: Schema, cells: pd.Series, tally: Tally, what: str) -> np.ndarray:
    """The canonical id of each row in a column of users, sessions or blocks (``what``), shape (n,), as texts.

    Rows without an id, or with a declared mark of no value, become faults of ``tally``: such rows of several people
    would be one unit. Raises ``InputError`` for numbers that stand for several ids.
    """
    name = str(cells.name)
    none = NO_VALUE | schema.marks(name)
    plain = _plain(cells, none, schema.text.decimal)
    if plain is not None:
        return plain
    codes, texts = unit_codes(schema, cells, tally)
    nobody = np.array([text in none for text in texts])
    rows = np.flatnonzero(nobody[codes])
    if len(rows):
        shown = [repr(text) if (text := texts[codes[r]]) else "no value" for r in rows[:11]]
        tally.fault(rows, name, shown, f"every row needs its {what}; correct the row, or leave it out of the file")
    return np.array(texts, dtype=object)[codes]


def _plain(cells: pd.Series, none: frozenset[str], decimal: str) -> np.ndarray | None:
    """The cells as they stand, where all are surely canonical ids; None where they have to be looked at one by one."""
    if isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "iu":
        return None if any(text.lstrip("-").isdigit() for text in none) else cells.astype(str).to_numpy(dtype=object)
    if not isinstance(cells.dtype, pd.StringDtype) or cells.hasnans:
        return None
    texts = cells.to_numpy(dtype=object)
    return texts if plain_texts(texts, none, decimal) else None


def unit_codes(schema: Schema, cells: pd.Series, tally: Tally) -> tuple[np.ndarray, list[str]]:
    """Codes (n,) into canonical texts, the last for no value; errors name file and column."""
    try:
        return named(cells, schema.text.strip, schema.text.decimal, unit=True)
    except InputError as error:
        place = f"{tally.source}: " if tally.source else ""
        raise InputError(f"{place}column {str(cells.name)!r}: {error}") from None
