"""Reading a ledger: what was promised, what is left, what is open, whether it is intact. Nothing
here writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from sqlalchemy import Connection, select

from dpcore.accounting.events import Events
from dpcore.accounting.limits import Room
from dpcore.errors import InputError, VerificationFailed, require_choice, unknown_name
from tasks.ledger import chain, schema
from tasks.ledger import facts as ledger_facts
from tasks.ledger.facts import RowFacts
from tasks.ledger.records import OF, Dataset, Record, price_for
from tasks.ledger.store import Store
from tasks.ledger.verify import Verification, verify


class Window(NamedTuple):
    """The blocks that a run may read, those without room, and the room that all of ``kept`` have
    (None: no limit).
    """

    kept: tuple[str, ...]
    left_out: tuple[str, ...]
    room: Room | None


class LedgerReader:
    """The reading half of a ledger, at a database URL or a file path."""

    def __init__(self, url: str | Path, timeout: float = 30.0) -> None:
        self.store = Store(url, timeout)
        self._known: dict[str, Dataset] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self.store.close()

    def dataset(self, name: str) -> Dataset:
        """Return a data set as it was opened; raises InputError with near misses when there is
        none.
        """
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
            rows = connection.execute(
                select(schema.records).where(schema.IS_OPENING).order_by(schema.records.c.seq)
            )
            return [Dataset.from_record(Record(*row)) for row in rows]

    def _missing(self, name: str) -> InputError:
        known = [dataset.name for dataset in self.datasets()]
        near = f" {unknown_name('data set', name, known)}" if known else ""
        return InputError(
            f"Expected a data set with a budget, got {name!r}; the ledger {self.store.shown} does "
            f"not hold it.{near} Private data need `dpflows ledger init {name} --epsilon E --delta "
            "D` once; public data: `public: true`."
        )

    def _find(self, connection: Connection | None, name: str) -> Dataset | None:
        if connection is not None and name not in self._known:
            found = chain.find_dataset(connection, name)
            if found is None:
                return None
            self._known[name] = found
        return self._known.get(name)

    def facts(self, dataset: str) -> RowFacts | None:
        """Return what maps a row of a data set to its unit and block, None where nothing fixed it
        yet.
        """
        found = self.dataset(dataset)
        with self.store.reading() as connection:
            assert connection is not None
            return found.facts or chain.fixed_facts(connection, dataset)

    def require_facts(self, dataset: str, facts: RowFacts, n: int | None = None) -> None:
        """Raise InputError where a reservation would: ``facts`` differ from what was fixed, or
        delta >= 1/n.
        """
        with self.store.reading() as connection:
            found = self._find(connection, dataset)
            if connection is not None and found is not None and found.limited:
                self._fixed(connection, found, facts)
                found.require_delta(n)

    @staticmethod
    def _fixed(connection: Connection, dataset: Dataset, facts: RowFacts) -> RowFacts | None:
        """The facts that were fixed, which ``facts`` must be; None where nothing fixed them yet."""
        fixed = dataset.facts or chain.fixed_facts(connection, dataset.name)
        if fixed is not None:
            fixed.require_same(facts, dataset.name)
        return fixed

    def spent(self, dataset: str, blocks: Iterable[str] | None = None) -> dict[str, int]:
        """Return the units that count against each block at the one order; without ``blocks``, each
        touched one.
        """
        with self.store.reading() as connection:
            found = self._find(connection, dataset)
            if connection is None or found is None:
                return {} if connection is None else dict.fromkeys(blocks or (), 0)
            return chain.counted(connection, found, blocks)

    def room(
        self, dataset: str, blocks: Sequence[str] | None = None, public: bool = False
    ) -> Room | None:
        """Return what every one of ``blocks`` has left, or None for public data without a limit.

        Without ``blocks``: the one block, or all blocks that were touched. Raises InputError for
        private data that were never opened.
        """
        with self.store.reading() as connection:
            found = self._find(connection, dataset)
            if found is None and not public:
                raise self._missing(dataset)
            if found is None or not self._is_limited(found, public):
                return None
            assert connection is not None
            charged = None if blocks is None else found.blocks.charged(blocks, found.unit)
            spent = chain.counted(connection, found, charged)
        assert found.adjacency is not None
        fullest = max(spent.values(), default=0)
        return Room(found.order, found.left(fullest), found.adjacency, dataset)

    def private_names(
        self, dataset: str | None, paths: Iterable[ledger_facts.Bytes] = ()
    ) -> tuple[str, ...]:
        """Return the data sets with a limit that are called ``dataset`` or were charged for reading
        one of ``paths``.

        The one answer to "is this public?": what a schema declares public and stands here is
        private. Files are compared byte for byte, so an edited copy is not known. Nothing is
        created.
        """
        limited = {found.name for found in self.datasets() if found.limited}
        if not limited:
            return ()
        with self.store.reading() as connection:
            assert connection is not None
            marks = (
                ledger_facts.marks_of(ledger_facts.key_of(connection), paths).all
                if (paths := list(paths))
                else ()
            )
            return tuple(sorted(limited & {dataset, *ledger_facts.read_as(connection, marks)}))

    def private_as(self, entry: str) -> tuple[str, ...]:
        """Return the data sets with a limit that an entry was charged to, or that were charged for
        one of its files.
        """
        limited = {found.name for found in self.datasets() if found.limited}
        with self.store.reading() as connection:
            if connection is None or not (records := chain.history(connection, entry)):
                return ()
            stored = json.loads(records[0].body).get("files", ())
            marks = [mark for mark in (records[0].fingerprint, *stored) if mark]
            return tuple(
                sorted(limited & {records[0].dataset, *ledger_facts.read_as(connection, marks)})
            )

    def require_public(self, dataset: str, paths: Iterable[ledger_facts.Bytes] = ()) -> None:
        """Raise InputError where data that are declared public are private here, by their name or
        by their bytes.
        """
        self._require_open(dataset, self.private_names(dataset, paths))

    def _require_open(self, dataset: str, names: Sequence[str]) -> None:
        """Raise InputError for public data that are known here by the private ``names``."""
        if dataset in names:
            raise self._not_public(self.dataset(dataset))
        if names:
            raise InputError(
                f"Expected public data, got {dataset!r}, whose file this ledger charged as the "
                f"private {names[0]!r} ({self.dataset(names[0]).guarantee()}); train it as "
                f"{names[0]!r}, whose budget pays for its records."
            )

    @staticmethod
    def _not_public(dataset: Dataset) -> InputError:
        return InputError(
            f"Expected public data, got {dataset.name!r}, which has a budget here: "
            f"{dataset.guarantee()}; a budget is never taken back: declare `public: false` in its "
            "data schema."
        )

    @staticmethod
    def _is_limited(dataset: Dataset, public: bool) -> bool:
        if not dataset.limited and not public:
            raise InputError(
                f"Expected public data, got {dataset.name!r} declared private; it was opened as "
                "public data without a limit: private data need their own name and `dpflows "
                "ledger init`."
            )
        return dataset.limited

    def window(
        self,
        dataset: str,
        blocks: Sequence[str],
        events: Events | None = None,
        policy: str = "refuse",
        least: float = 0.0,
        public: bool = False,
    ) -> Window:
        """Return which of ``blocks`` a run may read: those that can pay ``events``, or have a share
        ``least`` left.

        A block that cannot is left out under ``policy`` leave_out and said in ``left_out``; under
        ``refuse``, or when none remains, BudgetExceeded is raised. Fewer blocks change the nominal
        n, so plan again for ``kept``.
        """
        require_choice(("refuse", "leave_out"), policy=policy)
        names = tuple(dict.fromkeys(blocks))
        if self.room(dataset, names, public) is None:
            return Window(names, (), None)
        found = self.dataset(dataset)
        assert found.adjacency is not None and found.budget is not None
        cost = least * found.budget
        if events is not None:
            cost = max(cost, price_for(found, events)[1])
        kept, full = self._by_room(found, names, cost)
        if full and (policy == "refuse" or not kept):
            name, spent = next(iter(full.items()))
            raise chain.refusal(found, name, cost, spent)
        room = Room(found.order, found.left(max(kept.values())), found.adjacency, dataset)
        return Window(tuple(kept), tuple(full), room)

    def _by_room(
        self, dataset: Dataset, names: Sequence[str], cost: float
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Return which of ``names`` can pay ``cost`` and which cannot, each with what the fullest
        of the blocks has spent that reading it is charged to.
        """
        charges = {name: dataset.blocks.charged([name], dataset.unit) for name in names}
        touched: set[str] = set().union(*charges.values())
        spent = self.spent(dataset.name, touched)
        kept: dict[str, int] = {}
        full: dict[str, int] = {}
        for name, charged in charges.items():
            worst = max(spent[block] for block in charged)
            (kept if dataset.has_room(worst, cost) else full)[name] = worst
        return kept, full

    def open_entries(self) -> list[Record]:
        """Return the reserved entries that nothing closed yet, oldest first."""
        with self.store.reading() as connection:
            return [] if connection is None else chain.open_entries(connection)

    def state_of(self, entry: str) -> str | None:
        """Return reserved, committed, forfeited or cancelled, None for an entry that is not
        there.
        """
        with self.store.reading() as connection:
            found = [] if connection is None else chain.history(connection, entry)
        kinds = [record.kind for record in found if record.kind != schema.DRAWN]
        return kinds[-1] if kinds else None

    def is_drawn(self, entry: str) -> bool:
        """Whether the first draw of an entry is on record, as it is before anything is drawn."""
        with self.store.reading() as connection:
            return connection is not None and chain.drawn_at(connection, entry) > 0

    def period_state(self, dataset: str, period: str) -> str | None:
        """Return reserved, committed or forfeited for the newest run of a scheduled period, None
        when there is none.
        """
        with self.store.reading() as connection:
            return None if connection is None else chain.period_state(connection, dataset, period)

    def head(self) -> str:
        """Return the hash of the newest record: it stands for the whole history. Empty for an empty
        ledger.
        """
        with self.store.reading() as connection:
            newest = None if connection is None else chain.newest(connection)
        return newest[1] if newest else ""

    def undrawn_metric(self, training: str, config: str, weights: str) -> str:
        """Return what became of a noisy number about a model that was asked for and never drawn; ""
        where one was drawn, or older versions left that open.

        ``training`` is the entry of the model, ``config`` and ``weights`` the hashes of its
        configuration and weights.
        """
        with self.store.reading() as connection:
            own = [] if connection is None else chain.history(connection, training)
            if connection is None or not own:
                return ""
            words = []
            for entry, about in _entries_after(connection, own[0], config):
                if about is None:
                    return ""  # by a version that did not note which model it is about
                if about != weights:
                    continue
                kinds = [record.kind for record in chain.history(connection, entry)]
                if not {schema.DRAWN, "committed"}.isdisjoint(kinds):
                    return ""
                words.append(
                    f"entry {entry} was reserved for it and not drawn on ({' -> '.join(kinds)})"
                )
        return "; ".join(words) or "nothing was reserved for it"

    def verification(self, head: str | None = None) -> Verification:
        """Recompute hashes, prices, totals and states from the records; return what was found.

        ``head``: a hash from a statement or a bundle that the chain must still contain.
        """
        kept = self.store.kept()
        with self.store.reading(compare=False) as connection:
            report = verify(connection, head)
            if problem := self.store.problem(connection, kept):
                report.problem(problem)
            if words := self.store.gone(connection, kept):
                report.unkept = words
                report.notes.append(words)
            return report

    def verify(self, head: str | None = None) -> Verification:
        """Return ``verification(head)``; raises VerificationFailed with the first problems where it
        found any.
        """
        report = self.verification(head)
        if not report.ok:
            raise VerificationFailed(
                f"Expected an intact ledger, got {report.problem_count} problems in "
                f"{self.store.shown}: {'; '.join(report.problems[:3])}; restore a copy that holds "
                "your last head."
            )
        return report


def _entries_after(
    connection: Connection, training: Record, config: str
) -> Iterator[tuple[str, str | None]]:
    """Entries behind ``training`` that name ``config``, each with the hash of the weights which
    it is about; None for a single release by a version that did not note them.
    """
    table = schema.records
    later = (
        (table.c.seq > training.seq)
        & (table.c.dataset == training.dataset)
        & (table.c.kind == "reserved")
    )
    for row in connection.execute(select(table).where(later, table.c.body.contains(config))):
        body = json.loads(row.body)
        about = body["hashes"].get(OF)
        if about is not None or body["releases"] == 1:
            yield row.entry, about
