"""How good a trained model is on the records, beside the exact baselines: internal numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpcore.data import Data
from dpcore.losses import Logistic
from dpcore.metrics import accuracy, balanced_accuracy, mean_squared_error, roc_auc
from dpcore.softmax import Softmax
from dpcore.train import plan, run
from tasks import network_evaluation, ranking_evaluation
from tasks.attributes import truth_covered
from tasks.data import Loaded
from tasks.training import Job, Sealed

Array = np.ndarray


def measure(
    job: Job, weights: Array, loaded: Sealed, objective: Sealed, folder: Path | None = None
) -> dict[str, float]:
    """Exact numbers on records: internal, unless the whole data set is declared public.

    On the test part where there is one, else on the training records. Keys carry their prefix. A ranking
    writes its conventions and curves to ``folder``.
    """
    data: Loaded = loaded.open()
    if job.ranker is not None:
        return ranking_evaluation.measure(job, weights, data, objective.open(), folder)
    if job.network is not None:
        return network_evaluation.measure(job, weights, data, objective.open(), folder)
    part: Any = data.train if data.test is None else data.test
    # The baselines are fitted to single rows; the sums of a training by users are those of other terms.
    wanted = job.config.evaluate.baselines and job.schema.unit == "record"
    scores = {"": weights, **(baselines(job, objective) if wanted else {})}
    found = {
        f"internal.{name}{key}": value for name, w in scores.items() for key, value in quality(job, part, w).items()
    }
    found |= {"internal.rows_train": float(data.report.rows_train), "internal.rows_test": float(data.report.rows_test)}
    if job.public:
        found |= {f"released.{key}": value for key, value in quality(job, part, weights).items()}
    return found


def baselines(job: Job, objective: Sealed) -> dict[str, Array]:
    """Weights of the exact baselines. They have no guarantee: only their quality is kept, as an internal number."""
    loss = Logistic() if isinstance(job.problem.loss, Softmax) else job.problem.loss
    problem = replace(job.problem, l1=0.0, loss=loss)
    names = ["non_private"] if job.schema.label.kind == "regression" else ["majority", "non_private"]
    return {f"{name}_": run(plan(name, {}, problem), objective.open(), seed=job.config.seed).weights for name in names}


def quality(job: Job, part: Data, weights: Array) -> dict[str, float]:
    """Accuracy, balanced accuracy and ROC AUC of a classifier; the mean squared error of a regression.

    Of several classes (weights (outputs * d,), class after class) the accuracy of the class with the largest score.
    Where the schema declares which columns matter, how many of them the weights find.
    """
    return predicted(job, part, weights) | truth_covered(job, weights)


def predicted(job: Job, part: Data, weights: Array) -> dict[str, float]:
    """How well labels are predicted."""
    if job.schema.label.kind == "classes":
        scores = part.X @ weights.reshape(job.problem.outputs, -1).T
        return {"accuracy": float(np.mean(np.argmax(scores, axis=1) == part.y))}
    score = np.asarray(part.X @ weights)
    if job.schema.label.kind == "regression":
        return {"mean_squared_error": mean_squared_error(part.y, score)}
    return {
        "accuracy": accuracy(part.y, score),
        "balanced_accuracy": balanced_accuracy(part.y, score),
        "roc_auc": roc_auc(part.y, score),
    }
