"""Draft a schema from charged estimates alone.

Whose budget pays for private estimates of a file: the data set that it belongs to, if that is known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcore.accounting import Events, Target, release_once
from dpcore.accounting.budget import events_once
from dpcore.accounting.limits import SLACK
from dpcore.errors import InputError, UnknownName
from dpcore.mechanisms import Gaussian
from dpcore.preprocess.estimate import Columns, EstimateColumns, calibrated, calibrated_gaussian, estimate_columns
from dpcore.problem import Adjacency
from tasks.home import Home
from tasks.ledger import Dataset, Ledger, RowFacts
from tasks.profile.cells import MARKS, read_cells
from tasks.profile.draft import Draft, checked, draft_name
from tasks.readers.open import data_roots
from tasks.schema import Schema, find_schema, known_schemas

Pay = Callable[[Events], AbstractContextManager[Any]]


def ledger_of(schema: Schema | None) -> Ledger:
    """The ledger of a data set: its schema's, else ``DPFLOWS_LEDGER``, else the one in the home folder."""
    url = schema.ledger if schema is not None else None
    return Ledger(url or os.environ.get("DPFLOWS_LEDGER") or Home.find().ledger_url)


def budgets_of(path: Path) -> list[str]:
    """Names of the data sets with a budget that ``path`` belongs to.

    A file belongs to a private data set whose schema (of ``conf/data``) declares it, and to one that the default ledger
    has charged for reading these very bytes, under whatever name.
    """
    found = set()
    for name in known_schemas():
        schema = find_schema(name)
        if not schema.public.public and _declares(schema, path):
            with ledger_of(schema) as ledger:
                found |= {schema.name} & {dataset.name for dataset in ledger.datasets()}
    with ledger_of(None) as ledger:
        found |= set(ledger.private_names(None, [path]))
    return sorted(found)


def _declares(schema: Schema, path: Path) -> bool:
    files = [root / name for root in data_roots() for name in (*schema.source.path, *schema.split.path)]
    return any(file.is_file() and file.samefile(path) for file in files)


def state_facts(values: dict[str, Any], dataset: Dataset, notes: list[str]) -> None:
    """Put into a draft what the budget of its rows has fixed: name, unit, users, blocks and public counts.

    A schema that says otherwise is refused by the ledger. Columns that the file lacks are said in ``notes``.
    """
    blocks, facts, columns = dataset.blocks, dataset.facts, values.get("columns", {})
    values["name"] = dataset.name
    if dataset.unit != "record":
        values["unit"] = dataset.unit
    if not dataset.limited:
        values["public"]["public"] = True
    user = blocks.user_column or (facts.id_column if facts is not None and dataset.unit == "user" else None)
    if user is not None:
        _declare(columns, user, "user", dataset, notes)
        values["split"] = {**values["split"], "by": user} if values["split"]["kind"] == "hash" else values["split"]
    if blocks.rows_per_user is not None:
        values["public"]["rows_per_user"] = blocks.rows_per_user
    if blocks.by == "one":
        return
    block: dict[str, Any] = {"column": blocks.column, "by": blocks.by}
    block |= {} if blocks.count is None else {"count": blocks.count}
    block |= {"format": facts.block_format} if facts is not None and facts.block_format else {}
    values["block"] = block
    if blocks.column != user:
        _declare(columns, str(blocks.column), "block", dataset, notes)
    if blocks.rows_per_block is not None:
        values["public"].pop("n")
        values["public"]["rows_per_block"] = blocks.rows_per_block


def _declare(columns: dict[str, Any], name: str, kind: str, dataset: Dataset, notes: list[str]) -> None:
    if name not in columns:
        notes.append(f"{name}: the {kind} column of the budget {dataset.name!r} is not in this file")
        return
    columns[name] = {"kind": kind}
    notes.append(f"{name}: the {kind} column, as the budget {dataset.name!r} was opened")


