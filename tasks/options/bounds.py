"""Where bounds and levels come from when they are not declared: a charged estimate, or the rows
(never releasable).

Such a training estimates them first, within its own budget, or reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from dpcore.accounting import Events, Target
from dpcore.accounting.limits import Further
from dpcore.errors import BudgetExceeded, InputError
from dpcore.preprocess.column_encoders import factors, named, parse_number
from dpcore.preprocess.estimate import (
    MOST_LEVELS,
    Columns,
    EstimateColumns,
    calibrated,
    estimate_columns,
)
from dpcore.problem import Adjacency
from dpcore.train import Planned, replan
from tasks.config import TrainConfig
from tasks.data import Reading
from tasks.kinds.base import Job, Words, described, reading_of, target_of
from tasks.ledger import Reservation
from tasks.options.base import Option, Run, build_objective, load_records, plan_alone
from tasks.options.rules import check_facts, declared
from tasks.schema import ColumnSpec, Schema

ESTIMATED = (
    "Bounds and levels that the data's description does not declare were estimated with noise "
    "first; the listed releases begin with those of the estimate. The training was planned on what "
    "it found, and costs at no Rényi order more than the releases listed for it."
)
ARGUMENT = (
    "Bounds: a record moves the score of a grid point, |rows below it - wanted share * rows|, by "
    "at most 1 either way; levels: it moves one count of beginnings of texts by 1, two when it is "
    "replaced."
)


@dataclass(frozen=True, slots=True)
class Estimated:
    """A schema whose bounds and levels are complete, what was charged for them, and the statement's
    words.
    """

    schema: Schema
    events: Events | None
    source: str
    notes: tuple[str, ...] = ()


def widest(schema: Schema) -> Schema:
    """``schema`` with stand-ins where bounds or levels are not known yet; itself where all are
    declared.

    Its encoder has the most columns that the estimates can lead to and refuses the same rows as
    theirs will, so a plan and a check of the rows need no estimate. What it makes of a row is of no
    use.
    """
    stand_ins: dict[str, dict[str, Any]] = {}
    for name in schema.undeclared_columns:
        column = schema.columns[name]
        if column.kind == "numeric":
            stand_ins[name] = {"low": 0.0, "high": 1.0}
        else:
            stand_ins[name] = {
                "levels": tuple(f"level {k}" for k in range(MOST_LEVELS)),
                "unknown": _rule(column),
            }
            stand_ins[name] |= {"fill": "zeros"} if isinstance(column.fill, str) else {}
    return schema.estimated(stand_ins) if stand_ins else schema


def _rule(column: ColumnSpec) -> str:
    """What becomes of a level that was not found: it cannot be refused, for the rows may hold
    any.
    """
    return "zeros" if column.unknown == "refuse" else column.unknown


def plan_estimate(
    schema: Schema,
    target: Target,
    adjacency: Adjacency | str,
    blocks: int = 1,
    noise: str = "rounded",
) -> EstimateColumns:
    """The calibrated estimate of the undeclared columns of ``schema``, from public facts alone.

    Alone it costs ``bounds_share`` of the epsilon and of the delta of ``target``; the training that
    follows is calibrated so that both together meet ``target``. Raises ``BudgetExceeded`` where no
    noise makes that share enough.
    """
    check_facts(declared(schema))
    kinds = {name: schema.columns[name].kind for name in schema.undeclared_columns}
    if not kinds:
        raise InputError(f"Every column of {schema.name!r} is declared; set bounds: declared.")
    estimate = EstimateColumns(
        numeric=tuple(n for n, kind in kinds.items() if kind == "numeric"),
        texts=tuple(n for n, kind in kinds.items() if kind == "categorical"),
        n=schema.n(blocks),
        adjacency=Adjacency(adjacency),
    )
    share = schema.bounds_share
    part = Target(share * target.epsilon, share * target.delta, target.conversion)
    try:
        return calibrated(estimate, part, noise)
    except BudgetExceeded as error:
        least = (
            ""
            if error.asked is None
            else f"; the least price of the estimates at that delta is {error.asked:.3g}"
        )
        raise BudgetExceeded(
            f"Expected a bounds_share that pays for bounds and levels of {len(kinds)} columns of "
            f"{schema.name!r}, got bounds_share={share:g}, which is epsilon {part.epsilon:g} of "
            f"privacy.epsilon={target.epsilon:g}{least}; take a larger share, for example 0.1, a "
            "larger epsilon, or declare bounds and levels.",
            asked=error.asked,
            left=error.left,
        ) from None


def private_schema(
    schema: Schema,
    estimate: EstimateColumns,
    reading: Reading,
    *,
    on_charge: Any = None,
    fixed_noise_seed: int | None = None,
    noise: str = "rounded",
) -> Estimated:
    """Run a planned estimate on the training rows of ``reading``. Undeclared levels become zeros
    when encoded.

    Charge the events to the ledger before this call, with ``on_charge`` as for a training. A column
    of which no level was frequent enough is ignored from there on, and a note says so.
    """
    columns = _columns(schema, reading)
    found = estimate_columns(
        estimate, columns, on_charge=on_charge, fixed_noise_seed=fixed_noise_seed, noise=noise
    )
    for name in estimate.texts:
        found[name]["unknown"] = _rule(schema.columns[name])
    _fill(schema, found)
    lost = [name for name in estimate.texts if not found[name]["levels"]]
    for name in lost:
        found[name] = {"kind": "ignore"}
    notes = tuple(
        f"no level of column {name!r} was frequent enough to be found with this noise, so it is "
        "left out; declare its levels, or raise bounds_share"
        for name in lost
    )
    return Estimated(
        schema.estimated(found), estimate.events(schema.unit, noise), schema.releasable[1], notes
    )


def schema_from_data(schema: Schema, reading: Reading) -> Estimated:
    """Bounds and levels read from the training rows: for experiments, and never releasable."""
    if schema.bounds != "from_data":
        raise InputError(
            "Expected bounds: from_data in the schema to read bounds from rows, got bounds: "
            f"{schema.bounds}."
        )
    columns = _columns(schema, reading)
    found: dict[str, dict[str, Any]] = {}
    for name, values in columns.numbers.items():
        if not len(values):
            raise InputError(
                f"Column {name!r} has no finite number to take bounds from; declare low and high."
            )
        found[name] = {"low": float(values.min()), "high": float(values.max())}
    for name, texts in columns.texts.items():
        if not texts:
            raise InputError(
                f"Column {name!r} has no text to take levels from; declare levels, or kind: ignore."
            )
        found[name] = {
            "levels": tuple(sorted({t.decode() for t in texts})),
            "unknown": _rule(schema.columns[name]),
        }
    _fill(schema, found)
    return Estimated(schema.estimated(found), None, schema.releasable[1])


def _columns(schema: Schema, reading: Reading) -> Columns:
    """The training rows' cells of the undeclared columns."""
    numbers: dict[str, list[np.ndarray]] = {}
    texts: dict[str, list[bytes]] = {}
    kept = 0
    for chunk in reading.training_chunks():
        kept += chunk.rows
        for name in schema.undeclared_columns:
            if schema.columns[name].kind == "numeric":
                numbers.setdefault(name, []).append(_numbers(schema, name, chunk.table[name]))
            else:
                texts.setdefault(name, []).extend(_texts(schema, name, chunk.table[name]))
    whole = {name: np.concatenate(parts) for name, parts in numbers.items()}
    return Columns(whole, texts, kept)


