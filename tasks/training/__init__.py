"""The steps of one training, as plain functions: what is decided from public facts, and what sees
the records.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from dpcore.accounting.limits import SLACK, Charged, Further, Room
from dpcore.accounting.observers import Iterates
from dpcore.errors import BudgetExceeded, InputError
from dpcore.train import Planned, Result, run
from tasks.config import TrainConfig
from tasks.data import Loaded
from tasks.data.rows import check_group
from tasks.kinds import kind_of
from tasks.kinds.base import Job, Sealed, promise_warnings, target_of
from tasks.kinds.charge import charge_of, require_declared, require_public
from tasks.kinds.quality import means_by_group, write_numbers
from tasks.ledger import Ledger, Reservation
from tasks.ledger.reader import LedgerReader
from tasks.options import check_options
from tasks.options.base import (
    Run,
    adapted,
    build_objective,
    entries_of,
    load_records,
    plan_alone,
    words_of,
)
from tasks.record import outbox
from tasks.schema import find_schema

# What is said of each part of a network's memory, and what makes it less.
HELD = {
    "records": "its records as the layers see them",
    "pass": "one pass over some of its records",
    "weights": "its weights and their gradient",
}
WAYS = {
    "records": "set model.shrink (2 takes the means of 2 x 2 pixels), or take a larger machine",
    "pass": "lower model.copies, set model.shrink, or take a larger machine",
    "weights": "choose smaller layers, or take a larger machine",
}
# Where a container says what its processes may use: two versions of control groups.
CONTAINER = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def prepare(config: TrainConfig, command: str = "train", here: bool = True) -> Job:
    """Everything that follows from configuration and schema; raises ``InputError`` for what does
    not fit.

    ``command``: what it is for, train or compare; see ``tasks.options.rules``. ``here``: whether it
    is to be trained on this machine, whose memory must hold it.
    """
    schema = find_schema(config.data.name)
    if schema.block is not None and not config.data.blocks and not schema.public.public:
        raise InputError(
            f"Expected data.blocks for schema {schema.name!r}, whose rows lie in blocks "
            f"({schema.block.by} of {schema.block.column}), got none; list the blocks to read."
        )
    kind = kind_of(config, schema)
    options = check_options(config, schema, kind.name, command)
    if config.evaluate.subgroup is not None:
        check_group(schema, config.evaluate.subgroup)
    given, known = adapted(config, schema, options)
    job = replace(kind.describe(given, known), config=config, schema=schema, options=options)
    for option in options:
        option.check(job)
    kind.check(job)
    if here:
        require_memory(job)
    warnings = promise_warnings(config, job.problem.n) + words_of(job).warnings
    return replace(job, warnings=warnings)


def machine_memory() -> float:
    """Bytes of memory that this process may use: the machine's, or fewer where a container says so;
    inf where nobody says.
    """
    found = [inf]
    with suppress(OSError, ValueError, AttributeError):
        found.append(float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES"))
    for place in CONTAINER:
        with suppress(OSError, ValueError):  # the file says "max" where there is no limit
            found.append(float(Path(place).read_text(encoding="ascii")))
    return min(size for size in found if size > 0)


def require_memory(job: Job) -> None:
    """Raise ``InputError`` where a training holds more than this machine's memory, as declarations
    alone tell: before a file of the data is opened.
    """
    asked, there = sum(job.memory.values()), machine_memory()
    if asked <= there:
        return
    most = max(job.memory, key=lambda name: job.memory[name])
    model: Any = job.model
    image = f", image={list(model.image)}" if model.image else ""
    sizes = f"kind={model.kind}{image}, shrink={model.shrink}, copies={model.copies}"
    raise InputError(
        f"Expected a training within this machine's {there / 1e9:.3g} GB of memory, got model "
        f"{sizes} for n={job.problem.n:,}, which holds at least {asked / 1e9:.3g} GB "
        f"({job.memory[most] / 1e9:.3g} of them {HELD[most]}); {WAYS[most]}. Nothing was spent."
    )


def plan_training(job: Job, *limits: Further) -> Planned:
    """Calibrate the algorithm to the run's own (epsilon, delta) and to further limits; no record is
    read. Private data are charged to a ledger, so their noise is that of the curve.
    """
    limits = limits or (() if job.public else (Charged(),))
    plans = (option.plan(job, *limits) for option in job.options)
    return next((planned for planned in plans if planned is not None), None) or plan_alone(
        job, *limits
    )


def plan_within(job: Job, ledger: LedgerReader) -> Planned:
    """The plan of a job that the ledger admits with all that is charged beside it; see
    ``fit_to_ledger``.
    """
    return fit_to_ledger(job, plan_training(job), ledger)


def fit_to_ledger(job: Job, planned: Planned, ledger: LedgerReader) -> Planned:
    """Return a plan that the ledger admits, or raise ``BudgetExceeded``; the ledger is only read.

    Data that are declared public are refused where the ledger holds a budget for their name or for
    one of their files. The ledger adds up prices at one order. A plan for (epsilon, delta) may cost
    more there than what its own guarantee is worth at that order; then it gets the little more
    noise that makes it fit. Where even the worth of the guarantee is not left, the run is refused
    rather than quietly trained with more noise than was asked for; and where there is no room for
    it together with what its options charge beside it.
    """
    require_public(job, ledger)
    require_declared(job, ledger)
    room = ledger.room(job.schema.name, job.blocks, public=job.public)
    if room is None:
        return planned
    if room.order is None:
        planned = plan_training(job, replace(room, left=inf))  # an adaptive run keeps its own mu^2
    if room.ratio(planned.events) > 1 + SLACK:
        worth = room.worth(target_of(job.config))
        if not 0 < worth <= room.left * (1 + SLACK):
            raise room.refusal(planned.events)
        planned = plan_training(job, room)
    require_entries(job, planned, room)
    return planned


def require_entries(job: Job, planned: Planned, room: Room) -> None:
    """Raise ``BudgetExceeded`` unless there is room for the training and for what its options
    charge beside it.
    """
    beside = entries_of(job)
    asked = room.cost(planned.events) + sum(map(room.cost, beside.values()))
    if beside and asked > room.left * (1 + SLACK):
        names = " and ".join(beside)
        raise BudgetExceeded(
            f"Expected room for the training and {names} in {job.schema.name!r}: {room.left:.6g} "
            f"is left and {asked:.6g} was asked; lower an epsilon, or leave {names} out.",
            asked=asked,
            left=room.left,
        )


def read_run(job: Job, planned: Planned) -> Run:
    """The training with its records and sums, and what its options have to read before anything is
    charged.
    """
    loaded = load_records(job)
    sums = build_objective(job, loaded)
    run = Run(job, planned, loaded, sums, sums)
    for option in job.options:
        run = option.before_reserve(run)
    return run


def reserve_budget(
    job: Job, planned: Planned, ledger: Ledger, loaded: Sealed | None = None
) -> Reservation:
    """Charge the plan; on disk when this returns. Entries of processes that are gone are forfeited
    on the way.

    Raises ``InputError`` where a file is no longer what ``loaded`` read of it.

    The ledger warns when it has seen the files under another name, which has a budget of its own or
    none.
    """
    ledger.reap(kept=outbox.entries())
    read = None if loaded is None else loaded.open().read
    charge = replace(charge_of(job, as_read=read), period=job.config.data.period)
    return charge.reserve(ledger, planned.events)


def fit_model(
    job: Job,
    planned: Planned,
    objective: Sealed,
    reservation: Reservation,
    on_progress: Callable[[int, int], None] | None = None,
    observers: Sequence[Sealed] = (),
) -> Result:
    """Train through the one door; every release is counted in the reservation before its rows are
    drawn.

    ``observers`` look at what is asked and released: iterates of a curve, canaries.
    """
    config, sums = job.config, objective.open()
    if job.schema.undeclared_columns:
        raise InputError(
            f"Expected known bounds and levels in {job.schema.name!r} when the training starts "
            f"(bounds: {job.schema.bounds}); use `dpflows train`, or declare them."
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


Array = np.ndarray


def _by_group(
    job: Job, weights: Array, data: Loaded, part: Any, folder: Path | None
) -> dict[str, float]:
    """The means in each group of ``evaluate.subgroup``; empty where none was asked for."""
    if data.groups is None or (each := job.kind.by_record(job, part, weights)) is None:
        return {}
    metric, values = each
    return means_by_group(job, values, metric, data.groups, folder)


def measure(
    job: Job,
    weights: Array,
    loaded: Sealed,
    objective: Sealed,
    folder: Path | None = None,
    iterates: Sealed | None = None,
) -> dict[str, float]:
    """Exact numbers on records: internal, and released as well where the whole data set is declared
    public.

    On the test part where there is one, else on the training records. Keys carry their prefix. With
    ``folder`` the quality by ``evaluate.subgroup`` is written to ``report/subgroups.json``, and
    what its kind has to show to ``report/NAME.json``: numbers, and curves over the ``iterates``
    that were kept (``Kind.iterates``).
    """
    kind, sums = job.kind, objective.open()
    data: Loaded = loaded.open()
    part = kind.held_out(job, data, sums)
    named = {"": kind.quality(job, part, weights)}
    if job.config.evaluate.baselines:
        named |= kind.baselines(job, data.train, part, sums)
    exact = {
        f"{name}{key}": value for name, values in named.items() for key, value in values.items()
    }
    exact |= _by_group(job, weights, data, part, folder) | kind.counts(job, data)
    found = {f"internal.{key}": value for key, value in exact.items()}
    if job.public:
        found |= {f"released.{key}": value for key, value in named[""].items()}
    if folder is not None and kind.report:
        seen: Iterates | None = None if iterates is None else iterates.open()
        write_numbers(job, folder, named, found, _curve(job, seen, weights, part, sums))
    return found


def _curve(
    job: Job, seen: Iterates | None, weights: Array, part: Any, sums: Any
) -> list[dict[str, float]]:
    """The rows of its curve that are numbers; none where only start and end are known."""
    path = [] if seen is None else seen.path(weights)
    rows = job.kind.curve(job, path, part, sums) if len(path) > 2 else []
    return [row for row in rows if all(map(isfinite, row.values()))]
