"""What a training is of: the public side of one (``Job``), and what differs between kinds of model
(``Kind``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.limits import Target
from dpcore.accounting.observers import Iterates
from dpcore.algorithms import registry
from dpcore.errors import InputError
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.problem import Problem
from dpcore.train import Planned
from tasks.config import TrainConfig
from tasks.config.train import AlgorithmSection
from tasks.data import SIDES, Loaded, Reading
from tasks.schema import Schema

Array = np.ndarray
Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """The public side of a training: nothing here was read from a record, and no file of the data
    was opened.
    """

    config: TrainConfig  # as it was given: its hash closes the ledger's entry
    schema: Schema  # as it was declared, open bounds included
    # what runs: a selection makes it ``two_phase`` around the one that was asked for
    algorithm: AlgorithmSection
    kind: Kind
    model: Any  # what the kind needs beside the problem: RankingModel, NetworkSpec; None of a table
    encoder: Encoder | MatrixEncoder
    problem: Problem
    blocks: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    # bytes that the training holds at least, by what they are for, as far as declarations tell
    memory: Mapping[str, float] = field(default_factory=dict)
    # what the configuration adds, in the order of ``tasks.options.OPTIONS``
    options: tuple[Any, ...] = ()

    @property
    def public(self) -> bool:
        return self.schema.public.public


@dataclass(frozen=True, slots=True)
class Words:
    """What a run says of itself beside its numbers; those of several parts add up, in their order.

    Lines of the statement: what is ``released``, and ``first``, before the weights; ``arguments``
    for the sensitivity of releases beside the algorithm's; ``limits``, and the names of those of
    all runs that they stand in for (``covers``); ``reasons`` why it may not be released.
    ``warnings`` are said before anything is spent, ``report`` is for the plan that a person asks
    for; ``params`` and ``tags`` belong to the tracked run, and an audit knows those of
    ``tasks.audit.rules_derived`` alone.
    """

    released: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: Words) -> Words:
        mine, theirs = (
            {one.name: getattr(part, one.name) for one in fields(Words)} for part in (self, other)
        )
        return Words(**{name: _sum(value, theirs[name]) for name, value in mine.items()})


def _sum(one: Any, other: Any) -> Any:
    """Lines one after the other, names of both."""
    return one + other if isinstance(one, tuple) else {**one, **other}


class Kind(ABC):
    """What differs between kinds of model: what the problem is, what its sums are, how good a model
    is.

    Kinds hold nothing: what one training has of its own stands in its job (``Job.model``).
    ``Records`` are what ``load`` made of the rows: ``Data`` of a table, ``Sessions`` of ranked
    lists.
    """

    name: ClassVar[str]
    # Numbers and curves go to report/NAME.json and figures/NAME/*.png; a kind without the name
    # writes none.
    report: ClassVar[str] = ""
    # How figures call a model of this kind, what it was measured on, and its baselines (by their
    # prefix else).
    noun: ClassVar[str] = "model"
    measured_on: ClassVar[str] = ""
    baseline_words: ClassVar[Mapping[str, str]] = {}
    coded: ClassVar[bool] = False  # whether its rows may be kept as codes (``tasks.kinds.engine``)
    # Names of the parameters in its ``words``: an audit knows no others.
    param_names: ClassVar[tuple[str, ...]] = ()
    # Packages that a training needs beside those of dpflows.
    packages: ClassVar[tuple[str, ...]] = ()
    # Whether models compare by what they minimise; rankers do by the order that they give, whatever
    # their losses.
    by_objective: ClassVar[bool] = True
    # Whether ``Problem.norm_bound`` bounds the norm of a record.
    bounds_norms: ClassVar[bool] = True
    # Whether a data set may be published in partition files, one a fold.
    in_partitions: ClassVar[bool] = False
    # the algorithm of the line without privacy in a comparison
    exact: ClassVar[str] = "non_private"
    # A file of code that is stored with each model, for scores that ``tasks.record.scoring`` has
    # not. It imports nothing of ours but ``dpcore``, names the columns of the answer, ``score``
    # among them, with MLflow's types (``OUTPUTS``), and computes them by ``scored(card, weights,
    # rows)``, each of shape (n,).
    scores: ClassVar[Path | None] = None

    @property
    def numbers(self) -> str:
        """The file of a run that holds numbers and curves."""
        return f"report/{self.report or self.name}.json"

    @property
    def figures(self) -> str:
        """The folder of a run that holds the figures of these."""
        return f"figures/{self.report or self.name}"

    @abstractmethod
    def fits(self, config: TrainConfig, schema: Schema) -> bool:
        """Whether a training of these is of this kind; asked in the order of ``KINDS``."""

    @abstractmethod
    def describe(self, config: TrainConfig, schema: Schema) -> Job:
        """The job, from public facts; no file is opened. All bounds and levels of ``schema`` are
        known or stand in.

        Raises ``InputError`` for what does not fit together.
        """

    @abstractmethod
    def sums(self, job: Job, part: Any) -> Any:
        """Private sums over the records of ``part``: the training part, or a fold of it."""

    @abstractmethod
    def quality(self, job: Job, part: Any, weights: Array) -> Metrics:
        """How good ``weights`` are on ``part``, exactly, by the name of each metric."""

    @abstractmethod
    def metric_names(self, job: Job) -> tuple[str, ...]:
        """The names that ``quality`` may give; one that ends before ``_at_`` stands for all that
        begin so.
        """

    @abstractmethod
    def baselines(self, job: Job, train: Any, part: Any, sums: Any) -> dict[str, Metrics]:
        """The same numbers of what has no guarantee, by prefix (``majority_``): exact, so only
        their quality is kept.

        It learns from the records ``train`` and their ``sums``, and is measured on ``part``.
        """

    def check(self, job: Job) -> None:
        """Raise ``InputError`` where the algorithm and what it is given do not go with this
        problem.
        """
        return

    def load(self, job: Job, rows: Reading) -> Loaded:
        """Read, check and encode; raises ``InputError`` naming file, row, column, rule and way
        out.
        """
        return rows.load(job.encoder, job.problem.adjacency, job.config.evaluate.subgroup)

    def training_sums(self, job: Job, data: Loaded) -> Any:
        """The sums over the training part, checked against the public facts that the price relies
        on.
        """
        sums = self.sums(job, data.train)
        sums.check(job.problem)
        return sums

    def runnable(self, planned: Planned, sums: Any) -> Planned:
        """The plan as it runs on ``sums``; price and releases are those of ``planned``."""
        return planned

    def held_out(self, job: Job, data: Loaded, sums: Any) -> Any:
        """What ``quality`` is measured on: the test part where there is one, else the training
        records.
        """
        return data.train if data.test is None else data.test

    def by_record(self, job: Job, part: Any, weights: Array) -> tuple[str, Array] | None:
        """A metric and its value for each record of ``part`` (n,), for means by group; None where
        there are none.
        """
        return None

    def counts(self, job: Job, data: Loaded) -> Metrics:
        """Exact counts about what was read."""
        return data.report.counts()

    def iterates(self, job: Job, planned: Planned) -> Iterates | None:
        """The observer of a training that keeps what ``curve`` shows; None for a kind or an
        algorithm without one.
        """
        return None

    def curve(
        self, job: Job, iterates: Iterable[tuple[int, Array]], part: Any, sums: Any
    ) -> list[Metrics]:
        """Rows (iteration, metrics on ``part``) of iterates, which the algorithm released
        anyway.
        """
        return []

    def curves(self, job: Job) -> tuple[str, ...]:
        """The metrics of ``curve`` that are drawn."""
        return ()

    def page(self, job: Job, named: Mapping[str, Metrics], found: Metrics) -> dict[str, Any]:
        """What ``report/NAME.json`` says beside the curve: of the metrics of each model, or all
        that was ``found``.
        """
        return {"metrics": found}

    def write_notes(self, folder: Path, job: Job, notes: Sequence[Mapping[str, float]]) -> None:
        """Draw what the algorithm noted; notes follow from releases alone, so the figures may leave
        with them.
        """
        return

    def shows(self, job: Job, planned: Planned) -> str:
        """The name of the step ``show``; empty where weights show nothing that needs a table."""
        return ""

    def show(self, folder: Path, job: Job, planned: Planned, weights: Array) -> list[str]:
        """Write to ``folder``, in MLflow's layout, what the released weights show by themselves."""
        return []

    def save(self, folder: Path, job: Job, planned: Planned, weights: Array) -> dict[str, Any]:
        """Write what scoring needs beside ``weights.npz`` to ``folder``; return what ``model.json``
        says of it.
        """
        return {}

    def words(self, job: Job, planned: Planned, weights: Array) -> Words:
        """What the statement and the tracked run say of a model of this kind."""
        return Words()

    def conventions(self, job: Job) -> dict[str, Any]:
        """What the metrics of this kind mean, where the literature disagrees; empty where it does
        not.
        """
        return {}

    def encoding(self, job: Job) -> dict[str, Any]:
        """Sections of a configuration that say how records become columns, and leave nothing to a
        preset's rule.
        """
        return {"preprocess": job.config.preprocess}

    def encoding_words(self, job: Job) -> str:
        """The encoding as a part of a label: "hats(8)", "minmax cap"."""
        encoder = job.encoder
        words = [encoder.numeric, *([] if encoder.normalise == "none" else [encoder.normalise])]
        return " ".join([*words, *([] if encoder.intercept else ["no intercept"])])

    def convention_words(self, job: Job) -> str:
        """``conventions`` as a part of a label."""
        return ", ".join(f"{key} {value}" for key, value in self.conventions(job).items())

    def simplest(self, job: Job) -> str:
        """The line of a comparison that any model has to beat: ``majority``, ``mean_label``, or
        none.
        """
        return ""

    def exact_parameters(self, job: Job) -> dict[str, Any]:
        """Parameters of the algorithm that minimises ``exact_problem``."""
        return {}

    def exact_problem(self, job: Job) -> Problem:
        """What the line without privacy minimises, beside a training and in a comparison alike.

        L1 and ridge of the configuration, for a ridge that one private algorithm needs for its
        proof would lower the ceiling.
        """
        given = job.config.objective.l2
        return replace(
            job.problem,
            l2=float(registry["non_private"].default_l2) if given is None else given,
        )


