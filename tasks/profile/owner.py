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
from tasks.ledger import Ledger, RowFacts
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
