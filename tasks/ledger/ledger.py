"""The budget ledger: data sets with a budget, and the runs that were charged to them.

Every write is one transaction that appends to one hash chain. Writers take turns
(``BEGIN IMMEDIATE`` or a row lock), so concurrent flows cannot overspend. Reading never changes
anything.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from dpcore.accounting.events import Events
from dpcore.errors import DPFlowsError, InputError, require_choice
from dpcore.problem import Adjacency
from tasks.ledger import chain, schema
from tasks.ledger import facts as ledger_facts
from tasks.ledger.blocks import ALL, Blocks
from tasks.ledger.chain import require_unlike
from tasks.ledger.engines import NOTHING_SPENT
from tasks.ledger.facts import Marks, RowFacts
from tasks.ledger.reader import LedgerReader
from tasks.ledger.records import (
    FILTERS,
    LARGEST,
    UNITS,
    Dataset,
    choose_order,
    cost_units,
    price_for,
)
from tasks.ledger.reservation import Reservation, is_gone, this_process
from tasks.ledger.verify import Verification, verify

log = logging.getLogger(__name__)


class Ledger(LedgerReader):
    """A ledger at a database URL or a file path. Nothing is created before the first write."""

    _made: Sequence[Reservation] = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Where its block fails, end what it reserved and nobody holds."""
        for one in self._made if error is not None else ():
            with suppress(DPFlowsError):  # it does not answer: the entry stays reserved
                if one.state == "reserved" and self.state_of(one.entry_id) == "reserved":
                    one.__exit__(kind, error, trace)
                    log.warning(one.fate)
        super().__exit__(kind, error, trace)

    def init(
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        adjacency: Adjacency | str,
        unit: str = "record",
        conversion: str = "cks",
        order: float | None = None,
        blocks: Blocks | None = None,
        facts: RowFacts | None = None,
        filter: str = "rdp",
    ) -> Dataset:
        """Open ``dataset`` with its budget, once and for all; return it with its order and its
        budget there.

        ``filter``: ``rdp`` counts prices at one Rényi order, ``gdp`` adds mu^2 of releases that are
        Gaussian or pure and takes no others (``dpcore.accounting.gaussian_filter``).

        ``facts`` says what maps a row to its unit and block; left out, the first reservation fixes
        it.

        Raises InputError for a data set that exists, for a name that looks like another's, for
        facts of other rows, and for a budget that no order can hold.
        """
        require_choice(UNITS, unit=unit)
        require_choice(tuple(map(str, Adjacency)), adjacency=str(adjacency))
        blocks, relation = blocks or Blocks(), Adjacency(adjacency)
        if (unit == "session_labels") != (relation == Adjacency.REPLACE_LABELS):
            raise InputError(
                f"Expected unit='session_labels' with replace_labels and only there, got {unit!r} "
                f"and {relation}."
            )
        if unit == "user" and blocks.user_column is None:
            raise InputError(
                "Expected user_column and rows_per_user in the blocks for unit='user', got none; "
                "declare them."
            )
        if facts is not None:
            facts.require_of(unit, blocks, dataset)
        require_choice(FILTERS, filter=filter)
        chosen, budget = choose_order(epsilon, delta, conversion, order, filter)
        opened = Dataset(
            _named(dataset),
            epsilon,
            delta,
            relation,
            unit,
            conversion,
            chosen,
            budget,
            blocks,
            facts=facts,
            filter=filter,
        )
        with self._writing(NOTHING_SPENT) as (connection, log_chain):
            if (found := self._find(connection, dataset)) is not None:
                raise InputError(
                    f"Expected a data set without a budget, got {dataset!r}, opened "
                    f"{found.opened_at[:10]}: {found.guarantee()}; a budget is never changed: use "
                    "it, or open new data under another name."
                )
            require_unlike(connection, dataset)
            log_chain.append("opened", dataset, opened.to_body())
        return self.dataset(dataset)

    def reserve(
        self,
        dataset: str,
        events: Events,
        blocks: Sequence[str] = (ALL,),
        hashes: dict[str, str] | None = None,
        public: bool = False,
        period: str | None = None,
        fingerprint: Marks | None = None,
        division: Blocks | None = None,
        facts: RowFacts | None = None,
        reading: dict[str, Any] | None = None,
    ) -> Reservation:
        """Charge ``events`` on every block that the run touches, or on none; on disk when this
        returns.

        ``public`` data that were never opened are opened here without a limit. ``period`` names a
        scheduled period that is trained once. ``fingerprint`` (see ``fingerprint()``) warns of one
        file under two names. ``division`` is how the rows were divided in this run: it must be the
        one of the opening. ``facts`` say what maps a row to unit and block in this run: they must
        be the fixed ones, and fix them where none are; only a budget of undivided records is
        charged without them. ``reading`` is recorded beside them (split, test source, n, rows per
        block). Raises InputError, or BudgetExceeded where a block has no room, and leaves the
        ledger as it was.

        Where something fails before the caller has the answer, or before its block is entered, the
        end of the ledger's own block gives it back.
        """
        marks, stated = fingerprint or Marks(), {} if facts is None else {"facts": facts.to_dict()}
        target = self._target(dataset, events.unit, division, facts, public)
        target.require_delta((reading or {}).get("n"))
        body, units = _charge(target, events, blocks, self._is_limited(target, public))
        if target.limited:
            self._require_stated(target, facts)
        else:
            self._require_unread(dataset, marks)
        body |= {"hashes": dict(hashes or {}), "owner": this_process(), **marks.body(), **stated}
        body |= {} if reading is None else {"reading": reading}
        made = self._new(dataset)
        with self._writing(NOTHING_SPENT) as (connection, log_chain):
            _open_as(connection, log_chain, target)
            chain.require_untrained(connection, dataset, period)
            notes = ledger_facts.other_names(connection, dataset, marks.all)
            if target.limited:
                chain.admit(connection, target, body["blocks"], units, body["cost"], facts)
                self._fix(connection, log_chain, target, facts)
            chain.store_events(connection, body["events"], events.to_json())
            record = log_chain.append("reserved", dataset, body, made.entry_id, period, marks.whole)
            chain.move(connection, record, body["blocks"], units)
        for note in notes:
            log.warning(note)
        return made.charged(record.hash, notes)

    def _new(self, dataset: str) -> Reservation:
        """A reservation that this ledger knows of before it is on disk."""
        made = Reservation(self, uuid4().hex, dataset)
        self._made = [*(one for one in self._made if one.state == "reserved"), made]
        return made

    def _fix(
        self,
        connection: Connection,
        log_chain: chain.Chain,
        target: Dataset,
        facts: RowFacts | None,
    ) -> None:
        """Record the first ``facts`` that a run states; later ones must be the same."""
        if facts is not None and self._fixed(connection, target, facts) is None:
            log_chain.append(chain.FIXED, target.name, {"facts": facts.to_dict()})

    def _target(
        self, name: str, unit: str, division: Blocks | None, facts: RowFacts | None, public: bool
    ) -> Dataset:
        """The data set that a run is charged to, as it was opened; one of public data that is not
        open yet is as the run describes it.
        """
        with self.store.reading() as connection:
            known = self._find(connection, name)
        if known is None:
            if not public:
                raise self._missing(name)
            blocks = division or Blocks()
            return Dataset(
                _named(name), None, None, None, unit, "cks", None, None, blocks, facts=facts
            )
        known.blocks.require_same(division or known.blocks, name)
        return known

    def _require_unread(self, dataset: str, fingerprint: Marks) -> None:
        """Raise InputError where public data are a file that was charged here as private."""
        with self.store.reading() as connection:
            names = () if connection is None else ledger_facts.read_as(connection, fingerprint.all)
        self._require_open(dataset, [name for name in names if self.dataset(name).limited])

    def _require_stated(self, target: Dataset, facts: RowFacts | None) -> None:
        """Raise InputError where a run leaves open what its rows are, though a declaration decides
        over it.
        """
        if facts is None and not RowFacts.follow(target.unit, target.blocks):
            raise InputError(
                f"Expected facts with a charge on {target.name!r} (unit {target.unit}, divided by "
                f"{target.blocks.words()}), got none: what maps its rows to units and blocks is "
                "part of the promise; give facts=RowFacts.of(schema)."
            )
        if facts is not None and self.facts(target.name) is None:
            facts.require_of(target.unit, target.blocks, target.name)

    def note_draw(self, entry: str, dataset: str) -> None:
        """Append the record of the first draw of ``entry``: afterwards nobody can give its budget
        back.
        """
        consequence = f"nothing was drawn, and entry {entry} of {dataset!r} stays reserved"
        with self._writing(consequence) as (connection, log_chain):
            chain.open_entry(connection, entry, dataset)
            log_chain.append(schema.DRAWN, dataset, {}, entry)

    def close_entry(self, entry: str, dataset: str, kind: str, body: dict[str, Any]) -> str:
        """Append the record that closes ``entry``; only a cancellation gives units back. Return the
        new head.
        """
        require_choice(schema.CLOSING, kind=kind)
        consequence = f"entry {entry} of {dataset!r} stays reserved, which is charged in full"
        with self._writing(consequence) as (connection, log_chain):
            reserving, drawn = chain.open_entry(connection, entry, dataset)
            reserved = json.loads(reserving.body)
            if kind == "cancelled" and drawn:
                raise DPFlowsError(
                    f"Expected no draw before a cancellation, got {entry} of {dataset!r}: forfeit "
                    "it."
                )
            if kind == "cancelled" and reserved["owner"] != this_process():
                raise DPFlowsError(
                    f"Expected the process that reserved {entry} to cancel it; it stays charged."
                )
            record = log_chain.append(kind, dataset, body, entry)
            if kind == "cancelled":
                chain.move(connection, record, reserved["blocks"], -reserved["units"])
        return record.hash

    def commit_for(self, entry: str, dataset: str, hashes: dict[str, str], draws: int) -> str:
        """Close an entry with the result that a process left on disk before it was killed; return
        the new head.

        Raises DPFlowsError for an entry that is closed, or whose process may live.
        """
        record = next((record for record in self.open_entries() if record.entry == entry), None)
        if record is None or not is_gone(json.loads(record.body)["owner"]):
            raise DPFlowsError(
                f"Expected an open entry whose process is gone, got {entry} of {dataset!r}."
            )
        return self.close_entry(
            entry, dataset, "committed", {"hashes": hashes, "draws": draws, "by": "recover"}
        )

    def reap(self, kept: Collection[str]) -> list[str]:
        """Forfeit entries whose process is certainly gone; return their ids. They stay charged in
        full.

        ``kept``: entries whose result lies on disk and can still be recovered.
        """
        forfeited = []
        for record in self.open_entries():
            owner = json.loads(record.body)["owner"]
            if record.entry in kept or not is_gone(owner):
                continue
            reason = f"process {owner['pid']} on {owner['host']} ended without a result"
            reason += "" if self.is_drawn(record.entry) else ", and no draw is on record"
            try:
                self.close_entry(
                    record.entry, record.dataset, "forfeited", {"reason": reason, "by": "reaper"}
                )
            except DPFlowsError as error:
                # Another reaper was first: the entry is closed, which is all that is wanted here.
                log.info("%s", error)
                continue
            forfeited.append(record.entry)
        return forfeited

    def fingerprint(self, paths: Iterable[ledger_facts.Bytes]) -> Marks:
        """Return the keyed fingerprints of files' contents: they know one file under two names."""
        with self._writing(NOTHING_SPENT) as (connection, _):
            key = ledger_facts.key_of(connection)
        return ledger_facts.marks_of(key, paths)

    def keep_head(self, head: str | None = None) -> Verification:
        """Replay the ledger as it is, then keep its newest head anew: the explicit way on where
        what was kept is lost.

        Nothing is kept where the replay finds a problem, or ``head`` is not in the chain. What the
        head that was kept before said is a note of the answer.
        """
        with self.store.reading(compare=False) as connection:
            report = verify(connection, head)
        if report.ok:
            before, now = self.store.keep_anew()
            was = (
                f"record {before.seq} ({before.hash[:16]})"
                if before
                else "nothing that can be read"
            )
            report.notes.append(
                f"kept before: {was}; kept now: {f'record {now.seq}' if now else 'nothing'}"
            )
        return report

    @contextmanager
    def _writing(self, consequence: str) -> Iterator[tuple[Connection, chain.Chain]]:
        try:
            with self.store.writing(consequence) as connection:
                yield connection, chain.Chain(connection)
        except BaseException:
            # An opening that was rolled back must not be remembered.
            self._known.clear()
            raise