class Sealed:
    """A value that an orchestrator may carry from step to step but neither look into, print nor
    store.
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def open(self) -> Any:
        return self._value

    def __repr__(self) -> str:
        return "<sealed: private>"

    def __reduce__(self) -> Any:
        raise TypeError("Private rows stay in the process that read them.")


def described(job: Job, schema: Schema) -> Job:
    """The job on ``schema``, whose bounds and levels are known by now."""
    complete = job.kind.describe(job.config.model_copy(update={"algorithm": job.algorithm}), schema)
    return replace(complete, config=job.config, options=job.options)


def reading_of(
    job: Job, blocks: tuple[str, ...] | None = None, sides: tuple[str, ...] = SIDES
) -> Reading:
    """The rows that a step of this job may open: of the blocks that it is charged on, or of some
    ``blocks`` of them.

    A data set without blocks is read whole.
    """
    data, chosen = job.config.data, blocks or job.blocks
    whole = job.schema.block is None or (job.public and chosen == ("all",))
    return Reading(job.schema, data.path, data.test_path, None if whole else chosen, sides)


def target_of(config: TrainConfig) -> Target:
    privacy = config.privacy
    return Target(privacy.epsilon, privacy.delta, privacy.conversion, privacy.accountant)


def promise_warnings(config: TrainConfig, n: int) -> tuple[str, ...]:
    """What is said of (epsilon, delta) for n records; raises ``InputError`` as ``check_delta``."""
    return check_delta(config, n) + weak_promise(config)


def check_delta(config: TrainConfig, n: int) -> tuple[str, ...]:
    """Refuse delta >= 1/n, which would allow a record to be published; warn only where a paper's
    setting has it.
    """
    delta = config.privacy.delta
    if delta < 1 / n:
        return ()
    if config.algorithm.preset == "paper":
        return (
            f"privacy.delta={delta:g} is not below 1/n={1 / n:.3g}: this run can never be "
            "released.",
        )
    raise InputError(
        f"Expected privacy.delta below 1/n={1 / n:.3g} for the public n={n}, got {delta:g}; lower "
        f"it, for example to {0.1 / n:.1g} (algorithm.preset=paper allows it for a run that is "
        "never released)."
    )


# Above this, the odds of any guess about a record may change by more than e^10 = 22,000.
WEAK_EPSILON = 10.0


def weak_promise(config: TrainConfig) -> tuple[str, ...]:
    """A warning where (epsilon, delta) promises next to nothing."""
    epsilon = config.privacy.epsilon
    if epsilon <= WEAK_EPSILON:
        return ()
    return (
        f"privacy.epsilon={epsilon:g} protects hardly anybody: the odds of a guess about a record "
        f"may change by a factor of e^{epsilon:g}; usual values lie between 0.1 and 8.",
    )
