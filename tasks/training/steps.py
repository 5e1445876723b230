"""The steps of one training, as plain functions: what is decided from public facts, and what sees the records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from dpcore.accounting import Events
from dpcore.accounting.curves import order_budgets
from dpcore.accounting.limits import SLACK, Limit, Room, Within, order_index
from dpcore.errors import InputError
from dpcore.problem import Problem
from dpcore.train import Planned, Result, plan, run
from tasks.config import TrainConfig
from tasks.home import Home
from tasks.kinds import kind_of
from tasks.kinds.base import Job, Sealed, check_delta, reading_of, target_of, weak_promise
from tasks.kinds.charge import charge_of, require_declared, require_public
from tasks.kinds.quality import check_subgroup
from tasks.ledger import Ledger, Reservation
from tasks.ledger.reader import LedgerReader
from tasks.options import tune
from tasks.options.bounds import open_words, plan_estimate, require_open, widest
from tasks.options.canaries import crowd
from tasks.options.rules import check_rules
from tasks.options.select import algorithm_of, check_kept
from tasks.record import outbox
from tasks.schema import Schema, find_schema


def prepare(config: TrainConfig, command: str = "train") -> Job:
    """Everything that follows from configuration and schema; raises ``InputError`` for what does not fit.

    ``command``: what it is for, train or compare; see ``tasks.options.rules``.
    """
    schema = find_schema(config.data.name)
    if schema.block is not None and not config.data.blocks and not schema.public.public:
        raise InputError(
            f"Expected data.blocks for schema {schema.name!r}, whose rows lie in blocks ({schema.block.by} of "
            f"{schema.block.column}), got none; list the blocks to train on. Folds cut through "
            "blocks: comparisons of private data take a schema without them."
        )
    check_rules(config, schema, command)
    require_open(schema)
    algorithm_of(config)
    check_subgroup(config, schema)
    return describe(config, schema)


def describe(config: TrainConfig, schema: Schema) -> Job:
    """The job of its kind; columns whose bounds or levels are not known yet count as the widest they can become."""
    chosen = config.model_copy(update={"algorithm": algorithm_of(config)})
    found = kind_of(config, schema).describe(chosen, widest(schema))
    problem, privacy = found.problem, config.privacy
    check_kept(config, problem)
    warnings = check_delta(config, problem.n) + weak_promise(config) + open_words(schema, problem.dimension)
    warnings += crowd(config, problem.n, problem.dimension)
    estimate = None
    if schema.bounds == "private" and schema.undeclared_columns:
        blocks = len(config.data.blocks or ()) or 1
        estimate = plan_estimate(schema, target_of(config), privacy.adjacency, blocks, privacy.noise)
    return replace(found, config=config, schema=schema, warnings=warnings, estimate=estimate)


def plan_training(job: Job, *limits: Room | Within) -> Planned:
    """Calibrate the algorithm to the run's own (epsilon, delta) and to further limits; no record is read."""
    algorithm = job.algorithm
    parameters = json.dumps(algorithm.parameters)
    form = job.config.privacy.noise
    before = None if job.estimate is None else job.estimate.events(job.problem.unit, form)
    target = target_of(job.config)
    if job.config.tune is not None:
        return tune.plan_tuned(job, target, *limits)
    job.kind.check_plan(job)
    planned = _plan(algorithm.name, parameters, algorithm.preset, form, job.problem, before, target, *limits)
    if not planned.algorithm.private:
        raise InputError(
            f"Expected a private algorithm, got algorithm.name={algorithm.name!r}, whose result has no guarantee; it "
            "is measured beside every private run (evaluate.baselines)."
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
    *limits: Limit,
) -> Planned:
    """A plan follows from its arguments alone; the command line asks for the same one before and in the flow."""
    try:
        return plan(name, json.loads(parameters), problem, *limits, preset=preset, noise=noise, before=before)
    except InputError as error:
        # The checks of an algorithm name the parameter, but not where it stands.
        raise type(error)(f"algorithm {name}: {error}") from None


def fit_to_ledger(job: Job, planned: Planned, ledger: LedgerReader) -> Planned:
    """Return a plan that the ledger admits, or raise ``BudgetExceeded``; the ledger is only read.

    Data that are declared public are refused where the ledger holds a budget for their name or for one of their files.
    The ledger adds up prices at one order. A plan for (epsilon, delta) may cost more there than what its own guarantee
    is worth at that order; then it gets the little more noise that makes it fit. Where even the worth of the guarantee
    is not left, the run is refused rather than quietly trained with more noise than was asked for.
    """
    require_public(job, ledger)
    require_declared(job, ledger)
    room = ledger.room(job.schema.name, job.blocks, public=job.public)
    if room is None or room.ratio(planned.events) <= 1 + SLACK:
        return planned
    target = target_of(job.config)
    worth = float(order_budgets(target.epsilon, target.delta, target.conversion)[order_index(room.order)])
    if not 0 < worth <= room.left * (1 + SLACK):
        raise room.refusal(planned.events)
    return plan_training(job, room)


def load_records(job: Job) -> Sealed:
    """Read, check and encode the records; raises ``InputError`` naming file, row, column, rule and way out.

    Where bounds are estimated first this is a check of the rows; they are encoded again when the bounds are known.
    """
    return Sealed(job.kind.load(job, reading_of(job).of(widest(job.schema))))


def build_objective(job: Job, loaded: Sealed) -> Sealed:
    """Private sums over the training records, checked against the public facts that the price relies on."""
    sums = job.kind.training_sums(job, loaded.open())
    return Sealed(tune.with_parts(job, sums, read_records))


def read_records(job: Job) -> tuple[Sealed, Sealed]:
    """The records of a job, and their sums."""
    loaded = load_records(job)
    return loaded, build_objective(job, loaded)


def reserve_budget(job: Job, planned: Planned, ledger: Ledger) -> Reservation:
    """Charge the plan; on disk when this returns. Entries of processes that are gone are forfeited on the way.

    The ledger warns when it has seen the files under another name, which has a budget of its own or none.
    """
    ledger.reap(kept=[pending.entry for _, pending in outbox.waiting(Home.find())])
    return replace(charge_of(job), period=job.config.data.period).reserve(ledger, planned.events)


def fit_model(
    job: Job,
    planned: Planned,
    objective: Sealed,
    reservation: Reservation,
    on_progress: Callable[[int, int], None] | None = None,
    observers: Sequence[Sealed] = (),
) -> Result:
    """Train through the one door; every release is counted in the reservation before its rows are drawn.

    ``observers`` look at what is asked and released: iterates of a curve, canaries.
    """
    config, sums = job.config, objective.open()
    if job.schema.undeclared_columns:
        raise InputError(
            f"Expected known bounds and levels in {job.schema.name!r} when the training starts (bounds: "
            f"{job.schema.bounds}); use `dpflows train`, or declare them."
        )
    return run(
        job.kind.runnable(planned, sums),
        sums,
        seed=config.seed,
        on_charge=reservation.on_charge,
        on_progress=on_progress,
        fixed_noise_seed=config.unsafe_fixed_noise_seed,
        observers=[one for sealed in observers if (one := sealed.open()) is not None],
    )
