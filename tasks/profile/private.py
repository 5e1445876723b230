"""Draft a schema from charged estimates alone.

Whose budget pays for private estimates of a file: the data set that it belongs to, if that is
known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcore.accounting import Events, Target, release_once
from dpcore.accounting.budget import events_once
from dpcore.accounting.calibrate import calibrated_gaussian
from dpcore.accounting.limits import SLACK
from dpcore.errors import InputError, UnknownName
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian
from dpcore.preprocess.estimate import (
    Columns,
    EstimateColumns,
    calibrated,
    estimate_columns,
)
from dpcore.problem import Adjacency
from tasks.data import FileReading
from tasks.home import Home
from tasks.ledger import Charge, Dataset, Ledger, RowFacts
from tasks.profile.draft import Draft, checked, draft_name
from tasks.profile.labels import released_column, released_label
from tasks.readers import data_roots
from tasks.readers.cells import MARKS
from tasks.readers.parts import Part, is_url, parts_at
from tasks.schema import Schema, find_schema, known_schemas

Pay = Callable[[Events], AbstractContextManager[Any]]


def ledger_of(schema: Schema | None) -> Ledger:
    """The ledger of a data set: its schema's, else ``DPFLOWS_LEDGER``, else the one in the home
    folder.
    """
    url = schema.ledger if schema is not None else None
    return Ledger(url or os.environ.get("DPFLOWS_LEDGER") or Home.find().ledger_url)


def budgets_of(path: Part) -> list[str]:
    """Names of the data sets with a budget that ``path`` belongs to.

    A file belongs to a private data set whose schema (of ``conf/data``) declares it, and to one
    that the default ledger has charged for reading these very bytes, under whatever name.
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


def _declares(schema: Schema, path: Part) -> bool:
    """Whether a file is one that a schema declares: by itself, in a folder or by a glob."""
    names = (*schema.source.path, *schema.split.path)
    if not isinstance(path, Path):
        return any(is_url(name) and path in parts_at(name) for name in names)
    places = [root / name for root in data_roots() for name in names if not is_url(name)]
    declared = (Path(str(file)) for place in places for file in parts_at(place))
    return any(file.samefile(path) for file in declared)


def state_facts(values: dict[str, Any], dataset: Dataset, notes: list[str]) -> None:
    """Put into a draft what the budget of its rows has fixed: name, unit, users, blocks and public
    counts.

    A schema that says otherwise is refused by the ledger. Columns that the file lacks are said in
    ``notes``.
    """
    blocks, facts, columns = dataset.blocks, dataset.facts, values.get("columns", {})
    values["name"] = dataset.name
    if dataset.unit != "record":
        values["unit"] = dataset.unit
    if not dataset.limited:
        values["public"]["public"] = True
    user = _user_column(dataset)
    if user is not None:
        _declare(columns, user, "user", dataset, notes)
        if values["split"]["kind"] == "hash":
            values["split"] = {**values["split"], "by": user}
    if blocks.rows_per_user is not None:
        values["public"]["rows_per_user"] = blocks.rows_per_user
    if blocks.by == "one":
        return
    form = None if facts is None else facts.block_format or None
    block = {"column": blocks.column, "by": blocks.by, "count": blocks.count, "format": form}
    values["block"] = {key: value for key, value in block.items() if value is not None}
    if blocks.column != user:
        _declare(columns, str(blocks.column), "block", dataset, notes)
    if blocks.rows_per_block is not None:
        values["public"].pop("n")
        values["public"]["rows_per_block"] = blocks.rows_per_block


def _user_column(dataset: Dataset) -> str | None:
    """The column that names the person of a row, where people are protected."""
    by_name = dataset.facts.id_column if dataset.facts is not None else None
    return dataset.blocks.user_column or (by_name if dataset.unit == "user" else None)


def _declare(
    columns: dict[str, Any], name: str, kind: str, dataset: Dataset, notes: list[str]
) -> None:
    if name not in columns:
        notes.append(
            f"{name}: the {kind} column of the budget {dataset.name!r} is not in this file"
        )
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


@dataclass(frozen=True, slots=True)
class Payer:
    """The data set that pays for estimates from a file: what may be read and what is charged follow
    from one reading.

    Each charge is a reservation, on disk before its noise is drawn, committed when its estimates
    exist.
    """

    ledger: Ledger
    dataset: Dataset
    reading: FileReading
    charge: Charge

    @contextmanager
    def pay(self, events: Events) -> Iterator[Any]:
        """Reserve ``events``; raises ``BudgetExceeded`` where the room does not hold them."""
        with self.charge.reserve(self.ledger, events) as reservation:
            yield reservation.on_charge
            reservation.commit()

    def require(self, chain: Sequence[Events]) -> None:
        """Raise ``BudgetExceeded`` where the room does not hold all of two lists."""
        room = self.ledger.room(self.dataset.name, self.charge.blocks, public=self.charge.public)
        if room is not None and sum(room.ratio(events) for events in chain) > 1 + SLACK:
            raise room.refusal(chain[0].then(chain[1]))