def dataset_of(name: str) -> Dataset:
    """A data set as its ledger opened it. Raises ``InputError`` where it has no budget."""
    try:
        schema: Schema | None = find_schema(name)
    except UnknownName:
        schema = None
    with ledger_of(schema) as ledger:
        return ledger.dataset(name)


@contextmanager
def payer(name: str, path: Path) -> Iterator[tuple[Any, Pay, Callable[[Sequence[Events]], None]]]:
    """The data set ``name`` of its ledger, the way to charge it for reading ``path``, and a check of its room.

    Each charge is a reservation, on disk before its noise is drawn, committed when its estimates exist. Raises
    ``InputError`` for a data set without a budget, ``BudgetExceeded`` where the room does not hold all of a list.
    """
    try:
        schema: Schema | None = find_schema(name)
    except UnknownName:
        schema = None
    with ledger_of(schema) as ledger:
        dataset = ledger.dataset(name)
        owners = {*budgets_of(path), *ledger.private_names(None, [path])}
        if owners and name not in owners:
            raise InputError(
                f"{path}: these are rows of {' and '.join(map(repr, sorted(owners)))}, whose budget must count the "
                f"estimates, not that of {name!r}; add --charge {min(owners)}."
            )
        by = dataset.blocks.by
        if by not in ("one", "hash"):
            raise InputError(
                f"Expected one block, or blocks by hash, to profile a whole file of {name!r}, got blocks by "
                f"{dataset.blocks.words()}: which ones is not known before the rows are read; declare bounds by hand."
            )
        blocks = dataset.blocks.hashed() if by == "hash" else ("all",)
        public = not dataset.limited
        facts = None if schema is None else RowFacts.of(schema)
        if public:
            ledger.require_public(name, [path])
        elif facts is not None:
            ledger.require_facts(name, facts)

        @contextmanager
        def pay(events: Events) -> Iterator[Any]:
            with ledger.reserve(
                name, events, blocks, public=public, fingerprint=ledger.fingerprint([path]), facts=facts
            ) as reservation:
                yield reservation.on_charge
                reservation.commit()

        def require(chain: Sequence[Events]) -> None:
            room = ledger.room(name, blocks, public=public)
            if room is not None and sum(room.ratio(events) for events in chain) > 1 + SLACK:
                raise room.refusal(chain[0].then(chain[1]))

        yield dataset, pay, require


# A profile belongs to no run, and bounds are chosen by the exponential mechanism, which has no exact form.
FORM = "rounded"


def counting(columns: int, target: Target, adjacency: Adjacency) -> Gaussian:
    """The noisy counts of all rows and of each column's numbers, for a tenth of epsilon: a record moves each by 1."""
    width = sqrt(columns + 1.0) * (1.0 if adjacency is Adjacency.ADD_REMOVE else 2.0)
    part = Target(0.1 * target.epsilon, target.delta / 2, target.conversion)
    return calibrated_gaussian(width, part, adjacency, FORM)


def estimate_of(
    numeric: Sequence[str],
    texts: Sequence[str],
    rows: int,
    adjacency: Adjacency,
    target: Target,
) -> EstimateColumns:
    """The calibrated estimate of bounds and levels."""
    estimate = EstimateColumns(numeric=tuple(numeric), texts=tuple(texts), n=rows, adjacency=adjacency)
    return calibrated(estimate, target, FORM)


@contextmanager
def free(events: Events) -> Iterator[None]:
    """No ledger counts the releases."""
    yield None


