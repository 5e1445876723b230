"""The steps of one training, as plain functions: what is decided from public facts, and what sees the records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpcore.accounting import Events
from dpcore.accounting.curves import order_budgets
from dpcore.accounting.limits import SLACK, Limit, Room, order_index
from dpcore.errors import InputError
from dpcore.losses import plain_name
from dpcore.objective import LinearObjective
from dpcore.objective.multiclass import MulticlassObjective
from dpcore.preprocess.design import Data
from dpcore.problem import Problem
from dpcore.train import Planned, Result, plan, run
from dpcore.train.auto import resolve_name
from tasks.config import TrainConfig
from tasks.data import Reading
from tasks.data.load import test_files
from tasks.data.reading import SIDES
from tasks.home import Home
from tasks.kinds import network as kinds_network
from tasks.kinds import sessions
from tasks.kinds.base import Job, Sealed, check_delta, target_of, weak_promise
from tasks.kinds.quality import check_subgroup
from tasks.kinds.table import by_user, check_fit, check_user_level, encoding_of, l2_of, make_loss
from tasks.ledger import Blocks, Charge, Ledger, Reservation, RowFacts
from tasks.ledger.reader import LedgerReader
from tasks.options import tune
from tasks.options.bounds import open_words, plan_estimate, require_open, widest
from tasks.options.canaries import crowd
from tasks.options.rules import check_rules
from tasks.options.select import algorithm_of, check_kept
from tasks.profile.private import budgets_of
from tasks.readers import source_paths
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
    if sessions.is_ranking(schema):
        encoder, ranker, problem = sessions.describe(config, schema)
        warnings = check_delta(config, problem.n) + weak_promise(config)
        return Job(config, schema, encoder, problem, tuple(config.data.blocks or ("all",)), warnings, ranker)
    if config.model is not None:
        encoder, spec, problem = kinds_network.describe(config, schema)
        warnings = check_delta(config, problem.n) + weak_promise(config)
        return Job(config, schema, encoder, problem, tuple(config.data.blocks or ("all",)), warnings, network=spec)
    return describe(config, schema)


def describe(config: TrainConfig, schema: Schema) -> Job:
    """The job of a table; columns whose bounds or levels are not known yet count as the widest they can become."""
    blocks = tuple(config.data.blocks or ())
    loss = make_loss(config.objective, schema)
    try:
        encoder = widest(schema).encoder(**encoding_of(config, loss, schema))
    except InputError as error:
        raise type(error)(f"preprocess: {error}") from None
    design = encoder.design
    check_fit(schema, loss, blocks)
    problem = Problem(
        n=schema.n(len(blocks) or 1),
        dimension=design.dimension,
        loss=loss,
        adjacency=config.privacy.adjacency,
        unit=schema.unit,
        l1=config.objective.l1,
        l2=l2_of(config, loss),
        norm_bound=design.norm_bound,
        blocks=design.blocks,
        intercept=design.intercept,
        outputs=len(schema.label.levels) if schema.label.kind == "classes" else 1,
    )
    check_kept(config, problem)
    warnings = check_delta(config, problem.n) + weak_promise(config) + open_words(schema, problem.dimension)
    warnings += crowd(config, problem.n, problem.dimension)
    estimate = None
    if schema.bounds == "private" and schema.undeclared_columns:
        privacy = config.privacy
        estimate = plan_estimate(schema, target_of(config), privacy.adjacency, len(blocks) or 1, privacy.noise)
    return Job(config, schema, encoder, problem, blocks or ("all",), warnings, estimate=estimate)


def plan_training(job: Job, *limits: Room) -> Planned:
    """Calibrate the algorithm to the run's own (epsilon, delta) and to further limits; no record is read."""
    algorithm = algorithm_of(job.config)
    parameters = json.dumps(algorithm.parameters)
    form = job.config.privacy.noise
    before = None if job.estimate is None else job.estimate.events(job.problem.unit, form)
    target = target_of(job.config)
    if job.config.tune is not None:
        return tune.plan_tuned(job, target, *limits)
    if job.schema.unit == "user":
        check_user_level(job.config, job.schema, resolve_name(algorithm.name, plain_name(job.problem.loss)))
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


def require_files(job: Job) -> list[Path]:
    """The files of the training table, which may be none; raises ``InputError`` for one that is not there.

    Nothing is opened.
    """
    found: list[Path] = []
    if job.config.data.path is not None or job.schema.source.kind == "file":
        found = source_paths(job.schema, job.config.data.path, job.schema.source.path)
    if job.config.data.test_path is not None:
        source_paths(job.schema, job.config.data.test_path, job.schema.split.path, "data.test_path")
    return found


def all_files(job: Job) -> list[Path]:
    """The files of the training and the test part; raises ``InputError`` for one that is not there."""
    found = require_files(job)
    return [*found, *test_files(job.schema, found, job.config.data.test_path)] if found else []


