"""Which algorithm and which public features ``auto`` stands for, from public facts alone."""

from __future__ import annotations

from typing import Any

from dpcore.accounting.limits import Target
from dpcore.losses import plain_name
from dpcore.problem import Adjacency, Problem

# Losses of linear models for which the descent on scaled columns was measured ahead of plain noisy
# descent: logistic on Adult, a9a, Bank and credit, hinges on Adult, softmax on MNIST, residual
# losses on bike and wine.
SCALED = ("logistic", "softmax", "hinge", "huber_hinge", "squared", "huber_regression")
# Public encoding that each was measured with: whole rows and hat functions where columns are scaled
# by themselves.
HATS = {"normalise": "none", "numeric": "hats(8)"}
PLAIN = {"normalise": "cap", "numeric": "minmax"}
# Clipped ListNet on [raw, rank] features: the setting that was best at every epsilon where
# documents are private.
CLIPPED_LISTNET: dict[str, Any] = {
    "steps": 10,
    "clip_norm": 0.3,
    "learning_rate": 1.0,
    "momentum": 0.8,
    "schedule": "linear",
    "average": 0.5,
}


# Clipped descent on a network, from held-out MNIST images: many steps on large batches, a small
# clip norm, a step size times clip norm of about 1, momentum. The batch is one of NETWORK_BATCH
# records in expectation.
NETWORK: dict[str, Any] = {
    "steps": 300,
    "clip_norm": 1.0,
    "learning_rate": 1.0,
    "momentum": 0.9,
    "schedule": "linear",
}
NETWORK_BATCH = 4096


def resolve(
    name: str, parameters: dict[str, Any], problem: Problem, target: Target | None
) -> tuple[str, dict[str, Any], str]:
    """Return (name, parameters, reason); names other than ``auto`` pass through with an empty
    reason.

    The rule reads the loss, the kind of model, the unit and the adjacency, and no record.
    """
    if name != "auto":
        return name, parameters, ""
    loss = plain_name(problem.loss)
    if problem.kind.startswith("ranking"):
        return ranking_default(parameters, problem)
    if problem.kind == "network":
        sizes = {"sampling_rate": min(1.0, NETWORK_BATCH / problem.n)}
        return (
            "dp_sgd",
            NETWORK | sizes | parameters,
            "clipped gradients are all that the proof needs of a network",
        )
    chosen = resolve_name(name, loss, problem.kind, problem.unit)
    if problem.unit == "user":
        return (
            chosen,
            parameters,
            "clipped steps: all rows of a user are one term, which is clipped as a whole",
        )
    if chosen == "scaled_gd":
        return (
            chosen,
            parameters,
            f"descent on columns scaled by noisy variances, measured best for loss {loss!r}",
        )
    return (
        chosen,
        parameters,
        f"noisy gradient descent needs no more of loss {loss!r} than clipped gradients",
    )


def ranking_default(
    parameters: dict[str, Any], problem: Problem
) -> tuple[str, dict[str, Any], str]:
    """What ``auto`` is for sessions: one noisy vector where documents are public, clipped steps
    otherwise.
    """
    public = problem.adjacency is Adjacency.REPLACE_LABELS
    if public and problem.kind == "ranking" and problem.loss.name == "listnet":
        return (
            "listnet_one_shot",
            parameters,
            "documents are public: labels enter a linear ListNet through one vector",
        )
    reason = "the model is no linear ListNet" if public else "documents are private"
    return "dp_sgd", CLIPPED_LISTNET | parameters, f"clipped steps: {reason}"


def resolve_name(name: str, loss: str, kind: str = "linear", unit: str = "record") -> str:
    """The algorithm that ``name`` stands for with this loss, kind of model and unit of privacy.

    Column sums of single rows know no user, so for users it is the descent on clipped terms.
    """
    if name != "auto":
        return name
    return "scaled_gd" if kind == "linear" and loss in SCALED and unit != "user" else "dp_sgd"


def encoding(name: str, loss: str, kind: str = "linear", unit: str = "record") -> dict[str, str]:
    """Settings of the encoder to use where the caller named none; a choice among public maps, so it
    costs nothing.
    """
    return dict(HATS if resolve_name(name, loss, kind, unit) == "scaled_gd" else PLAIN)