def draft_private(
    path: str | Path,
    label: str,
    target: Target,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    name: str | None = None,
    pay: Pay = free,
    require: Callable[[Sequence[Events]], None] | None = None,
    fixed_noise_seed: int | None = None,
) -> Draft:
    """Draft a schema of which only the layout of the file and its header are read for free; ``target`` pays the rest.

    A tenth of epsilon tells by noisy counts how many rows there are and which columns hold numbers, the rest estimates
    their bounds and the other columns' levels; the label's two texts are levels like any others. ``pay`` charges each
    of the two lists of releases before it is drawn; ``require`` is asked first whether there is room for both, however
    many columns turn out to hold numbers.
    """
    path, adjacency = Path(path), Adjacency(adjacency)
    draft = Draft({"schema_version": 1, "name": draft_name(path, name)})
    frame, layout = read_cells(path, [], by_row=True)
    draft.notes.append("decimal mark and encoding are not estimated: declare text.decimal and text.encoding")
    if label not in frame:
        raise InputError(f"Expected a label column of {path}, got label={label!r}; it has {', '.join(frame.columns)}.")
    names = list(frame.columns)
    first = counting(len(names), target, adjacency)
    charged = events_once(first, adjacency=adjacency, unit="record", form=FORM)
    rest = Target(0.9 * target.epsilon, target.delta / 2, target.conversion)
    if require is not None:
        for k in range(len(names)):
            require((charged, estimate_of(names[:k], names[k:], 1, adjacency, rest).events(form=FORM)))
    numbers = {c: pd.to_numeric(frame[c], errors="coerce") for c in names}
    cells = Columns({c: v.to_numpy(dtype=float) for c, v in numbers.items()}, {}, len(frame))
    with pay(charged) as on_charge:
        counts = release_once(
            first,
            cells,
            lambda batch: np.array([batch.n, *_filled(batch, names)], dtype=float),
            adjacency=adjacency,
            unit="record",
            form=FORM,
            on_charge=on_charge,
            fixed_noise_seed=fixed_noise_seed,
        ).value
    rows = max(int(counts[0]), 1)
    if target.delta >= 1.0 / rows:
        draft.notes.append(
            f"delta={target.delta:g} is not below 1/n for about {rows} rows: publishing one of them at random would "
            "have satisfied it; take a smaller one from here on"
        )
    numeric = [c for c, hits in zip(names, counts[1:], strict=True) if c != label and hits > 0.6 * rows]
    texts = [c for c in names if c not in numeric]
    estimate = estimate_of(numeric, texts, rows, adjacency, rest)
    finite = {c: v[np.isfinite(v)] for c in numeric if (v := numbers[c].to_numpy(dtype=float)) is not None}
    cells = Columns(finite, {c: [t.encode() for t in frame[c] if t not in MARKS] for c in texts}, len(frame))
    with pay(estimate.events(form=FORM)) as on_charge:
        found = estimate_columns(estimate, cells, on_charge=on_charge, fixed_noise_seed=fixed_noise_seed, form=FORM)
    draft.events = charged.then(estimate.events(form=FORM))
    source = {**layout.pop("source", {}), "path": str(path)}
    draft.values |= {"public": {"n": round(0.8 * rows)}, "source": source, **layout}
    draft.values["columns"] = {c: _found(found[c]) for c in names if c != label}
    levels = list(found[label]["levels"])
    draft.values["label"] = {"column": label, "positive": levels[1:2], "negative": levels[:1]}
    if len(levels) > 2:
        draft.values["label"] = {"column": label, "kind": "classes", "levels": levels}
    draft.values["split"] = {"kind": "hash", "test_share": 0.2}
    if len(levels) < 2:
        draft.notes.append(f"label {label!r}: {len(levels)} texts were found; declare positive and negative by hand")
    return checked(draft)


def _filled(batch: Columns, names: Sequence[str]) -> list[int]:
    """How many cells of each column are numbers."""
    return [int(np.count_nonzero(~np.isnan(batch.numbers[c]))) for c in names]


def _found(fields: dict[str, Any]) -> dict[str, Any]:
    if "low" in fields:
        return {"kind": "numeric", **fields, "fill": "zeros"}
    if not fields["levels"]:
        return {"kind": "ignore"}
    return {"kind": "categorical", "levels": list(fields["levels"]), "unknown": "zeros", "fill": "zeros"}