def require_public(job: Job, ledger: LedgerReader) -> None:
    """Raise ``InputError`` where the data are declared public and the ledger knows their name or a file as private."""
    if job.public:
        ledger.require_public(job.schema.name, all_files(job))


def load_records(job: Job) -> Sealed:
    """Read, check and encode the records; raises ``InputError`` naming file, row, column, rule and way out.

    Where bounds are estimated first this is a check of the rows; they are encoded again when the bounds are known.
    """
    rows = reading_of(job).of(widest(job.schema))
    return Sealed(rows.load(job.encoder, job.problem.adjacency, job.config.evaluate.subgroup))


def reading_of(job: Job, blocks: tuple[str, ...] | None = None, sides: tuple[str, ...] = SIDES) -> Reading:
    """The rows that a step of this job may open: of the blocks that it is charged on, or of some ``blocks`` of them.

    A data set without blocks is read whole.
    """
    data, chosen = job.config.data, blocks or job.blocks
    whole = job.schema.block is None or (job.public and chosen == ("all",))
    return Reading(job.schema, data.path, data.test_path, None if whole else chosen, sides)


def build_objective(job: Job, loaded: Sealed) -> Sealed:
    """Private sums over the training records, checked against the public facts that the price relies on."""
    train = loaded.open().train
    if job.ranker is not None:
        return Sealed(sessions.session_sums(job.ranker, job.problem, train))
    if job.network is not None:
        return Sealed(kinds_network.network_sums(job.network, job.problem, train))
    if not isinstance(train, Data):
        raise InputError(
            f"Expected a table of records in {job.schema.name!r}, got sessions; declare a label of kind relevance."
        )
    kind = MulticlassObjective if job.schema.label.kind == "classes" else LinearObjective
    objective = kind(train.X, train.y, job.problem.loss)
    objective.check_records(job.problem.dimension, job.problem.norm_bound)
    objective = tune.with_parts(job, objective, read_records)
    return Sealed(objective if job.schema.unit == "record" else by_user(job, objective, loaded))


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


def require_declared(job: Job, ledger: LedgerReader) -> None:
    """Raise ``InputError`` where the ledger fixed other facts of the rows, or delta is not below 1/n; reads no file."""
    ledger.require_facts(job.schema.name, RowFacts.of(job.schema), job.problem.n)


def charge_of(job: Job, reading: Reading | None = None) -> Charge:
    """What a release of this job charges: the blocks that it reads, or those of another ``reading`` of its data."""
    rows = reading_of(job) if reading is None else reading
    files, all_of_them = require_files(job), all_files(job)
    charge = Charge(
        dataset=job.schema.name,
        unit=job.problem.unit,
        adjacency=job.problem.adjacency,
        form=job.config.privacy.noise,
        blocks=rows.blocks or ("all",),
        public=job.public,
        division=Blocks.of(job.schema),
        files=tuple(all_of_them),
        test_files=tuple(file for file in all_of_them if file not in files),
        config_sha256=job.config.sha256,
        facts=RowFacts.of(job.schema),
        reading=described_reading(job),
    )
    for file in charge.test_files:
        charge.require_own_test(budgets_of(file))
    return charge


def described_reading(job: Job) -> dict[str, Any]:
    """What a reservation records of what is read: public counts, the split and where test rows come from."""
    public, split = job.schema.public, job.schema.split
    stated = {"n": job.problem.n, "rows_per_block": public.rows_per_block, "rows_per_user": public.rows_per_user}
    test = "a file of its own" if job.config.data.test_path is not None or split.kind == "file" else split.kind
    drawn = {"by": list(split.by), "test_share": split.test_share, "salt": split.salt} if split.kind == "hash" else {}
    known = {key: value for key, value in stated.items() if value is not None}
    return known | {"split": {"kind": split.kind, **drawn}, "test": test}


def fit_model(
    job: Job,
    planned: Planned,
    objective: Sealed,
    reservation: Reservation,
    on_progress: Callable[[int, int], None] | None = None,
    watch: Sealed | None = None,
) -> Result:
    """Train through the one door; every release is counted in the reservation before its rows are drawn.

    ``watch`` looks for canaries in what is released (``tasks.options.canaries``).
    """
    config, sums = job.config, objective.open()
    if job.schema.undeclared_columns:
        raise InputError(
            f"Expected known bounds and levels in {job.schema.name!r} when the training starts (bounds: "
            f"{job.schema.bounds}); use `dpflows train`, or declare them."
        )
    return run(
        planned if job.ranker is None else sessions.with_documents(planned, sums),
        sums,
        seed=config.seed,
        on_charge=reservation.on_charge,
        on_progress=on_progress,
        fixed_noise_seed=config.unsafe_fixed_noise_seed,
        observers=() if watch is None else (watch.open(),),
    )
