"""How good a trained model is on the records, beside the exact baselines: internal numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpcore.algorithms import registry
from dpcore.losses import Logistic, Loss
from dpcore.objective.multiclass import Softmax
from dpcore.preprocess.design import Data
from dpcore.problem import Problem
from dpcore.train import plan, run
from tasks.data import Loaded
from tasks.kinds import network, sessions
from tasks.kinds.base import Job, Sealed
from tasks.kinds.quality import by_group, predicted, regression_errors, truth_covered
from tasks.kinds.sessions import BASELINE_L2

Array = np.ndarray


def measure(
    job: Job, weights: Array, loaded: Sealed, objective: Sealed, folder: Path | None = None
) -> dict[str, float]:
    """Exact numbers on records: internal, unless the whole data set is declared public.

    On the test part where there is one, else on the training records. Keys carry their prefix. A ranking writes its
    conventions and curves to ``folder``, a table the quality by ``evaluate.subgroup``.
    """
    data: Loaded = loaded.open()
    if job.ranker is not None:
        return sessions.measure(job, weights, data, objective.open(), folder)
    if job.network is not None:
        return network.measure(job, weights, data, objective.open(), folder)
    part: Any = data.train if data.test is None else data.test
    # The baselines are fitted to single rows; the sums of a training by users are those of other terms.
    wanted = job.config.evaluate.baselines and job.schema.unit == "record"
    scores = {"": weights, **(baselines(job, objective) if wanted else {})}
    losses = {"": job.problem.loss.name, "non_private_": baseline_loss(job).name}
    found = {
        f"internal.{name}{key}": value
        for name, w in scores.items()
        for key, value in quality(job, part, w, losses.get(name, "")).items()
    }
    if wanted and job.schema.label.kind == "regression":
        found |= {f"internal.mean_label_{key}": value for key, value in constant(job, data.train, part).items()}
    found |= {f"internal.{key}": value for key, value in by_group(job, part, weights, data.groups, folder).items()}
    found |= {f"internal.{key}": value for key, value in data.report.counts().items()}
    if job.public:
        found |= {f"released.{key}": value for key, value in quality(job, part, weights, losses[""]).items()}
    return found


def baselines(job: Job, objective: Sealed) -> dict[str, Array]:
    """Weights of the exact baselines. They have no guarantee: only their quality is kept, as an internal number.

    Without a constant column no weights stand for the majority class; a regression has the mean of its label instead
    (``constant``).
    """
    problem = exact_problem(job)
    has_majority = job.schema.label.kind != "regression" and problem.intercept
    names = ["majority", "non_private"] if has_majority else ["non_private"]
    # Threads of linear algebra find nothing to share in vectors of some hundred numbers, and spin: four times the time.
    with threadpool_limits(1):
        return {
            f"{name}_": run(plan(name, {}, problem), objective.open(), seed=job.config.seed).weights for name in names
        }


def exact_problem(job: Job) -> Problem:
    """What the line without privacy minimises, beside a training and in a comparison alike.

    No L1; of several classes each against the rest; the ridge of the configuration, for a penalty that one private
    algorithm needs for its proof would lower the ceiling. Rankers have one in any case, against overfitting.
    """
    given = job.config.objective.l2
    if job.ranker is not None:
        return replace(job.problem, l1=0.0, l2=given or BASELINE_L2[job.problem.loss.name])
    l2 = float(registry["non_private"].default_l2) if given is None else given
    return replace(job.problem, l1=0.0, l2=l2, loss=baseline_loss(job))


def baseline_loss(job: Job) -> Loss:
    """The loss of the baselines: of several classes each is fitted against the rest."""
    return Logistic() if isinstance(job.problem.loss, Softmax) else job.problem.loss


def constant(job: Job, train: Any, part: Data) -> dict[str, float]:
    """Errors on ``part`` of whoever predicts the mean of ``train.y`` for every record, by ``quality``'s names."""
    mean = float(np.mean(train.y))
    return regression_errors(job.schema.label, part.y, np.full(len(part.y), mean))


def quality(job: Job, part: Data, weights: Array, loss: str | None = None) -> dict[str, float]:
    """Metrics of the label (see ``predicted``); where the schema says which columns matter, how many are found.

    ``loss``: what the weights were trained with, by default the loss of the training.
    """
    if job.network is not None:
        return network.measured(job, part, weights)
    trained = job.problem.loss.name if loss is None else loss
    return predicted(job, part, weights, trained) | truth_covered(job, weights)
