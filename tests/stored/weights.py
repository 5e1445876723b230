"""Equal seeds give equal weights: one vector of each private algorithm, on records and noise of
fixed seeds.

``python -m tests.stored.weights > tests/stored/weights.json`` writes them, with the facts that
their last bits hang on.
"""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info

from dpcore.accounting import Target
from dpcore.algorithms import registry
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency, Problem
from dpcore.train import plan, run

ROWS = 400
LINEAR = sorted(name for name, kind in registry.items() if not kind.requires.ranking)


def records() -> tuple[np.ndarray, np.ndarray]:
    """Two overlapping classes in dimension 5; rows of norm at most 1, the last column constant."""
    rng = np.random.default_rng(11)
    y = np.where(rng.random(ROWS) < 0.4, 1.0, -1.0)
    X = np.column_stack(
        [rng.normal(size=(ROWS, 4)) + 1.5 * y[:, None] * [1.0, 0.5, 0.0, 0.0], np.ones(ROWS)]
    )
    return X / np.maximum(np.linalg.norm(X, axis=1), 2.0)[:, None] / 1.25, y


def weights(name: str) -> list[str]:
    """The weights of algorithm ``name``, as exact hexadecimal numbers."""
    kind = registry[name]
    adjacency = (
        Adjacency.ADD_REMOVE if Adjacency.ADD_REMOVE in kind.adjacencies else Adjacency.REPLACE_ONE
    )
    facts = {"loss": make_loss("logistic")} | getattr(kind, "small_problem", {})
    problem = Problem(n=ROWS, dimension=5, adjacency=adjacency, l2=0.01, intercept=True, **facts)
    X, y = records()
    limits = [Target(1.0, 1e-5)] if kind.private else []
    planned = plan(name, {}, problem, *limits)
    found = run(planned, LinearObjective(X, y, problem.loss), seed=3, fixed_noise_seed=5).weights
    return [float(value).hex() for value in np.ravel(found)]


def machine() -> dict[str, Any]:
    """What the last bits of a sum depend on."""
    import scipy

    kernels = sorted(
        {f"{item['internal_api']} {item.get('architecture')}" for item in threadpool_info()}
    )
    return {
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
        "kernels": kernels,
    }


if __name__ == "__main__":
    json.dump(
        {"machine": machine(), "weights": {name: weights(name) for name in LINEAR}},
        sys.stdout,
        indent=1,
    )
    sys.stdout.write("\n")
