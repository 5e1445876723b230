"""Rankers of documents in sessions: model, public problem, session sums, and what only sessions can
check.

How well a trained ranker orders documents, beside random order, the best feature and the model
without privacy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from dpcore.accounting.observers import Iterates
from dpcore.errors import InputError
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.losses import ranking_losses
from dpcore.ranking.metrics import NAMED, PAPER, Conventions, ranking_report
from dpcore.ranking.model import USUAL, RankingModel, metric_curve
from dpcore.ranking.objective import SessionObjective
from dpcore.ranking.sessions import Sessions
from dpcore.train import Planned, plan, run
from tasks.config import TrainConfig
from tasks.config.train import RankingSection
from tasks.data import Loaded
from tasks.kinds.base import Array, Job, Kind, Metrics, Words
from tasks.schema import QUERY, Schema

# A figure shows no more iterates than this, and each costs one pass over the test sessions.
MOST_ITERATES = 100
# Ridge of the model without privacy where the run has none: without one it follows the training
# labels too closely.
BASELINE_L2 = {"listnet": 0.01, "listmle": 0.02, "bayesrank": 0.001}
NETWORK_STEPS = 60
PUBLIC_DOCUMENTS = (
    "Documents, their features and which of them were shown together are taken as public, and the "
    "number of sessions too: what is protected is the labels of one session."
)


class Ranking(Kind):
    """A score of documents that orders those of each session; its model is a ``RankingModel``."""

    name = "sessions"
    report = "ranking"
    measured_on = ", test sessions"
    param_names = tuple(
        f"ranking.{key}"
        for key in ("features", "scorer", "at", *(field.name for field in fields(Conventions)))
    )
    by_objective = False
    bounds_norms = False
    in_partitions = True

    def fits(self, config: TrainConfig, schema: Schema) -> bool:
        return schema.label.kind == "relevance"

    def describe(self, config: TrainConfig, schema: Schema) -> Job:
        check_sessions(config, schema)
        named = config.preprocess.model_dump(exclude_none=True)
        encoder = schema.encoder(**{"normalise": "none", **named, "intercept": False})
        model, blocks = ranker(config), tuple(config.data.blocks or ())
        public = (encoder.design.dimension, schema.n(len(blocks) or 1), config.privacy.adjacency)
        problem = model.public_problem(
            *public, l2=config.objective.l2 or 0.0, l1=config.objective.l1
        )
        return Job(
            config, schema, config.algorithm, self, model, encoder, problem, blocks or ("all",)
        )

    def sums(self, job: Job, part: Any) -> SessionObjective:
        if not isinstance(part, Sessions):
            raise InputError(
                "Expected ranking sessions, got rows; use source.format letor, or a table with "
                "column query."
            )
        made: SessionObjective = job.model.objective(part)
        return made

    def runnable(self, planned: Planned, sums: Any) -> Planned:
        """The plan with the documents in its problem, where they are public; plan and price do not
        depend on them.
        """
        if planned.problem.adjacency is not Adjacency.REPLACE_LABELS:
            return planned
        return replace(planned, problem=replace(planned.problem, documents=sums.public))

    def quality(self, job: Job, part: Any, weights: Array) -> Metrics:
        """MAP and NDCG@k under the conventions of the configuration."""
        return ordered(job, part, job.model.scores(weights, part.documents))

    def metric_names(self, job: Job) -> tuple[str, ...]:
        cut = (f"map_at_{k}" for k in section(job.config).map_at)
        return "map", *cut, "ndcg", *(f"ndcg_at_{k}" for k in ranks(job.config))

    def baselines(self, job: Job, train: Any, part: Any, sums: Any) -> dict[str, Metrics]:
        """Random order: equal scores, whose metric is the mean over all orders (the worst one under
        ``ties: worst``).

        Best feature: the one of highest MAP on the training sessions, exactly; the bound of the
        private ``best_feature``.
        """
        best = int(np.argmax(RankingModel(("raw",)).objective(train).feature_precision_sum()))
        exact = plan("non_private", self.exact_parameters(job), self.exact_problem(job))
        weights = run(exact, sums, seed=job.config.seed).weights
        scores = {
            "random_": np.zeros(len(part.y)),
            "best_feature_": part.documents.X[:, best],
            "non_private_": job.model.scores(weights, part.documents),
        }
        return {name: ordered(job, part, values) for name, values in scores.items()}

    def counts(self, job: Job, data: Loaded) -> Metrics:
        test: Any = data.train if data.test is None else data.test
        largest = np.maximum.reduceat(test.y, test.documents.offsets[:-1])
        empty = int((largest < conventions(job.config).relevant_from).sum())
        found = {"sessions_train": data.train.n, "sessions_test": test.n, "sessions_empty": empty}
        return {name: float(value) for name, value in found.items()}

    def iterates(self, job: Job, planned: Planned) -> Iterates | None:
        """Those of an algorithm that releases them all."""
        return (
            Iterates(MOST_ITERATES, of="gradients")
            if planned.algorithm.releases == "every iterate"
            else None
        )

    def curve(
        self, job: Job, iterates: Iterable[tuple[int, Array]], part: Any, sums: Any
    ) -> list[Metrics]:
        path = metric_curve(job.model, iterates, part, ranks(job.config), conventions(job.config))
        return [{at_name(key): value for key, value in row.items()} for row in path]

    def curves(self, job: Job) -> tuple[str, ...]:
        at = ranks(job.config)
        return tuple(dict.fromkeys(("map", f"ndcg_at_{max(at)}" if at else "map")))

    def page(self, job: Job, named: Mapping[str, Metrics], found: Metrics) -> dict[str, Any]:
        """The metrics by model with their conventions; null for a mean over no query that
        counts.
        """
        metrics = {
            name.rstrip("_") or "model": {
                key: value if isfinite(value) else None for key, value in values.items()
            }
            for name, values in named.items()
        }
        return {
            "conventions": self.conventions(job),
            "ndcg_ranks": list(ranks(job.config)),
            "metrics": metrics,
        }

    def save(self, folder: Path, job: Job, planned: Planned, weights: Array) -> dict[str, Any]:
        return {"ranker": asdict(job.model)}

    def words(self, job: Job, planned: Planned, weights: Array) -> Words:
        shown = {"features": ",".join(job.model.features), "scorer": job.model.scorer}
        shown |= {**self.conventions(job), "at": ",".join(map(str, ranks(job.config)))}
        labels = planned.problem.adjacency == Adjacency.REPLACE_LABELS
        return Words(
            limits=(*((PUBLIC_DOCUMENTS,) if labels else ()), *limits(job.config)),
            params={f"ranking.{key}": value for key, value in shown.items()},
        )

    def conventions(self, job: Job) -> dict[str, Any]:
        return asdict(conventions(job.config))

    def encoding(self, job: Job) -> dict[str, Any]:
        """With what the metrics mean, for a preset may have conventions of its own."""
        meant = conventions(job.config)
        said = {
            name: getattr(meant, name) for name in ("empty", "discount", "divisor", "short", "gain")
        }
        own = section(job.config).model_copy(update={"conventions": None, **said})
        return {"preprocess": job.config.preprocess, "ranking": own}

    def encoding_words(self, job: Job) -> str:
        """Of documents: "raw rank", or with the widths of the network that scores them."""
        model = job.model
        network = (
            []
            if model.scorer == "linear"
            else [f"{model.scorer}{list(model.hidden)}", model.activation]
        )
        return " ".join([*model.features, *network])

    def convention_words(self, job: Job) -> str:
        meant = conventions(job.config)
        said = [f"empty {meant.empty}", meant.divisor, f"ties {meant.ties}"]
        return ", ".join([*said, *(f"{name} {value}" for name, value in unusual(meant).items())])

    def exact_problem(self, job: Job) -> Problem:
        """It has a ridge in any case, against overfitting."""
        l2 = job.config.objective.l2 or BASELINE_L2[job.problem.loss.name]
        return replace(job.problem, l1=0.0, l2=l2)

    def exact_parameters(self, job: Job) -> dict[str, Any]:
        return {} if job.model.scorer == "linear" else {"steps": NETWORK_STEPS}


def ranker(config: TrainConfig) -> RankingModel:
    """Features, scorer and loss of the configuration; the public seed gives a network its start."""
    chosen = section(config)
    loss = config.objective.loss
    if loss not in ranking_losses:
        raise InputError(
            f"Expected objective.loss {', '.join(ranking_losses)} for a label of kind relevance, "
            f"got {loss!r}; conf/ranking.yaml is an example."
        )
    parameters = config.objective.loss_parameters
    model = RankingModel(
        features=chosen.features,
        scorer=chosen.scorer,
        hidden=chosen.hidden,
        activation=chosen.activation,
        seed=config.seed if chosen.scorer == "mlp" else 0,
        loss=loss,
        loss_parameters={key: as_whole(value) for key, value in parameters.items()},
    )
    model.make_loss()
    return model


def as_whole(value: float | str) -> float | int | str:
    """Whole numbers as such: a configuration holds floating-point numbers alone."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def section(config: TrainConfig) -> RankingSection:
    """The section ``ranking``, which may be left out."""
    return config.ranking or RankingSection()


