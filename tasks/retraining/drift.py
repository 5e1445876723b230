"""Drift: a noisy class share and noisy histograms of the newest block, charged to that block
alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from dpcore.accounting.events import Events
from dpcore.errors import BudgetExceeded, InputError
from dpcore.mechanisms import laplace_for
from dpcore.preprocess.design import Data
from dpcore.problem import Adjacency
from tasks import training
from tasks.config import TrainConfig
from tasks.kinds.base import reading_of
from tasks.kinds.charge import charge_of
from tasks.ledger import Ledger, charged_once
from tasks.options.rules import check_facts, declared
from tasks.schema import Schema

FILE = "drift.json"
BINS = 10
"""Cells of a numeric column, equally wide between its declared bounds."""


class Drift(NamedTuple):
    """What was released, as JSON text and as metrics; or, with empty ones, the word why nothing
    was.
    """

    text: str
    metrics: dict[str, float]
    note: str = ""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Private counts of one block of records: labels +1 and -1, then the cells of each column of
    the table.
    """

    data: Data

    @property
    def n(self) -> int:
        return self.data.n

    def counts(self) -> np.ndarray:
        """Counts, shape (cells,): a record adds at most 1 in L1 to the labels and to each
        column.
        """
        X = self.data.X if isinstance(self.data.X, np.ndarray) else self.data.X.toarray()
        parts = [np.array([(self.data.y > 0).sum(), (self.data.y < 0).sum()])]
        for block in self.data.design.blocks:
            columns = X[:, list(block.columns)]
            if block.kind == "numeric":
                cell = np.clip((columns[:, 0] * BINS).astype(int), 0, BINS - 1)
                parts.append(np.bincount(cell, minlength=BINS))
            else:
                parts.append(columns.sum(axis=0))
        return np.concatenate(parts).astype(np.float64)


def require_drift(epsilon: float | None, schema: Schema) -> None:
    """Raise ``InputError`` where no drift figures can be drawn of this data set."""
    if epsilon is None:
        return
    check_facts(declared(schema) | {"drift.epsilon": str(epsilon)})
    if not schema.columns:
        raise InputError(
            f"Expected a table with declared columns for drift.epsilon, got {schema.name!r}, a "
            "file of numbers; leave drift.epsilon out."
        )


def release_drift(epsilon: float, config: TrainConfig, block: str, ledger: Ledger) -> Drift:
    """Charge ``epsilon`` to ``block`` and release the class share and a histogram of every column
    of its records.

    One Laplace release of all counts: of B columns a record moves them by at most 1 + B in L1 when
    it is added, by 2 (1 + B) when it is replaced. A block without room gives no figures, and says
    so; the training stands.
    """
    job = training.prepare(config)
    schema = job.schema
    encoder = schema.encoder(
        normalise="none", numeric="minmax", intercept=False, sparse=False, crosses=()
    )
    design, adjacency = encoder.design, job.problem.adjacency
    sensitivity = (1.0 + len(design.blocks)) * (1.0 if adjacency is Adjacency.ADD_REMOVE else 2.0)
    mechanism = laplace_for(sensitivity, epsilon, config.privacy.noise)
    reading = reading_of(job, job.blocks if job.blocks == ("all",) else (block,), ("train",))
    loaded = reading.load(encoder, adjacency)
    assert isinstance(loaded.train, Data)

    def tell(counts: np.ndarray, events: Events, entry: str) -> str:
        stored = {
            "schema_version": 1,
            "block": block,
            "adjacency": str(adjacency),
            "epsilon": epsilon,
            "standard_error_of_a_count": sqrt(2.0) * mechanism.scale,
            "positive": counts[0],
            "negative": counts[1],
            "histograms": histograms(counts[2:], design),
            "mechanisms": json.loads(events.to_json()),
            "ledger_entry": entry,
        }
        return json.dumps(stored, indent=1, sort_keys=True)

    charge = charge_of(job, reading, loaded.read)
    try:
        counts, text = charged_once(
            ledger, charge, mechanism, BlockCounts(loaded.train), BlockCounts.counts, tell, "drift"
        )
    except BudgetExceeded as error:
        return Drift("", {}, f"no drift figures of {block}: {error}")
    kept = np.maximum(counts[:2], 0.0)
    share = float(kept[0] / max(float(kept.sum()), 1.0))
    return Drift(text, {"released.drift_positive_share": share})


def histograms(counts: np.ndarray, design: Any) -> dict[str, dict[str, float]]:
    """The noisy counts by column and cell; a numeric column has the number of its cell, from its
    lower bound on.
    """
    found: dict[str, dict[str, float]] = {}
    place = 0
    for block in design.blocks:
        names = [design.names[column] for column in block.columns]
        cells = [str(cell) for cell in range(BINS)] if block.kind == "numeric" else names
        found[names[0].partition("=")[0]] = dict(
            zip(cells, counts[place : place + len(cells)].tolist(), strict=True)
        )
        place += len(cells)
    return found