def _numbers(schema: Schema, name: str, cells: pd.Series) -> np.ndarray:
    column = _probe(schema, name)
    codes, uniques = factors(cells)
    values = np.append([parse_number(column, u, schema.text.strip) for u in uniques], np.nan)[codes]
    return values[np.isfinite(values)]


def _texts(schema: Schema, name: str, cells: pd.Series) -> list[bytes]:
    marks = schema.marks(name) | {""}
    codes, texts = named(cells, schema.text.strip)
    encoded = [None if t in marks else t.replace("\0", "").encode() for t in texts]
    return [text for c in codes if (text := encoded[c]) is not None]


def _probe(schema: Schema, name: str) -> Any:
    """The column's declaration with stand-ins for what is not known yet."""
    spec = schema.columns[name].model_copy(update={"low": 0.0, "high": 0.0, "levels": ("-",)})
    return spec.column(name, schema.missing)


def _fill(schema: Schema, found: dict[str, dict[str, Any]]) -> None:
    """A declared fill that is no level which was found becomes zeros; a level called zeros would be
    taken for it.
    """
    for name, fields in found.items():
        fill = schema.columns[name].fill
        if "levels" not in fields or not isinstance(fill, str):
            continue
        if fill not in fields["levels"] or fill == "zeros":
            fields["fill"] = "zeros"
            fields["levels"] = tuple(level for level in fields["levels"] if level != "zeros")