@contextmanager
def payer(name: str, path: Path, adjacency: Adjacency | str | None = None) -> Iterator[Payer]:
    """Who pays for private estimates of ``path`` under ``adjacency`` (None: that of the budget of
    ``name``).

    Raises ``InputError`` for a data set without a budget, for one whose rows the file does not
    hold, and where the whole file cannot be charged: blocks by date, sessions, people that nothing
    tells apart yet.
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
                f"{path}: these are rows of {' and '.join(map(repr, sorted(owners)))}, whose "
                f"budget must count the estimates, not that of {name!r}; add --charge "
                f"{min(owners)}."
            )
        facts = RowFacts.of(schema) if schema is not None else ledger.facts(name)
        if not dataset.limited:
            ledger.require_public(name, [path])
        elif facts is not None:
            ledger.require_facts(name, facts)
        reading = reading_of(dataset, path, facts)
        charge = Charge(
            dataset=name,
            unit=dataset.unit,
            adjacency=Adjacency(adjacency or dataset.adjacency or Adjacency.ADD_REMOVE),
            noise=FORM,
            blocks=reading.blocks,
            public=not dataset.limited,
            files=(reading.path,),
            facts=facts,
        )
        yield Payer(ledger, dataset, reading, charge)


def reading_of(dataset: Dataset, path: Path, facts: RowFacts | None) -> FileReading:
    """All rows of a file of ``dataset``, of each person as many as its budget says."""
    by = dataset.blocks.by
    if by not in ("one", "hash"):
        raise InputError(
            f"Expected one block, or blocks by hash, to profile a whole file of {dataset.name!r}, "
            f"got blocks by {dataset.blocks.words()}: which ones is not known before the rows are "
            "read; declare bounds by hand."
        )
    blocks = dataset.blocks.hashed() if by == "hash" else ("all",)
    if dataset.limited and facts is None and not RowFacts.follow(dataset.unit, dataset.blocks):
        raise InputError(
            f"Expected a data set of which it is known whose row a row is, got {dataset.name!r} "
            f"(unit {dataset.unit}), opened by name alone; write its data schema, or train with it "
            "first."
        )
    if dataset.unit == "record":
        return FileReading(path, blocks)
    user, rows = dataset.blocks.user_column, dataset.blocks.rows_per_user
    if dataset.unit != "user" or user is None or rows is None or facts is None:
        raise InputError(
            "Expected unit record, or user with a user column, to profile a file of "
            f"{dataset.name!r}, got unit {dataset.unit}; declare bounds and levels by hand."
        )
    if facts.strip is False:
        raise InputError(
            "Expected ids without blanks around them (text.strip) to profile a file of "
            f"{dataset.name!r}, got text.strip: false; declare bounds and levels by hand."
        )
    return FileReading(path, blocks, user, rows, facts.decimal or ".", frozenset(facts.missing))


# A profile belongs to no run, and bounds are chosen by the exponential mechanism, which has no
# exact form.
FORM = "rounded"


def counting(
    columns: int, target: Target, adjacency: Adjacency, rows: int | None = None
) -> Gaussian:
    """The noisy counts of all rows and of each column's numbers, for a tenth of epsilon: a record
    moves each by 1.

    A person of at most ``rows`` rows moves each by that, and the count of people, which is then the
    first, by 1.
    """
    one = columns + 1.0 if rows is None else 1.0 + rows**2 * (columns + 1.0)
    width = sqrt(one) * (1.0 if adjacency is Adjacency.ADD_REMOVE else 2.0)
    part = Target(0.1 * target.epsilon, target.delta / 2, target.conversion)
    return calibrated_gaussian(width, part, adjacency, FORM)


def estimate_of(
    numeric: Sequence[str],
    texts: Sequence[str],
    rows: int,
    adjacency: Adjacency,
    target: Target,
    most: int = 1,
) -> EstimateColumns:
    """The calibrated estimate of bounds and levels, of units with at most ``most`` rows."""
    estimate = EstimateColumns(
        numeric=tuple(numeric), texts=tuple(texts), n=rows, adjacency=adjacency, rows=most
    )
    return calibrated(estimate, target, FORM)


@contextmanager
def free(events: Events) -> Iterator[None]:
    """No ledger counts the releases."""
    yield None


@dataclass(frozen=True, slots=True)
class Counted:
    """What the first release looks at: rows and people there are, and the numbers of each
    column.
    """

    rows: int
    people: int | None
    numbers: Mapping[str, Array]

    def value(self) -> Array:
        filled = [int(np.count_nonzero(~np.isnan(values))) for values in self.numbers.values()]
        return np.array(
            [*([] if self.people is None else [self.people]), self.rows, *filled], dtype=float
        )


def draft_private(
    reading: FileReading,
    label: str,
    target: Target,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    name: str | None = None,
    pay: Pay = free,
    require: Callable[[Sequence[Events]], None] | None = None,
    fixed_noise_seed: int | None = None,
) -> Draft:
    """Draft a schema of which only the layout of the file and its header are read for free;
    ``target`` pays the rest.

    What is protected is a record, or, where ``reading`` names the column of users, a person. A
    tenth of epsilon tells by noisy counts how many rows there are and which columns hold numbers,
    the rest estimates their bounds and the other columns' levels; the label's two texts are levels
    like any others. ``pay`` charges each of the two lists of releases before it is drawn;
    ``require`` is asked first whether there is room for both, however many columns turn out to hold
    numbers.
    """
    adjacency, user = Adjacency(adjacency), reading.user
    unit, most = ("record", None) if user is None else ("user", reading.rows_per_user)
    draft = Draft({"schema_version": 1, "name": draft_name(reading.path, name)})
    frame, layout = reading.cells([], by_row=True)
    draft.notes.append(
        "decimal mark and encoding are not estimated: declare text.decimal and text.encoding"
    )
    if label not in frame or label == user:
        raise InputError(
            f"Expected a label column of {reading.path}, got label={label!r}; it has "
            f"{', '.join(frame.columns)}."
        )
    names = [column for column in frame.columns if column != user]
    first = counting(len(names), target, adjacency, most)
    charged = events_once(first, adjacency=adjacency, unit=unit, noise=FORM)
    rest = Target(0.9 * target.epsilon, target.delta / 2, target.conversion)
    if require is not None:
        for k in range(len(names)):
            widest = estimate_of(names[:k], names[k:], 1, adjacency, rest, most or 1)
            require((charged, widest.events(unit, FORM)))
    numbers = {c: pd.to_numeric(frame[c], errors="coerce").to_numpy(dtype=float) for c in names}
    with pay(charged) as on_charge:
        counts = release_once(
            first,
            Counted(len(frame), None if user is None else frame[user].nunique(), numbers),
            lambda batch: batch.value(),
            adjacency=adjacency,
            unit=unit,
            noise=FORM,
            on_charge=on_charge,
            fixed_noise_seed=fixed_noise_seed,
        ).value
    units, rows = max(int(counts[0]), 1), max(int(counts[-1 - len(names)]), 1)
    _note_large_delta(target.delta, units, unit, draft.notes)
    filled = zip(names, counts[-len(names) :], strict=True)
    numeric = [c for c, hits in filled if c != label and hits > 0.6 * rows]
    texts = [c for c in names if c not in numeric]
    estimate = estimate_of(numeric, texts, rows, adjacency, rest, most or 1)
    cells = _cells_of(frame, {c: numbers[c] for c in numeric}, texts)
    with pay(estimate.events(unit, FORM)) as on_charge:
        found = estimate_columns(
            estimate,
            cells,
            on_charge=on_charge,
            fixed_noise_seed=fixed_noise_seed,
            noise=FORM,
            unit=unit,
        )
    draft.events = charged.then(estimate.events(unit, FORM))
    source = {**layout.pop("source", {}), "path": str(reading.path)}
    draft.values |= {"public": {"n": round(0.8 * units)}, "source": source, **layout}
    draft.values["columns"] = {
        str(c): {"kind": "user"} if c == user else released_column(found[str(c)])
        for c in frame
        if c != label
    }
    draft.values["label"] = released_label(label, list(found[label]["levels"]), draft.notes)
    draft.values["split"] = {"kind": "hash", "test_share": 0.2}
    return checked(draft)


def _cells_of(frame: pd.DataFrame, numbers: dict[str, Any], texts: list[str]) -> Columns:
    """What the estimates read: finite numbers, and texts that are no missing marks."""
    finite = {name: found[np.isfinite(found)] for name, found in numbers.items()}
    filled = {name: [t.encode() for t in frame[name] if t not in MARKS] for name in texts}
    return Columns(finite, filled, len(frame))


def _note_large_delta(delta: float, units: int, unit: str, notes: list[str]) -> None:
    if delta >= 1.0 / units:
        notes.append(
            f"delta={delta:g} is not below 1/n for about {units} {unit}s: publishing one of them "
            "at random would have satisfied it; take a smaller one from here on"
        )
