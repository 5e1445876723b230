"""Which side of the split a row belongs to: a fact that a row keeps for ever, by its place or by
its cells' canonical texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse

from dpcore.errors import InputError
from dpcore.identity import canonical_texts
from dpcore.objective import compiled
from dpcore.preprocess.column_encoders import factors
from tasks.readers import Chunk
from tasks.schema import Schema
from tasks.schema.sections import TextSpec

PLAIN = TextSpec()
# Cells from which a compiled digest pays for loading it.
MANY = 2**15
# First cells of a column of numbers; among so many distinct ones few of all are alike.
SAMPLE, DISTINCT = 1024, 1008
# Bits of a floating-point number: of the same width, bias of the exponent, bits of the mantissa.
FLOATS: dict[int, tuple[type, int, int]] = {8: (np.uint64, 1023, 52), 4: (np.uint32, 127, 23)}


def test_rows(schema: Schema, chunk: Chunk, first_row: int) -> np.ndarray | None:
    """Boolean mask of the rows that belong to the test part; None where the file has no test rows.

    Documents of one query stay together: they go by a hash of the query id.
    """
    split = schema.split
    if split.kind == "tail":
        return np.arange(first_row, first_row + chunk.rows) >= (schema.public.n or 0)
    if split.kind not in ("hash", "position"):
        return None
    digests = Digests(split.salt, schema.text)
    return shares([digests.of_cells(cells) for cells in _told(schema, chunk, first_row)]) < (
        split.test_share
    )


def _told(schema: Schema, chunk: Chunk, first_row: int) -> list[pd.Series]:
    """The columns that say which side a row belongs to."""
    if schema.split.kind == "position":
        return [pd.Series(np.arange(first_row, first_row + chunk.rows))]
    if chunk.queries is not None:
        return [pd.Series(chunk.queries)]
    if not isinstance(chunk.table, pd.DataFrame):
        table = chunk.table.toarray() if issparse(chunk.table) else np.asarray(chunk.table)
        return [pd.Series(column) for column in table.T]
    for name in schema.split.by:
        if name not in chunk.table:
            raise InputError(
                f"Expected the split column {name!r} (split.by), which the table lacks; name "
                "another."
            )
    return [chunk.table[name] for name in schema.split.by or chunk.table.columns]


def hash_share(
    columns: list[tuple[np.ndarray, list]], salt: str, text: TextSpec = PLAIN
) -> np.ndarray:
    """A number in [0, 1) for each row, from the cells' canonical texts alone: the same in every
    file format, for ever.

    ``columns``: codes and distinct values of each column; the code -1 is for no value. A cell
    becomes 8 bytes of BLAKE2b of its text (keyed by ``salt``), by the identity rule with the blanks
    and the decimal mark of ``text``; a row the polynomial of its cells modulo 2^64, mixed at the
    end as in SplitMix64.
    """
    digests = Digests(salt, text)
    return shares([digests.of_values(uniques)[codes] for codes, uniques in columns])


def shares(columns: Iterable[np.ndarray]) -> np.ndarray:
    """The number in [0, 1) of each row from the digests of its cells, (n,) each."""
    row: Any = np.uint64(0)
    for digests in columns:
        row = row * np.uint64(0x9E3779B97F4A7C15) + digests
    row = (row ^ (row >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    row = (row ^ (row >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(((row ^ (row >> np.uint64(31))) >> np.uint64(11)) / 2.0**53)


class Digests:
    """8 bytes of BLAKE2b of canonical texts, as numbers (n,): compiled for many cells where passes
    are, with the same bits.
    """

    def __init__(self, salt: str, text: TextSpec = PLAIN) -> None:
        self.key, self.text = salt.encode()[:64], text

    def of_cells(self, cells: pd.Series) -> np.ndarray:
        """Of every cell."""
        if not (_is_number(cells.dtype) and self._compiled(len(cells))):
            codes, uniques = factors(cells)
            return self.of_values(uniques)[codes]
        values = np.ascontiguousarray(cells)
        if len(np.unique(values[:SAMPLE])) > DISTINCT:
            return self._of_numbers(values)
        codes, found = pd.factorize(values)
        return np.append(self._of_numbers(found), self.of_values([]))[codes]

    def of_values(self, values: Sequence[Any]) -> np.ndarray:
        """Of every value; one more at the end, of no value."""
        found = canonical_texts(values, self.text.strip, self.text.decimal)
        return self._of_texts([text.encode() for text in (*found, "")])

    def _of_texts(self, texts: list[bytes]) -> np.ndarray:
        if self._compiled(len(texts)):
            from tasks.data import split_kernels as kernels

            found = np.empty(len(texts), np.uint64)
            ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
            kernels.text_digests(
                np.frombuffer(b"".join(texts), np.uint8), ends, self._state(), found
            )
            return found
        told = [blake2b(text, digest_size=8, key=self.key).digest() for text in texts]
        return np.frombuffer(b"".join(told), ">u8").astype(np.uint64)

    def _of_numbers(self, values: np.ndarray) -> np.ndarray:
        from tasks.data import split_kernels as kernels

        found, left = np.empty(len(values), np.uint64), np.zeros(len(values), bool)
        if values.dtype.kind == "f":
            kind, bias, mantissa = FLOATS[values.itemsize]
            bits, wide = values.view(kind).astype(np.uint64), values.astype(np.float64)
            kernels.number_digests(wide, bits, bias, mantissa, self._state(), found, left)
        else:
            negative, sizes = values < 0, values.astype(np.uint64)
            sizes[negative] = np.uint64(0) - sizes[negative]
            kernels.whole_digests(sizes, negative, self._state(), found)
        if left.any():
            found[left] = self.of_values(list(values[left]))[:-1]
        return found

    def _state(self) -> np.ndarray:
        from tasks.data import split_kernels as kernels

        nothing = blake2b(b"", digest_size=8, key=self.key).digest()
        return kernels.state_of(self.key, int.from_bytes(nothing, "big"))

    def _compiled(self, count: int) -> bool:
        return count >= MANY and compiled.in_use()


def _is_number(kind: Any) -> bool:
    """Whether cells are of a type whose texts are written in compiled passes."""
    if not isinstance(kind, np.dtype):
        return False
    return kind.isnative and (kind.kind in "iu" or (kind.kind == "f" and kind.itemsize in FLOATS))
