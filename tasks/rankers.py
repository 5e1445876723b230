"""The ranking side of a training: model, public problem, session sums, and what only sessions can check."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpcore.errors import InputError
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.losses import ranking_losses
from dpcore.ranking.metrics import PAPER, Conventions
from dpcore.ranking.model import USUAL, RankingModel, Watched
from dpcore.ranking.sessions import Sessions
from dpcore.train import Planned, check_public_facts
from tasks.config import RankingSection, TrainConfig
from tasks.readers.open import QUERY
from tasks.schema import Schema

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

    With blocks ``rows_per_block`` counts sessions, and each session lies in one block (``tasks.data.queries``).
    """
    if schema.unit != "session":
        raise InputError(
            f"Expected unit session for a label of kind relevance, got unit={schema.unit!r} in schema {schema.name!r}; "
            "privacy.adjacency says whether a session's labels or the whole session are protected."
        )
    if schema.bounds != "declared":
        raise InputError(
            f"Expected declared bounds, got bounds={schema.bounds!r} in schema {schema.name!r}; declare them."
        )
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
    if config.evaluate.release is not None:
        raise InputError(
            f"Expected no evaluate.release for ranking data {schema.name!r}, got metric "
            f"{config.evaluate.release.metric!r}: its noise is for counts of right predictions, which a ranking has "
            "not; leave it out, or measure on a data set that is declared public."
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
