"""Where bounds and levels come from when they are not declared: a charged estimate, or the rows (never releasable)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dpcore.accounting import Events, Target
from dpcore.errors import InputError
from dpcore.estimate import Columns, EstimateColumns, calibrated, estimate_columns
from dpcore.preprocess.parts import factors, parse_number, text_of
from dpcore.problem import Adjacency
from tasks.data.sides import test_rows
from tasks.readers import open_chunks, source_paths
from tasks.readers.open import Paths, frame_chunks
from tasks.schema import Schema


@dataclass(frozen=True, slots=True)
class Estimated:
    """A schema whose bounds and levels are complete, what was charged for them, and the statement's words."""

    schema: Schema
    events: Events | None
    source: str


def plan_estimate(schema: Schema, target: Target, adjacency: Adjacency | str) -> EstimateColumns:
    """The calibrated estimate of the undeclared columns of ``schema``, from public facts alone.

    ``target`` is the declared share (``bounds_share``) of the run's (epsilon, delta); training gets the rest, and the
    two add up by basic composition.
    """
    if schema.unit != "record":
        raise InputError(
            f"Expected unit record to estimate bounds, got unit={schema.unit!r}: a person with several rows would move"
            " a count by more than its sensitivity; declare the bounds and levels."
        )
    kinds = {name: schema.columns[name].kind for name in schema.undeclared_columns}
    if not kinds:
        raise InputError(f"Every column of {schema.name!r} is declared; set bounds: declared.")
    if "ordinal" in kinds.values():
        name = next(n for n, kind in kinds.items() if kind == "ordinal")
        raise InputError(f"Column {name!r} is ordinal: the order of its levels must be declared; declare levels.")
    estimate = EstimateColumns(
        numeric=tuple(n for n, kind in kinds.items() if kind == "numeric"),
        texts=tuple(n for n, kind in kinds.items() if kind == "categorical"),
        n=schema.n(),
        adjacency=Adjacency(adjacency),
    )
    return calibrated(estimate, target)


def private_schema(
    schema: Schema,
    estimate: EstimateColumns,
    path: Paths = None,
    *,
    frame: pd.DataFrame | None = None,
    on_charge: Any = None,
    fixed_noise_seed: int | None = None,
) -> Estimated:
    """Run a planned estimate on the training rows. Undeclared levels found nowhere become zeros when encoded.

    Charge the events to the ledger before this call, with ``on_charge`` as for a training.
    """
    columns = _columns(schema, path, frame)
    found = estimate_columns(estimate, columns, on_charge=on_charge, fixed_noise_seed=fixed_noise_seed)
    for name in estimate.texts:
        if not found[name]["levels"]:
            raise InputError(
                f"No level of column {name!r} was frequent enough to be found privately; declare its levels, or spend"
                " more of the budget on bounds (bounds_share)."
            )
        found[name]["unknown"] = "zeros"
    _fill(schema, found)
    events = estimate.events(schema.unit)
    return Estimated(schema.estimated(found), events, "bounds and levels: private estimates, charged")


def schema_from_data(schema: Schema, path: Paths = None, *, frame: pd.DataFrame | None = None) -> Estimated:
    """Bounds and levels read from the training rows: for experiments, and never releasable."""
    if schema.bounds != "from_data":
        raise InputError(
            f"Expected bounds: from_data in the schema to read bounds from rows, got bounds: {schema.bounds}."
        )
    columns = _columns(schema, path, frame)
    found: dict[str, dict[str, Any]] = {}
    for name, values in columns.numbers.items():
        if not len(values):
            raise InputError(f"Column {name!r} has no finite number to take bounds from; declare low and high.")
        found[name] = {"low": float(values.min()), "high": float(values.max())}
    for name, texts in columns.texts.items():
        found[name] = {"levels": tuple(sorted({t.decode() for t in texts})), "unknown": "zeros"}
    return Estimated(schema.estimated(found), None, schema.releasable[1])


def _columns(schema: Schema, path: Paths, frame: pd.DataFrame | None) -> Columns:
    """The training rows' cells of the undeclared columns."""
    if frame is not None:
        chunks = frame_chunks(schema, frame)
    else:
        chunks = open_chunks(schema, source_paths(schema, path, schema.source.path))
    numbers: dict[str, list[np.ndarray]] = {}
    texts: dict[str, list[bytes]] = {}
    row = 0
    for chunk in chunks:
        aside = test_rows(schema, chunk, row)
        table = chunk.table if aside is None else chunk.table[~aside]
        row += chunk.rows
        for name in schema.undeclared_columns:
            if schema.columns[name].kind == "numeric":
                numbers.setdefault(name, []).append(_numbers(schema, name, table[name]))
            else:
                texts.setdefault(name, []).extend(_texts(schema, name, table[name]))
    whole = {name: np.concatenate(parts) for name, parts in numbers.items()}
    return Columns(whole, texts, row)


def _numbers(schema: Schema, name: str, cells: pd.Series) -> np.ndarray:
    column = _probe(schema, name)
    codes, uniques = factors(cells)
    values = np.append([parse_number(column, u, schema.text.strip) for u in uniques], np.nan)[codes]
    return values[np.isfinite(values)]


def _texts(schema: Schema, name: str, cells: pd.Series) -> list[bytes]:
    marks = {"", *_probe(schema, name).missing}
    codes, uniques = factors(cells)
    texts = [text_of(u, schema.text.strip) for u in uniques]
    encoded = [None if t in marks else t.replace("\0", "").encode() for t in texts] + [None]
    return [text for c in codes if (text := encoded[c]) is not None]


def _probe(schema: Schema, name: str) -> Any:
    """The column's declaration with stand-ins for what is not known yet."""
    spec = schema.columns[name].model_copy(update={"low": 0.0, "high": 0.0, "levels": ("-",)})
    return spec.column(name, schema.missing)


def _fill(schema: Schema, found: dict[str, dict[str, Any]]) -> None:
    """A declared fill that is no level which was found becomes zeros."""
    for name, fields in found.items():
        fill = schema.columns[name].fill
        if "levels" in fields and isinstance(fill, str) and fill not in fields["levels"]:
            fields["fill"] = "zeros"
