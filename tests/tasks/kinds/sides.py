"""A kind of model for the tests of registration: on which side of the middle of its bounds a
regression label lies.

``Table`` refuses a loss of margins for such a label. Nothing in the product knows of this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dpcore.accounting.observers import Iterates
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.train import Planned
from tasks.config import TrainConfig
from tasks.data import Loaded
from tasks.kinds.base import Array, Job, Kind, Metrics, Words
from tasks.schema import Schema


class Sides(Kind):
    """sign(y - middle) by a linear score; ``Job.model`` is the middle in the scale of the
    training.
    """

    name = "sides"
    report = "sides"
    param_names = ("sides.middle",)
    scores = Path(__file__).with_name("sides_scores.py")

    def fits(self, config: TrainConfig, schema: Schema) -> bool:
        return schema.label.kind == "regression" and config.objective.loss == "logistic"

    def describe(self, config: TrainConfig, schema: Schema) -> Job:
        encoder = schema.encoder(normalise="none", numeric="minmax", intercept=True)
        design, middle = encoder.design, float(np.mean(schema.label.scaled_to))
        problem = Problem(
            n=schema.n(),
            dimension=design.dimension,
            loss=Logistic(),
            adjacency=config.privacy.adjacency,
            norm_bound=design.norm_bound,
            blocks=design.blocks,
            intercept=True,
        )
        return Job(config, schema, config.algorithm, self, middle, encoder, problem, ("all",))

    def sums(self, job: Job, part: Any) -> LinearObjective:
        return LinearObjective(part.X, sides(job, part), job.problem.loss)

    def quality(self, job: Job, part: Any, weights: Array) -> Metrics:
        return {"right_side": float(np.mean(right(job, part, weights)))}

    def metric_names(self, job: Job) -> tuple[str, ...]:
        return ("right_side",)

    def baselines(self, job: Job, train: Any, part: Any, sums: Any) -> dict[str, Metrics]:
        majority = 1.0 if np.mean(sides(job, train)) >= 0 else -1.0
        return {"majority_": {"right_side": float(np.mean(sides(job, part) == majority))}}

    def by_record(self, job: Job, part: Any, weights: Array) -> tuple[str, Array]:
        return "right_side", right(job, part, weights)

    def counts(self, job: Job, data: Loaded) -> Metrics:
        return {"rows_above": float((sides(job, data.train) > 0).sum())}

    def iterates(self, job: Job, planned: Planned) -> Iterates:
        return Iterates(20, of="gradients", intercept=True)

    def curve(
        self, job: Job, iterates: Iterable[tuple[int, Array]], part: Any, sums: Any
    ) -> list[Metrics]:
        return [{"iteration": step, **self.quality(job, part, w)} for step, w in iterates]

    def curves(self, job: Job) -> tuple[str, ...]:
        return ("right_side",)

    def conventions(self, job: Job) -> dict[str, Any]:
        return {"middle": job.model}

    def save(self, folder: Path, job: Job, planned: Planned, weights: Array) -> dict[str, Any]:
        return {"sides": {"middle": job.model}}

    def words(self, job: Job, planned: Planned, weights: Array) -> Words:
        return Words(
            limits=("it tells sides of the middle, no values",), params={"sides.middle": job.model}
        )


def sides(job: Job, part: Any) -> Array:
    return np.where(part.y >= job.model, 1.0, -1.0)


def right(job: Job, part: Any, weights: Array) -> Array:
    return np.where(part.X @ weights >= 0.0, 1.0, -1.0) == sides(job, part)
