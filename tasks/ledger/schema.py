"""Tables of the ledger, the triggers that make them append-only, and the migrations.

``ledger_records`` is the hash chain and the only source of truth; ``ledger_events`` holds each
distinct list of mechanisms once, by its SHA-256; ``ledger_balances`` holds the running total of a
block after each record that changed it, so that what remains is read without summing (``verify``
recomputes it); ``ledger_lock`` is one row that writers on a server lock; ``ledger_secret`` keys the
fingerprints of files, notes where a head is kept, and is never exported.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from secrets import token_hex

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    inspect,
    literal_column,
    select,
    text,
)

from dpcore.errors import InputError

metadata = MetaData()
_big = BigInteger().with_variant(Integer, "sqlite")

versions = Table(
    "ledger_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", String(40), nullable=False),
)
lock = Table("ledger_lock", metadata, Column("id", Integer, primary_key=True, autoincrement=False))
secret = Table(
    "ledger_secret",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", String(200), nullable=False),
)
events = Table(
    "ledger_events",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("text", Text, nullable=False),
)
records = Table(
    "ledger_records",
    metadata,
    Column("seq", _big, primary_key=True, autoincrement=False),
    Column("kind", String(20), nullable=False),
    Column("dataset", String(200), nullable=False),
    Column("entry", String(40), nullable=False),
    Column("period", String(80)),
    Column("fingerprint", String(64)),
    Column("created_at", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
)
balances = Table(
    "ledger_balances",
    metadata,
    Column("dataset", String(200), nullable=False),
    Column("block", String(120), nullable=False),
    Column("ordinal", _big, nullable=False),
    Column("seq", _big, nullable=False),
    Column("units", _big, nullable=False),
    PrimaryKeyConstraint("dataset", "block", "ordinal"),
)

CLOSING = ("committed", "forfeited", "cancelled")
DRAWN = "drawn"
"""The first draw of an entry, recorded before any row is drawn: from there on it cannot be
cancelled.
"""

# A data set is opened once, an entry is reserved once and closed once: the database itself refuses
# a second time. SQLite uses a partial index only for a condition without parameters, hence the
# literals.
IS_OPENING = records.c.kind == literal_column("'opened'")
IS_RESERVING = records.c.kind == literal_column("'reserved'")
_opened = records.c.kind == "opened"
_reserved = records.c.kind == "reserved"
_closing = records.c.kind.in_(CLOSING)
Index(
    "ledger_opened_once",
    records.c.dataset,
    unique=True,
    sqlite_where=_opened,
    postgresql_where=_opened,
)
Index(
    "ledger_reserved_once",
    records.c.entry,
    unique=True,
    sqlite_where=_reserved,
    postgresql_where=_reserved,
)
Index(
    "ledger_closed_once",
    records.c.entry,
    unique=True,
    sqlite_where=_closing,
    postgresql_where=_closing,
)
Index("ledger_entry", records.c.entry)
_with_period = records.c.period.is_not(None)
Index(
    "ledger_period",
    records.c.dataset,
    records.c.period,
    sqlite_where=_with_period,
    postgresql_where=_with_period,
)
_with_file = records.c.fingerprint.is_not(None)
Index(
    "ledger_fingerprint",
    records.c.fingerprint,
    sqlite_where=_with_file,
    postgresql_where=_with_file,
)
Index("ledger_first_balance", balances.c.dataset, balances.c.ordinal, balances.c.block)

APPEND_ONLY = (
    "ledger_schema",
    "ledger_lock",
    "ledger_secret",
    "ledger_events",
    "ledger_records",
    "ledger_balances",
)


def sqlite_triggers() -> dict[str, str]:
    """The triggers that refuse changes, by their names, as SQLite stores their text."""
    return {
        f"{table}_no_{action.lower()}": f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE "
        f"{action} ON {table} BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        for table in APPEND_ONLY
        for action in ("UPDATE", "DELETE")
    }


def _forbid_changes_sqlite(connection: Connection, table: str) -> None:
    for name, trigger in sqlite_triggers().items():
        if name.startswith(f"{table}_no_"):
            connection.execute(text(trigger))


def _forbid_changes_postgresql(connection: Connection, table: str) -> None:
    connection.execute(
        text(
            "CREATE OR REPLACE FUNCTION ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$"
        )
    )
    connection.execute(
        text(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION ledger_append_only()"
        )
    )


def _first_tables(connection: Connection) -> None:
    """Version 1: all tables, their triggers, the row that writers lock."""
    metadata.create_all(connection, checkfirst=False)
    connection.execute(lock.insert().values(id=1))
    connection.execute(secret.insert().values(name="fingerprint", value=token_hex(32)))
    forbid = {"sqlite": _forbid_changes_sqlite, "postgresql": _forbid_changes_postgresql}[
        connection.dialect.name
    ]
    for table in APPEND_ONLY:
        forbid(connection, table)


Migration = Callable[[Connection], None]
MIGRATIONS: tuple[Migration, ...] = (_first_tables,)
"""The n-th function takes a ledger from version n - 1 to n. Stored records keep their bytes: they
are hashed.
"""


def version_of(connection: Connection) -> int:
    """Return the schema version of the database, 0 for one without a ledger."""
    if not inspect(connection).has_table("ledger_schema"):
        return 0
    return max(connection.scalars(select(versions.c.version)), default=0)


def check_version(found: int) -> None:
    """Raise InputError for a ledger of a newer version than this program knows."""
    if found > len(MIGRATIONS):
        raise InputError(
            f"Expected a ledger of schema version <= {len(MIGRATIONS)}, got {found}; it was made "
            "by a newer dpflows: upgrade this one."
        )


def migrate(connection: Connection) -> int:
    """Bring the database to the newest version in the caller's transaction; return how many steps
    were applied.
    """
    found = version_of(connection)
    check_version(found)
    for number, step in enumerate(MIGRATIONS[found:], start=found + 1):
        step(connection)
        connection.execute(
            versions.insert().values(version=number, applied_at=datetime.now(UTC).isoformat())
        )
    return len(MIGRATIONS) - found


def faults_of_file(connection: Connection, most: int) -> Iterator[str]:
    """What the database itself finds wrong with its pages and indexes, ``most`` of it, and triggers
    that are not there.
    """
    if connection.dialect.name != "sqlite":
        return
    for (words,) in connection.exec_driver_sql(f"PRAGMA integrity_check({most})"):
        if words != "ok":
            yield f"the database file is damaged: {' '.join(str(words).split())}"
    rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    found = {name: str(sql) for name, sql in rows}
    gone = [name for name, sql in sqlite_triggers().items() if found.get(name) != sql]
    if gone:
        yield (
            f"triggers are missing or were changed, so that rows can be changed: {', '.join(gone)}"
        )
