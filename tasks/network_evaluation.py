"""How well a trained network classifies, beside the majority class and Adam without privacy: internal numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcore.data import Data
from dpcore.metrics import average_precision, balanced_accuracy, brier_score, mean_recall, probabilities, roc_auc
from dpcore.ranking.model import Watched
from dpcore.train import plan, run
from tasks.iteration_curves import curve_figure
from tasks.network import class_numbers
from tasks.quality import means_by_group

if TYPE_CHECKING:
    from tasks.data import Loaded
    from tasks.training import Job

Array = np.ndarray

REPORT = "report/network.json"
FIGURES = "figures/network"
# Records that the curve of the objective is computed on.
CURVE_RECORDS = 10_000


def measure(job: Job, weights: Array, loaded: Loaded, sums: Watched, folder: Path | None = None) -> dict[str, float]:
    """Accuracy on the test part, else on the training records; exact: internal, released where the data are public.

    With ``folder`` the numbers are written to ``report/network.json`` with the curves over the iterations: accuracy,
    and the mean loss (with the L2 term) on at most 10,000 training records, as Fig. 5.5 of Chen (2020) shows them;
    accuracy by ``evaluate.subgroup`` goes to ``report/subgroups.json``.
    """
    from dpcore.network.objective import NetworkObjective

    spec, train = job.network, sums.inner
    assert spec is not None and isinstance(loaded.train, Data) and isinstance(train, NetworkObjective)
    test: NetworkObjective = train
    if isinstance(loaded.test, Data):
        test = NetworkObjective(train.network, loaded.test.X, class_numbers(loaded.test.y, spec))
    scores = test.scores(weights)
    found = {f"internal.{key}": value for key, value in quality(test, scores).items()}
    right = np.argmax(scores, axis=1) == test.y
    groups = means_by_group(job, right, "accuracy", loaded.groups, folder)
    found |= {f"internal.{key}": value for key, value in groups.items()}
    if job.config.evaluate.baselines:
        majority = np.bincount(train.labels.numpy(), minlength=spec.outputs).argmax()
        adam = run(plan("adam", {}, job.problem), train, seed=job.config.seed).weights
        found["internal.majority_accuracy"] = float(np.mean(test.y == majority))
        exact = quality(test, test.scores(adam))
        found |= {f"internal.non_private_{key}": value for key, value in exact.items()}
    found |= {f"internal.{key}": value for key, value in loaded.report.counts().items()}
    if job.public:
        found |= {f"released.{key}": value for key, value in quality(test, scores).items()}
    if folder is not None:
        iterates = [*sums.iterates, (sums.iterates.count, weights)]
        write(job, folder, found, curve(job, iterates, train, test) if len(iterates) > 2 else [])
    return found


def measured(job: Job, part: Data, weights: Array) -> dict[str, float]:
    """Quality of the network at ``weights`` on the records ``part``."""
    from dpcore.network.objective import NetworkObjective

    assert job.network is not None
    objective = NetworkObjective(job.network.build(), part.X, class_numbers(part.y, job.network))
    return quality(objective, objective.scores(weights))


def quality(objective: Any, scores: Array) -> dict[str, float]:
    """Accuracy, balanced accuracy and Brier score; of two classes ROC AUC and average precision of the lead as well.

    The same numbers as of linear models (``tasks.quality.predicted``): a softmax of scores is what cross-entropy takes
    for the chances of the classes, and of two classes their difference for the log-odds.
    """
    label = np.argmax(scores, axis=1)
    found = {"accuracy": float(np.mean(label == objective.y))}
    if scores.shape[1] > 2:
        chance = probabilities("softmax", scores)
        assert chance is not None
        return found | {
            "balanced_accuracy": mean_recall(objective.y, label),
            "brier_score": brier_score(objective.y, chance),
        }
    lead, y = scores[:, 1] - scores[:, 0], 2.0 * objective.y - 1.0
    chance = probabilities("logistic", lead)
    assert chance is not None
    return found | {
        "balanced_accuracy": balanced_accuracy(y, lead),
        "roc_auc": roc_auc(y, lead),
        "average_precision": average_precision(y, lead),
        "brier_score": brier_score(y, chance),
    }


def curve(job: Job, iterates: Iterable[tuple[int, Array]], train: Any, test: Any) -> list[dict[str, float]]:
    """Rows (iteration, accuracy, objective) for some of the iterates, which the algorithm released anyway."""
    stride = max(1, -(-train.n // CURVE_RECORDS))
    some = train.take(slice(0, None, stride))
    rows = []
    for iteration, w in iterates:
        loss = float(some.value_sum(w)[0]) / some.n + job.problem.l2 / 2 * float(w @ w)
        accuracy = float(np.mean(np.argmax(test.scores(w), axis=1) == test.y))
        rows.append({"iteration": iteration, "accuracy": accuracy, "objective": loss})
    return rows


def write(job: Job, folder: Path, metrics: Mapping[str, float], path: Sequence[Mapping[str, float]]) -> None:
    """The numbers as JSON, and the curves as figures."""
    stored = {"schema_version": 1, "internal": not job.public, "metrics": dict(metrics), "curve": list(path)}
    (folder / REPORT).parent.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_text(json.dumps(stored, indent=1), encoding="utf-8")
    if not path:
        return
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    word = "" if job.public else " (internal)"
    for metric in ("accuracy", "objective"):
        lines = {
            name: metrics[f"internal.{key}_{metric}"]
            for name, key in (("majority", "majority"), ("Adam, not private", "non_private"))
            if f"internal.{key}_{metric}" in metrics
        }
        rows = [{"label": "private network", "curve": path}]
        curve_figure(rows, lines, metric, f"{job.schema.name}{word}", folder / FIGURES / f"{metric}.png")


def step_figure(job: Job, notes: Sequence[Mapping[str, float]], folder: Path) -> None:
    """The step size of every iteration as ``figures/network/step_size.png``; nothing where none was noted.

    Notes follow from releases alone, so the figure may leave with them.
    """
    steps = [note["step_size"] for note in notes if "step_size" in note]
    if not steps:
        return
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    path = [{"iteration": number, "step_size": step} for number, step in enumerate(steps, 1)]
    rows = [{"label": job.config.algorithm.name, "curve": path}]
    curve_figure(rows, {}, "step_size", job.schema.name, folder / FIGURES / "step_size.png")
