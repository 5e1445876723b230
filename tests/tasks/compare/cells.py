"""Made cells for the tests of statistics, tables, figures and page."""

from __future__ import annotations

from typing import Any

import numpy as np


def cell(
    label: str, epsilon: float | None, repeat: int = 0, fold: int = 0, **changes: Any
) -> dict[str, Any]:
    """One finished cell; algorithms without privacy have no epsilon."""
    rng = np.random.default_rng([len(label), int(1000 * (epsilon or 0)), repeat, fold])
    private = epsilon is not None
    record: dict[str, Any] = {
        "cell": f"{label}-{changes.get('adjacency', 'add_remove')}-{epsilon}-{repeat}-{fold}",
        "data": "adult", "algorithm": label, "label": label, "preset": None, "parameters": {"steps": 10},
        "loss": "logistic", "loss_parameters": {}, "l1": 0.0, "l2": 1e-4,
        "epsilon": epsilon, "delta": 1e-8 if private else None, "adjacency": "add_remove" if private else None,
        "private": private, "repeat": repeat, "fold": fold, "n": 1000, "dimension": 5, "status": "done", "error": None,
        "seconds": 0.1 + 0.01 * rng.random(), "spent_epsilon": epsilon,
        "metrics": {"accuracy": 0.8 + 0.02 * rng.random(), "objective": 0.4 + 0.1 * rng.random()},
        "curve": [], "warnings": [],
    }  # fmt: skip
    return record | changes


def grid(
    labels: list[str], epsilons: list[float], repeats: int = 2, folds: int = 3, **changes: Any
) -> list[dict]:
    """All cells of a small comparison, with a majority class and a model without privacy."""
    pairs = [(repeat, fold) for repeat in range(repeats) for fold in range(folds)]
    private = [
        cell(name, e, *pair, **changes) for name in labels for e in epsilons for pair in pairs
    ]
    return [
        *private,
        *(cell(name, None, *pair) for name in ("majority", "non_private") for pair in pairs),
    ]


def failed(record: dict[str, Any]) -> dict[str, Any]:
    return record | {
        "status": "failed",
        "error": "Expected <b> & more",
        "metrics": {},
        "seconds": None,
        "curve": [],
    }
