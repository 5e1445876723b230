"""How well a trained ranker orders documents, beside random order, the best feature and the model without privacy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcore.ranking.metrics import ranking_report
from dpcore.ranking.model import RankingModel, Watched, metric_curve
from dpcore.ranking.sessions import Sessions
from dpcore.train import plan, run
from tasks.iteration_curves import curve_figure
from tasks.rankers import conventions, ranks

if TYPE_CHECKING:
    from tasks.data import Loaded
    from tasks.training import Job

Array = np.ndarray

REPORT = "report/ranking.json"
FIGURES = "figures/ranking"
# Ridge of the model without privacy where the run has none: without one it follows the training labels too closely.
BASELINE_L2 = {"listnet": 0.01, "listmle": 0.02, "bayesrank": 0.001}
NETWORK_STEPS = 60


def measure(job: Job, weights: Array, loaded: Loaded, sums: Watched, folder: Path | None = None) -> dict[str, float]:
    """MAP and NDCG@k, exact: internal, and released as well where the whole data set is declared public.

    On the test sessions where there are some, else on the training sessions. With ``folder`` the numbers are written
    to ``report/ranking.json`` with their conventions and, for an algorithm that releases every iterate, the curves
    over the iterations (figures too).
    """
    model = job.ranker
    assert model is not None and isinstance(loaded.train, Sessions)
    test = loaded.train if loaded.test is None else loaded.test
    assert isinstance(test, Sessions)
    iterates = [*sums.iterates, (sums.iterates.count, weights)]
    scores = {"": model.scores(weights, test.documents)}
    if job.config.evaluate.baselines:
        scores |= baselines(job, model, loaded.train, test, sums)
    reports = {name: quality(job, test, values) for name, values in scores.items()}
    exact = {f"{name}{key}": value for name, report in reports.items() for key, value in numbers(report).items()}
    found = {f"internal.{key}": value for key, value in exact.items()}
    counts = {"sessions_train": loaded.train.n, "sessions_test": test.n, "sessions_empty": reports[""]["empty_queries"]}
    found |= {f"internal.{key}": float(value) for key, value in counts.items()}
    if job.public:
        found |= {f"released.{key}": value for key, value in numbers(reports[""]).items()}
    if folder is not None:
        path = metric_curve(model, iterates, test, ranks(job.config), conventions(job.config))
        curve = [{at_name(key): value for key, value in row.items()} for row in path if len(iterates) > 2]
        write(job, folder, {name: numbers(report) for name, report in reports.items()}, curve)
    return found


def quality(job: Job, test: Sessions, scores: Array) -> dict[str, Any]:
    """The report of one ranking under the conventions of the configuration."""
    return ranking_report(test, scores, ranks(job.config), conventions(job.config))


def numbers(report: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a report under names that MLflow takes: map, ndcg_at_1, ..."""
    return {at_name(key): value for key, value in report.items() if isinstance(value, float)}


def defined(values: Mapping[str, float]) -> dict[str, float | None]:
    """``values`` with null for what is no number: the mean over no query that counts."""
    return {key: value if isfinite(value) else None for key, value in values.items()}


def at_name(key: str) -> str:
    return key.replace("@", "_at_")


def baselines(job: Job, model: RankingModel, train: Sessions, test: Sessions, sums: Watched) -> dict[str, Array]:
    """Scores by what has no guarantee; only their quality is kept.

    Random order: equal scores, whose metric is the mean over all orders (the worst one under ``ties: worst``).
    Best feature: the one of highest MAP on the training sessions, exactly; the bound of the private ``best_feature``.
    """
    raw = RankingModel(("raw",)).objective(train)
    best = int(np.argmax(raw.feature_precision_sum()))
    l2 = job.config.objective.l2 or BASELINE_L2[job.problem.loss.name]
    steps = {} if model.scorer == "linear" else {"steps": NETWORK_STEPS}
    exact = plan("non_private", steps, replace(job.problem, l1=0.0, l2=l2))
    weights = run(exact, sums.inner, seed=job.config.seed).weights
    return {
        "random_": np.zeros(len(test.y)),
        "best_feature_": test.documents.X[:, best],
        "non_private_": model.scores(weights, test.documents),
    }


def write(
    job: Job, folder: Path, reports: Mapping[str, Mapping[str, float]], curve: Sequence[Mapping[str, float]]
) -> None:
    """The numbers with their conventions as JSON, and the curves as figures."""
    names = {name.rstrip("_") or "model": defined(values) for name, values in reports.items()}
    curve = [row for row in curve if all(map(isfinite, row.values()))]
    stored = {
        "schema_version": 1,
        "internal": not job.public,
        "conventions": asdict(conventions(job.config)),
        "ndcg_ranks": list(ranks(job.config)),
        "metrics": names,
        "curve": list(curve),
    }
    (folder / REPORT).parent.mkdir(parents=True, exist_ok=True)
    (folder / REPORT).write_text(json.dumps(stored, indent=1), encoding="utf-8")
    if not curve:
        return
    (folder / FIGURES).mkdir(parents=True, exist_ok=True)
    last = f"ndcg_at_{max(ranks(job.config))}" if ranks(job.config) else "map"
    word = "" if job.public else " (internal)"
    for metric in dict.fromkeys(("map", last)):
        known = {name: values[metric] for name, values in names.items() if name != "model"}
        lines = {name.replace("_", " "): value for name, value in known.items() if value is not None}
        rows = [{"label": "private model", "curve": curve}]
        curve_figure(rows, lines, metric, f"{job.schema.name}, test sessions{word}", folder / FIGURES / f"{metric}.png")
