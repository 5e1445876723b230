"""The ranking side of a training: model, public problem, session sums, and what only sessions can check.

How well a trained ranker orders documents, beside random order, the best feature and the model without privacy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcore.errors import InputError
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.losses import ranking_losses
from dpcore.ranking.metrics import PAPER, Conventions, ranking_report
from dpcore.ranking.model import USUAL, RankingModel, Watched, metric_curve
from dpcore.ranking.sessions import Sessions
from dpcore.train import Planned, plan, run
from dpcore.train.running import check_public_facts
from tasks.config import TrainConfig
from tasks.config.train import RankingSection
from tasks.drawing.curves import curve_figure
from tasks.readers.open import QUERY
from tasks.schema import Schema

if TYPE_CHECKING:
    from tasks.data import Loaded
    from tasks.kinds.base import Job


# A figure shows no more iterates than this, and each costs one pass over the test sessions.
MOST_ITERATES = 100


def is_ranking(schema: Schema) -> bool:
    """Whether the label is a grade of relevance."""
    return schema.label.kind == "relevance"


def describe(config: TrainConfig, schema: Schema) -> tuple[Encoder | MatrixEncoder, RankingModel, Problem]:
    """Encoder, model and public problem of a ranking; no file is opened.

    Raises ``InputError`` for what does not fit together.
    """
    check_sessions(config, schema)
    named = config.preprocess.model_dump(exclude_none=True)
    encoder = schema.encoder(**{"normalise": "none", **named, "intercept": False})
    model = ranker(config)
    l2 = config.objective.l2 or 0.0
    public = (encoder.design.dimension, schema.n(len(config.data.blocks or ()) or 1), config.privacy.adjacency)
    return encoder, model, model.public_problem(*public, l2=l2, l1=config.objective.l1)


def ranker(config: TrainConfig) -> RankingModel:
    """Features, scorer and loss of the configuration; the public seed gives a network its start."""
    section = config.ranking or RankingSection()
    loss = config.objective.loss
    if loss not in ranking_losses:
        raise InputError(
            f"Expected objective.loss {', '.join(ranking_losses)} for a label of kind relevance, got {loss!r}; "
            "conf/ranking.yaml is an example."
        )
    parameters = config.objective.loss_parameters
    model = RankingModel(
        features=section.features,
        scorer=section.scorer,
        hidden=section.hidden,
        activation=section.activation,
        seed=config.seed if section.scorer == "mlp" else 0,
        loss=loss,
        loss_parameters={key: as_whole(value) for key, value in parameters.items()},
    )
    model.make_loss()
    return model


def as_whole(value: float | str) -> float | int | str:
    """Whole numbers as such: a configuration holds floating-point numbers alone."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def conventions(config: TrainConfig) -> Conventions:
    """What MAP and NDCG mean in this run; what is left out is ours, or the source's with ``preset: paper``."""
    section, rule = config.ranking or RankingSection(), PAPER if config.algorithm.preset == "paper" else USUAL
    empty, divisor = section.empty or rule.empty, section.divisor or rule.divisor
    return Conventions(empty, section.ties, section.discount, divisor, section.relevant_from)


def ranks(config: TrainConfig) -> tuple[int, ...]:
    """The ranks k of NDCG@k."""
    return (config.ranking or RankingSection()).at


def check_sessions(config: TrainConfig, schema: Schema) -> None:
    """Raise ``InputError`` where a ranking schema lacks what a guarantee for sessions needs.

    With blocks ``rows_per_block`` counts sessions, and each session lies in one block (``tasks.data.rows``).
    """
    if schema.columns and (QUERY not in schema.columns or schema.columns[QUERY].feature):
        raise InputError(
            f"Expected a column {QUERY!r} of kind id in schema {schema.name!r}, whose rows are documents; declare it: "
            "documents of one session share its value."
        )
    if config.data.blocks and not schema.columns:
        raise InputError(
            f"Expected no data.blocks for sessions without declared columns, got {list(config.data.blocks)} with "
            f"schema {schema.name!r}: a block follows from a column; declare columns and block, or leave it out."
        )
    if schema.public.n is None and not config.data.blocks:
        raise InputError(
            f"Expected data.blocks for schema {schema.name!r}, which declares rows_per_block, got none; list the "
            "blocks to train on."
        )


def session_sums(model: RankingModel, problem: Problem, train: Any) -> Watched:
    """Private sums over the training sessions, checked against the public facts before anything is reserved."""
    if not isinstance(train, Sessions):
        raise InputError("Expected ranking sessions, got rows; use source.format letor, or a table with column query.")
    sums = Watched(model.objective(train), most=MOST_ITERATES)
    check_public_facts(problem, sums)  # type: ignore[arg-type]
    return sums


def with_documents(planned: Planned, sums: Watched) -> Planned:
    """The plan with the documents in its problem, where they are public; plan and price do not depend on them.

    Only the iterates of an algorithm that releases them all are remembered.
    """
    if planned.algorithm.releases != "every iterate":
        sums.iterates.forget()
    if planned.problem.adjacency is not Adjacency.REPLACE_LABELS:
        return planned
    return replace(planned, problem=replace(planned.problem, documents=sums.inner.public))


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
