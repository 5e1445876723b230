"""Connections and transactions: SQLite in one file, or a PostgreSQL server, behind the same two context managers.

Errors of the ledger that are not about the input or the budget: the store itself failed.
"""

import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES
from os import strerror
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from dpcore.errors import DPFlowsError, InputError
from tasks.ledger import files, guard, schema
from tasks.ledger.witness import Head, Witness, key_digest
from tasks.stores.made import making_stores


class LedgerUnavailable(DPFlowsError):
    """The ledger could not be read or written; the message says what happened to the budget."""


class LedgerDamaged(LedgerUnavailable):
    """The ledger can be opened but is not what was written: records are missing, or its bytes were changed."""

    exit_code = 4


class NotALedger(InputError, LedgerUnavailable):
    """The file at the ledger's place is none, and never was one as far as is known: it is left as it is."""


log = logging.getLogger(__name__)

UNKNOWN = "whether the last record was stored is unknown: `dpflows ledger show` tells; if it was, it is charged"
NOTHING_SPENT = "nothing was reserved and no budget was spent"
# What SQLite says of a file with bytes that are not its own.
_DAMAGED = ("file is not a database", "malformed")
_MIGRATION_LOCK = 0x6470666C  # any fixed number: two processes must not create the tables at once


def parse_url(url: str | Path) -> URL:
    """Return the database URL; a bare path means a SQLite file. Raises InputError for other databases."""
    words = str(url)
    try:
        parsed = make_url(words) if "://" in words else URL.create("sqlite", database=words)
    except ArgumentError:
        raise InputError(
            f"Expected a ledger URL or a file path, got ledger={words!r}; e.g. sqlite:///ledger.db."
        ) from None
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg2")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise InputError(
            f"Expected a SQLite or PostgreSQL ledger, got ledger={parsed.render_as_string()!r}; use sqlite:///FILE or "
            "postgresql+psycopg2://USER@HOST/DATABASE."
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InputError(f"Expected a ledger that outlives the process, got ledger={words!r}; name a file.")
    return parsed


