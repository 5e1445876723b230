"""Whose budget pays for private estimates of a file: the data set that it belongs to, if that is known."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from dpcore.accounting import Events
from dpcore.accounting.limits import SLACK
from dpcore.errors import InputError, UnknownName
from tasks.home import Home
from tasks.ledger import Dataset, Ledger, RowFacts
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
