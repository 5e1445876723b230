"""A training on its way (``Run``), and what a configuration adds to it (``Option``): hooks in the
order of a run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

from dpcore.accounting import Events
from dpcore.accounting.limits import Further
from dpcore.errors import InputError
from dpcore.problem import Problem
from dpcore.train import Planned, Result, plan
from tasks.config import TrainConfig
from tasks.kinds.base import Array, Job, Metrics, Sealed, Words, reading_of, target_of
from tasks.ledger import Ledger, Reservation
from tasks.schema import Schema


class Encoded(NamedTuple):
    """The records of a training in one encoding."""

    job: Job
    data: Sealed
    sums: Sealed


@dataclass(frozen=True, slots=True)
class Run:
    """A training on its way; what is private is sealed: an orchestrator carries it and cannot look
    inside.
    """

    job: Job
    planned: Planned
    data: Sealed  # Loaded: training and test part
    sums: Sealed  # what is trained on; with canaries, records and canaries
    known: Sealed  # what is measured on: the records alone
    encodings: tuple[Encoded, ...] = ()  # the same records, in each that a search may draw
    observers: tuple[Sealed, ...] = ()
    result: Result | None = None
    folder: Path | None = None  # of what the run leaves, from the reservation on
    metrics: Metrics = field(default_factory=dict)
    # lines for the operator, who is told them after the hook that leaves them
    notes: tuple[str, ...] = ()

    @property
    def fitted(self) -> Result:
        """The result of the training, which has ended."""
        if self.result is None:
            raise ValueError("the training has no result before it ends")
        return self.result

    @property
    def weights(self) -> Array:
        return self.fitted.weights

    @property
    def place(self) -> Path:
        """The folder of what the run leaves."""
        if self.folder is None:
            raise ValueError("a run has a folder from its reservation on")
        return self.folder


class Option:
    """What a configuration may ask for beside a training. Options hold nothing, and every hook has
    a default.

    From ``before_plan`` on a hook is a step of its own in the flow, under the name that ``titles``
    gives it.
    """

    STEPS: ClassVar[tuple[str, ...]] = (
        "before_plan",
        "before_reserve",
        "before_fit",
        "after_fit",
        "after_commit",
    )

    name: ClassVar[str]  # the word of the table of rules
    # what asks for it when it is not empty: config.tune, schema.undeclared_columns, ...
    asked: ClassVar[str]
    titles: ClassVar[Mapping[str, str]] = {}
    files: ClassVar[tuple[str, ...]] = ()  # of a run's folder, which go where its other files go
    # of tags and parameters in its words: an audit knows no others
    names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Raise ``TypeError`` for a hook that no flow would show."""
        nameless = [hook for hook in cls.STEPS if hook in vars(cls) and hook not in cls.titles]
        if nameless:
            raise TypeError(
                f"Expected a title for each hook of {cls.__name__}, got none for "
                f"{', '.join(nameless)}."
            )

    def title(self, hook: str, job: Job) -> str:
        """The name of a hook's step; empty where this job needs none."""
        return self.titles.get(hook, "")

    # What is decided from public facts; no file of the data is opened.
    def adapt(self, config: TrainConfig, schema: Schema) -> tuple[TrainConfig, Schema]:
        """What the kind describes in place of what was given: the algorithm that runs, bounds that
        stand in.
        """
        return config, schema

    def check(self, job: Job) -> None:
        """Raise ``InputError`` for what the table of rules cannot say; ``BudgetExceeded`` for a
        share too small.
        """

    def plan(self, job: Job, *limits: Further) -> Planned | None:
        """The plan of a training with this option, within the target and ``limits``; None for the
        plain one.
        """
        return None

    def entry(self, job: Job) -> Events | None:
        """What it charges as an entry of its own; room for it and for the training is asked for
        together.
        """
        return None

    def words(self, job: Job, planned: Planned | None) -> Words:
        """What it says of itself; without ``planned`` what a person should know before there is a
        plan.
        """
        return Words()

    # What reads or releases.
    def before_plan(self, job: Job) -> Job:
        return job

    def before_reserve(self, run: Run) -> Run:
        """With the records read and nothing charged yet."""
        return run

    def before_fit(self, run: Run, reservation: Reservation) -> Run:
        """Releases on the reservation of the training, before it."""
        return run

    def after_fit(self, run: Run, reservation: Reservation) -> Run:
        """What the result says of job and plan, before statement and commit."""
        return run

    def after_commit(self, run: Run, ledger: Ledger) -> Run:
        """Further metrics; what it releases it charges."""
        return run


def adapted(
    config: TrainConfig, schema: Schema, options: Iterable[Option]
) -> tuple[TrainConfig, Schema]:
    """Configuration and schema that the kind describes and that rows are read by, one option after
    the other.
    """
    for option in options:
        config, schema = option.adapt(config, schema)
    return config, schema


def readable(job: Job) -> Schema:
    """The schema that rows are read by: with stand-ins where something is not known yet."""
    return adapted(job.config, job.schema, job.options)[1]


def words_of(job: Job, planned: Planned | None = None) -> Words:
    """What all options of a job say of themselves."""
    return sum((option.words(job, planned) for option in job.options), Words())


def entries_of(job: Job) -> dict[str, Events]:
    """What is charged beside the training, by the name of the option that asks for it."""
    found = {option.name: option.entry(job) for option in job.options}
    return {name: events for name, events in found.items() if events is not None}


def plan_alone(job: Job, *limits: Further, before: Events | None = None) -> Planned:
    """The plan of the job's algorithm, after releases ``before`` it, within the target of the
    configuration and ``limits``."""
    algorithm, noise = job.algorithm, job.config.privacy.noise
    parameters, target = json.dumps(algorithm.parameters), target_of(job.config)
    planned = _plan(
        algorithm.name, parameters, algorithm.preset, noise, job.problem, before, target, *limits
    )
    if not planned.algorithm.private:
        raise InputError(
            f"Expected a private algorithm, got algorithm.name={algorithm.name!r}, whose result "
            "has no guarantee; it is measured beside every private run (evaluate.baselines)."
        )
    return planned


@lru_cache(maxsize=8)
def _plan(
    name: str,
    parameters: str,
    preset: str | None,
    noise: str,
    problem: Problem,
    before: Events | None,
    *limits: Further,
) -> Planned:
    """A plan follows from its arguments alone; the command line asks for the same one before and in
    the flow.
    """
    try:
        return plan(
            name,
            json.loads(parameters),
            problem,
            *limits,
            preset=preset,
            noise=noise,
            before=before,
        )
    except InputError as error:
        # The checks of an algorithm name the parameter, but not where it stands.
        raise type(error)(f"algorithm {name}: {error}") from None


def load_records(job: Job) -> Sealed:
    """Read, check and encode the records; raises ``InputError`` naming file, row, column, rule and
    way out.

    Where bounds are estimated first this is a check of the rows; they are encoded again when the
    bounds are known.
    """
    return Sealed(job.kind.load(job, reading_of(job).of(readable(job))))


def build_objective(job: Job, loaded: Sealed) -> Sealed:
    """Private sums over the training records, checked against the public facts that the price
    relies on.
    """
    return Sealed(job.kind.training_sums(job, loaded.open()))
