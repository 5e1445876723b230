"""The steps of one training, as plain functions: what is decided from public facts, and what sees the records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpcore.accounting import Events
from dpcore.accounting.conversion import order_budgets
from dpcore.accounting.limits import SLACK, Limit, Room, Target, order_index
from dpcore.algorithms import registry
from dpcore.auto import encoding, resolve_name
from dpcore.data import Data
from dpcore.errors import InputError
from dpcore.estimate import EstimateColumns
from dpcore.losses import Loss
from dpcore.network.spec import NetworkSpec
from dpcore.objective import LinearObjective
from dpcore.preprocess import Encoder, MatrixEncoder
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.model import RankingModel
from dpcore.softmax import MulticlassObjective
from dpcore.train import Planned, Result, plan, run
from dpcore.users import UserObjective
from dpcore.weighted import plain_name
from tasks import network, outbox, rankers, tuning
from tasks.bounds import open_words, plan_estimate, require_open, widest
from tasks.canary_rules import check_canaries, crowd
from tasks.config import TrainConfig
from tasks.data import Reading
from tasks.data.load import test_files
from tasks.data.reading import SIDES
from tasks.fitting import check_delta, check_fit, check_user_level, make_loss, weak_promise
from tasks.home import Home
from tasks.home import ledger_url as ledger_url
from tasks.ledger import Blocks, Charge, Ledger, Reservation, RowFacts
from tasks.ledger.reader import LedgerReader
from tasks.profile.owner import budgets_of
from tasks.quality import check_subgroup
from tasks.readers import source_paths
from tasks.schema import Schema, find_schema
from tasks.selecting import algorithm_of, check_kept, check_select


@dataclass(frozen=True, slots=True)
class Job:
    """The public side of a training: configuration, schema, encoder and problem. No file of the data was opened."""

    config: TrainConfig
    schema: Schema
    encoder: Encoder | MatrixEncoder
    problem: Problem
    blocks: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    ranker: RankingModel | None = None
    network: NetworkSpec | None = None
    estimate: EstimateColumns | None = None  # of bounds and levels that are not known yet

    @property
    def public(self) -> bool:
        return self.schema.public.public


class Sealed:
    """A value that an orchestrator may carry from step to step but neither look into, print nor store."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def open(self) -> Any:
        return self._value

    def __repr__(self) -> str:
        return "<sealed: private>"

    def __reduce__(self) -> Any:
        raise TypeError("Private rows stay in the process that read them.")


def prepare(config: TrainConfig) -> Job:
    """Everything that follows from configuration and schema; raises ``InputError`` for what does not fit."""
    schema = find_schema(config.data.name)
    require_open(schema)
    check_select(config, schema)
    check_subgroup(config, schema)
    check_canaries(config, schema)
    if rankers.is_ranking(schema):
        encoder, ranker, problem = rankers.describe(config, schema)
        warnings = check_delta(config, problem.n) + weak_promise(config)
        return Job(config, schema, encoder, problem, tuple(config.data.blocks or ("all",)), warnings, ranker)
    if config.model is not None:
        encoder, spec, problem = network.describe(config, schema)
        warnings = check_delta(config, problem.n) + weak_promise(config)
        return Job(config, schema, encoder, problem, tuple(config.data.blocks or ("all",)), warnings, network=spec)
    if config.ranking is not None:
        raise InputError(
            f"Expected no section ranking for data set {schema.name!r}, whose label is of kind {schema.label.kind}; "
            "leave it out, or name data with a label of kind relevance."
        )
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


def encoding_of(config: TrainConfig, loss: Loss, schema: Schema) -> dict[str, Any]:
    """Settings of the encoder: those of the configuration, else those that go with the algorithm.

    A file of numbers has no columns to be taken apart, so there each number stays one column.
    """
    rule = encoding(algorithm_of(config).name, plain_name(loss))
    if schema.features:
        rule = rule | {"numeric": "minmax"}
    named = config.preprocess.model_dump(exclude_none=True)
    return rule | named


def l2_of(config: TrainConfig, loss: Loss) -> float:
    """The ridge of the configuration, else the public rule of the algorithm (none where it needs none)."""
    if config.objective.l2 is not None:
        return config.objective.l2
    name = resolve_name(algorithm_of(config).name, plain_name(loss))
    return float(registry[name].default_l2)


def target_of(config: TrainConfig) -> Target:
    privacy = config.privacy
    return Target(privacy.epsilon, privacy.delta, privacy.conversion, privacy.accountant)


def plan_training(job: Job, *limits: Room) -> Planned:
    """Calibrate the algorithm to the run's own (epsilon, delta) and to further limits; no record is read."""
    algorithm = algorithm_of(job.config)
    parameters = json.dumps(algorithm.parameters)
    form = job.config.privacy.noise
    before = None if job.estimate is None else job.estimate.events(job.problem.unit, form)
    target = target_of(job.config)
    if job.config.tune is not None:
        return tuning.plan_tuned(job, target, *limits)
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
    return Reading(job.schema, data.path, data.test_path, None if chosen == ("all",) else chosen, sides)


def build_objective(job: Job, loaded: Sealed) -> Sealed:
    """Private sums over the training records, checked against the public facts that the price relies on."""
    train = loaded.open().train
    if job.ranker is not None:
        return Sealed(rankers.session_sums(job.ranker, job.problem, train))
    if job.network is not None:
        return Sealed(network.network_sums(job.network, job.problem, train))
    if not isinstance(train, Data):
        raise InputError(
            f"Expected a table of records in {job.schema.name!r}, got sessions; declare a label of kind relevance."
        )
    kind = MulticlassObjective if job.schema.label.kind == "classes" else LinearObjective
    objective = kind(train.X, train.y, job.problem.loss)
    objective.check_records(job.problem.dimension, job.problem.norm_bound)
    objective = tuning.with_parts(job, objective, read_records)
    return Sealed(objective if job.schema.unit == "record" else by_user(job, objective, loaded))


def read_records(job: Job) -> tuple[Sealed, Sealed]:
    """The records of a job, and their sums."""
    loaded = load_records(job)
    return loaded, build_objective(job, loaded)


def by_user(job: Job, objective: LinearObjective, loaded: Sealed) -> UserObjective:
    """The same sums with a user as what is drawn, clipped and counted; checked against the public number of users."""
    assert job.schema.public.rows_per_user is not None
    users = UserObjective(objective, loaded.open().users, job.schema.public.rows_per_user, canonical=True)
    if job.problem.adjacency is Adjacency.REPLACE_ONE and users.n != job.problem.n:
        raise InputError(
            f"Expected exactly {job.problem.n} users under replace_one, where their number is public, got {users.n}; "
            "declare it in public.n, or use adjacency add_remove."
        )
    return users


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

    ``watch`` looks for canaries at the door (``tasks.canary``).
    """
    config, sums = job.config, objective.open()
    if job.schema.undeclared_columns:
        raise InputError(
            f"Expected known bounds and levels in {job.schema.name!r} when the training starts (bounds: "
            f"{job.schema.bounds}); use `dpflows train`, or declare them."
        )
    return run(
        planned if job.ranker is None else rankers.with_documents(planned, sums),
        sums,
        seed=config.seed,
        on_charge=reservation.on_charge,
        on_progress=on_progress,
        fixed_noise_seed=config.unsafe_fixed_noise_seed,
        door=None if watch is None else watch.open().door,
    )
