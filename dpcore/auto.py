"""Which algorithm ``auto`` stands for, from public facts alone."""

from __future__ import annotations

from typing import Any

from dpcore.accounting.limits import Target
from dpcore.problem import Problem


def resolve(
    name: str, parameters: dict[str, Any], problem: Problem, target: Target | None
) -> tuple[str, dict[str, Any], str]:
    """Return (name, parameters, reason); names other than ``auto`` pass through with an empty reason."""
    if name != "auto":
        return name, parameters, ""
    return "dp_sgd", parameters, f"noisy gradient descent needs no more of {problem.loss.name!r} than clipped gradients"
