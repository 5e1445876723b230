"""Released metrics: noisy counts of right and wrong predictions, charged before they are drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.events import Events
from dpcore.errors import InputError
from dpcore.mechanisms import Laplace, laplace_for
from dpcore.preprocess.design import Data
from dpcore.problem import Adjacency
from dpcore.train import Planned
from tasks.kinds.base import Job, Sealed, Words
from tasks.kinds.charge import charge_of
from tasks.ledger import Ledger, charged_once
from tasks.options.base import Option, Run

Array = np.ndarray

FILE = "privacy/metrics.json"
STATEMENT = "privacy/statement.json"
METRICS = ("accuracy", "balanced_accuracy")
CHAMPION = "champion_"  # before the name of a metric: that of ``against``, on the same records
# Cells of two models: both right, the new one alone, the old one alone, neither.
MINE, THEIRS = (
    np.array([[1, 0], [1, 0], [0, 1], [0, 1]]),
    np.array([[1, 0], [0, 1], [1, 0], [0, 1]]),
)


@dataclass(frozen=True, slots=True)
class ConfusionCounts:
    """Private counts: true class (+1, -1) by right and wrong, shape (2, 2); beside another model
    ``against`` by which of the two is right, shape (2, 4). The data of one release.
    """

    data: Data
    weights: Array
    outputs: int
    against: Array | None = None

    @property
    def n(self) -> int:
        return self.data.n

    def _right(self, weights: Array) -> Array:
        """Which records a model predicts as they are labelled, shape (n,)."""
        if self.outputs > 1:
            scores = self.data.X @ weights.reshape(self.outputs, -1).T
            return np.asarray(np.argmax(scores, axis=1) == self.data.y)
        return np.asarray((np.asarray(self.data.X @ weights) >= 0) == (np.asarray(self.data.y) > 0))

    def cells(self) -> Array:
        """A record is in one cell, whatever the weights are."""
        right = self._right(self.weights)
        positive = np.ones_like(right) if self.outputs > 1 else np.asarray(self.data.y) > 0
        columns = [right, ~right]
        if self.against is not None:
            other = self._right(self.against)
            columns = [column & side for column in columns for side in (other, ~other)]
        cells = [[(rows & column).sum() for column in columns] for rows in (positive, ~positive)]
        return np.array(cells, dtype=np.float64)


def mechanism_of(job: Job) -> Laplace | None:
    """The mechanism of ``evaluate.release``, with its noise in the form of the run; None where it
    is not asked for.

    A record is in one cell, so an added one moves the counts by 1 in L1 and a replaced one by 2;
    Laplace noise of scale sensitivity / epsilon gives pure epsilon. No divisor is needed: the noisy
    counts give their own sum. Raises ``InputError`` for a metric that does not exist.
    """
    wanted = job.config.evaluate.release
    if wanted is None:
        return None
    if wanted.metric not in METRICS:
        raise InputError(
            f"Expected evaluate.release.metric {' or '.join(METRICS)}, got {wanted.metric!r}; take "
            "one."
        )
    sensitivity = 1.0 if job.problem.adjacency is Adjacency.ADD_REMOVE else 2.0
    return laplace_for(sensitivity, wanted.epsilon, job.config.privacy.noise)


def release_metrics(
    job: Job, weights: Array, loaded: Sealed, ledger: Ledger, folder: Path
) -> dict[str, float]:
    """Charge and draw the noisy counts; write ``privacy/metrics.json`` and return the metrics as
    ``released.NAME``.

    They are of the test part where there is one, else of the training records. The charge is an
    entry of its own.
    """
    mechanism, wanted = mechanism_of(job), job.config.evaluate.release
    if mechanism is None or wanted is None:
        return {}
    data: Any = loaded.open()
    part = data.train if data.test is None else data.test

    def tell(counts: Array, events: Events, entry: str) -> str:
        values, errors = measured(counts, mechanism.scale, wanted.metric)
        stored = {
            "schema_version": 1,
            "values": values,
            "standard_errors": errors,
            "counts": counts.tolist(),
            "records": "training part" if data.test is None else "test part",
            "mechanisms": json.loads(events.to_json()),
            "epsilon": mechanism.pure_epsilon,
            "ledger_entry": entry,
            "of": belongs_to(folder),
        }
        return json.dumps(stored, indent=1, sort_keys=True)

    against = None if wanted.against is None else np.array(wanted.against)
    records = ConfusionCounts(part, weights, job.problem.outputs, against)
    weights_sha256 = belongs_to(folder)["weights_sha256"]
    charge = replace(charge_of(job, as_read=data.read), weights_sha256=weights_sha256)
    counts, _ = charged_once(
        ledger,
        charge,
        mechanism,
        records,
        ConfusionCounts.cells,
        tell,
        "metrics",
        path=folder / FILE,
    )
    values, _ = measured(counts, mechanism.scale, wanted.metric)
    return {f"released.{name}": value for name, value in values.items()}


def measured(counts: Array, scale: float, metric: str) -> tuple[dict[str, float], dict[str, float]]:
    """``metric`` of noisy ``counts`` (2, 2), or of both models in (2, 4), with standard errors.

    A count of one model is a sum of two noisy cells then. What both get right or wrong moves both
    metrics alike, so their difference has the noise of the cells where they differ alone.
    """
    if counts.shape[1] == 2:
        parts = {metric: from_counts(counts, scale)}
    else:
        wide = scale * sqrt(2.0)
        parts = {
            metric: from_counts(counts @ MINE, wide),
            f"{CHAMPION}{metric}": from_counts(counts @ THEIRS, wide),
        }
    return (
        {name: values[metric] for name, (values, _) in parts.items()},
        {name: errors[metric] for name, (_, errors) in parts.items()},
    )


def belongs_to(folder: Path) -> dict[str, str]:
    """What the metrics are of: weights, configuration and ledger entry of the training, from its
    statement.
    """
    stated = json.loads((folder / STATEMENT).read_text(encoding="utf-8"))
    return {
        "weights_sha256": stated["weights_sha256"],
        "config_sha256": stated["config_sha256"],
        "training_entry": stated["ledger"]["entry"],
    }


def from_counts(counts: Array, scale: float) -> tuple[dict[str, float], dict[str, float]]:
    """Metrics of noisy ``counts`` (2, 2), and the standard error that Laplace noise of ``scale``
    gives them.

    The error is the first-order one of a ratio r / (r + w): sqrt(2) scale sqrt((1-p)^2 + p^2) / (r
    + w).
    """
    kept = np.maximum(counts, 0.0)
    right, total = kept[:, 0], np.maximum(kept.sum(axis=1), 1.0)
    share = float(right.sum() / total.sum())
    classes = right / total
    noise = sqrt(2.0) * scale

    def error(p: float, size: float, cells: int) -> float:
        return noise * sqrt(cells * ((1 - p) ** 2 + p**2)) / size

    parts = [error(float(p), float(size), 1) for p, size in zip(classes, total, strict=True)]
    values = {"accuracy": share, "balanced_accuracy": float(classes.mean())}
    return values, {
        "accuracy": error(share, float(total.sum()), 2),
        "balanced_accuracy": float(np.linalg.norm(parts) / 2),
    }


def require_against(job: Job) -> None:
    """Raise ``InputError`` where another model cannot be measured beside this one."""
    wanted = job.config.evaluate.release
    if wanted is None or wanted.against is None:
        return
    size = job.problem.dimension * job.problem.outputs
    if len(wanted.against) != size:
        raise InputError(
            f"Expected evaluate.release.against with {size} weights, as many as the model has, got "
            f"{len(wanted.against)}; take a model of the same columns."
        )
    if job.schema.split.kind == "none" and job.config.data.test_path is None:
        raise InputError(
            "Expected a test part for evaluate.release.against, got split.kind='none' in schema "
            f"{job.schema.name!r}: on records that one of two models was trained on they cannot be "
            "compared; declare a split, or compare on a public set (champion.data)."
        )


class NoisyMetric(Option):
    """An entry of its own, drawn once the training is committed."""

    name = "evaluate.release"
    asked = "config.evaluate.release"
    titles: ClassVar[Mapping[str, str]] = {"after_commit": "release metric"}
    files: ClassVar[tuple[str, ...]] = (FILE,)

    def check(self, job: Job) -> None:
        mechanism_of(job)
        require_against(job)

    def entry(self, job: Job) -> Events | None:
        mechanism = mechanism_of(job)
        if mechanism is None:
            return None
        return Events.of([mechanism], adjacency=job.problem.adjacency, unit=job.problem.unit)

    def after_commit(self, run: Run, ledger: Ledger) -> Run:
        found = release_metrics(run.job, run.weights, run.data, ledger, run.place)
        return replace(run, metrics={**run.metrics, **found})

    def words(self, job: Job, planned: Planned | None) -> Words:
        """What it lets out and what it costs beside the training."""
        wanted = job.config.evaluate.release
        assert wanted is not None
        part = (
            "trained on, who pays for both"
            if job.schema.split.kind == "none"
            else "of the test part"
        )
        of = "" if wanted.against is None else " of this model and of one before it"
        line = (
            f"{wanted.metric} with noise{of}, an entry of its own in the ledger: epsilon "
            f"{wanted.epsilon:g} more (delta 0) for one {job.problem.unit} {part}"
        )
        return Words(released=(line,), report={"released_metric": [line]})
