"""Connections and transactions: SQLite in one file, or a PostgreSQL server, behind the same two
context managers.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock

from sqlalchemy import Connection, Engine, Transaction, select, text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from dpcore.errors import InputError
from tasks.home import Home
from tasks.ledger import facts, schema, witness
from tasks.ledger.engines import (
    NOTHING_SPENT,
    UNKNOWN,
    LedgerDamaged,
    LedgerUnavailable,
    not_a_ledger,
    parse_url,
    private_file,
    read_only,
    reading_engine,
    server_engine,
    settle,
    sqlite_engine,
    writable,
)
from tasks.ledger.records import GENESIS
from tasks.ledger.witness import Head, Witness, key_digest
from tasks.stores import making_stores

log = logging.getLogger(__name__)

# What SQLite says of a file with bytes that are not its own.
_DAMAGED = ("file is not a database", "malformed")
_MIGRATION_LOCK = 0x6470666C  # any fixed number: two processes must not create the tables at once


class Store:
    """One ledger database. Opening it touches nothing; the first write creates file and tables."""

    def __init__(self, url: str | Path, timeout: float = 30.0) -> None:
        self.url = parse_url(url)
        self.timeout = timeout
        self.shown = self.url.render_as_string(hide_password=True)
        self.path = (
            Path(str(self.url.database)).absolute()
            if self.url.get_backend_name() == "sqlite"
            else None
        )
        # A link and its target are one ledger.
        self.witness = (
            Witness.beside(self.path.resolve())
            if self.path
            else Witness.at_home(self.url, Home.find().root)
        )
        self._engine: Engine | None = None
        self._key: str | None = None
        self._copy: TemporaryDirectory[str] | None = None
        self._pid = os.getpid()
        self._inherited: list[Engine] = []
        self._ready = False
        self._marked = False
        self._warned = False
        self._lock = Lock()

    @property
    def engine(self) -> Engine:
        with self._lock:
            if self._pid != os.getpid():
                # A forked child must not use, nor close, its parent's connections.
                if self._engine is not None:
                    self._inherited.append(self._engine)
                self._engine, self._pid = None, os.getpid()
            if self._engine is None:
                if self.path and read_only(self.path):
                    self._engine, self._copy = reading_engine(self.path, self.timeout)
                else:
                    make = sqlite_engine if self.path else server_engine
                    self._engine = make(self.url, self.timeout)
            return self._engine

    def close(self) -> None:
        """Give the connections back."""
        if self._engine is not None and self._pid == os.getpid():
            self._engine.dispose()
            self._engine = None
            if self._copy is not None:
                self._copy.cleanup()
                self._copy = None

    @contextmanager
    def reading(self, compare: bool = True) -> Iterator[Connection | None]:
        """Yield a connection with one consistent view, or None where there is no ledger yet.

        Raises LedgerDamaged where the head that is kept beside the ledger is not in it
        (``compare``).
        """
        kept = self.kept() if compare else (None, "")
        if self._empty():
            self._refuse(self.problem(None, kept))
            yield None
            return
        with self._told("nothing was changed"), self.engine.connect() as connection:
            if self.path is None:
                connection = connection.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
            found = connection if self._has_tables(connection) else None
            self._refuse(self.problem(found, kept))
            if compare and not self._warned and (words := self.gone(found, kept)):
                self._warned = True
                log.warning("Of the ledger %s %s.", self.shown, words)
            yield found

    def _empty(self) -> bool:
        """Whether there is no file, or one to which nothing was written yet."""
        return self.path is not None and not (self.path.exists() and self.path.stat().st_size)

    def kept(self) -> tuple[Head | None, str]:
        """The head that is kept beside the ledger and what is wrong with its file; ask before a
        view is taken.
        """
        return witness.kept(self.witness)

    def problem(self, connection: Connection | None, kept: tuple[Head | None, str]) -> str:
        """What is wrong with the ledger behind ``connection`` (None: there is none), measured by
        what was ``kept``.
        """
        problem = kept[1] or witness.compare(connection, self.witness, kept[0])
        if not problem and connection is not None and self._key is None:
            problem = witness.compare_key(connection, kept[0])
        return problem

    def gone(self, connection: Connection | None, kept: tuple[Head | None, str]) -> str:
        """What is said of a head file that was there and is not; empty where none is missing."""
        return (
            ""
            if connection is None or kept[0] or kept[1]
            else witness.gone(connection, self.witness)
        )

    def _refuse(self, problem: str) -> None:
        if problem:
            raise LedgerDamaged(
                f"The ledger {self.shown} is not the one that was written: {problem}; nothing "
                "changed."
            )

    def _has_tables(self, connection: Connection) -> bool:
        if not self._ready:
            found = schema.version_of(connection)
            schema.check_version(found)
            if 0 < found < len(schema.MIGRATIONS):
                raise InputError(
                    f"Expected a ledger of schema version {len(schema.MIGRATIONS)}, got {found} in "
                    f"{self.shown}; run `dpflows ledger migrate` (any training does it too)."
                )
            self._ready = found > 0
        return self._ready

    @contextmanager
    def writing(self, consequence: str = NOTHING_SPENT) -> Iterator[Connection]:
        """Yield the only writing connection; commit at the end, roll back on an error.

        ``consequence`` says in an error message what the failure means for the budget.
        """
        kept = self.kept()
        if self._empty() or (kept[0] and self.path is None and self._bare(consequence)):
            # No new tables in the place of a ledger that was lost.
            self._refuse(self.problem(None, kept))
        self._prepare(consequence)
        with self._told(consequence), self.engine.connect() as connection:
            connection = connection.execution_options(ledger_write=True)
            transaction = connection.begin()
            try:
                if self.path is None:
                    connection.execute(select(schema.lock.c.id).with_for_update()).one()
                self._refuse(self.problem(connection, kept) or self.gone(connection, kept))
                marked = self._mark(connection, kept[0])
                yield connection
                written = self._head(connection)
            except BaseException:
                transaction.rollback()
                raise
            self._commit(connection, transaction, consequence)
        self._marked = marked
        if written is not None and written != kept[0]:
            self._keep(written)

    def _commit(self, connection: Connection, transaction: Transaction, consequence: str) -> None:
        """Commit. A file rolls back what it could not commit; a server may have committed before
        the connection broke.
        """
        with self._told(consequence if self.path else UNKNOWN):
            try:
                transaction.commit()
            except BaseException:
                # Nobody may go on with a connection in an unknown state; closing it rolls back.
                connection.invalidate()
                raise
        if self.path is not None:
            settle(connection, self.path)

    def _mark(self, connection: Connection, kept: Head | None) -> bool:
        """Note in the ledger that its head is kept; whether it is noted now. The head of what is
        there goes first, so that a process which is killed in between leaves no note without a
        head."""
        if self._marked or witness.is_marked(connection, self.witness):
            return True
        if kept is None and not self._keep(self._head(connection)):
            return False
        self._note_mark(connection)
        return True

    def _note_mark(self, connection: Connection) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        connection.execute(schema.secret.insert().values(name=self.witness.mark, value=now))

    def _head(self, connection: Connection) -> Head:
        """The head that this transaction would leave; number 0 before the first record."""
        if self._key is None:
            self._key = key_digest(facts.key_of(connection))
        return Head(*(witness.newest(connection) or (0, GENESIS)), self._key)

    def _keep(self, head: Head) -> bool:
        """Keep ``head``. Where that fails the record is stored all the same, and stays charged;
        whether it is kept.
        """
        try:
            self.witness.write(head)
        except OSError as error:
            log.warning(
                "The head of the ledger cannot be kept in %s (%s): a ledger that is shortened now "
                "is not noticed.",
                self.witness.path,
                error.strerror,
            )
            return False
        return True

    def keep_anew(self) -> tuple[Head | None, Head | None]:
        """Keep the head of the ledger as it is now, whatever was kept: the explicit way on after a
        loss.

        Returns what was kept before, None where nothing was or it cannot be read, and what is kept
        now, None where there is no ledger.
        """
        before = self.kept()[0]
        if self._empty() or self._bare("nothing was changed"):
            self.witness.path.unlink(missing_ok=True)
            return before, None
        with self._told("nothing was changed"), self.engine.connect() as connection:
            connection = connection.execution_options(ledger_write=True)
            with connection.begin():
                if self.path is None:
                    connection.execute(select(schema.lock.c.id).with_for_update()).one()
                head = self._head(connection)
                self.witness.replace(head)
                if not witness.is_marked(connection, self.witness):
                    self._note_mark(connection)
        return before, head

    def _bare(self, consequence: str) -> bool:
        """Whether the database has no tables of a ledger."""
        if self._ready:
            return False
        with self._told(consequence), self.engine.connect() as connection:
            return schema.version_of(connection) == 0

    def migrate(self) -> int:
        """Create or upgrade the tables; return the number of steps applied. One process at a time
        does so.
        """
        if self.path is None:
            return self._migrate()
        private_file(self.path)
        # Two processes that switch a new file to its write-ahead log at once do not wait for each
        # other.
        with making_stores(self.path.parent):
            applied = self._migrate()
        # not before it is known to be a ledger: any other file keeps its permissions
        with writable(self.path):
            self.path.chmod(0o600)
        return applied

    def _migrate(self) -> int:
        with self._told(NOTHING_SPENT), self.engine.connect() as connection:
            connection = connection.execution_options(ledger_write=True)
            with connection.begin():
                if self.path is None:
                    connection.execute(
                        text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK}
                    )
                applied = schema.migrate(connection)
            if self.path is not None:
                settle(connection, self.path)
        self._ready = True
        return applied

    def _prepare(self, consequence: str) -> None:
        if self._ready and (self.path is None or self.path.exists()):
            return
        try:
            self.migrate()
        except LedgerUnavailable as error:
            raise type(error)(str(error).replace(NOTHING_SPENT, consequence)) from error

    @contextmanager
    def _told(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            raise self._unavailable(error.orig, consequence) from error
        except UnicodeDecodeError as error:
            # SQLite quotes damaged bytes in what it says of them.
            raise self._unavailable("malformed text", consequence) from error
        except DBAPIError as error:
            if error.connection_invalidated or any(words in str(error.orig) for words in _DAMAGED):
                raise self._unavailable(error.orig, consequence) from error
            raise

    def _unavailable(self, said: object, consequence: str) -> LedgerUnavailable:
        cause = " ".join(str(said).split())
        kind = LedgerDamaged if any(words in cause for words in _DAMAGED) else LedgerUnavailable
        if (
            "not a database" in cause
            and self.path is not None
            and not (self.witness and self.witness.path.exists())
        ):
            return not_a_ledger(self.path, consequence)
        hints = {
            "full": "make room on the disk and run again",
            "No space left": "make room on the server's disk and run again",
            "locked": f"another process held it for more than {self.timeout:g} s: wait for it and "
            f"run again",
            "lock timeout": f"another process held it for more than {self.timeout:g} s: wait for "
            f"it and run again",
            "unable to open": "check that the folder exists and may be written",
            "readonly": "check the permissions of the file and its folder",
            "read-only": "check the permissions of the file and its folder",
            "not a database": "restore the file from a copy, then check it with `dpflows ledger "
            "verify --head HASH`",
            "malformed": "restore the file from a copy, then check it with `dpflows ledger verify "
            "--head HASH`",
            "I/O error": "check the disk",
        }
        hint = next(
            (words for key, words in hints.items() if key in cause),
            "check that the server runs and try again",
        )
        return kind(f"The ledger {self.shown} failed ({cause}): {consequence}; {hint}.")
