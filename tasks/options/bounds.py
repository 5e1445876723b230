"""Where bounds and levels come from when they are not declared: a charged estimate, or the rows (never releasable).

Such a training estimates them first, within its own budget, or reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dpcore.accounting import Events, Target
from dpcore.errors import BudgetExceeded, InputError
from dpcore.preprocess.column_encoders import factors, named, parse_number
from dpcore.preprocess.estimate import MOST_LEVELS, Columns, EstimateColumns, calibrated, estimate_columns
from dpcore.problem import Adjacency
from dpcore.train import Planned, replan
from tasks.data.reading import Reading
from tasks.kinds.base import Job, described, reading_of
from tasks.ledger import Reservation
from tasks.options.rules import check_facts, declared
from tasks.options.select import check_kept
from tasks.schema import ColumnSpec, Schema


@dataclass(frozen=True, slots=True)
class Estimated:
    """A schema whose bounds and levels are complete, what was charged for them, and the statement's words."""

    schema: Schema
    events: Events | None
    source: str
    notes: tuple[str, ...] = ()


def require_open(schema: Schema) -> None:
    """Raise ``InputError`` where a source of bounds is named that no column needs: its words would be untrue."""
    if schema.bounds != "declared" and not schema.undeclared_columns:
        raise InputError(
            f"Expected columns without bounds or levels for bounds: {schema.bounds}, but every column of "
            f"{schema.name!r} is declared; set bounds: declared."
        )


def widest(schema: Schema) -> Schema:
    """``schema`` with stand-ins where bounds or levels are not known yet; itself where all are declared.

    Its encoder has the most columns that the estimates can lead to and refuses the same rows as theirs will, so a plan
    and a check of the rows need no estimate. What it makes of a row is of no use.
    """
    stand_ins: dict[str, dict[str, Any]] = {}
    for name in schema.undeclared_columns:
        column = schema.columns[name]
        if column.kind == "numeric":
            stand_ins[name] = {"low": 0.0, "high": 1.0}
        else:
            stand_ins[name] = {"levels": tuple(f"level {k}" for k in range(MOST_LEVELS)), "unknown": _rule(column)}
            stand_ins[name] |= {"fill": "zeros"} if isinstance(column.fill, str) else {}
    return schema.estimated(stand_ins) if stand_ins else schema


def open_words(schema: Schema, dimension: int) -> tuple[str, ...]:
    """What a person should know of a plan while bounds or levels are not known; nothing where all are declared."""
    names = schema.undeclared_columns
    if not names:
        return ()
    columns = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    if schema.bounds == "from_data":
        return (f"bounds: from_data reads bounds and levels of {columns} from the rows; such a run is never released.",)
    return (
        f"bounds: private estimates bounds and levels of {columns} first, for at most {schema.bounds_share:g} of "
        f"epsilon and delta; {dimension} is the most columns that they can give.",
    )


def _rule(column: ColumnSpec) -> str:
    """What becomes of a level that was not found: it cannot be refused, for the rows may hold any."""
    return "zeros" if column.unknown == "refuse" else column.unknown


