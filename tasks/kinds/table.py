"""Do schema, objective and promise belong together? Decided from declarations alone, before a file is opened."""

from __future__ import annotations

from typing import Any

from dpcore.algorithms import registry
from dpcore.errors import InputError, unknown_name
from dpcore.losses import Loss, Weighted, losses, plain_name
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import Softmax
from dpcore.objective.users import UserObjective
from dpcore.problem import Adjacency
from dpcore.train.auto import encoding, resolve_name
from tasks.config import TrainConfig
from tasks.config.train import ObjectiveSection
from tasks.kinds.base import Job, Sealed
from tasks.options.select import algorithm_of
from tasks.schema import Schema


def make_loss(objective: ObjectiveSection, schema: Schema) -> Loss:
    """The loss with its parameters; raises with near misses for an unknown name or parameter.

    Several classes have ``softmax`` besides; any other loss then sees each class against the rest.
    """
    known_losses: dict[str, type] = {**losses, **({Softmax.name: Softmax} if schema.label.kind == "classes" else {})}
    if objective.loss not in known_losses:
        raise unknown_name("loss", objective.loss, known_losses)
    kind = known_losses[objective.loss]
    known = list(getattr(kind, "__dataclass_fields__", {}))
    for name in objective.loss_parameters:
        if isinstance(objective.loss_parameters[name], str):
            raise InputError(f"Expected a number for objective.loss_parameters.{name}, got text; give a number.")
        if name not in known:
            raise unknown_name(f"parameter of loss {objective.loss!r}", name, known or ["none: it has no parameter"])
    loss: Loss = kind(**objective.loss_parameters)
    weights = schema.label.weights
    return loss if weights is None else Weighted(loss, weights.positive, weights.negative)


def check_fit(schema: Schema, loss: Loss, blocks: tuple[str, ...]) -> None:
    """Raise ``InputError`` where schema and objective do not belong together."""
    if schema.label.kind == "regression" and loss.argument == "margin":
        raise InputError(
            f"Expected a loss of residuals for a regression label ({schema.name!r}), got objective.loss={loss.name!r}; "
            "use squared or huber_regression."
        )
    if schema.unit == "user" and schema.public.rows_per_user is None:
        raise InputError(
            f"Expected public.rows_per_user for unit user in schema {schema.name!r}, got none; declare the most rows "
            "that a training keeps of one user."
        )
    if schema.public.n is None and not blocks:
        raise InputError(
            f"Expected data.blocks for schema {schema.name!r}, which declares rows_per_block, got none; list the "
            "blocks to train on."
        )


# A table of fewer than half or more than twice the nominal count is more likely a wrong path than a nominal count.
FAR = 2.0


def count_warning(n: int, found: int, unit: str) -> str:
    """What the operator alone is told where the real count is far from the nominal one; empty where it is not.

    It is an exact number on records: it goes to the terminal, and nothing that is stored or decided depends on it. A
    refusal would be seen by others, so a table of the wrong size trains on, with noise for the declared size.
    """
    if n / FAR <= found <= n * FAR:
        return ""
    return (
        f"for the operator alone: {found} units ({unit}) were read for training, the schema declares {n}. Path, split, "
        "blocks, public.n or public.rows_per_block may be wrong: steps and noise are those of the declared number."
    )


def class_warning(one_class: bool, label: str) -> str:
    """What the operator alone is told where all records have one label; as of ``count_warning``, it refuses nothing."""
    if not one_class:
        return ""
    return (
        f"for the operator alone: all training records have one label ({label!r}); path, split, label.positive or "
        "label.negative may be wrong. The training goes on, for a refusal would tell others so."
    )


# Algorithms whose bound uses one unit's loss only as one convex, Lipschitz, smooth term of the sum, or clips it.
USER_LEVEL = ("dp_sgd", "dp_adam", "output_gd")


def check_user_level(config: TrainConfig, schema: Schema, name: str) -> None:
    """Raise ``InputError`` where a bound for one record is none for one user with several of them."""
    if name in ("objective_perturbation", "amp"):
        reason = "its proof needs a unit whose Hessian has rank one, and that of a user with m rows has rank m"
    elif name not in USER_LEVEL:
        reason = "its releases or its clipping go by single rows"
    else:
        return
    raise InputError(
        f"Expected an algorithm with user-level sensitivity for {schema.name!r}, got algorithm.name={name!r}: "
        f"{reason}; use {', '.join(USER_LEVEL)}."
    )


def encoding_of(config: TrainConfig, loss: Loss, schema: Schema) -> dict[str, Any]:
    """Settings of the encoder: those of the configuration, else those that go with the algorithm.

    A file of numbers has no columns to be taken apart, so there each number stays one column.
    """
    rule = encoding(algorithm_of(config).name, plain_name(loss))
    if schema.features:
        rule = rule | {"numeric": "minmax"}
    named = config.preprocess.model_dump(exclude_none=True)
    return rule | named


def l2_of(config: TrainConfig, loss: Loss) -> float:
    """The ridge of the configuration, else the public rule of the algorithm (none where it needs none)."""
    if config.objective.l2 is not None:
        return config.objective.l2
    name = resolve_name(algorithm_of(config).name, plain_name(loss))
    return float(registry[name].default_l2)


def by_user(job: Job, objective: LinearObjective, loaded: Sealed) -> UserObjective:
    """The same sums with a user as what is drawn, clipped and counted; checked against the public number of users."""
    assert job.schema.public.rows_per_user is not None
    users = UserObjective(objective, loaded.open().users, job.schema.public.rows_per_user, canonical=True)
    if job.problem.adjacency is Adjacency.REPLACE_ONE and users.n != job.problem.n:
        raise InputError(
            f"Expected exactly {job.problem.n} users under replace_one, where their number is public, got {users.n}; "
            "declare it in public.n, or use adjacency add_remove."
        )
    return users
