"""One cell of a comparison of rankings: train on a fold, score the test sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpcore.accounting.limits import Limit, Target
from dpcore.accounting.observers import Iterates
from dpcore.algorithms import registry
from dpcore.errors import require_count
from dpcore.problem import Problem
from dpcore.ranking.metrics import Conventions, ranking_report
from dpcore.ranking.model import USUAL, RankingModel, metric_curve
from dpcore.ranking.sessions import Sessions, join
from dpcore.train import Planned, plan, run


@dataclass(frozen=True, eq=False)
class Fold:
    """One round of cross-validation; ``validation`` is None where it is part of the training
    sessions.
    """

    train: Sessions
    test: Sessions
    validation: Sessions | None = None


def partition_folds(parts: Sequence[Sessions], validate: bool = False) -> Iterator[Fold]:
    """The five LETOR folds (any number of parts): fold i tests on part i - 1 and validates on part
    i - 2, cyclically.

    Fold 1 of S1..S5 trains on S1 S2 S3, validates on S4 and tests on S5. Without ``validate`` the
    validation part joins the training sessions.
    """
    require_count(parts=len(parts) - 2)
    count = len(parts)
    for i in range(count):
        kept = [parts[(i + k) % count] for k in range(count - 2)]
        validation, test = parts[(i + count - 2) % count], parts[(i + count - 1) % count]
        if validate:
            yield Fold(join(kept), test, validation)
        else:
            yield Fold(join([*kept, validation]), test)


@dataclass(frozen=True)
class Entry:
    """One line of a comparison: an algorithm with its model."""

    label: str
    algorithm: str = "auto"
    parameters: dict[str, Any] = field(default_factory=dict)
    model: RankingModel = field(default_factory=RankingModel)
    adjacency: str = "replace_labels"
    preset: str | None = None
    l2: float = 0.0

    def plan(self, problem: Problem, *limits: Limit) -> Planned:
        """The calibrated algorithm; nothing but public facts is used."""
        wanted = limits if self.algorithm == "auto" or registry[self.algorithm].private else ()
        return plan(self.algorithm, self.parameters, problem, *wanted, preset=self.preset)


def run_cell(
    entry: Entry,
    fold: Fold,
    target: Target | None,
    draw: int = 0,
    *,
    conventions: Conventions = USUAL,
    every: int = 0,
    fixed_noise_seed: int | None = None,
) -> dict[str, Any]:
    """Train ``entry`` on ``fold.train`` and report MAP and NDCG@{1,2,4,8} on ``fold.test``, as
    plain data.

    ``target`` is left out for baselines and for a noise multiplier given by hand. With ``every`` >
    0 the metrics of each ``every``-th iterate come too, under ``curve``. The metrics are exact:
    internal where sessions are private.
    """
    objective, iterates = entry.model.objective(fold.train), Iterates(2**30, of="gradients")
    problem = entry.model.problem(objective, entry.adjacency, l2=entry.l2)
    planned = entry.plan(problem, *([target] if target is not None else []))
    result = run(
        planned, objective, seed=draw, observers=[iterates], fixed_noise_seed=fixed_noise_seed
    )
    row: dict[str, Any] = {
        "label": entry.label,
        "draw": draw,
        "spent_epsilon": planned.spent_epsilon,
    }
    row |= {"adjacency": str(problem.adjacency), "unit": problem.unit, "seconds": result.seconds}
    scores = entry.model.scores(result.weights, fold.test.documents)
    row |= ranking_report(fold.test, scores, conventions=conventions)
    if every:
        kept = [(t, w) for t, w in iterates if t % every == 0]
        row["curve"] = metric_curve(entry.model, kept, fold.test, conventions=conventions)
    return row


def crossval(
    entries: Iterable[Entry],
    parts: Sequence[Sessions],
    epsilons: Sequence[float | None],
    delta: float,
    draws: int = 3,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """Rows of ``run_cell`` for every entry, epsilon, fold and draw; None as epsilon keeps a given
    noise multiplier.
    """
    require_count(draws=draws)
    folds = list(partition_folds(parts))
    for entry in entries:
        for epsilon in epsilons:
            target = None if epsilon is None else Target(epsilon, delta)
            for i, fold in enumerate(folds):
                for draw in range(draws):
                    yield {"epsilon": epsilon, "fold": i + 1} | run_cell(
                        entry, fold, target, draw, **options
                    )


def summary(rows: Iterable[dict[str, Any]], metric: str = "map") -> list[dict[str, Any]]:
    """Mean, standard deviation and standard error over the cells of each (label, epsilon), in order
    of appearance.
    """
    groups: dict[tuple[str, float | None], list[float]] = {}
    for row in rows:
        groups.setdefault((row["label"], row["epsilon"]), []).append(row[metric])
    return [
        {
            "label": label,
            "epsilon": epsilon,
            "metric": metric,
            "mean": float(np.mean(values)),
            "sd": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
            "se": float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0,
            "cells": len(values),
        }
        for (label, epsilon), values in groups.items()
    ]


def paired(
    rows: Sequence[dict[str, Any]], label: str, other: str, metric: str = "map"
) -> list[dict[str, Any]]:
    """Mean difference ``label`` - ``other`` on equal folds and draws with its standard error, for
    each epsilon.
    """
    cells: dict[tuple[str, Any, Any, Any], float] = {
        (row["label"], row["epsilon"], row["fold"], row["draw"]): row[metric] for row in rows
    }
    found: dict[Any, list[float]] = {}
    for (name, epsilon, fold, draw), value in cells.items():
        if name == label and (other, epsilon, fold, draw) in cells:
            found.setdefault(epsilon, []).append(value - cells[other, epsilon, fold, draw])
    return [
        {
            "epsilon": e,
            "difference": float(np.mean(d)),
            "se": float(np.std(d, ddof=1) / np.sqrt(len(d))),
        }
        for e, d in found.items()
        if len(d) > 1
    ]