def _named(dataset: str) -> str:
    if not dataset or len(dataset) > 200 or not dataset.isprintable() or dataset != dataset.strip():
        raise InputError(
            f"Expected a printable name of 1 to 200 characters, got dataset={dataset!r}."
        )
    return dataset


def _open_as(connection: Connection, log_chain: chain.Chain, target: Dataset) -> None:
    """Open ``target`` where it is not there, as what it must still be where it is: what was
    remembered of it is not believed.
    """
    found = chain.find_dataset(connection, target.name)
    if found is None:
        require_unlike(connection, target.name)
        log_chain.append("opened", target.name, target.to_body())
    elif found.to_body() != target.to_body():
        raise InputError(
            f"Expected {target.name!r} as it was a moment ago, but another process opened it; run "
            "again."
        )


def _require_names(target: Dataset, charged: Sequence[str]) -> None:
    """Raise InputError for a block that may stand for others."""
    wrong = target.blocks.unnamed(charged, target.unit)
    if wrong is not None:
        raise InputError(
            f"Expected blocks of {target.name!r} by the {target.blocks.words()}, got {wrong!r}, "
            "which names none; list the blocks to read."
        )


def _charge(
    target: Dataset, events: Events, blocks: Sequence[str], limited: bool
) -> tuple[dict[str, Any], int]:
    """Return the body of a reserving record, and the cost in units."""
    digest = sha256(events.to_json().encode()).hexdigest()
    common = {"events": digest, "releases": len(events), "unit": events.unit, "read": list(blocks)}
    if not limited:
        return common | {
            "adjacency": str(events.adjacency),
            "cost": None,
            "units": 0,
            "blocks": list(blocks),
        }, 0
    charged = target.blocks.charged(blocks, target.unit)
    _require_names(target, charged)
    adjacency, cost = price_for(target, events)
    # A cost that no database integer can hold (infinity: an unknown price) is more than any budget.
    units = cost_units(cost) if cost < LARGEST else target.limit + 1
    return common | {
        "adjacency": str(adjacency),
        "cost": cost,
        "units": units,
        "blocks": list(charged),
    }, units