def conventions(config: TrainConfig) -> Conventions:
    """What MAP and NDCG mean in this run.

    What is left out is as in the script that ``ranking.conventions`` names, else as ours, or the
    source's with
    ``preset: paper``.
    """
    chosen = section(config)
    usual = PAPER if config.algorithm.preset == "paper" else USUAL
    rule = usual if chosen.conventions is None else NAMED[chosen.conventions]
    return Conventions(
        empty=chosen.empty or rule.empty,
        ties=chosen.ties,
        discount=chosen.discount or rule.discount,
        divisor=chosen.divisor or rule.divisor,
        relevant_from=chosen.relevant_from,
        short=chosen.short or rule.short,
        gain=chosen.gain or rule.gain,
    )


def unusual(meant: Conventions) -> dict[str, str]:
    """What sets two ways of NDCG apart, where it is not the usual one."""
    found = {name: getattr(meant, name) for name in ("discount", "short", "gain")}
    return {name: value for name, value in found.items() if value != getattr(USUAL, name)}


def limits(config: TrainConfig) -> list[str]:
    """What a statement has to say about the metrics of a ranking: they compare with their own kind
    alone.
    """
    meant = conventions(config)
    if meant == USUAL:
        return []
    named = next((f" as {name} takes them" for name, one in NAMED.items() if one == meant), "")
    said = "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in asdict(meant).items())
    return [f"MAP and NDCG{named} do not compare with those of other conventions ({said})"]


