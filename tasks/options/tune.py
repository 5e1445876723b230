"""``tune:`` in a training: a grid of public settings, tried a secret random number of times,
charged as one release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, ClassVar

from dpcore.accounting import ORDERS
from dpcore.accounting.curves import epsilon_of
from dpcore.accounting.limits import Further, Target
from dpcore.errors import InputError, unknown_name
from dpcore.mechanisms.repeated import Repeated
from dpcore.problem import Problem
from dpcore.train import Planned, Result
from dpcore.train.search import Candidate, Search, Tuned, plan_tuning, select
from tasks.config import TrainConfig, parse_config
from tasks.config.train import TuneSection
from tasks.kinds import kind_of
from tasks.kinds.base import Job, Sealed, Words, target_of
from tasks.ledger import Reservation
from tasks.options.base import Encoded, Option, Run, build_objective, load_records
from tasks.schema import find_schema

TUNED = (
    "Hyper-parameters were selected with a random number of trials; the number is not released, "
    "nor is anything of the trials that lost. The settings in the grid, the law of the number and "
    "everything else are taken as public, and the listed release covers the selection. Run time "
    "tells something about the number of trials: it is not released. Using the selected setting in "
    "later runs costs nothing beyond this charge."
)
ARGUMENT = (
    "The noisy count of right predictions that scores a trial moves by at most 1, and the "
    "selection among a random number of trials is priced after Papernot & Steinke (2022). Of a "
    "trial:"
)

# Keys outside ``algorithm`` that a grid may vary: they change what is minimised, not whose records
# are protected.
OBJECTIVE = ("objective.l1", "objective.l2")
ENCODING = "preprocess."
MOST_SETTINGS = 1000

REASONS = {
    "privacy": "the promise is fixed before the records are read",
    "data": "which records are read and charged is fixed before the search",
    "objective": "the model's kind is fixed before the search",
    "evaluate": "what is measured says nothing about the training",
    "preprocess.intercept": "the constant column belongs to the model, not to its tuning",
    "algorithm.name": "one search tunes one algorithm",
    "algorithm.preset": "it stands for several parameters; name those",
    "algorithm.noise_multiplier": "the noise follows from the budget",
    "algorithm.start": "a start is a model with a charge of its own",
}


def plan_tuned(job: Job, target: Target, *limits: Further) -> Planned:
    """Plan the search that the configuration asks for; no record is read.

    Raises ``InputError`` for a grid that moves more than the training.
    """
    return _plan(job.config.canonical(), job.problem, target, *limits)


@lru_cache(maxsize=8)
def _plan(config: str, problem: Problem, *limits: Target | Further) -> Planned:
    """A plan follows from its arguments alone; the command line asks for the same one before and in
    the flow.
    """
    stored = json.loads(config)
    settings = parse_config(stored)
    assert settings.tune is not None
    algorithm = settings.algorithm
    try:
        grid = grid_of(settings.tune)
        candidates = [
            candidate(stored, problem, values, encodings_of(grid)) for values in combinations(grid)
        ]
        search = search_of(settings.tune)
        return plan_tuning(
            algorithm.name,
            candidates,
            problem,
            search,
            *limits,
            preset=algorithm.preset,
            noise=settings.privacy.noise,
        )
    except InputError as error:
        raise type(error)(f"tune of algorithm {algorithm.name}: {error}") from None


def search_of(tune: TuneSection) -> Search:
    """Law and mean of the number of trials, and the score's share."""
    trials = tune.trials
    return Search(trials.distribution, trials.mean, trials.eta, tune.score.share)


def candidate(
    stored: Mapping[str, Any],
    problem: Problem,
    values: Mapping[str, Any],
    encodings: list[dict[str, Any]],
) -> Candidate:
    """The setting that ``values`` make of the configuration ``stored``; checked like a
    configuration of its own.
    """
    config = varied(stored, values)
    if not encodings:
        l2 = problem.l2 if config.objective.l2 is None else config.objective.l2
        return Candidate(
            dict(values),
            config.algorithm.parameters,
            replace(problem, l1=config.objective.l1, l2=l2),
        )
    part = encodings.index(
        {key: value for key, value in values.items() if key.startswith(ENCODING)}
    )
    schema = find_schema(config.data.name)
    own = kind_of(config, schema).describe(config, schema)
    own.kind.check(own)
    return Candidate(dict(values), config.algorithm.parameters, own.problem, part)


def varied(stored: Mapping[str, Any], values: Mapping[str, Any]) -> TrainConfig:
    """The configuration ``stored`` with ``values`` and without a search."""
    changed = json.loads(json.dumps({**stored, "tune": None}))
    for key, value in values.items():
        section, name = key.split(".")
        changed[section][name] = value
    return parse_config(changed, "tune.grid")