class Store:
    """One ledger database. Opening it touches nothing; the first write creates file and tables."""

    def __init__(self, url: str | Path, timeout: float = 30.0) -> None:
        self.url = parse_url(url)
        self.timeout = timeout
        self.shown = self.url.render_as_string(hide_password=True)
        self.path = Path(str(self.url.database)).absolute() if self.url.get_backend_name() == "sqlite" else None
        # A link and its target are one ledger.
        self.witness = Witness(self.path.resolve()) if self.path else None
        self._engine: Engine | None = None
        self._key: str | None = None
        self._copy: TemporaryDirectory[str] | None = None
        self._pid = os.getpid()
        self._inherited: list[Engine] = []
        self._ready = False
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
                if self.path and _read_only(self.path):
                    self._engine, self._copy = _reading_engine(self.path, self.timeout)
                else:
                    make = _sqlite_engine if self.path else _server_engine
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

        Raises LedgerDamaged where the head that is kept beside the ledger is not in it (``compare``).
        """
        kept = self.kept() if compare else (None, "")
        if self._empty():
            self._refuse(self.problem(None, kept))
            yield None
            return
        with self._told("nothing was changed"), self.engine.connect() as connection:
            if self.path is None:
                connection = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            found = connection if self._has_tables(connection) else None
            self._refuse(self.problem(found, kept))
            yield found

    def _empty(self) -> bool:
        """Whether there is no file, or one to which nothing was written yet."""
        return self.path is not None and not (self.path.exists() and self.path.stat().st_size)

    def kept(self) -> tuple[Head | None, str]:
        """The head that is kept beside the ledger and what is wrong with its file; ask before a view is taken."""
        return guard.kept(self.witness) if self.witness else (None, "")

    def problem(self, connection: Connection | None, kept: tuple[Head | None, str]) -> str:
        """What is wrong with the ledger behind ``connection`` (None: there is none), measured by what was ``kept``."""
        if self.witness is None:
            return ""
        problem = kept[1] or guard.compare(connection, self.witness, kept[0])
        if not problem and connection is not None and self._key is None:
            problem = guard.compare_key(connection, kept[0])
        return problem

    def _refuse(self, problem: str) -> None:
        if problem:
            raise LedgerDamaged(f"The ledger {self.shown} is not the one that was written: {problem}; nothing changed.")

    def _has_tables(self, connection: Connection) -> bool:
        if not self._ready:
            found = schema.version_of(connection)
            schema.check_version(found)
            if 0 < found < len(schema.MIGRATIONS):
                raise InputError(
                    f"Expected a ledger of schema version {len(schema.MIGRATIONS)}, got {found} in {self.shown}; run "
                    "`dpflows ledger migrate` (any training does it too)."
                )
            self._ready = found > 0
        return self._ready

    @contextmanager
    def writing(self, consequence: str = NOTHING_SPENT) -> Iterator[Connection]:
        """Yield the only writing connection; commit at the end, roll back on an error.

        ``consequence`` says in an error message what the failure means for the budget.
        """
        kept = self.kept()
        if self._empty():
            # No new tables in the place of a ledger that was lost.
            self._refuse(self.problem(None, kept))
        self._prepare(consequence)
        with self._told(consequence), self.engine.connect() as connection:
            connection = connection.execution_options(ledger_write=True)
            transaction = connection.begin()
            try:
                if self.path is None:
                    connection.execute(select(schema.lock.c.id).with_for_update()).one()
                self._refuse(self.problem(connection, kept))
                yield connection
                written = self._head(connection)
            except BaseException:
                transaction.rollback()
                raise
            # A file rolls back what it could not commit; a server may have committed before the connection broke.
            with self._told(consequence if self.path else UNKNOWN):
                try:
                    transaction.commit()
                except BaseException:
                    # Nobody may go on with a connection in an unknown state; closing it rolls back.
                    connection.invalidate()
                    raise
        if written is not None and written != kept[0]:
            self._keep(written)

    def _head(self, connection: Connection) -> Head | None:
        """The head that this transaction would leave."""
        if self.witness is None or (newest := guard.newest(connection)) is None:
            return None
        if self._key is None:
            self._key = key_digest(files.key_of(connection))
        return Head(*newest, self._key)

    def _keep(self, head: Head) -> None:
        """Keep ``head`` beside the ledger. Where that fails the record is stored all the same: it stays charged."""
        assert self.witness is not None
        try:
            self.witness.write(head)
        except OSError as error:
            log.warning(
                "The head of the ledger cannot be kept in %s (%s): a ledger that is shortened now is not noticed.",
                self.witness.path,
                error.strerror,
            )

    def migrate(self) -> int:
        """Create or upgrade the tables; return the number of steps applied. One process at a time does so."""
        if self.path is None:
            return self._migrate()
        _private_file(self.path)
        # Two processes that switch a new file to its write-ahead log at once do not wait for each other.
        with making_stores(self.path.parent):
            applied = self._migrate()
        with _writable(self.path):  # not before it is known to be a ledger: any other file keeps its permissions
            self.path.chmod(0o600)
        return applied

    def _migrate(self) -> int:
        with self._told(NOTHING_SPENT), self.engine.connect() as connection:
            connection = connection.execution_options(ledger_write=True)
            with connection.begin():
                if self.path is None:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                applied = schema.migrate(connection)
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
        if "not a database" in cause and self.path is not None and not (self.witness and self.witness.path.exists()):
            return not_a_ledger(self.path, consequence)
        hints = {
            "full": "make room on the disk and run again",
            "No space left": "make room on the server's disk and run again",
            "locked": f"another process held it for more than {self.timeout:g} s: wait for it and run again",
            "lock timeout": f"another process held it for more than {self.timeout:g} s: wait for it and run again",
            "unable to open": "check that the folder exists and may be written",
            "readonly": "check the permissions of the file and its folder",
            "read-only": "check the permissions of the file and its folder",
            "not a database": "restore the file from a copy, then check it with `dpflows ledger verify --head HASH`",
            "malformed": "restore the file from a copy, then check it with `dpflows ledger verify --head HASH`",
            "I/O error": "check the disk",
        }
        hint = next((words for key, words in hints.items() if key in cause), "check that the server runs and try again")
        return kind(f"The ledger {self.shown} failed ({cause}): {consequence}; {hint}.")


def not_a_ledger(path: Path, consequence: str) -> NotALedger:
    return NotALedger(
        f"Expected a ledger at {path}, got another file (file is not a database): {consequence}; correct --ledger, "
        "DPFLOWS_LEDGER or the data schema's ledger."
    )


def _private_file(path: Path) -> None:
    """Create the file for the owner alone (0600), its folder for the owner alone (0700) where it is missing."""
    with _writable(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            # Never open a file that exists: closing it would drop the locks that this process's SQLite connections
            # hold on it (POSIX), and another process, taking itself for the last one, would delete the log under us.
            if not os.access(path, os.R_OK | os.W_OK):
                raise PermissionError(EACCES, strerror(EACCES)) from None


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerUnavailable(
            f"The ledger {path} cannot be written ({error.strerror}): {NOTHING_SPENT}; choose another place with "
            "DPFLOWS_LEDGER or repair its permissions."
        ) from error


def _sqlite_engine(url: URL, timeout: float) -> Engine:
    engine = create_engine(url, connect_args={"timeout": timeout, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _on_connect(connection: object, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # type: ignore[attr-defined]  # the driver must not begin by itself
        cursor = connection.cursor()  # type: ignore[attr-defined]
        # WAL with FULL costs one fsync a transaction, and readers never block the writer
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        # Every commit is carried over to the file itself: a log that is lost takes nothing with it.
        cursor.execute("PRAGMA wal_autocheckpoint=1")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("ledger_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _read_only(path: Path) -> bool:
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def _reading_engine(path: Path, timeout: float) -> tuple[Engine, TemporaryDirectory[str] | None]:
    """An engine for a ledger in a place that cannot be written: a copy for an auditor, a snapshot, a mounted archive.

    SQLite has to write to carry a log over; a log without the index of a process that still uses it is carried over in
    a private copy, which is returned and removed with the engine.
    """
    wal, shm = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
    pending = wal.exists() and wal.stat().st_size > 0
    copy = None
    if pending and not shm.exists():
        copy = TemporaryDirectory(prefix="dpflows-ledger-")
        for file in (path, wal):
            shutil.copyfile(file, Path(copy.name) / file.name)
        address, pending = Path(copy.name) / path.name, False
        # Closing the last connection carries the log over.
        sqlite3.connect(address).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    else:
        address = path
    options = "mode=ro" if pending else "mode=ro&immutable=1"
    uri = f"file:{quote(address.as_posix())}?{options}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=timeout, check_same_thread=False, isolation_level=None)

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine, copy


def _server_engine(url: URL, timeout: float) -> Engine:
    # lock_timeout bounds the wait for another flow's row lock, as SQLite's busy timeout does
    options = f"-c lock_timeout={int(timeout * 1000)}"
    try:
        return create_engine(
            url, pool_pre_ping=True, connect_args={"connect_timeout": max(2, int(timeout)), "options": options}
        )
    except ModuleNotFoundError as error:
        raise InputError(
            f"Expected the driver of ledger={url.render_as_string()!r}, got no module {error.name!r}; pip install "
            "'dpflows[postgres]'."
        ) from error
