"""Which algorithm ``auto`` stands for, from public facts alone."""

from __future__ import annotations

from typing import Any

from dpcore.accounting.limits import Target
from dpcore.problem import Problem

# Losses on which the descent on scaled columns was measured to be the best entry of the registry.
SCALED = ("logistic", "softmax")


def resolve(
    name: str, parameters: dict[str, Any], problem: Problem, target: Target | None
) -> tuple[str, dict[str, Any], str]:
    """Return (name, parameters, reason); names other than ``auto`` pass through with an empty reason.

    The rule reads the loss, the kind of model and the unit of privacy, which are public, and nothing else.
    """
    if name != "auto":
        return name, parameters, ""
    loss = problem.loss.name
    if problem.kind == "linear" and loss in SCALED:
        return "scaled_gd", parameters, f"columns scaled by their noisy variances, the best measured for loss {loss!r}"
    return "dp_sgd", parameters, f"noisy gradient descent needs no more of loss {loss!r} than clipped gradients"
