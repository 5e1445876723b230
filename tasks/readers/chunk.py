"""What every reader yields: raw rows of one stretch of a file, with bounded memory."""

from __future__ import annotations

from codecs import lookup
from dataclasses import dataclass, replace
from io import TextIOWrapper
from typing import Any, TextIO

import numpy as np
import pandas as pd

from dpcore.errors import InputError
from tasks.readers.parts import Part, open_bytes

CELLS = 1_500_000  # cells of one chunk


# Column, 0-based rows of the chunk, what stands there, the rule.
Fault = tuple[str, np.ndarray, list[str], str]


class EmptyTable(InputError):
    """A file without a data row: refused where it is the only one, and no part where there are
    others.
    """


@dataclass(frozen=True, slots=True)
class Chunk:
    """``table``: a frame by column name, or a matrix (array or CSR) of features alone; ``labels``
    of a matrix, raw;
    ``queries``: the query id of each row (ranking files). ``source`` names the part that the rows
    came from, in which ``start`` rows precede them; ``faults`` are cells that the reader could not
    make a number of (NaN here)."""

    table: pd.DataFrame | Any
    labels: np.ndarray | None = None
    queries: np.ndarray | None = None
    source: str = ""
    start: int = 0
    faults: tuple[Fault, ...] = ()

    @property
    def rows(self) -> int:
        return int(self.table.shape[0])

    def take(self, rows: np.ndarray) -> Chunk:
        """Some rows of this chunk by their positions; its faults stay with the whole."""
        table = self.table.iloc[rows] if isinstance(self.table, pd.DataFrame) else self.table[rows]
        labels, queries = (
            None if part is None else part[rows] for part in (self.labels, self.queries)
        )
        return replace(self, table=table, labels=labels, queries=queries, faults=())


def chunk_rows(columns: int) -> int:
    return max(1_000, CELLS // max(columns, 1))


def require_rows(part: Part) -> None:
    """Raise ``EmptyTable`` for a file without bytes."""
    if part.stat().st_size == 0:
        raise EmptyTable(f"{part}: the file is empty; give a file with rows.")


def no_rows(part: Part) -> EmptyTable:
    """The error for a file that is well but for its rows, of which it has none."""
    return EmptyTable(f"{part}: the file has no data rows; give a file with rows.")


def open_text(part: Part, encoding: str, errors: str = "strict") -> TextIO:
    """The unpacked file as text, lines as they end; a byte order mark of UTF-8 is read over."""
    known = lookup(encoding).name
    raw = open_bytes(part)
    name = "utf-8-sig" if known == "utf-8" else known
    return TextIOWrapper(raw, encoding=name, errors=errors, newline="")
