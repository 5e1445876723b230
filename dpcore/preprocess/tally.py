"""Counts and faults of an encoding: what was clipped, filled, unknown, and which cells are refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from dpcore.errors import InputError

SHOWN = 10  # refused cells named in one message


@dataclass(slots=True)
class Tally:
    """Counts by column, internal to the operator: they are exact numbers about private rows.

    ``source`` names the file and ``rows`` counts the data rows already seen, so that a fault names the right row.
    """

    source: str = ""
    rows: int = 0
    places: np.ndarray | None = None  # where the rows of this piece stand in their chunk, if some were left out
    clipped: Counter[str] = field(default_factory=Counter)
    filled: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    capped: Counter[str] = field(default_factory=Counter)  # blocks whose parts summed to more than 1
    dropped: Counter[str] = field(default_factory=Counter)  # rows left out for an undeclared label
    faults: list[tuple[int, str]] = field(default_factory=list)

    def count(self, what: str, column: str, hits: np.ndarray) -> None:
        number = int(np.count_nonzero(hits))
        if number:
            getattr(self, what)[column] += number

    def fault(self, rows: np.ndarray, column: str, values: list[str], rule: str) -> None:
        """Record refused cells: 0-based ``rows`` of this chunk and what stands there."""
        for row, value in zip(rows[: SHOWN + 1], values, strict=False):
            number = self.rows + int(row if self.places is None else self.places[row]) + 1
            self.faults.append((number, f"data row {number}, column {column!r}: {value}; {rule}"))

    def raise_faults(self) -> None:
        """Raise one ``InputError`` that names the refused cells in row order, if there are any."""
        if not self.faults:
            return
        texts = [text for _, text in sorted(self.faults)]
        more = f" | and more in {len(texts) - SHOWN} or more cells" if len(texts) > SHOWN else ""
        self.faults.clear()
        place = f"{self.source}: " if self.source else ""
        raise InputError(place + " | ".join(texts[:SHOWN]) + more + ".")

    def to_dict(self) -> dict[str, dict[str, int]]:
        names = ("clipped", "filled", "unknown", "capped", "dropped")
        return {name: dict(getattr(self, name)) for name in names}
