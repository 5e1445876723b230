"""The grid of a comparison: every setting with its public side, and the cells that are its repeats,
folds and draws.

Plans of cells, calibrated once for equal public facts: folds and repeats share them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from typing import Any

from dpcore.accounting.limits import Charged, Target
from dpcore.algorithms import check_assumptions, make
from dpcore.errors import AssumptionNotMet, InputError
from dpcore.problem import Adjacency, Problem
from dpcore.train import Planned, plan
from dpcore.train.planning import resolve
from tasks.compare.baselines import MINIMISATION_ERROR, asked, lines, wanted
from tasks.compare.config import (
    LINES,
    MEAN_LABEL,
    AlgorithmEntry,
    CompareConfig,
    CompareData,
)
from tasks.compare.variants import Jobs, given, levels, objectives_of, spread_out, training_config
from tasks.config import TrainConfig
from tasks.kinds import base as kinds_base
from tasks.kinds.base import Job, check_delta, weak_promise
from tasks.peers import PeerRun


@dataclass(frozen=True)
class Setting:
    """One line at one guarantee: a training configuration with its public side. Its cells differ in
    rows and noise.
    """

    label: str
    config: TrainConfig
    job: Job
    private: bool
    noise_multiplier: float | None = None  # where it is given in place of epsilon
    peer: PeerRun | None = None  # another library trains it

    @property
    def data(self) -> str:
        return self.job.schema.name

    @property
    def level(self) -> str:
        """What tells the settings of one line apart, for example "eps=0.4"; empty without
        privacy.
        """
        if not self.private:
            return ""
        noise = self.noise_multiplier
        return f"eps={self.config.privacy.epsilon:g}" if noise is None else f"noise={noise:g}"

    @property
    def facts(self) -> dict[str, Any]:
        """What a record says about its setting."""
        config, loss = self.config, self.job.problem.loss
        return {
            "data": self.data,
            "algorithm": config.algorithm.name,
            "label": self.label,
            "encoding": self.job.kind.encoding_words(self.job),
            "preset": config.algorithm.preset,
            "parameters": config.algorithm.parameters,
            "loss": loss.name,
            "loss_parameters": dict(config.objective.loss_parameters),
            "l1": config.objective.l1,
            "l2": config.objective.l2,
            "kind": self.job.problem.kind,
            "epsilon": config.privacy.epsilon
            if self.private and self.noise_multiplier is None
            else None,
            "noise_multiplier": self.noise_multiplier,
            "delta": config.privacy.delta if self.private else None,
            "adjacency": str(config.privacy.adjacency) if self.private else None,
            "private": self.private,
            "dimension": self.job.problem.dimension,
        }

    @property
    def target(self) -> Target:
        return kinds_base.target_of(self.config)

    def problem(self, folds: int, fold: int) -> Problem:
        """The public problem of the training part of a fold."""
        problem = self.job.problem
        adjacency = problem.adjacency
        here = replace(problem, n=training_rows(problem.n, adjacency, folds, fold))
        return (
            here if self.private else self.job.kind.exact_problem(replace(self.job, problem=here))
        )

    def parameters(self) -> dict[str, Any]:
        own = {} if self.private else self.job.kind.exact_parameters(self.job)
        return {**self.config.algorithm.parameters, **own}


@dataclass(frozen=True)
class Cell:
    """One training: a setting on one fold of one repeat, with one draw of the noise. ``key`` is its
    content hash.
    """

    setting: Setting
    repeat: int
    fold: int
    draw: int
    key: str
    seed: int  # public: starts; the same for every setting on this fold and draw


@dataclass(frozen=True)
class LeftOut:
    """A part of the grid that no proof covers, and why."""

    label: str
    where: str
    reason: str


def expand(config: CompareConfig) -> tuple[list[Setting], list[LeftOut]]:
    """All settings in the order of data, objective, adjacency, algorithm and epsilon, lines without
    privacy first.

    A combination that the proof of its algorithm does not cover is left out, with the reason;
    everything else that does not fit raises ``InputError``. No file of the data is opened.
    """
    entries, _ = spread_out(config.algorithms)
    check_names(entries)
    jobs = Jobs()
    settings: list[Setting] = []
    left_out: list[LeftOut] = []
    for data in config.data:
        private: list[Setting] = []
        for entry in entries:
            if entry.name not in LINES:
                found, missing = _private(config, data, entry, jobs)
                private += found
                left_out += missing
        beside = lines(config, data, jobs, [setting.job for setting in private])
        settings += [Setting(label, job.config, job, private=False) for label, job in beside]
        settings += private
    if not any(setting.private for setting in settings) and left_out:
        raise InputError(
            f"Expected at least one algorithm that fits, got none: {left_out[0].reason}"
        )
    unique = {(s.data, s.label, s.config.sha256): s for s in settings}
    return list(unique.values()), left_out


def check_names(entries: Iterable[AlgorithmEntry]) -> None:
    """Raise for algorithms without privacy other than the lines, and for unknown names and
    parameters.
    """
    for entry in entries:
        if entry.name in ("auto", MEAN_LABEL):
            continue
        algorithm = make(entry.name, entry.parameters, entry.preset)
        if not algorithm.private and entry.name not in LINES:
            raise InputError(
                f"Expected private algorithms, got algorithms name={entry.name!r}; "
                f"{', '.join(LINES)} are drawn as lines beside every comparison."
            )


def _private(
    config: CompareConfig, data: CompareData, entry: AlgorithmEntry, jobs: Jobs
) -> tuple[list[Setting], list[LeftOut]]:
    found: list[Setting] = []
    missing: list[LeftOut] = []
    for objective in objectives_of(config, data, entry):
        for adjacency in entry.adjacency or config.privacy.adjacency:
            base = training_config(config, data, objective, entry, adjacency)
            job = jobs.of(base)
            try:
                check_covered(base, job.problem)
            except AssumptionNotMet as error:
                where = f"{job.schema.name}, {objective.loss}, {adjacency}"
                missing.append(LeftOut(entry.shown, where, str(error)))
                continue
            for own, noise in levels(config, base):
                found.append(Setting(entry.shown, own, given(job, own), True, noise))
    return found, missing


def check_covered(config: TrainConfig, problem: Problem) -> None:
    """Raise ``AssumptionNotMet`` where the proof of the algorithm does not cover the problem."""
    chosen, parameters, _ = resolve(
        config.algorithm.name, config.algorithm.parameters, problem, None
    )
    check_assumptions(make(chosen, parameters, config.algorithm.preset), problem)


def warnings_of(settings: Iterable[Setting], folds: int) -> list[str]:
    """What public facts say against settings. On private data delta >= 1/n of a fold is refused
    (``InputError``).
    """
    found: dict[str, None] = {}
    for setting in settings:
        if not setting.private:
            continue
        n = setting.problem(folds, 0).n
        if setting.noise_multiplier is None:
            found.update(dict.fromkeys(weak_promise(setting.config)))
        try:
            check_delta(setting.config, n)
        except InputError:
            if not setting.job.public:
                raise
            found[
                f"privacy.delta={setting.config.privacy.delta:g} is not below 1/n={1 / n:.3g} of a "
                f"fold of {setting.data!r}: it would allow to publish a record."
            ] = None
    return list(found)


def cells_of(setting: Setting, config: CompareConfig, facts: str) -> list[Cell]:
    """All cells of ``setting``. ``facts`` stands for the rows, their folds and the code (a
    hash).
    """
    protocol = config.protocol
    folds = range(protocol.folds)
    found = []
    for repeat, fold, draw in product(
        range(protocol.partitions), folds, range(protocol.noise_draws)
    ):
        place = (protocol.folds, protocol.parts, repeat, fold, draw)
        how = (config.reproducible, config.curve_every, wanted(config.metrics))
        identity = [setting.config.canonical(), setting.label, place, facts, *how]
        identity += [] if setting.peer is None else setting.peer.identity
        identity += [MINIMISATION_ERROR] if asked(config.metrics) else []
        key = sha256(json.dumps(identity).encode()).hexdigest()
        found.append(
            Cell(setting, repeat, fold, draw, key, public_seed(config.seed, setting.data, place))
        )
    return found


def public_seed(seed: int, data: str, place: Sequence[Any]) -> int:
    """The public seed of a fold and draw, the same for every algorithm and epsilon."""
    return int.from_bytes(
        sha256(json.dumps([seed, data, list(place)]).encode()).digest()[:6], "big"
    )


def noise_seed(cell: Cell) -> int:
    """A seed for reproducible noise on public data: of what the cell is, whatever version of the
    program runs it.
    """
    setting = cell.setting
    identity = [setting.config.canonical(), setting.label, cell.repeat, cell.fold, cell.draw]
    return int.from_bytes(sha256(json.dumps(identity).encode()).digest()[:6], "big")


class Plans:
    """Calibrated plans by (algorithm, problem, target). Threads that ask for one plan wait for the
    first of them.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Planned] = {}
        self._locks: dict[Any, threading.Lock] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return Plans, ()

    def of(self, setting: Setting, problem: Problem) -> Planned:
        """The plan of a setting on ``problem``; raises ``InputError`` or ``BudgetExceeded`` where
        there is none.
        """
        algorithm, noise = setting.config.algorithm, setting.config.privacy.noise
        parameters = setting.parameters()
        charged = () if setting.job.public else (Charged(),)
        limits = (setting.target, *charged) if setting.private else ()
        key = (
            algorithm.name,
            json.dumps(parameters, sort_keys=True),
            algorithm.preset,
            noise,
            problem,
            limits,
        )
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._known:
                self._known[key] = plan(
                    algorithm.name,
                    parameters,
                    problem,
                    *limits,
                    preset=algorithm.preset,
                    noise=noise,
                )
            return self._known[key]


def training_rows(n: int, adjacency: Adjacency, folds: int, fold: int) -> int:
    """Public count of the training part of a fold, from the public count ``n`` of all rows to be
    split.

    Exact under replace-one and replace-labels, where n is: fold f holds floor(n / folds) rows for
    testing, and one more for f < n mod folds. Under add/remove a nominal count: floor(n (folds - 1)
    / folds).
    """
    if folds == 1:
        return n
    if adjacency is Adjacency.ADD_REMOVE:
        return n * (folds - 1) // folds
    return n - n // folds - (fold < n % folds)
