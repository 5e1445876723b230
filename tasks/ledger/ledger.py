"""The budget ledger: data sets with a budget, and the runs that were charged to them.

Every write is one transaction that appends to one hash chain. Writers take turns (``BEGIN IMMEDIATE`` or a row
lock), so concurrent flows cannot overspend. Reading never changes anything.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from sqlalchemy import Connection, select

from dpcore.accounting.events import Events
from dpcore.accounting.limits import Room, order_index
from dpcore.checks import require_choice
from dpcore.errors import DPFlowsError, InputError, VerificationFailed, unknown_name
from dpcore.problem import Adjacency
from tasks.ledger import chain, schema
from tasks.ledger.blocks import ALL, Blocks
from tasks.ledger.orders import LARGEST, choose_order, cost_units
from tasks.ledger.owner import is_gone, this_process
from tasks.ledger.records import UNITS, Dataset, Record
from tasks.ledger.relations import price_for
from tasks.ledger.reservation import Reservation
from tasks.ledger.store import NOTHING_SPENT, Store
from tasks.ledger.verify import Verification, verify

log = logging.getLogger(__name__)


class Ledger:
    """A ledger at a database URL or a file path. Nothing is created before the first write."""

    def __init__(self, url: str | Path, timeout: float = 30.0) -> None:
        self.store = Store(url, timeout)
        self._known: dict[str, Dataset] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self.store.close()

    # --- data sets -------------------------------------------------------------------------------------------

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
    ) -> Dataset:
        """Open ``dataset`` with its budget, once and for all; return it with its order and its budget there.

        Raises InputError for a data set that exists, or a budget that no order can hold.
        """
        require_choice(UNITS, unit=unit)
        require_choice(tuple(map(str, Adjacency)), adjacency=str(adjacency))
        blocks, relation = blocks or Blocks(), Adjacency(adjacency)
        if (unit == "session_labels") != (relation == Adjacency.REPLACE_LABELS):
            raise InputError(
                f"Expected unit='session_labels' with replace_labels and only there, got {unit!r} and {relation}."
            )
        if unit == "user" and blocks.user_column is None:
            raise InputError(
                "Expected user_column and rows_per_user in the blocks for unit='user', got none; declare them."
            )
        chosen, budget = choose_order(epsilon, delta, conversion, order)
        opened = Dataset(_named(dataset), epsilon, delta, relation, unit, conversion, chosen, budget, blocks)
        with self._writing(NOTHING_SPENT) as (connection, log_chain):
            if (found := self._find(connection, dataset)) is not None:
                raise InputError(
                    f"Expected a data set without a budget, got {dataset!r}: {found.guarantee()}, opened "
                    f"{found.opened_at}; a "
                    f"budget is never changed: reserve from it, or open new data under another name."
                )
            log_chain.append("opened", dataset, opened.to_body())
        return self.dataset(dataset)

    def dataset(self, name: str) -> Dataset:
        """Return a data set as it was opened; raises InputError with near misses when there is none."""
        with self.store.reading() as connection:
            found = self._find(connection, name)
        if found is None:
            raise self._missing(name)
        return found

    def datasets(self) -> list[Dataset]:
        """Return all data sets in the order in which they were opened."""
        with self.store.reading() as connection:
            if connection is None:
                return []
            rows = connection.execute(select(schema.records).where(schema.IS_OPENING).order_by(schema.records.c.seq))
            return [Dataset.from_record(Record(*row)) for row in rows]

    def _missing(self, name: str) -> InputError:
        known = [dataset.name for dataset in self.datasets()]
        near = f" {unknown_name('data set', name, known)}" if known else ""
        return InputError(
            f"Expected a data set with a budget, got {name!r}, which the ledger {self.store.shown} does not "
            f"hold.{near} Private "
            f"data need `dpflows ledger init {name} --epsilon E --delta D` once; public data say `public: true`."
        )

    def _find(self, connection: Connection | None, name: str) -> Dataset | None:
        if connection is not None and name not in self._known:
            found = chain.find_dataset(connection, name)
            if found is None:
                return None
            self._known[name] = found
        return self._known.get(name)

    # --- what is left ----------------------------------------------------------------------------------------

    def spent(self, dataset: str, blocks: Iterable[str] | None = None) -> dict[str, int]:
        """Return the units spent in each block at the one order; without ``blocks``, in all that were touched."""
        with self.store.reading() as connection:
            if connection is None:
                return {}
            names = list(blocks) if blocks is not None else chain.touched(connection, dataset)
            return {name: chain.balance(connection, dataset, name)[1] for name in names}

    def room(self, dataset: str, blocks: Sequence[str] | None = None, public: bool = False) -> Room | None:
        """Return what every one of ``blocks`` has left, or None for public data without a limit.

        Without ``blocks``: the one block, or all blocks that were touched. Raises InputError for private data
        that were never opened.
        """
        with self.store.reading() as connection:
            found = self._find(connection, dataset)
            if found is None and not public:
                raise self._missing(dataset)
            if found is None or not self._is_limited(found, public):
                return None
            charged = chain.touched(connection, dataset) if blocks is None else found.blocks.charged(blocks, found.unit)
            spent = [chain.balance(connection, dataset, block)[1] for block in charged]
        assert found.order is not None and found.adjacency is not None
        return Room(found.order, found.left(max(spent, default=0)), found.adjacency, dataset)

    @staticmethod
    def _is_limited(dataset: Dataset, public: bool) -> bool:
        if not dataset.limited and not public:
            raise InputError(
                f"Expected public data, got {dataset.name!r} declared private; it was opened as public data without a "
                f"limit: private data need their own name and `dpflows ledger init`."
            )
        return dataset.limited

    # --- charging --------------------------------------------------------------------------------------------

    def reserve(
        self,
        dataset: str,
        events: Events,
        blocks: Sequence[str] = (ALL,),
        hashes: dict[str, str] | None = None,
        public: bool = False,
        period: str | None = None,
        fingerprint: str | None = None,
    ) -> Reservation:
        """Charge ``events`` on every block that the run touches, or on none; on disk when this returns.

        ``public`` data that were never opened are opened here without a limit. ``period`` names a scheduled period
        that is trained once. ``fingerprint`` (see ``fingerprint()``) warns of one file under two names.
        Raises BudgetExceeded, and leaves the ledger as it was, where a block has no room.
        """
        with self.store.reading() as connection:
            known = self._find(connection, dataset)
        if known is None and not public:
            raise self._missing(dataset)
        target = known or Dataset(_named(dataset), None, None, None, events.unit, "cks", None, None, Blocks())
        body, units = _charge(target, events, blocks, self._is_limited(target, public))
        body |= {"hashes": dict(hashes or {}), "owner": this_process()}
        entry = uuid4().hex
        with self._writing(NOTHING_SPENT) as (connection, log_chain):
            found = self._find(connection, dataset)
            if found is None:
                log_chain.append("opened", dataset, target.to_body())
            elif found.to_body() != target.to_body():
                raise InputError(
                    f"Expected {dataset!r} as it was a moment ago, but another process opened it; run again."
                )
            state = chain.period_state(connection, dataset, period) if period is not None else None
            if state in ("reserved", "committed"):
                raise InputError(
                    f"Expected a period not trained yet, got period={period!r} of {dataset!r}, which is {state}."
                )
            notes = chain.same_file(connection, dataset, fingerprint)
            chain.store_events(connection, body["events"], events.to_json())
            record = log_chain.append("reserved", dataset, body, entry, period, fingerprint)
            if target.limited:
                chain.move(connection, target, record, body["blocks"], units, body["cost"])
        for note in notes:
            log.warning(note)
        return Reservation(self, entry, dataset, record.hash, notes)

    def _close_entry(self, entry: str, dataset: str, kind: str, body: dict[str, Any]) -> str:
        """Append the record that closes ``entry``; only a cancellation gives units back. Return the new head."""
        consequence = f"entry {entry} of {dataset!r} stays reserved, which is charged in full"
        with self._writing(consequence) as (connection, log_chain):
            history = chain.history(connection, entry)
            if [record.kind for record in history] != ["reserved"]:
                states = " -> ".join(record.kind for record in history) or "unknown"
                raise DPFlowsError(
                    f"Expected an open entry, got {entry} of {dataset!r}, which is {states}; nothing was changed."
                )
            reserved = json.loads(history[0].body)
            if kind == "cancelled" and reserved["owner"] != this_process():
                raise DPFlowsError(f"Expected the process that reserved {entry} to cancel it; it stays charged.")
            record = log_chain.append(kind, dataset, body, entry)
            if kind == "cancelled" and reserved["units"]:
                owner = self._find(connection, dataset)
                assert owner is not None
                chain.move(connection, owner, record, reserved["blocks"], -reserved["units"], 0.0)
        return record.hash

    def reap(self) -> list[str]:
        """Forfeit entries whose process is certainly gone; return their ids. They stay charged in full."""
        forfeited = []
        for record in self.open_entries():
            owner = json.loads(record.body)["owner"]
            if not is_gone(owner):
                continue
            reason = f"process {owner['pid']} on {owner['host']} ended without a result"
            try:
                self._close_entry(record.entry, record.dataset, "forfeited", {"reason": reason, "by": "reaper"})
            except DPFlowsError as error:
                # Another reaper was first: the entry is closed, which is all that is wanted here.
                log.info("%s", error)
                continue
            forfeited.append(record.entry)
        return forfeited

    def open_entries(self) -> list[Record]:
        """Return the reserved entries that nothing closed yet, oldest first."""
        with self.store.reading() as connection:
            return [] if connection is None else chain.open_entries(connection)

    def period_state(self, dataset: str, period: str) -> str | None:
        """Return reserved, committed or forfeited for the newest run of a scheduled period, None when there is none."""
        with self.store.reading() as connection:
            return None if connection is None else chain.period_state(connection, dataset, period)

    # --- the chain -------------------------------------------------------------------------------------------

    def head(self) -> str:
        """Return the hash of the newest record: it stands for the whole history. Empty for an empty ledger."""
        with self.store.reading() as connection:
            newest = None if connection is None else chain.newest(connection)
        return newest[1] if newest else ""

    def check(self, head: str | None = None) -> Verification:
        """Recompute hashes, prices, totals and states from the records; return what was found.

        ``head``: a hash from a statement or a bundle that the chain must still contain.
        """
        with self.store.reading() as connection:
            return verify(connection, head)

    def verify(self, head: str | None = None) -> Verification:
        """Return ``check(head)``; raises VerificationFailed with the first problems where it found any."""
        report = self.check(head)
        if not report.ok:
            raise VerificationFailed(
                f"Expected an intact ledger, got {report.problem_count} problems in {self.store.shown}: "
                f"{'; '.join(report.problems[:3])}; restore a copy that holds your last head."
            )
        return report

    def fingerprint(self, paths: Iterable[Path]) -> str:
        """Return the keyed SHA-256 of files' contents: it knows one file under two names."""
        digest = sha256()
        for path in sorted(paths):
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
        with self._writing(NOTHING_SPENT) as (connection, _):
            key = chain.fingerprint_key(connection)
        return hmac.new(key, digest.digest(), "sha256").hexdigest()

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
        raise InputError(f"Expected a printable name of 1 to 200 characters, got dataset={dataset!r}.")
    return dataset


def _charge(target: Dataset, events: Events, blocks: Sequence[str], limited: bool) -> tuple[dict[str, Any], int]:
    """Return the body of a reserving record, and the cost in units."""
    digest = sha256(events.to_json().encode()).hexdigest()
    common = {"events": digest, "releases": len(events), "unit": events.unit, "read": list(blocks)}
    if not limited:
        return common | {"adjacency": str(events.adjacency), "cost": None, "units": 0, "blocks": list(blocks)}, 0
    charged = target.blocks.charged(blocks, target.unit)
    adjacency, curve = price_for(target, events)
    assert target.order is not None and target.budget is not None
    cost = float(curve[order_index(target.order)])
    # A cost that no database integer can hold (infinity: an unknown price) is more than any budget.
    units = cost_units(cost) if cost < LARGEST else target.limit + 1
    return common | {"adjacency": str(adjacency), "cost": cost, "units": units, "blocks": list(charged)}, units
