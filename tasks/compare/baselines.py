"""What a comparison is judged against: the optimum of its training part, and lines without privacy.

How far a model is from the best on its training part: the minimisation error, a metric that a
comparison names.

How much an algorithm reads: evaluations of single records' gradients and losses, as Fig. 5.2 of
Chen (2020).

Lines without privacy beside a comparison: the majority class or the mean of the label, and for
each encoding of the records the exact minimiser, since a ceiling has to see the same columns as
what stands below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from scipy.optimize import minimize

from dpcore.accounting.observers import Evaluations
from dpcore.descent.minimise import MOST_COLUMNS, Perturbed
from dpcore.problem import Problem
from tasks.compare.config import (
    MEAN_LABEL,
    NON_PRIVATE,
    AlgorithmEntry,
    CompareConfig,
    CompareData,
    PeerEntry,
)
from tasks.compare.variants import Jobs, given, objectives_of, training_config
from tasks.config.train import AlgorithmSection, ObjectiveSection, PreprocessSection
from tasks.kinds import kind_of
from tasks.kinds.base import Job
from tasks.peers import find_peer
from tasks.schema import find_schema

MINIMISATION_ERROR = "minimisation_error"
STEPS = 500
# Norm of the mean gradient at which the minimiser is taken as found.
TOLERANCE = 1e-8


def asked(metrics: Sequence[str] | None) -> bool:
    """Whether a comparison names the metric: it costs a minimisation on every fold."""
    return MINIMISATION_ERROR in (metrics or ())


def has_optimum(problem: Problem) -> bool:
    """Whether ``optimum`` covers the problem: one convex function of one linear score, with second
    derivatives.
    """
    smooth = problem.kind == "linear" and problem.loss.convex and isfinite(problem.loss.smoothness)
    return smooth and problem.outputs == 1 and problem.l1 == 0 and problem.dimension <= MOST_COLUMNS


def optimum(objective: Any, problem: Problem) -> float:
    """min over w of mean loss + l2/2 ||w||^2 on the rows of ``objective``: exact, an internal
    number.

    By trust-region Newton steps (Conn, Gould & Toint 2000, chapter 7), which need no ridge. Where
    the records are separable and l2 is 0 it is the value after ``STEPS`` steps, a little above the
    infimum.
    """
    count = float(objective.n)
    total = Perturbed(objective, problem.l2 * count, np.zeros(problem.dimension))

    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        height, slope = total.value_and_gradient(w)
        return height / count, slope / count

    found = minimize(
        value,
        np.zeros(problem.dimension),
        jac=True,
        hess=lambda w: total.hessian(w) / count,
        method="trust-exact",
        options={"maxiter": STEPS, "gtol": TOLERANCE, "max_trust_radius": 1e6},
    )
    return float(found.fun)


COUNTS = (Evaluations.GRADIENT, Evaluations.LOSS)


def wanted(metrics: Sequence[str] | None) -> bool:
    """Whether a comparison names one of the counts among its metrics: they are kept only then."""
    return bool(set(metrics or ()) & set(COUNTS))


# The rows that another library gets are encoded as for this algorithm, unless the library or its
# entry names an encoding.
ENCODED_AS = "dp_sgd"


def encoded_as(peer: PeerEntry) -> AlgorithmEntry:
    """The entry whose encoding the library of ``peer`` gets."""
    own = find_peer(peer.name).preprocess
    if own is None:
        return AlgorithmEntry(name=ENCODED_AS, preprocess=peer.preprocess)
    named = {} if peer.preprocess is None else peer.preprocess.model_dump(exclude_none=True)
    return AlgorithmEntry(name=ENCODED_AS, preprocess=PreprocessSection(**{**own, **named}))


def lines(
    config: CompareConfig, data: CompareData, jobs: Jobs, used: Sequence[Job]
) -> Iterator[tuple[str, Job]]:
    """(label, job) of every line, once for each objective; of rankers, which are compared across
    losses, for each loss.

    ``used`` are the private jobs: the exact minimiser is drawn on each of their encodings, and
    named by it.
    """
    shared, own = list(objectives_of(config, data)), [job.config.objective for job in used]
    adjacency = config.privacy.adjacency[0]
    first = training_config(config, data, shared[0], AlgorithmEntry(name=NON_PRIVATE), adjacency)
    kind = kind_of(first, find_schema(data.name))
    by_objective = kind.by_objective
    key: Callable[[ObjectiveSection], str] = loss_of
    ordered = [*own, *shared]
    if by_objective:
        key, ordered = ObjectiveSection.model_dump_json, [*shared, *own]
    objectives = dict(zip(map(key, ordered), ordered, strict=True))
    by_loss = not by_objective and len(objectives) > 1

    def made(objective: ObjectiveSection, entry: AlgorithmEntry) -> Job:
        return jobs.of(training_config(config, data, objective, entry, adjacency))

    for name, objective in objectives.items():
        yield from simplest(objective, made)
        here = [job for job in used if key(job.config.objective) == name]
        if objective in shared:
            here += beside_libraries(config, objective, made)
        words = [NON_PRIVATE] + [objective.loss] * by_loss
        yield from exact_lines(words, objective, encodings(here or used), made, kind.exact)


def loss_of(objective: ObjectiveSection) -> str:
    return objective.loss


def exact_lines(
    words: Sequence[str],
    objective: ObjectiveSection,
    encoded: Sequence[Mapping[str, Any]],
    made: Callable[[ObjectiveSection, AlgorithmEntry], Job],
    algorithm: str,
) -> Iterator[tuple[str, Job]]:
    """(label, job) of the exact minimiser (``algorithm``) on each encoding; on that of the data
    where none is.
    """
    exact = [
        made(objective, AlgorithmEntry(name=algorithm, **encoding)) for encoding in encoded or [{}]
    ]
    for job, encoding in zip(exact, encoding_names(exact), strict=True):
        yield " ".join([*words, encoding]), job


Made = Callable[[ObjectiveSection, AlgorithmEntry], Job]


def beside_libraries(config: CompareConfig, objective: ObjectiveSection, made: Made) -> list[Job]:
    """Jobs with the encodings that other libraries get, whose ceiling is drawn as well."""
    libraries = () if config.peers is None else config.peers.libraries
    return [made(objective, encoded_as(peer)) for peer in libraries]


def simplest(objective: ObjectiveSection, made: Made) -> Iterator[tuple[str, Job]]:
    """What any model has to beat: the majority class, or the mean of a regression's label, which is
    no weights.
    """
    job = made(objective, AlgorithmEntry(name=NON_PRIVATE))
    name = job.kind.simplest(job)
    if name == MEAN_LABEL:
        yield MEAN_LABEL, given(job, job.config.model_copy(update={"algorithm": MEAN_SECTION}))
    elif name:
        yield name, made(objective, AlgorithmEntry(name=name))


MEAN_SECTION = AlgorithmSection(name=MEAN_LABEL)


def encodings(used: Sequence[Job]) -> list[dict[str, Any]]:
    """The encodings of jobs, each once."""
    found = [job.kind.encoding(job) for job in used]
    return [one for index, one in enumerate(found) if one not in found[:index]]


def encoding_names(exact: Sequence[Job]) -> list[str]:
    """The words for the encoding of each job, with the conventions of the metrics where only these
    differ.
    """
    words = [job.kind.encoding_words(job) for job in exact]
    meant = [job.kind.convention_words(job) for job in exact]
    return [
        word if words.count(word) == 1 else f"{word} ({convention})"
        for word, convention in zip(words, meant, strict=True)
    ]
