"""What every reader yields: raw rows of one stretch of a file, with bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcore.errors import InputError

CELLS = 1_500_000  # cells of one chunk


@dataclass(frozen=True, slots=True)
class Chunk:
    """``table``: a frame by column name, or a matrix (array or CSR) of features alone; ``labels``
    of a matrix, raw;
    ``queries``: the query id of each row (ranking files)."""

    table: pd.DataFrame | Any
    labels: np.ndarray | None = None
    queries: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return self.table.shape[0]

    def take(self, rows: np.ndarray) -> Chunk:
        """Some rows of this chunk by their positions."""
        table = self.table.iloc[rows] if isinstance(self.table, pd.DataFrame) else self.table[rows]
        kept = (None if part is None else part[rows] for part in (self.labels, self.queries))
        return Chunk(table, *kept)


def chunk_rows(columns: int) -> int:
    return max(1_000, CELLS // max(columns, 1))


def is_gzip(path: Path) -> bool:
    """Whether the file starts with gzip's mark, whatever its name."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def require_rows(path: Path) -> None:
    """Raise ``InputError`` for a file without bytes."""
    if path.stat().st_size == 0:
        raise InputError(f"{path}: the file is empty; give a file with rows.")


def truncated(path: Path) -> InputError:
    return InputError(f"{path}: the compressed file ends too early or is damaged; fetch it again.")