def plan_estimate(
    schema: Schema, target: Target, adjacency: Adjacency | str, blocks: int = 1, form: str = "rounded"
) -> EstimateColumns:
    """The calibrated estimate of the undeclared columns of ``schema``, from public facts alone.

    Alone it costs ``bounds_share`` of the epsilon and of the delta of ``target``; the training that follows is
    calibrated so that both together meet ``target``. Raises ``BudgetExceeded`` where no noise makes that share enough.
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
        return calibrated(estimate, part, form)
    except BudgetExceeded as error:
        least = "" if error.asked is None else f"; the least price of the estimates at that delta is {error.asked:.3g}"
        raise BudgetExceeded(
            f"Expected a bounds_share that pays for bounds and levels of {len(kinds)} columns of {schema.name!r}, got "
            f"bounds_share={share:g}, which is epsilon {part.epsilon:g} of privacy.epsilon={target.epsilon:g}{least}; "
            "take a larger share, for example 0.1, a larger epsilon, or declare bounds and levels.",
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
    form: str = "rounded",
) -> Estimated:
    """Run a planned estimate on the training rows of ``reading``. Undeclared levels become zeros when encoded.

    Charge the events to the ledger before this call, with ``on_charge`` as for a training. A column of which no level
    was frequent enough is ignored from there on, and a note says so.
    """
    columns = _columns(schema, reading)
    found = estimate_columns(estimate, columns, on_charge=on_charge, fixed_noise_seed=fixed_noise_seed, form=form)
    for name in estimate.texts:
        found[name]["unknown"] = _rule(schema.columns[name])
    _fill(schema, found)
    lost = [name for name in estimate.texts if not found[name]["levels"]]
    for name in lost:
        found[name] = {"kind": "ignore"}
    notes = tuple(
        f"no level of column {name!r} was frequent enough to be found with this noise, so it is left out; declare its "
        "levels, or raise bounds_share"
        for name in lost
    )
    return Estimated(schema.estimated(found), estimate.events(schema.unit, form), schema.releasable[1], notes)


def schema_from_data(schema: Schema, reading: Reading) -> Estimated:
    """Bounds and levels read from the training rows: for experiments, and never releasable."""
    if schema.bounds != "from_data":
        raise InputError(
            f"Expected bounds: from_data in the schema to read bounds from rows, got bounds: {schema.bounds}."
        )
    columns = _columns(schema, reading)
    found: dict[str, dict[str, Any]] = {}
    for name, values in columns.numbers.items():
        if not len(values):
            raise InputError(f"Column {name!r} has no finite number to take bounds from; declare low and high.")
        found[name] = {"low": float(values.min()), "high": float(values.max())}
    for name, texts in columns.texts.items():
        if not texts:
            raise InputError(f"Column {name!r} has no text to take levels from; declare levels, or kind: ignore.")
        found[name] = {"levels": tuple(sorted({t.decode() for t in texts})), "unknown": _rule(schema.columns[name])}
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
    """A declared fill that is no level which was found becomes zeros; a level called zeros would be taken for it."""
    for name, fields in found.items():
        fill = schema.columns[name].fill
        if "levels" not in fields or not isinstance(fill, str):
            continue
        if fill not in fields["levels"] or fill == "zeros":
            fields["fill"] = "zeros"
            fields["levels"] = tuple(level for level in fields["levels"] if level != "zeros")


def release_bounds(job: Job, planned: Planned, reservation: Reservation) -> tuple[Job, Planned, tuple[str, ...]]:
    """Estimate the undeclared bounds and levels with noise, then plan the training on the columns that these give.

    The reservation holds both. What the estimate released is public from here on; the training may cost, at every
    Rényi order, what was reserved for it. Returns the job with its final encoder, the plan, and what a person should
    know about the estimate.
    """
    if job.estimate is None:
        raise InputError(f"Expected undeclared bounds or levels in {job.schema.name!r}; set bounds: declared.")
    config = job.config
    found = private_schema(
        job.schema,
        job.estimate,
        reading_of(job),
        on_charge=reservation.on_charge,
        fixed_noise_seed=config.unsafe_fixed_noise_seed,
        form=config.privacy.noise,
    )
    complete = described(job, found.schema)
    check_kept(config, complete.problem)
    keep_noise = "noise_multiplier" in config.algorithm.parameters
    return complete, replan(planned, complete.problem, keep_noise), found.notes


def read_bounds(job: Job) -> Job:
    """The job with bounds and levels read from the rows (``bounds: from_data``): for experiments, never releasable."""
    if job.schema.bounds != "from_data" or not job.schema.undeclared_columns:
        return job
    complete = described(job, schema_from_data(job.schema, reading_of(job)).schema)
    check_kept(job.config, complete.problem)
    return complete
