"""A ranking model from names, and one cell of a comparison: train on a fold, score the test sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpcore.accounting.limits import Limit, Target
from dpcore.algorithms import registry
from dpcore.checks import require_count
from dpcore.errors import InputError, unknown_name
from dpcore.losses import Array
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.losses import RankingLoss, make_ranking_loss
from dpcore.ranking.metrics import Conventions, ranking_report
from dpcore.ranking.objective import SessionObjective
from dpcore.ranking.problem import ranking_facts, ranking_problem
from dpcore.ranking.scorers import SCORERS, Scorer, make_scorer
from dpcore.ranking.sessions import FEATURES, Documents, Fold, Sessions, partition_folds
from dpcore.train import Planned, plan, run

# Loss that an algorithm is meant for, where none is named.
LOSSES = {"privbr": "bayesrank"}


USUAL = Conventions()


@dataclass(frozen=True)
class RankingModel:
    """Features, scorer and loss by name.

    ``features``: ``raw`` and within-session ``rank``, one or both. ``scorer``: ``linear``, or ``mlp`` with ``hidden``
    widths, ``activation`` and a public ``seed`` of its start. ``loss``: ``listnet``, ``listmle`` or ``bayesrank`` with
    ``loss_parameters``.
    """

    features: tuple[str, ...] = FEATURES
    scorer: str = "linear"
    hidden: tuple[int, ...] = (256,)
    activation: str = "relu"
    seed: int = 0
    loss: str = "listnet"
    loss_parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        if not kinds or any(kind not in FEATURES for kind in kinds):
            raise InputError(f"Expected features among {', '.join(FEATURES)}, got features={self.features!r}.")
        object.__setattr__(self, "features", kinds)
        if self.scorer not in SCORERS:
            raise unknown_name("scorer", self.scorer, SCORERS)

    def make_loss(self) -> RankingLoss:
        """The loss with its parameters."""
        return make_ranking_loss(self.loss, **self.loss_parameters)

    def make_scorer(self, inputs: int) -> Scorer:
        """The scorer of documents with ``inputs`` described features."""
        if self.scorer == "linear":
            return make_scorer("linear", inputs)
        return make_scorer(self.scorer, inputs, hidden=self.hidden, activation=self.activation, seed=self.seed)

    def objective(self, sessions: Sessions) -> SessionObjective:
        """The sums over ``sessions``, given with their raw features."""
        described = sessions.features(*self.features)
        return SessionObjective(described, self.make_loss(), self.make_scorer(described.documents.dimension))

    def problem(
        self, objective: SessionObjective, adjacency: Adjacency | str, n: int | None = None, l2: float = 0.0
    ) -> Problem:
        """The public facts of ``objective``; ``n`` is the nominal count of add/remove."""
        nominal = n if Adjacency(adjacency) is Adjacency.ADD_REMOVE else None
        facts = {"adjacency": adjacency, "n": nominal, "l2": l2, "public": objective.public}
        return ranking_problem(objective.sessions, objective.loss, **facts)  # type: ignore[arg-type]

    def public_problem(
        self, inputs: int, n: int, adjacency: Adjacency | str, l2: float = 0.0, l1: float = 0.0
    ) -> Problem:
        """The problem before any session was read: of ``n`` sessions whose documents have ``inputs`` raw features."""
        scorer = self.make_scorer(inputs * len(self.features))
        return ranking_facts(n, scorer, self.make_loss(), adjacency, l2=l2, l1=l1)

    def scores(self, weights: Array, documents: Documents) -> Array:
        """Scores of documents given with their raw features, higher is better; shape (documents,)."""
        described = documents.features(*self.features)
        return self.make_scorer(described.dimension).scores(weights, described.X)


class Iterates:
    """Some of the w of a run, evenly spread: (number, w) pairs, at most ``most`` of them and the last one."""

    def __init__(self, most: int) -> None:
        self.most, self.count, self.stride = most, 0, 1
        self._kept: list[tuple[int, Array]] = []
        self._last: tuple[int, Array] | None = None

    def forget(self) -> None:
        """Keep none from here on: they are not released."""
        self.most = 0

    def add(self, w: Array) -> None:
        if not self.most:
            return
        if self.count % self.stride == 0:
            self._kept.append((self.count, np.array(w)))
        self._last = (self.count, w)
        self.count += 1
        if len(self._kept) > self.most:
            self._kept, self.stride = self._kept[::2], 2 * self.stride

    def __iter__(self) -> Iterator[tuple[int, Array]]:
        yield from self._kept
        if self._last is not None and self._kept[-1][0] != self._last[0]:
            yield self._last


class Watched:
    """A SessionObjective that remembers at which w it was asked: the iterates of an algorithm that releases them all.

    They are post-processing of what was released, so the curve of a metric over them tells no more than the run did
    (the metric itself is computed on test sessions, and internal where these are private). At most ``most`` of them
    are kept.
    """

    def __init__(self, objective: SessionObjective, iterates: Iterates | None = None, most: int = 2**30) -> None:
        self.inner = objective
        self.iterates = Iterates(most) if iterates is None else iterates

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def take(self, rows: Array | slice) -> Watched:
        return Watched(self.inner.take(rows), self.iterates)

    def gradient_sum(self, w: Array, *clip: float) -> Array:
        self.iterates.add(w)
        return self.inner.gradient_sum(w, *clip)

    def capped_gradient_sum(self, w: Array, cap: float) -> Array:
        self.iterates.add(w)
        return self.inner.capped_gradient_sum(w, cap)


def metric_curve(
    model: RankingModel,
    iterates: Iterable[tuple[int, Array]],
    test: Sessions,
    at: tuple[int, ...] = (1, 2, 4, 8),
    conventions: Conventions = USUAL,
) -> list[dict[str, float]]:
    """Rows (iteration, map, ndcg@k, ...) on ``test``, given with its raw features."""
    described = test.features(*model.features)
    scorer = model.make_scorer(described.documents.dimension)
    rows = []
    for t, w in iterates:
        report = ranking_report(described, scorer.scores(w, described.documents.X), at, conventions)
        rows.append({"iteration": t, **{name: value for name, value in report.items() if isinstance(value, float)}})
    return rows


@dataclass(frozen=True)
class Entry:
    """One line of a comparison: an algorithm with its model."""

    label: str
    algorithm: str = "auto"
    parameters: dict[str, Any] = field(default_factory=dict)
    model: RankingModel = RankingModel()
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
    """Train ``entry`` on ``fold.train`` and report MAP and NDCG@{1,2,4,8} on ``fold.test``, as plain data.

    ``target`` is left out for baselines and for a noise multiplier given by hand. With ``every`` > 0 the metrics of
    each ``every``-th iterate come too, under ``curve``. The metrics are exact: internal where sessions are private.
    """
    objective = Watched(entry.model.objective(fold.train))
    problem = entry.model.problem(objective.inner, entry.adjacency, l2=entry.l2)
    planned = entry.plan(problem, *([target] if target is not None else []))
    result = run(planned, objective, seed=draw, fixed_noise_seed=fixed_noise_seed)
    row: dict[str, Any] = {"label": entry.label, "draw": draw, "spent_epsilon": planned.spent_epsilon}
    row |= {"adjacency": str(problem.adjacency), "unit": problem.unit, "seconds": result.seconds}
    scores = entry.model.scores(result.weights, fold.test.documents)
    row |= ranking_report(fold.test, scores, conventions=conventions)
    if every:
        kept = [(t, w) for t, w in objective.iterates if t % every == 0]
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
    """Rows of ``run_cell`` for every entry, epsilon, fold and draw; None as epsilon keeps a given noise multiplier."""
    require_count(draws=draws)
    folds = list(partition_folds(parts))
    for entry in entries:
        for epsilon in epsilons:
            target = None if epsilon is None else Target(epsilon, delta)
            for i, fold in enumerate(folds):
                for draw in range(draws):
                    yield {"epsilon": epsilon, "fold": i + 1} | run_cell(entry, fold, target, draw, **options)


def summary(rows: Iterable[dict[str, Any]], metric: str = "map") -> list[dict[str, Any]]:
    """Mean, standard deviation and standard error over the cells of each (label, epsilon), in order of appearance."""
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


def paired(rows: Sequence[dict[str, Any]], label: str, other: str, metric: str = "map") -> list[dict[str, Any]]:
    """Mean difference ``label`` - ``other`` on equal folds and draws with its standard error, for each epsilon."""
    cells: dict[tuple[str, Any, Any, Any], float] = {
        (row["label"], row["epsilon"], row["fold"], row["draw"]): row[metric] for row in rows
    }
    found: dict[Any, list[float]] = {}
    for (name, epsilon, fold, draw), value in cells.items():
        if name == label and (other, epsilon, fold, draw) in cells:
            found.setdefault(epsilon, []).append(value - cells[other, epsilon, fold, draw])
    return [
        {"epsilon": e, "difference": float(np.mean(d)), "se": float(np.std(d, ddof=1) / np.sqrt(len(d)))}
        for e, d in found.items()
        if len(d) > 1
    ]
