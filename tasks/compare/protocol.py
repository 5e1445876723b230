"""How often and on which parts of the data a comparison runs: repeats, folds, draws, and presets of the papers."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from dpcore.problem import Adjacency
from tasks.config import Count, Number, Section

Array = np.ndarray


class ProtocolSection(Section):
    """``repeats`` partitions of the training part into ``folds``, each trained with ``draws`` draws of the noise.

    With one fold the declared training part is trained on and the declared test part tested on. ``parts``: ranking data
    that come as partition files (S1, S2, ...) keep these as their folds, and repeats are draws. ``epsilon`` and
    ``delta`` are those of the source, used where the configuration names none.
    """

    name: str = Field(default="own", description="leave it out")
    repeats: Count = Field(default=1, description="1 or more")
    folds: Count = Field(default=3, description="1 (the declared split) or more")
    draws: Count = Field(default=1, description="1 or more")
    parts: bool = Field(default=False, description="true or false")
    epsilon: tuple[Number, ...] | None = Field(default=None, description="for example [0.1, 1]")
    delta: Number | None = Field(default=None, gt=0, lt=1, description="for example 1e-6")

    @property
    def partitions(self) -> int:
        """How many partitions into folds there are; partition files are one."""
        return 1 if self.parts else self.repeats

    @property
    def noise_draws(self) -> int:
        """Draws of the noise on each fold."""
        return self.repeats * self.draws if self.parts else self.draws

    @property
    def words(self) -> str:
        splits = "the declared split" if self.folds == 1 else f"{self.partitions} x {self.folds} folds"
        draws = self.noise_draws
        return f"{splits}, {draws} {'draw' if draws == 1 else 'draws'} of the noise each"


PROTOCOLS: dict[str, dict[str, Any]] = {
    "quick": {"repeats": 1, "folds": 3},
    "paper_ch3": {"repeats": 20, "folds": 5},
    "paper_ch4": {"repeats": 10, "folds": 10},
    "paper_ch5": {"repeats": 5, "folds": 10},
    "paper_ch6": {"repeats": 10, "folds": 5, "parts": True},
    "paper_003": {"repeats": 1, "folds": 1, "draws": 100, "epsilon": [0.1, 0.5, 1, 2], "delta": 1e-3},
}


def named_protocol(value: object) -> object:
    """A name as its section; chapters are those of Chen (2020), 003 is Zhang et al. (2017)."""
    if not isinstance(value, str):
        return value
    if value not in PROTOCOLS:
        raise ValueError(f"{', '.join(PROTOCOLS)}, or a section with repeats and folds")
    return {"name": value, **PROTOCOLS[value]}


def training_rows(n: int, adjacency: Adjacency, folds: int, fold: int) -> int:
    """Public count of the training part of a fold, from the public count ``n`` of all rows to be split.

    Exact under replace-one and replace-labels, where n is: fold f holds floor(n / folds) rows for testing, and one more
    for f < n mod folds. Under add/remove a nominal count: floor(n (folds - 1) / folds).
    """
    if folds == 1:
        return n
    if adjacency is Adjacency.ADD_REMOVE:
        return n * (folds - 1) // folds
    return n - n // folds - (fold < n % folds)


def fold_numbers(rows: int, folds: int, seed: int, repeat: int) -> Array:
    """The fold of each row (rows,), in parts of equal size by the public seed: the same for every algorithm."""
    return np.random.default_rng([seed, repeat]).permutation(np.arange(rows) % folds)


def secret_fold_numbers(rows: int, folds: int, secret: bytes, repeat: int) -> Array:
    """The fold of each row (rows,), independent and uniform by a secret seed.

    For private rows under add/remove, whose number is private: a balanced partition by place would move other rows to
    other folds when one is removed. With independent folds the runs on neighbours pair off, fold by fold, and a mixture
    over the secret seed is no easier to tell apart than its parts (joint quasi-convexity).
    """
    seed = int.from_bytes(secret, "big")
    return np.random.default_rng([seed, repeat]).integers(folds, size=rows)
