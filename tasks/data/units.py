"""Whose row a row is: users, sessions and blocks by the identity rule; a row that names nobody is
refused.
"""

from __future__ import annotations

import re
from typing import Any
from unicodedata import is_normalized

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dpcore.errors import InputError
from dpcore.identity import BLANKS, BOOLEANS, NO_VALUE, plain_texts
from dpcore.preprocess.column_encoders import named
from dpcore.preprocess.design import SHOWN, EncodingReport
from tasks.schema import Schema


def unit_names(schema: Schema, cells: pd.Series, tally: EncodingReport, what: str) -> np.ndarray:
    """The canonical id of each row in a column of users, sessions or blocks (``what``), shape (n,),
    as texts.

    Rows without an id, or with a declared mark of no value, become faults of ``tally``: such rows
    of several people would be one unit. Raises ``InputError`` for numbers that stand for several
    ids.
    """
    name = str(cells.name)
    none = NO_VALUE | schema.marks(name)
    plain = _plain(schema, cells, none)
    if plain is not None:
        return plain
    codes, texts = unit_codes(schema, cells, tally)
    nobody = np.array([text in none for text in texts])
    rows = np.flatnonzero(nobody[codes])
    if len(rows):
        shown = [repr(text) if (text := texts[codes[r]]) else "no value" for r in rows[: SHOWN + 1]]
        tally.fault(
            rows,
            name,
            shown,
            f"every row needs its {what}; correct the row, or leave it out of the file",
        )
    return np.array(texts, dtype=object)[codes]


def _plain(schema: Schema, cells: pd.Series, none: frozenset[str]) -> np.ndarray | None:
    """The ids of cells that are canonical but for blanks and ``.0``; None where they are looked at
    one by one.
    """
    if isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "iu":
        return (
            None
            if any(text.lstrip("-").isdigit() for text in none)
            else cells.astype(str).to_numpy(dtype=object)
        )
    if not isinstance(cells.dtype, pd.StringDtype) or cells.hasnans:
        return None
    if cells.dtype.storage != "pyarrow":
        texts = cells.to_numpy(dtype=object)
        return texts if plain_texts(texts, none, schema.text.decimal) else None
    found = pa.array(cells.array)
    parts = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
    plain = [_plain_part(part, none, schema.text.strip, schema.text.decimal) for part in parts]
    if any(part is None for part in plain):
        return None
    names = [part.to_numpy(zero_copy_only=False) for part in plain] or [cells.to_numpy(object)]
    return names[0] if len(names) == 1 else np.concatenate(names)


class _Bytes:
    """The texts of an Arrow array as the bytes that they are, one after the other."""

    def __init__(self, part: Any) -> None:
        kind = np.int64 if pa.types.is_large_string(part.type) else np.int32
        _, offsets, data = part.buffers()
        self.starts = np.frombuffer(offsets, kind)[part.offset : part.offset + len(part) + 1]
        self.letters = np.frombuffer(data or b"", np.uint8)
        self.whole = self.letters[self.starts[0] : self.starts[-1]].tobytes()
        self.lengths = np.diff(self.starts)

    def has(self, text: str) -> bool:
        """Whether one of the texts is ``text``."""
        word = text.encode()
        rows = np.flatnonzero(self.lengths == len(word))
        for place, letter in enumerate(word):
            rows = rows[self.letters[self.starts[rows] + place] == letter]
        return bool(len(rows))


ASCII_BLANKS = "".join(letter for letter in BLANKS if letter.isascii())
WIDE_BLANKS = "".join(letter for letter in BLANKS if not letter.isascii())


def _plain_part(part: Any, none: frozenset[str], strip: bool, decimal: str) -> Any:
    """An array of canonical ids, as ``canonical`` gives them one by one, or None where this way is
    not sure of them.
    """
    seen = _Bytes(part)
    if not seen.whole.isascii():
        text = seen.whole.decode()
        if not is_normalized("NFC", text) or (
            strip and any(blank in text for blank in WIDE_BLANKS)
        ):
            return None
    if strip and any(blank.encode() in seen.whole for blank in ASCII_BLANKS):
        part = pc.ascii_trim(part, characters=ASCII_BLANKS)
        seen = _Bytes(part)
    if decimal == "." and _has_fraction(seen.whole, b"."):
        part = _whole_numbers(part)
        seen = _Bytes(part)
    if _has_fraction(seen.whole, decimal.encode()):
        return None
    return None if any(seen.has(text) for text in (*none, *BOOLEANS, "-0")) else part


def _has_fraction(letters: bytes, mark: bytes) -> bool:
    """Whether the mark stands between digits somewhere; a letter is found faster than a pattern,
    and mostly is not.
    """
    return (
        mark in letters
        and re.search(rb"(?<=[0-9])" + re.escape(mark) + rb"[0-9]", letters) is not None
    )


def _whole_numbers(part: Any) -> Any:
    """Texts that are a whole number and ``.0`` without the latter; digits without leading zeros
    alone are a number.
    """
    bare = pc.utf8_slice_codeunits(part, start=0, stop=-2)
    number = pc.and_(
        pc.ascii_is_decimal(bare), pc.or_(pc.invert(pc.starts_with(bare, "0")), pc.equal(bare, "0"))
    )
    return pc.if_else(pc.and_(number, pc.ends_with(part, ".0")), bare, part)


def unit_codes(
    schema: Schema, cells: pd.Series, tally: EncodingReport
) -> tuple[np.ndarray, list[str]]:
    """Codes (n,) into canonical texts, the last for no value; errors name file and column."""
    try:
        return named(cells, schema.text.strip, schema.text.decimal, unit=True)
    except InputError as error:
        place = f"{tally.source}: " if tally.source else ""
        raise InputError(f"{place}column {str(cells.name)!r}: {error}") from None