def estimate_of(job: Job) -> EstimateColumns | None:
    """The estimate that a training makes first; None where bounds and levels are known, or read
    from the rows.
    """
    schema, privacy = job.schema, job.config.privacy
    if schema.bounds != "private" or not schema.undeclared_columns:
        return None
    blocks = len(job.config.data.blocks or ()) or 1
    return plan_estimate(schema, target_of(job.config), privacy.adjacency, blocks, privacy.noise)


def release_bounds(
    job: Job, planned: Planned, reservation: Reservation
) -> tuple[Job, Planned, tuple[str, ...]]:
    """Estimate the undeclared bounds and levels with noise, then plan the training on the columns
    that these give.

    The reservation holds both. What the estimate released is public from here on; the training may
    cost, at every Rényi order, what was reserved for it. Returns the job with its final encoder,
    the plan, and what a person should know about the estimate.
    """
    estimate, config = estimate_of(job), job.config
    if estimate is None:
        raise InputError(
            f"Expected undeclared bounds or levels in {job.schema.name!r}; set bounds: declared."
        )
    found = private_schema(
        job.schema,
        estimate,
        reading_of(job),
        on_charge=reservation.on_charge,
        fixed_noise_seed=config.unsafe_fixed_noise_seed,
        noise=config.privacy.noise,
    )
    complete = known(job, found.schema)
    keep_noise = "noise_multiplier" in config.algorithm.parameters
    return complete, replan(planned, complete.problem, keep_noise), found.notes


def read_bounds(job: Job) -> Job:
    """The job with bounds and levels read from the rows (``bounds: from_data``): for experiments,
    never releasable.
    """
    if job.schema.bounds != "from_data" or not job.schema.undeclared_columns:
        return job
    return known(job, schema_from_data(job.schema, reading_of(job)).schema)


def known(job: Job, schema: Schema) -> Job:
    """The job with the bounds and levels of ``schema``, checked again: there may be fewer
    columns.
    """
    complete = described(job, schema)
    for option in complete.options:
        option.check(complete)
    complete.kind.check(complete)
    return complete


class Bounds(Option):
    """Stand-ins until the bounds are known: read before there is a plan, or estimated on the run's
    own reservation.
    """

    name = "bounds"
    asked = "schema.undeclared_columns"
    titles: ClassVar[Mapping[str, str]] = {
        "before_plan": "read bounds",
        "before_fit": "estimate bounds",
    }

    def title(self, hook: str, job: Job) -> str:
        needed = {"private": "before_fit", "from_data": "before_plan"}
        return super().title(hook, job) if hook == needed.get(job.schema.bounds) else ""

    def adapt(self, config: TrainConfig, schema: Schema) -> tuple[TrainConfig, Schema]:
        return config, widest(schema)

    def check(self, job: Job) -> None:
        estimate_of(job)

    def before_plan(self, job: Job) -> Job:
        return read_bounds(job)

    def plan(self, job: Job, *limits: Further) -> Planned | None:
        estimate = estimate_of(job)
        if estimate is None:
            return None
        return plan_alone(
            job, *limits, before=estimate.events(job.problem.unit, job.config.privacy.noise)
        )

    def before_fit(self, run: Run, reservation: Reservation) -> Run:
        """Rows are encoded again, by the bounds that are known now."""
        job, planned, notes = release_bounds(run.job, run.planned, reservation)
        data = load_records(job)
        run.data.open().read.require()  # what was charged is what is read now
        sums = build_objective(job, data)
        return replace(
            run,
            job=job,
            planned=planned,
            data=data,
            sums=sums,
            known=sums,
            notes=tuple(f"Warning: {note}" for note in notes),
        )

    def words(self, job: Job, planned: Planned | None) -> Words:
        if planned is None or not planned.before:
            return Words(warnings=self._warnings(job))
        return Words(
            first=("bounds and levels of columns, estimated with noise",),
            arguments=(ARGUMENT,),
            limits=(ESTIMATED,),
            warnings=self._warnings(job),
        )

    def _warnings(self, job: Job) -> tuple[str, ...]:
        """What a person should know of a plan while bounds or levels are not known."""
        schema, names = job.schema, job.schema.undeclared_columns
        if not names:
            return ()
        columns = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        if schema.bounds == "from_data":
            return (
                f"bounds: from_data reads bounds and levels of {columns} from the rows; such a run "
                "is never released.",
            )
        return (
            f"bounds: private estimates bounds and levels of {columns} first, for at most "
            f"{schema.bounds_share:g} of epsilon and delta; {job.problem.dimension} is the most "
            "columns that they can give.",
        )