def ranks(config: TrainConfig) -> tuple[int, ...]:
    """The ranks k of NDCG@k."""
    return section(config).at


def check_sessions(config: TrainConfig, schema: Schema) -> None:
    """Raise ``InputError`` where a ranking schema lacks what a guarantee for sessions needs.

    With blocks ``rows_per_block`` counts sessions, and each session lies in one block
    (``tasks.data.rows``).
    """
    if schema.columns and (QUERY not in schema.columns or schema.columns[QUERY].feature):
        raise InputError(
            f"Expected a column {QUERY!r} of kind id in schema {schema.name!r}, whose rows are "
            "documents; declare it: documents of one session share its value."
        )
    if config.data.blocks and not schema.columns:
        raise InputError(
            "Expected no data.blocks for sessions without declared columns, got "
            f"{list(config.data.blocks)} with schema {schema.name!r}: a block follows from a "
            "column; declare columns and block, or leave it out."
        )
    if schema.public.n is None and not config.data.blocks:
        raise InputError(
            f"Expected data.blocks for schema {schema.name!r}, which declares rows_per_block, got "
            "none; list the blocks to train on."
        )


def ordered(job: Job, test: Sessions, scores: Array) -> Metrics:
    """MAP and NDCG@k of ``scores``, under names that MLflow takes: map, ndcg_at_1, ..."""
    map_at = section(job.config).map_at
    report = ranking_report(test, scores, ranks(job.config), conventions(job.config), map_at)
    return {at_name(key): value for key, value in report.items() if isinstance(value, float)}


def at_name(key: str) -> str:
    return key.replace("@", "_at_")
