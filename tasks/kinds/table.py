"""Linear models of a table: do schema, objective and promise belong together, private sums,
quality, exact baselines.

What fits together is decided from declarations alone, before a file is opened.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpcore.algorithms import registry
from dpcore.errors import InputError, unknown_name
from dpcore.losses import Logistic, Loss, Weighted, losses, plain_name
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective, Softmax
from dpcore.objective.shards import InShards, ShardedObjective, ShardedRows
from dpcore.objective.users import UserObjective
from dpcore.preprocess.design import Data
from dpcore.problem import Adjacency, Problem
from dpcore.train import Planned, plan, run
from dpcore.train.planning import encoding, resolve_name
from tasks.config import TrainConfig
from tasks.config.train import AlgorithmSection, ObjectiveSection, PreprocessSection
from tasks.data import Loaded, Reading
from tasks.data.cluster import RemoteRows
from tasks.kinds.base import Array, Job, Kind, Metrics, Words
from tasks.kinds.engine import by_counts, choose, on_workers, use_compiled
from tasks.kinds.quality import (
    BY_LABEL,
    columns_used,
    columns_words,
    is_sparse,
    predicted,
    regression_errors,
    right_or_error,
    truth_covered,
    write_table,
)
from tasks.schema import Schema


class Table(Kind):
    """One linear model of the rows of a table; of several classes one for each."""

    name = "table"
    coded = True

    def fits(self, config: TrainConfig, schema: Schema) -> bool:
        return True

    def describe(self, config: TrainConfig, schema: Schema) -> Job:
        blocks = tuple(config.data.blocks or ())
        loss = make_loss(config.objective, schema)
        try:
            encoder = schema.encoder(**encoding_of(config, loss, schema))
        except InputError as error:
            raise type(error)(f"preprocess: {error}") from None
        design = encoder.design
        check_fit(schema, loss, blocks)
        problem = Problem(
            n=schema.n(len(blocks) or 1),
            dimension=design.dimension,
            loss=loss,
            adjacency=config.privacy.adjacency,
            unit=schema.unit,
            l1=config.objective.l1,
            l2=l2_of(config, loss, schema.unit),
            norm_bound=design.norm_bound,
            blocks=design.blocks,
            intercept=design.intercept,
            outputs=len(schema.label.levels) if schema.label.kind == "classes" else 1,
        )
        algorithm = algorithm_for(config, problem)
        return Job(config, schema, algorithm, self, None, encoder, problem, blocks or ("all",))

    def check(self, job: Job) -> None:
        check_kept(job, "algorithm.keep")
        if job.schema.unit == "user":
            name = resolve_name(job.algorithm.name, plain_name(job.problem.loss), unit="user")
            check_user_level(job.config, job.schema, name)

    def load(self, job: Job, rows: Reading) -> Loaded:
        """As of every kind; how the rows are kept follows from public facts
        (``tasks.kinds.engine``).
        """
        choice = choose(job)
        fast = use_compiled(choice)
        if choice.kind == "dask":
            return on_workers(job, rows, fast)
        named = job.config.evaluate.subgroup
        return rows.load(job.encoder, job.problem.adjacency, named, choice.storage)

    def sums(self, job: Job, part: Any) -> LinearObjective | ShardedObjective:
        if not isinstance(part, Data):
            raise InputError(
                f"Expected a table of records in {job.schema.name!r}, got sessions; declare a "
                "label of kind relevance."
            )
        made = MulticlassObjective if job.schema.label.kind == "classes" else LinearObjective
        if isinstance(part.X, InShards):
            return part.X.objective(part.y, made, job.problem.loss)
        return made(part.X, part.y, job.problem.loss)

    def training_sums(
        self, job: Job, data: Loaded
    ) -> LinearObjective | ShardedObjective | UserObjective:
        rows = self.sums(job, data.train)
        sums = rows if job.schema.unit == "record" else by_user(job, rows, data)
        sums.check(job.problem)
        return sums

    def quality(self, job: Job, part: Any, weights: Array) -> Metrics:
        """Metrics of the label (see ``predicted``); how many columns are found where the schema
        says which matter.
        """
        loss = "" if job.algorithm.name == "majority" else job.problem.loss.name
        if isinstance(part, ShardedObjective):  # a fold
            return by_counts(part, weights)
        if isinstance(part.X, RemoteRows):
            return by_counts(self.sums(job, part), weights)
        part = few(part)
        return predicted(job, part, weights, loss) | truth_covered(job, weights)

    def metric_names(self, job: Job) -> tuple[str, ...]:
        return BY_LABEL[job.schema.label.kind]

    def baselines(self, job: Job, train: Any, part: Any, sums: Any) -> dict[str, Metrics]:
        """What is ``simplest``, and the model without privacy.

        The baselines are fitted to single rows in memory; the sums of a training by users are those
        of other terms.
        """
        if job.schema.unit != "record" or isinstance(train.X, InShards):
            return {}
        problem, simplest = self.exact_problem(job), self.simplest(job)
        names = {
            **({"majority": ""} if simplest == "majority" else {}),
            "non_private": problem.loss.name,
        }
        # Threads of linear algebra find nothing to share in vectors of some hundred numbers, and
        # spin: four times the time.
        with threadpool_limits(1):
            fitted = {
                name: run(plan(name, {}, problem), sums, seed=job.config.seed).weights
                for name in names
            }
        found = {
            f"{name}_": predicted(job, part, w, names[name]) | truth_covered(job, w)
            for name, w in fitted.items()
        }
        return found | (
            {"mean_label_": constant(job, train, part)} if simplest == "mean_label" else {}
        )

    def by_record(self, job: Job, part: Any, weights: Array) -> tuple[str, Array] | None:
        return right_or_error(job, part, weights)

    def shows(self, job: Job, planned: Planned) -> str:
        return "name the selected attributes" if is_sparse(job, planned) else ""

    def show(self, folder: Path, job: Job, planned: Planned, weights: Array) -> list[str]:
        return write_table(folder, job, planned, weights)

    def save(self, folder: Path, job: Job, planned: Planned, weights: Array) -> dict[str, Any]:
        used = columns_used(job, planned, weights)
        return {"uses": used} if used else {}

    def words(self, job: Job, planned: Planned, weights: Array) -> Words:
        return Words(released=tuple(columns_words(job, planned, weights)))

    def encoding(self, job: Job) -> dict[str, Any]:
        return {
            "preprocess": PreprocessSection(**encoding_of(job.config, job.problem.loss, job.schema))
        }

    def simplest(self, job: Job) -> str:
        """Without a constant column no weights stand for the majority class."""
        if job.schema.label.kind == "regression":
            return "mean_label"
        return "majority" if job.problem.intercept else ""

    def exact_problem(self, job: Job) -> Problem:
        """Of several classes each is fitted against the rest."""
        problem = super().exact_problem(job)
        return replace(problem, loss=Logistic()) if isinstance(problem.loss, Softmax) else problem


def make_loss(objective: ObjectiveSection, schema: Schema) -> Loss:
    """The loss with its parameters; raises with near misses for an unknown name or parameter.

    Several classes have ``softmax`` besides; any other loss then sees each class against the rest.
    """
    known_losses: dict[str, type] = {
        **losses,
        **({Softmax.name: Softmax} if schema.label.kind == "classes" else {}),
    }
    if objective.loss not in known_losses:
        raise unknown_name("loss", objective.loss, known_losses)
    kind = known_losses[objective.loss]
    known = list(getattr(kind, "__dataclass_fields__", {}))
    for name in objective.loss_parameters:
        if isinstance(objective.loss_parameters[name], str):
            raise InputError(
                f"Expected a number for objective.loss_parameters.{name}, got text; give a number."
            )
        if name not in known:
            raise unknown_name(
                f"parameter of loss {objective.loss!r}",
                name,
                known or ["none: it has no parameter"],
            )
    loss: Any = kind(**objective.loss_parameters)
    weights = schema.label.weights
    made: Loss = loss if weights is None else Weighted(loss, weights.positive, weights.negative)
    return made


def check_fit(schema: Schema, loss: Loss, blocks: tuple[str, ...]) -> None:
    """Raise ``InputError`` where schema and objective do not belong together."""
    if schema.label.kind == "regression" and loss.argument == "margin":
        raise InputError(
            f"Expected a loss of residuals for a regression label ({schema.name!r}), got "
            f"objective.loss={loss.name!r}; use squared or huber_regression."
        )
    if schema.unit == "user" and schema.public.rows_per_user is None:
        raise InputError(
            f"Expected public.rows_per_user for unit user in schema {schema.name!r}, got none; "
            "declare the most rows that a training keeps of one user."
        )
    if schema.public.n is None and not blocks:
        raise InputError(
            f"Expected data.blocks for schema {schema.name!r}, which declares rows_per_block, got "
            "none; list the blocks to train on."
        )


def check_kept(job: Job, where: str) -> None:
    """Raise ``InputError`` where more columns are to be kept than there are: a selection of all is
    paid for nothing.

    ``where``: the key that says how many.
    """
    keep = job.algorithm.parameters.get("keep")
    columns = job.problem.dimension - int(job.problem.intercept)
    if not isinstance(keep, int) or keep <= columns:
        return
    raise InputError(
        f"Expected {where} of at most {columns}, the encoded columns without the constant, got "
        f"{where}={keep}: all would be kept, and the selection paid for nothing; keep fewer, or "
        "train without a selection."
    )


# A table of fewer than half or more than twice the nominal count is more likely a wrong path than a
# nominal count.
FAR = 2.0


def count_warning(n: int, found: int, unit: str) -> str:
    """What the operator alone is told where the real count is far from the nominal one; empty where
    it is not.

    It is an exact number on records: it goes to the terminal, and nothing that is stored or decided
    depends on it. A refusal would be seen by others, so a table of the wrong size trains on, with
    noise for the declared size.
    """
    if n / FAR <= found <= n * FAR:
        return ""
    return (
        f"for the operator alone: {found} units ({unit}) were read for training, the schema "
        f"declares {n}. Path, split, blocks, public.n or public.rows_per_block may be wrong: steps "
        "and noise are those of the declared number."
    )


def class_warning(one_class: bool, label: str) -> str:
    """What the operator alone is told where all records have one label; as of ``count_warning``, it
    refuses nothing.
    """
    if not one_class:
        return ""
    return (
        f"for the operator alone: all training records have one label ({label!r}); path, split, "
        "label.positive or label.negative may be wrong. The training goes on, for a refusal would "
        "tell others so."
    )


# Algorithms whose bound uses one unit's loss only as one convex, Lipschitz, smooth term of the sum,
# or clips it.
USER_LEVEL = ("dp_sgd", "dp_adam", "output_gd")


def check_user_level(config: TrainConfig, schema: Schema, name: str) -> None:
    """Raise ``InputError`` where a bound for one record is none for one user with several of
    them.
    """
    if name in ("objective_perturbation", "amp"):
        reason = (
            "its proof needs a unit whose Hessian has rank one, and that of a user with m rows has "
            "rank m"
        )
    elif name not in USER_LEVEL:
        reason = "its releases or its clipping go by single rows"
    else:
        return
    raise InputError(
        f"Expected an algorithm with user-level sensitivity for {schema.name!r}, got "
        f"algorithm.name={name!r}: {reason}; use {', '.join(USER_LEVEL)}."
    )


def encoding_of(config: TrainConfig, loss: Loss, schema: Schema) -> dict[str, Any]:
    """Settings of the encoder: those of the configuration, else those that go with the algorithm.

    A file of numbers has no columns to be taken apart, so there each number stays one column.
    """
    rule = encoding(config.algorithm.name, plain_name(loss), unit=schema.unit)
    if schema.features:
        rule = rule | {"numeric": "minmax"}
    named = config.preprocess.model_dump(exclude_none=True)
    return rule | named


def algorithm_for(config: TrainConfig, problem: Problem) -> AlgorithmSection:
    """The algorithm with ``evaluate.goal`` among its parameters where that is not accuracy.

    Raises ``InputError`` where ``algorithm.goal`` says another, or the algorithm knows none.
    """
    goal, algorithm = config.evaluate.goal, config.algorithm
    own = algorithm.parameters.get("goal")
    if own is not None and own != goal and "goal" in config.evaluate.model_fields_set:
        raise InputError(
            f"Expected one goal, got evaluate.goal={goal!r} and algorithm.goal={own!r}; leave the "
            "latter out."
        )
    if goal == "accuracy":
        return algorithm
    name = resolve_name(algorithm.name, plain_name(problem.loss), unit=problem.unit)
    if name != "scaled_gd":
        raise InputError(
            f"Expected algorithm.name auto or scaled_gd for evaluate.goal={goal!r}, got {name!r}; "
            "leave the goal out, and set clip_norm by hand."
        )
    return algorithm.model_copy(update={"goal": goal})


def l2_of(config: TrainConfig, loss: Loss, unit: str = "record") -> float:
    """The ridge of the configuration, else the public rule of the algorithm (none where it needs
    none).
    """
    if config.objective.l2 is not None:
        return config.objective.l2
    name = resolve_name(config.algorithm.name, plain_name(loss), unit=unit)
    return float(registry[name].default_l2)


# Records of a sharded part that metrics are measured on: evenly spread, so that they fit in memory.
MEASURED = 2**18


def few(part: Any) -> Any:
    """``part`` itself, or of one in shards about ``MEASURED`` records, every k-th."""
    if not isinstance(part.X, ShardedRows):
        return part
    stride = -(-part.n // MEASURED)
    rows: Any = part.X.every(stride)
    return Data(rows, np.asarray(part.y[::stride]), part.design)


def by_user(job: Job, objective: Any, data: Loaded) -> UserObjective:
    """The same sums with a user as what is drawn, clipped and counted; checked against the public
    number of users.
    """
    assert job.schema.public.rows_per_user is not None and data.users is not None
    users = UserObjective(objective, data.users, job.schema.public.rows_per_user, canonical=True)
    if job.problem.adjacency is Adjacency.REPLACE_ONE and users.n != job.problem.n:
        raise InputError(
            f"Expected exactly {job.problem.n} users under replace_one, where their number is "
            f"public, got {users.n}; declare it in public.n, or use adjacency add_remove."
        )
    return users


def constant(job: Job, train: Any, part: Any) -> Metrics:
    """Errors on ``part`` of whoever predicts the mean of ``train.y`` for every record, by the names
    of ``quality``.
    """
    mean = float(np.mean(train.y))
    return regression_errors(job.schema.label, part.y, np.full(len(part.y), mean))
