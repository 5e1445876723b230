"""Data as the algorithms see them: a matrix, labels, and the public facts of the matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import issparse

from dpcore.errors import InputError
from dpcore.problem import Block


@dataclass(frozen=True, slots=True)
class Design:
    """Public facts of a design matrix, known before a row is seen.

    ``names`` (d,) are the column names; ``norm_bound`` bounds ||x||_2 of every row, constant column included;
    ``intercept`` says whether the last column is the constant.
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
            raise InputError(f"Expected as many labels as rows, got {self.X.shape[0]} rows and {len(self.y)} labels.")
        if self.X.shape[1] != self.design.dimension:
            raise InputError(f"Expected {self.design.dimension} columns as the design declares, got {self.X.shape[1]}.")

    @property
    def n(self) -> int:
        return self.X.shape[0]

    @property
    def sparse(self) -> bool:
        return bool(issparse(self.X))

    def take(self, rows: np.ndarray) -> Data:
        """The given rows, in the given order."""
        return Data(self.X[rows], self.y[rows], self.design)