def encodings_of(grid: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Every choice of the grid about how rows are encoded; empty where it has none."""
    own = {key: values for key, values in grid.items() if key.startswith(ENCODING)}
    return list(combinations(own)) if own else []


def all_encoded(job: Job) -> tuple[Encoded, ...]:
    """The records in every encoding of the grid, in its order; empty where it has none.

    Every encoding is a public map, so all are made before a trial.
    """
    assert job.config.tune is not None
    stored, built = json.loads(job.config.canonical()), []
    for values in encodings_of(grid_of(job.config.tune)):
        own = job.kind.describe(varied(stored, values), job.schema)
        loaded = load_records(own)
        built.append(Encoded(own, loaded, build_objective(own, loaded)))
    return tuple(built)


def combinations(grid: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """Every choice of one value for each key."""
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _check_values(key: str, values: Any) -> None:
    if not isinstance(values, list) or not values:
        raise InputError(
            f"Expected a list of values for tune.grid.{key}, got {values!r}; for example [0.5, 1, "
            "2]."
        )
    if any(isinstance(value, list | dict) for value in values):
        raise InputError(
            f"Expected single values in tune.grid.{key}, got {values!r}; name numbers or words."
        )


def grid_of(tune: TuneSection) -> dict[str, tuple[Any, ...]]:
    """The values to try by dotted key, from nested or dotted keys. Raises ``InputError`` for what
    cannot be tuned.
    """
    grid = dict(sorted(_leaves(tune.grid, "")))  # one order of settings, whatever the file's
    for key, values in grid.items():
        _check_key(key)
        _check_values(key, values)
    size = prod(len(values) for values in grid.values())
    if not grid or not 2 <= size <= MOST_SETTINGS:
        raise InputError(
            f"Expected 2 to {MOST_SETTINGS} settings in tune.grid, got {size if grid else 0}; give "
            "one key at least two values, for example {algorithm.learning_rate: [1, 4]}, or "
            "leave tune out."
        )
    return {key: tuple(values) for key, values in grid.items()}


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_key(key: str) -> None:
    section = key.split(".")[0]
    reason = REASONS.get(key)
    if reason is None and section not in ("algorithm", "preprocess") and key not in OBJECTIVE:
        if section not in TrainConfig.model_fields:
            raise unknown_name("key of tune.grid", key, (*OBJECTIVE, "algorithm.learning_rate"))
        reason = REASONS.get(section, "it has no part in the training")
    if reason is not None or key.count(".") != 1:
        raise InputError(
            f"Expected parameters of the algorithm, preprocess or {', '.join(OBJECTIVE)} in "
            f"tune.grid, got {key!r}: {reason or 'it is no single parameter'}; leave it out of the "
            "grid."
        )


def selected(
    job: Job,
    planned: Planned,
    result: Result,
    loaded: Sealed,
    objective: Sealed,
    encodings: Sequence[Encoded] = (),
) -> tuple[Job, Planned, Sealed, Sealed]:
    """Job, plan and records as the setting has them that a tuned run selected, which its charge
    covers.

    All as they were for a training without a search.
    """
    planned = select(planned, result.notes)
    if not isinstance(planned.algorithm, Tuned) or planned.algorithm.selected is None:
        return job, planned, loaded, objective
    chosen = planned.algorithm.settings[planned.algorithm.selected]
    if chosen.part is None:
        return replace(job, problem=chosen.problem), planned, loaded, objective
    encoded = encodings[chosen.part]
    job = replace(job, problem=chosen.problem, encoder=encoded.job.encoder)
    return job, planned, encoded.data, encoded.sums


def report(planned: Planned) -> dict[str, Any]:
    """What ``dpflows plan`` says about a search; empty for another training."""
    if not isinstance(planned.algorithm, Tuned) or planned.target is None:
        return {}
    [law] = list(planned.events)
    assert isinstance(law, Repeated)
    target = planned.target
    trial = epsilon_of(law.trial_rdp(ORDERS), target.delta, target.conversion)
    return {"tuning": {**planned.algorithm.words(planned.problem), "trial_epsilon": float(trial)}}


class Tune(Option):
    """The plan is that of the search; the run goes on with the setting that it selected."""

    name = "tune"
    asked = "config.tune"
    titles: ClassVar[Mapping[str, str]] = {
        "before_reserve": "read encodings",
        "after_fit": "selected setting",
    }

    def title(self, hook: str, job: Job) -> str:
        assert job.config.tune is not None
        others = hook != "before_reserve" or encodings_of(grid_of(job.config.tune))
        return super().title(hook, job) if others else ""

    def plan(self, job: Job, *limits: Further) -> Planned | None:
        return plan_tuned(job, target_of(job.config), *limits)

    def before_reserve(self, run: Run) -> Run:
        built = all_encoded(run.job)
        run.sums.open().parts = [one.sums.open() for one in built]
        return replace(run, encodings=built)

    def after_fit(self, run: Run, reservation: Reservation) -> Run:
        job, planned, data, known = selected(
            run.job, run.planned, run.fitted, run.data, run.known, run.encodings
        )
        return replace(run, job=job, planned=planned, data=data, known=known)

    def words(self, job: Job, planned: Planned | None) -> Words:
        if planned is None:
            return Words()
        return Words(
            arguments=(ARGUMENT,), limits=(TUNED,), covers=("choice",), report=report(planned)
        )
