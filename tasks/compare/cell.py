"""One cell of a comparison: train on a fold, measure on what was held out, and answer with a plain
record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from dpcore.accounting.observers import Evaluations, Iterates
from dpcore.metrics import coverage, support_precision_recall
from dpcore.objective import LinearObjective
from dpcore.preprocess.design import Data, Design
from dpcore.problem import Problem
from dpcore.train import Planned, Result, run
from dpcore.train.running import trace
from tasks.compare.baselines import MINIMISATION_ERROR, asked, has_optimum, optimum, wanted
from tasks.compare.config import MAJORITY, MEAN_LABEL, CompareConfig
from tasks.compare.folds import Fold, Rows
from tasks.compare.grid import Cell, Plans, Setting, noise_seed
from tasks.compare.variants import weak
from tasks.kinds.base import Job
from tasks.kinds.quality import predicted
from tasks.kinds.table import constant
from tasks.peers import PeerRun

Array = np.ndarray
CellRecord = dict[str, Any]
MOST_POINTS = 60  # of a curve: each costs one pass over the training and one over the test rows
# Share of the non-zero weights that are relevant, and of the relevant ones that are not zero.
SUPPORT = ("support_precision", "support_recall")


class Stopped(BaseException):
    """The comparison was told to end; the cell that ran is not recorded."""


def run_cell(
    cell: Cell,
    config: CompareConfig,
    rows: Rows,
    plans: Plans,
    on_charge: Callable[[], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> CellRecord:
    """The record of one cell: ``done`` with its numbers, or ``failed`` with its error (only the
    kind of it where the rows are private). All numbers are exact ones on held-out records:
    internal, unless the data are public.
    """
    setting = cell.setting
    base: CellRecord = {
        **setting.facts,
        "cell": cell.key,
        "repeat": cell.repeat,
        "fold": cell.fold,
        "draw": cell.draw,
    }
    empty: CellRecord = {
        "seconds": None,
        "spent_epsilon": None,
        "n": None,
        "metrics": {},
        "curve": [],
        "warnings": [],
    }
    try:
        return (
            base
            | {"status": "done", "error": None}
            | measured(cell, config, rows, plans, on_charge, on_progress)
        )
    except Exception as error:
        text = f"{type(error).__name__}: {error}" if setting.job.public else type(error).__name__
        return base | empty | {"status": "failed", "error": text[:500]}


def measured(
    cell: Cell,
    config: CompareConfig,
    rows: Rows,
    plans: Plans,
    on_charge: Callable[[], None] | None,
    on_progress: Callable[[int, int], None] | None,
) -> CellRecord:
    """Plan, train and measure; returns the numbers of a record."""
    setting = cell.setting
    if setting.peer is not None:
        return measured_elsewhere(setting.peer, cell, config, rows)
    part = rows.part(cell)
    problem = problem_of(cell, config, rows)
    if setting.config.algorithm.name == MEAN_LABEL:
        return measured_mean(setting, part, problem)
    planned = plans.of(setting, problem)
    job = setting.job
    # Where several models share the records, a point or a count would be of one of them.
    single, counts = isinstance(part.objective, LinearObjective), Evaluations()
    every = config.curve_every
    iterates = None if every is None else kept_points(setting, every, planned, single)
    watching = [counts] if single and wanted(config.metrics) else []
    result = run(
        # Without limits: the curve of what was spent follows from the plan alone and is computed
        # where it is asked for.
        job.kind.runnable(replace(planned, limits=()), part.objective),
        part.objective,
        seed=cell.seed,
        on_charge=on_charge,
        on_progress=on_progress,
        observers=watching if iterates is None else [*watching, iterates],
        fixed_noise_seed=noise_seed(cell) if config.reproducible and setting.job.public else None,
    )
    return {
        "n": problem.n,
        "seconds": result.seconds,
        "spent_epsilon": spent_of(setting, planned),
        "metrics": finite(metrics_of(setting, config, part, result.weights) | counts.numbers),
        "curve": curve_of(setting, config, part, planned, result, iterates) if every else [],
        "warnings": [
            *filter(None, [planned.warning]),
            *weak(setting.noise_multiplier, planned.spent_epsilon),
        ],
    }


def kept_points(setting: Setting, every: int, planned: Planned, single: bool) -> Iterates | None:
    """What keeps the points of a curve; a ``single`` linear model has those of its releases."""
    if single and setting.private:
        return Iterates(MOST_POINTS, every, intercept=planned.problem.intercept)
    return setting.job.kind.iterates(setting.job, planned)


def measured_mean(setting: Setting, part: Fold, problem: Problem) -> dict[str, Any]:
    """The errors of whoever predicts the mean label of the training part."""
    started = perf_counter()
    found = constant(setting.job, part.objective, part.test)
    seconds = perf_counter() - started
    numbers: dict[str, Any] = {
        "n": problem.n,
        "seconds": seconds,
        "spent_epsilon": None,
        "curve": [],
        "warnings": [],
    }
    return numbers | {"metrics": finite(found)}


def measured_elsewhere(peer: PeerRun, cell: Cell, config: CompareConfig, rows: Rows) -> CellRecord:
    """The same numbers of another library; ``seconds`` are those of its training alone, as ours
    are.
    """
    setting = cell.setting
    part, problem = rows.part(cell), problem_of(cell, config, rows)
    guarantee = (setting.config.privacy.epsilon, setting.config.privacy.delta)
    seed = noise_seed(cell) % 2**32 if config.reproducible else None
    labels = setting.job.schema.label.scaled_to
    found = peer.train(part.objective, problem, guarantee, seed, part.test, labels)
    if "scores" in found:
        metrics = metrics_of_scores(setting, part, found["scores"])
    else:
        metrics = metrics_of(setting, config, part, np.array(found["weights"], dtype=float))
    return {
        "n": problem.n,
        "seconds": found["seconds"],
        "spent_epsilon": found["spent_epsilon"],
        "metrics": finite(metrics),
        "curve": [],
        "warnings": [f"{peer.peer.name}: {text}" for text in found["warnings"]],
    }


def metrics_of_scores(setting: Setting, part: Fold, scores: Sequence[float]) -> dict[str, float]:
    """The metrics of held-out rows by their scores alone; no weights, so no objective."""
    column = Data(np.array(scores)[:, None], part.test.y, Design(("score",), np.inf))
    return predicted(setting.job, column, np.ones(1), setting.job.problem.loss.name)


def problem_of(cell: Cell, config: CompareConfig, rows: Rows) -> Problem:
    """The public problem of a cell. Of partition files, which are published, the sessions are
    counted.
    """
    problem = cell.setting.problem(config.protocol.folds, cell.fold)
    parts = rows.table(cell.setting, cell.repeat).parts
    if not parts:
        return problem
    return replace(problem, n=sum(part.n for index, part in enumerate(parts) if index != cell.fold))


def metrics_of(
    setting: Setting, config: CompareConfig, part: Fold, weights: Array
) -> dict[str, float]:
    """What the weights are worth on the held-out rows, and the objective on the training part."""
    job = setting.job
    found = job.kind.quality(job, part.test, weights)
    if setting.config.algorithm.name == MAJORITY:
        # It predicts a class; scores and an objective of its weights say nothing.
        return {key: value for key, value in found.items() if key.endswith("accuracy")}
    value = objective_value(setting, part, weights)
    if value is not None:
        found["objective"] = value
        if asked(config.metrics) and has_optimum(job.problem):
            found[MINIMISATION_ERROR] = value - best(part, job.problem)
    return found | relevant_found(job, config, weights)


def relevant_found(job: Job, config: CompareConfig, weights: Array) -> dict[str, float]:
    """How many of the relevant columns are found, where the comparison says which they are."""
    chosen, problem = config.coverage, job.problem
    if chosen is None or problem.kind != "linear" or job.schema.name not in chosen.data:
        return {}
    wide, relevant = weights.reshape(problem.outputs, -1), range(chosen.relevant)
    found = {
        f"coverage_at_{k}": coverage(wide, relevant, k, problem.intercept) for k in chosen.counts
    }
    return found | dict(
        zip(SUPPORT, support_precision_recall(wide, relevant, problem.intercept), strict=True)
    )


def best(part: Fold, problem: Problem) -> float:
    """The least objective on the training part, found once for each strength."""
    if problem.l2 not in part.optima:
        part.optima[problem.l2] = optimum(part.objective, problem)
    return part.optima[problem.l2]


def objective_value(setting: Setting, part: Fold, weights: Array) -> float | None:
    """mean loss + l2/2 ||w||^2 + l1 ||w||_1 (without the constant) on the training part.

    None for one class against the rest, and for rankers, which are compared by the order that they
    give whatever their losses are.
    """
    problem = setting.job.problem
    if not setting.job.kind.by_objective:
        return None
    if problem.outputs > 1 and problem.loss.argument != "scores":
        return None
    wide = weights.reshape(problem.outputs, -1)
    penalised = wide[:, :-1] if problem.intercept else wide
    ridge = problem.l2 / 2.0 * float(weights @ weights) + problem.l1 * float(
        np.abs(penalised).sum()
    )
    return float(part.objective.value_sum(weights[None, :])[0]) / part.objective.n + ridge


def spent_of(setting: Setting, planned: Planned) -> float | None:
    return finite({"": planned.spent_epsilon})[""] if setting.private else None


def curve_of(
    setting: Setting,
    config: CompareConfig,
    part: Fold,
    planned: Planned,
    result: Result,
    iterates: Iterates | None,
) -> list[dict[str, float]]:
    """Points (step, spent_epsilon, public notes, metrics of the iterate), every ``curve_every``
    releases.

    ``step`` counts the releases that the iterate has seen, or the iterations of a kind that counts
    these; the last point is the model itself.
    """
    every = config.curve_every or 1
    points = noted(trace(planned, result.events, result.notes), iterates)
    if iterates is not None:
        for step, found in along(setting, config, part, iterates, result.weights):
            points.setdefault(step, {}).update(found)
    last = max(points, default=0)
    kept = [step for step in sorted(points) if step % every == 0 or step == last]
    return [{"step": step, **finite(points[step])} for step in kept]


def noted(
    rows: Iterable[Mapping[str, float]], iterates: Iterates | None
) -> dict[int, dict[str, float]]:
    """What was spent and noted, by the number of the point after it; later rows of one number go
    over earlier ones.
    """
    points: dict[int, dict[str, float]] = {}
    for row in rows:
        release = int(row["release"])
        point = points.setdefault(iterates.number_of(release) if iterates else release, {})
        point |= {name: value for name, value in row.items() if name != "release"}
    return points


def along(
    setting: Setting, config: CompareConfig, part: Fold, iterates: Iterates, weights: Array
) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, metrics) of the points that were kept, by the kind where it has a curve; ``weights``
    are the last.
    """
    job = setting.job
    if job.kind.report:
        for row in job.kind.curve(job, iterates.path(weights), part.test, part.objective):
            yield (
                int(row["iteration"]),
                {key: value for key, value in row.items() if key != "iteration"},
            )
        return
    released = [point for point in iterates if point[0] > 0]  # not the start, which everybody knows
    for step, w in (*released, (iterates.releases, weights)):
        yield step, metrics_of(setting, config, part, w)


def finite(values: Mapping[str, float]) -> dict[str, Any]:
    """Numbers for JSON: None for one that does not exist."""
    return {key: float(value) if math.isfinite(value) else None for key, value in values.items()}


def missing_metrics(records: Sequence[CellRecord], wanted: Sequence[str]) -> list[str]:
    """Names of ``wanted`` that no finished cell has a number for, at the end or on the way."""
    seen = {name for record in records for name in record["metrics"]}
    seen |= {name for record in records for point in record["curve"] for name in point}
    return [
        name
        for name in wanted
        if name not in seen and not any(key.startswith(f"{name}_at_") for key in seen)
    ]
