"""Data as the algorithms see them: a matrix, labels, and the public facts of the matrix.

Counts and faults of an encoding: what was clipped, filled, unknown, and which cells are refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from scipy.sparse import issparse

from dpcore.errors import InputError
from dpcore.problem import Block


@dataclass(frozen=True, slots=True)
class Design:
    """Public facts of a design matrix, known before a row is seen.

    ``names`` (d,) are the column names; ``norm_bound`` bounds ||x||_2 of every row, constant column
    included; ``intercept`` says whether the last column is the constant.
    """

    names: tuple[str, ...]
    norm_bound: float
    blocks: tuple[Block, ...] = ()
    intercept: bool = False

    @property
    def dimension(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class Data:
    """Features ``X`` (n, d), dense or CSR, labels ``y`` (n,) and the design that both follow."""

    X: np.ndarray
    y: np.ndarray
    design: Design

    def __post_init__(self) -> None:
        if self.X.shape[0] != len(self.y):
            raise InputError(
                f"Expected as many labels as rows, got {self.X.shape[0]} rows and {len(self.y)} "
                "labels."
            )
        if self.X.shape[1] != self.design.dimension:
            raise InputError(
                f"Expected {self.design.dimension} columns as the design declares, got "
                f"{self.X.shape[1]}."
            )

    @property
    def n(self) -> int:
        count: int = self.X.shape[0]
        return count

    @property
    def sparse(self) -> bool:
        return bool(issparse(self.X))

    def take(self, rows: np.ndarray) -> Data:
        """The given rows, in the given order."""
        return Data(self.X[rows], self.y[rows], self.design)


SHOWN = 20  # refused cells named in one message
ALONE = 3  # cells of one column up to this number have their own words


class FaultsHeld(Exception):
    """Cells are refused, and will be told with others of their file."""


@dataclass(slots=True)
class EncodingReport:
    """Counts by column, internal to the operator: they are exact numbers about private rows.

    ``source`` names the file and ``rows`` counts the data rows already seen, so that a fault names
    the right row. While ``held``, faults are kept until there are enough for one message, or
    whoever holds them asks for it.
    """

    source: str = ""
    rows: int = 0
    # where the rows of this piece stand in their chunk, if some were left out
    places: np.ndarray | None = None
    clipped: Counter[str] = field(default_factory=Counter)
    filled: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    # blocks whose parts summed to more than 1
    capped: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)  # rows left out for an undeclared label
    faults: list[tuple[int, str, str, str]] = field(default_factory=list)
    held: bool = False

    def begin(self, source: str, rows: int) -> None:
        """Go on to a piece of ``source`` that begins after ``rows`` rows; faults are held."""
        self.source, self.rows, self.places, self.held = source, rows, None, True

    def count(self, what: str, column: str, hits: np.ndarray) -> None:
        number = int(np.count_nonzero(hits))
        if number:
            getattr(self, what)[column] += number

    def fault(self, rows: np.ndarray, column: str, values: list[str], rule: str) -> None:
        """Record refused cells: 0-based ``rows`` of this chunk and what stands there."""
        for row, value in zip(rows[: SHOWN + 1], values, strict=False):
            number = self.rows + int(row if self.places is None else self.places[row]) + 1
            self.faults.append((number, column, value, rule))

    def raise_faults(self) -> None:
        """Raise one ``InputError`` that names the refused cells in row order, if there are any.

        Of a cell that was refused twice the first word counts. Raises ``FaultsHeld`` while faults
        are held.
        """
        if not self.faults:
            return
        first: dict[tuple[int, str], tuple[int, str, str, str]] = {}
        for fault in self.faults:
            first.setdefault(fault[:2], fault)
        if self.held and len(first) <= SHOWN:
            raise FaultsHeld
        faults = sorted(first.values())
        self.faults.clear()
        more = f" | and more in {len(faults) - SHOWN} or more cells" if len(faults) > SHOWN else ""
        groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for number, column, value, rule in faults[:SHOWN]:
            groups.setdefault((column, rule), []).append((number, value))
        place = f"{self.source}: " if self.source else ""
        texts = [
            text for (column, rule), cells in groups.items() for text in _texts(column, rule, cells)
        ]
        raise InputError(place + " | ".join(texts) + more + ".")

    def tell(self, *others: EncodingReport) -> None:
        """Raise what is held here and in ``others``, which are of the same file."""
        self.faults += [fault for other in others for fault in other.faults]
        self.held = False
        self.raise_faults()

    def to_dict(self) -> dict[str, dict[str, int]]:
        names = ("clipped", "filled", "unknown", "capped", "dropped")
        return {name: dict(getattr(self, name)) for name in names}


def _texts(column: str, rule: str, cells: list[tuple[int, str]]) -> list[str]:
    """What is wrong in cells of one column under one rule: each by itself, or many after the first
    one.
    """
    texts = [f"data row {number}, column {column!r}: {value}; {rule}" for number, value in cells]
    if len(cells) <= ALONE:
        return texts
    others = ", ".join(str(number) for number, _ in cells[1:])
    alike = "" if len({value for _, value in cells}) == 1 else ", with other values"
    return [f"{texts[0]} (and data rows {others}{alike})"]
