"""Which algorithm ``auto`` stands for, from public facts alone."""

from __future__ import annotations

from typing import Any

from dpcore.accounting.limits import Target
from dpcore.problem import Problem

# Losses of linear models for which the descent on scaled columns was measured ahead of plain noisy descent: logistic and
# hinges on Adult, a9a, Bank and credit, residual losses on bike and wine.
SCALED = ("logistic", "softmax", "hinge", "huber_hinge", "squared", "huber_regression")


def resolve(
    name: str, parameters: dict[str, Any], problem: Problem, target: Target | None
) -> tuple[str, dict[str, Any], str]:
    """Return (name, parameters, reason); names other than ``auto`` pass through with an empty reason.

    The rule reads the loss and the kind of model, which are public, and nothing else.
    """
    if name != "auto":
        return name, parameters, ""
    loss = problem.loss.name
    chosen = resolve_name(name, loss, problem.kind)
    if chosen == "scaled_gd":
        return (
            chosen,
            parameters,
            f"descent on columns scaled by their noisy variances, measured best for loss {loss!r}",
        )
    return chosen, parameters, f"noisy gradient descent needs no more of loss {loss!r} than clipped gradients"


def resolve_name(name: str, loss: str, kind: str = "linear") -> str:
    """The algorithm that ``name`` stands for with this loss and kind of model."""
    if name != "auto":
        return name
    return "scaled_gd" if kind == "linear" and loss in SCALED else "dp_sgd"
