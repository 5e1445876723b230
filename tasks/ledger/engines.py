"""How the database of a ledger is opened: one SQLite file to write to, one that may only be read, a
server.

Errors of the ledger that are not about the input or the budget: the store itself failed.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES
from os import strerror
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from dpcore.errors import DPFlowsError, InputError


class LedgerUnavailable(DPFlowsError):
    """The ledger could not be read or written; the message says what happened to the budget."""


class LedgerDamaged(LedgerUnavailable):
    """The ledger can be opened but is not what was written: records are missing, or its bytes were
    changed.
    """

    exit_code = 4


class NotALedger(InputError, LedgerUnavailable):
    """The file at the ledger's place is none, and never was one as far as is known: it is left as
    it is.
    """


UNKNOWN = (
    "whether the last record was stored is unknown: `dpflows ledger show` tells; if it was, it is "
    "charged"
)
NOTHING_SPENT = "nothing was reserved and no budget was spent"


def parse_url(url: str | Path) -> URL:
    """Return the database URL; a bare path means a SQLite file. Raises InputError for other
    databases.
    """
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
            f"Expected a SQLite or PostgreSQL ledger, got ledger={parsed.render_as_string()!r}; "
            "use sqlite:///FILE or postgresql+psycopg2://USER@HOST/DATABASE."
        )
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InputError(
            f"Expected a ledger that outlives the process, got ledger={words!r}; name a file."
        )
    return parsed


def not_a_ledger(path: Path, consequence: str) -> NotALedger:
    return NotALedger(
        f"Expected a ledger at {path}, got another file (file is not a database): {consequence}; "
        "correct --ledger, DPFLOWS_LEDGER or the data schema's ledger."
    )


def private_file(path: Path) -> None:
    """Create the file for the owner alone (0600), its folder for the owner alone (0700) where it is
    missing.
    """
    with writable(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except FileExistsError:
            # Never open a file that exists: closing it would drop the locks that this process's
            # SQLite connections hold on it (POSIX), and another process, taking itself for the last
            # one, would delete the log under us.
            if not os.access(path, os.R_OK | os.W_OK):
                raise PermissionError(EACCES, strerror(EACCES)) from None


@contextmanager
def writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerUnavailable(
            f"The ledger {path} cannot be written ({error.strerror}): {NOTHING_SPENT}; choose "
            "another place with DPFLOWS_LEDGER or repair its permissions."
        ) from error


def sqlite_engine(url: URL, timeout: float) -> Engine:
    engine = create_engine(url, connect_args={"timeout": timeout, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # the driver must not begin by itself
        cursor = connection.cursor()
        # With a log beside the file readers never block the writer. ``settle`` syncs: with FULL the
        # log would be synced by the commit, and once more when it is carried over. Where the file
        # system allows no log the commit syncs.
        [(mode,)] = cursor.execute("PRAGMA journal_mode=WAL").fetchall()
        cursor.execute(f"PRAGMA synchronous={'NORMAL' if mode == 'wal' else 'FULL'}")
        cursor.execute("PRAGMA wal_autocheckpoint=0")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        write = connection.get_execution_options().get("ledger_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def read_only(path: Path) -> bool:
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def reading_engine(path: Path, timeout: float) -> tuple[Engine, TemporaryDirectory[str] | None]:
    """An engine for a ledger in a place that cannot be written: a copy for an auditor, a snapshot,
    a mounted archive.

    SQLite has to write to carry a log over; a log without the index of a process that still uses it
    is carried over in a private copy, which is returned and removed with the engine.
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
        return sqlite3.connect(
            uri, uri=True, timeout=timeout, check_same_thread=False, isolation_level=None
        )

    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine, copy


def server_engine(url: URL, timeout: float) -> Engine:
    # lock_timeout bounds the wait for another flow's row lock, as SQLite's busy timeout does
    options = f"-c lock_timeout={int(timeout * 1000)}"
    try:
        return create_engine(
            url,
            pool_pre_ping=True,
            connect_args={"connect_timeout": max(2, int(timeout)), "options": options},
        )
    except ModuleNotFoundError as error:
        raise InputError(
            f"Expected the driver of ledger={url.render_as_string()!r}, got no module "
            f"{error.name!r}; pip install 'dpflows[postgres]'."
        ) from error


def settle(connection: Connection, path: Path) -> None:
    """Carry a committed transaction over to the file at ``path``, on disk when this returns.

    So a log that is lost takes nothing with it. Where readers hold the log back it is synced
    itself. Raises ``LedgerUnavailable`` where neither can be done.
    """
    raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    try:
        # Of the log: whether somebody kept it back, its pages, and those that are in the file,
        # which is then synced.
        [(busy, pages, carried)] = raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    except sqlite3.Error:
        busy = 1
    if not busy and carried == pages:
        return
    try:
        log = os.open(path.with_name(f"{path.name}-wal"), os.O_RDWR)
        try:
            os.fsync(log)
        finally:
            os.close(log)
    except OSError as error:
        raise LedgerUnavailable(
            f"The log of the ledger {path} cannot be synced ({error.strerror}): {UNKNOWN}."
        ) from error
