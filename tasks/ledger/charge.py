"""What a run charges, built once by its job, and the one way to a single noisy number: reserve,
release, commit.

One file under two names: both budgets are about its records, so a run under one name is charged
to the other too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from dpcore.accounting.budget import events_once, release_once
from dpcore.accounting.events import Events
from dpcore.errors import InputError
from dpcore.mechanisms import Mechanism
from dpcore.problem import Adjacency
from tasks.home import write_whole
from tasks.ledger import chain, schema
from tasks.ledger import facts as ledger_facts
from tasks.ledger.blocks import ALL, Blocks
from tasks.ledger.facts import RowFacts
from tasks.ledger.ledger import Ledger
from tasks.ledger.records import OF, Dataset, Record
from tasks.ledger.reservation import Reservation


@dataclass(frozen=True, slots=True)
class Charge:
    """What a run reads and pays for: data set, ``blocks``, division of its rows, period, files,
    configuration.

    ``facts`` map rows to units and blocks (``tasks.ledger.facts``); ``reading`` says what else was
    read of the files.

    ``unit``, ``adjacency`` and form of the ``noise`` are those of the run: a number that is
    released beside a training has the same ones.
    """

    dataset: str
    unit: str
    adjacency: Adjacency
    noise: str = "rounded"
    blocks: tuple[str, ...] = (ALL,)
    public: bool = False
    division: Blocks | None = None
    period: str | None = None
    files: tuple[Any, ...] = ()  # paths, or remote files that give the same
    test_files: tuple[Any, ...] = ()  # paths, or remote files that give the same
    config_sha256: str | None = None
    weights_sha256: str | None = None  # of the model that a released number is about
    facts: RowFacts | None = None
    reading: Mapping[str, Any] | None = None
    as_read: Any = None  # ``tasks.readers.once.AsRead``: the files as they were when they were read

    def require_own_test(self, owners: Iterable[str]) -> None:
        """Raise ``InputError`` where the test table belongs to other private data sets: this charge
        is not theirs.
        """
        if others := sorted(set(owners) - {self.dataset}):
            raise InputError(
                f"Expected test rows of {self.dataset!r}, got "
                f"{', '.join(map(str, self.test_files))}, which belongs to the private "
                f"{others[0]!r}: numbers about its rows would be charged to the wrong budget; "
                f"correct data.test_path, or train on {others[0]!r}."
            )

    def events(self, mechanism: Mechanism) -> Events:
        """What one release of ``mechanism`` costs."""
        return events_once(mechanism, adjacency=self.adjacency, unit=self.unit, noise=self.noise)

    def reserve(self, ledger: Ledger, events: Events) -> Reservation:
        """Charge ``events``; on disk when this returns.

        Raises ``BudgetExceeded`` where a block has no room, ``InputError`` for test rows of another
        private data set, and for files that were changed since they were read: the ledger would
        know others.
        """
        return next(self.reserve_each(ledger, [events]))

    def reserve_each(self, ledger: Ledger, parts: Iterable[Events]) -> Iterator[Reservation]:
        """One reservation for each of ``parts`` on the same files, whose contents are looked at
        once; raises as ``reserve`` does.
        """
        self.require_own_test(
            ledger.private_names(None, self.test_files) if self.test_files else ()
        )
        marks = ledger.fingerprint(self.files) if self.files else None
        if self.as_read is not None:
            self.as_read.require(self.files)
        for events in parts:
            yield ledger.reserve(
                self.dataset,
                events,
                self.blocks,
                {
                    key: found
                    for key, found in (("config", self.config_sha256), (OF, self.weights_sha256))
                    if found
                },
                public=self.public,
                period=self.period,
                fingerprint=marks,
                division=self.division,
                facts=self.facts,
                reading=None if self.reading is None else dict(self.reading),
            )


def charged_once(
    ledger: Ledger,
    charge: Charge,
    mechanism: Mechanism,
    records: Any,
    query: Callable[[Any], Any],
    tell: Callable[[Any, Events, str], str],
    result: str,
    fixed_noise_seed: int | None = None,
    path: Path | None = None,
) -> tuple[Any, str]:
    """Reserve, release once, and close the entry with the hash of what is said about it.

    With ``path`` the text is a whole file there before the entry is closed: it is paid for, and an
    interruption between the two must not lose it.

    ``tell(value, events, entry)`` gives the text that leaves; the entry is closed with its SHA-256
    under the name ``result``. Returns the released value and the text. Raises ``BudgetExceeded``
    before anything is drawn.
    """
    events = charge.events(mechanism)
    with charge.reserve(ledger, events) as reservation:
        released = release_once(
            mechanism,
            records,
            query,
            adjacency=charge.adjacency,
            unit=charge.unit,
            noise=charge.noise,
            on_charge=reservation.on_charge,
            fixed_noise_seed=fixed_noise_seed,
        )
        text = tell(released.value, released.events, reservation.entry_id)
        hashes = {result: sha256(text.encode()).hexdigest()}
        if path is not None:
            reservation.keeps(
                lambda: hashes if path.is_file() and path.read_bytes() == text.encode() else None
            )
            write_whole(path, text)
        reservation.commit(hashes)
    return released.value, text


FOR = "for_entry"
"""In ``reading`` of an entry: the entry of the other name that it pays for."""


class Others(NamedTuple):
    """Other names that a run's files were read as: those whose budget did not pay for the run, and
    public ones.
    """

    unpaid: tuple[str, ...] = ()
    public: tuple[str, ...] = ()


def others(connection: Connection, records: Sequence[Record]) -> Others:
    """The other names of the files of an entry with these ``records``; a run of unknown files has
    none.
    """
    reserving = next((record for record in records if record.kind == "reserved"), None)
    if reserving is None or reserving.fingerprint is None:
        return Others()
    marks = _marks(reserving)
    names = _without(ledger_facts.read_as(connection, marks), {reserving.dataset})
    limited = [name for name in names if _is_limited(connection, name)]
    paid = _paid(connection, reserving.entry, marks)
    return Others(_without(limited, paid), _without(names, limited))


def _without(names: Iterable[str], others: Container[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in others)


def _is_limited(connection: Connection, name: str) -> bool:
    found = chain.find_dataset(connection, name)
    return found is not None and found.limited


def _marks(reserving: Record) -> tuple[str, ...]:
    """The fingerprints of the files that an entry read."""
    return tuple(
        mark
        for mark in (reserving.fingerprint, *json.loads(reserving.body).get("files", ()))
        if mark
    )


def _blocks_of(connection: Connection, name: str, marks: Sequence[str]) -> set[str]:
    """The blocks that runs of ``name`` on one of these files were charged on: the same rows lie
    there.
    """
    table = schema.records
    rows = connection.execute(select(table).where(schema.IS_RESERVING, table.c.dataset == name))
    return {
        block
        for record in (Record(*row) for row in rows)
        if set(marks) & set(_marks(record))
        for block in json.loads(record.body)["blocks"]
    }


def _paid(connection: Connection, entry: str, marks: Sequence[str]) -> set[str]:
    """The names that were charged for ``entry`` with at least its mechanisms, on all blocks that
    hold its files.
    """
    table = schema.records
    reserved = table.c.kind == "reserved"
    [own] = connection.scalars(select(table.c.body).where(reserved, table.c.entry == entry))
    rows = connection.execute(
        select(table).where(reserved, table.c.body.like(f'%"{FOR}":"{entry}"%'))
    )
    return {
        record.dataset
        for record in (Record(*row) for row in rows)
        if json.loads(record.body)["events"] == json.loads(own)["events"]
        and set(json.loads(record.body)["blocks"]) >= _blocks_of(connection, record.dataset, marks)
        and chain.history(connection, record.entry)[-1].kind == "committed"
    }


def _require_blocks(found: Dataset, entry: str, needed: set[str], blocks: Sequence[str]) -> None:
    """Raise InputError where rows that ``entry`` read lie in blocks that are not among these."""
    if missing := sorted(needed - set(found.blocks.charged(blocks, found.unit))):
        raise InputError(
            f"Expected all blocks of {found.name!r} that were charged for the same file, got none "
            f"for {missing[0]!r}: its rows were read by {entry} too; add "
            f"{' '.join(f'--block {block}' for block in missing)}."
        )


def charge_also(ledger: Ledger, entry: str, name: str, blocks: Sequence[str] = (ALL,)) -> str:
    """Charge the mechanisms of a committed ``entry`` to the data set ``name`` as well; return the
    new entry.

    Raises InputError for an entry that is not committed, or one of ``name`` itself; BudgetExceeded
    without room.
    """
    with ledger.store.reading() as connection:
        records = chain.history(connection, entry) if connection is not None else []
        states = [record.kind for record in records if record.kind != schema.DRAWN]
        if connection is None or states != ["reserved", "committed"] or records[0].dataset == name:
            raise InputError(
                f"Expected a committed entry of another data set than {name!r}, got {entry!r} "
                f"({' -> '.join(states) or 'unknown'}); `dpflows ledger show` lists them."
            )
        body = json.loads(records[0].body)
        text = chain.events_text(connection, body["events"])
        hashes = json.loads(records[-1].body)["hashes"]
        needed = _blocks_of(connection, name, _marks(records[0]))
    found, facts = ledger.dataset(name), None
    if found.limited:
        _require_blocks(found, entry, needed, blocks)
        facts = _facts_of(ledger, name, body, entry)
    with ledger.reserve(
        name, Events.from_json(text or ""), blocks, reading={FOR: entry}, facts=facts
    ) as reservation:
        # The numbers were drawn already: from here on nothing is given back.
        reservation.on_charge()
        reservation.commit(hashes)
    return reservation.entry_id


def _facts_of(ledger: Ledger, name: str, body: dict[str, Any], entry: str) -> RowFacts | None:
    """The facts of ``name`` under which it pays for an entry with this ``body``, None where the
    opening says all.

    Raises ``InputError`` where the entry saw other units in the same rows, and where nothing says
    which it saw.
    """
    fixed, dataset = ledger.facts(name), ledger.dataset(name)
    if dataset.unit == "record":
        return fixed
    seen = RowFacts.from_dict(body["facts"]) if "facts" in body else None
    if fixed is None or seen is None or not fixed.same_units(seen):
        raise InputError(
            f"Expected an entry that saw the {dataset.unit}s of {name!r} in the same rows, got "
            f"{entry}, which {'states' if seen else 'does not state'} "
            f"{'others' if seen else 'what its rows were'}; train again under {name!r}."
        )
    return fixed
