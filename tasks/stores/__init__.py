"""The databases of a home folder, created and upgraded by one process at a time, and never half.

Prefect and MLflow create their tables when they first open a database, and two processes that do so
at once both fail; one that is killed meanwhile leaves tables that no later start can use. So one
lock in the home guards the making of each store. A new SQLite file is made under another name and
renamed when it is whole; an upgrade keeps a copy until it ended, from which the next start goes on.
The lock is handed to the child that makes tables: where the parent is killed, it holds until the
child ended too.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import IO

from dpcore.errors import DPFlowsError
from tasks.home import PRIVATE_FOLDER, Home

LOCK = "stores.lock"
# The version of its library that each store was made or upgraded by, and the revision of its
# tables.
KNOWN = "stores.json"
# How long a library may take to make its tables.
MAKING_SECONDS = 900.0
# A file that its maker has not finished, the copy that an upgrade can go back to, and tables that
# nobody can use.
UNFINISHED, BEFORE, UNUSABLE = ".making-", ".before-upgrade", ".unusable"
# The names under which Prefect is told of another database than the file in its home.
PREFECT_URLS = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")
# What SQLite keeps beside a database.
SIDE_FILES = ("-wal", "-shm", "-journal")

_within = threading.local()


@contextmanager
def making_stores(folder: Path) -> Iterator[int]:
    """Hold the lock on the stores in ``folder``, waiting for another process; yields the lock's
    file descriptor.

    A block inside another one of the same thread goes on with the same lock.
    """
    held: dict[Path, int] = _within.__dict__.setdefault("held", {})
    folder = folder.absolute()
    if folder in held:
        yield held[folder]
        return
    with _lock_file(folder) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held[folder] = file.fileno()
        try:
            yield file.fileno()
        finally:
            del held[folder]


def _lock_file(folder: Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
        return os.fdopen(os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600), "a")
    except OSError as error:
        raise DPFlowsError(
            f"Expected a folder for databases that can be written at {folder}, got "
            f"{error.strerror}: nothing was spent; repair its permissions, or set DPFLOWS_HOME."
        ) from error


@dataclass(frozen=True, slots=True)
class Database:
    """A SQLite store of a library: how its tables are made, upgraded, and which of them tells that
    it is in use.

    ``create`` and ``upgrade`` get the file and the descriptor of the lock, which their child
    processes inherit.
    """

    name: str  # of the library, as it is installed
    path: Path
    create: Callable[[Path, int], None]
    upgrade: Callable[[Path, int], None]
    used: str  # a table that has rows once the store holds anything of worth


def ensure_stores(home: Home, mlflow: bool = True, prefect: bool = True) -> None:
    """Make or upgrade the stores of ``home`` that MLflow and Prefect keep in files; ready ones cost
    two small reads.

    What the environment names elsewhere on a server is looked after by whoever runs that server.
    Raises ``DPFlowsError`` where a library cannot make its tables; nothing was spent then.
    """
    for folder, stores in stores_to_make(home, mlflow, prefect).items():
        with making_stores(folder) as lock:
            # Another process may have made them while this one waited.
            missing = [store for store in stores if not _known(folder, store)]
            with ThreadPoolExecutor(max(1, len(missing))) as pool:
                list(pool.map(lambda store: _make(store, lock), missing))
            for store in missing:
                _remember(folder, store)
    if prefect and _prefect_elsewhere():
        with making_stores(home.root) as lock:
            _prefect_tables({}, lock)


def stores_to_make(
    home: Home, mlflow: bool = True, prefect: bool = True
) -> dict[Path, list[Database]]:
    """The databases that are missing, or were made by another version of their library, by the
    folder of their lock.
    """
    wanted = []
    file = sqlite_file(os.environ.get("MLFLOW_TRACKING_URI") or home.tracking_uri)
    if mlflow and file is not None:
        wanted.append(
            (file.parent, Database("mlflow", file, _create_mlflow, _upgrade_mlflow, "runs"))
        )
    if prefect and not _prefect_elsewhere():
        found = Database(
            "prefect", home.prefect / "prefect.db", _prefect_file, _prefect_file, "flow_run"
        )
        wanted.append((home.root, found))
    missing: dict[Path, list[Database]] = {}
    for folder, store in wanted:
        if not _known(folder, store):
            missing.setdefault(folder, []).append(store)
    return missing


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store by its URI, None for any other store."""
    if not uri.startswith("sqlite:///"):
        return None
    path = uri.removeprefix("sqlite:///").partition("?")[0]
    return Path(path).absolute() if path and path != ":memory:" else None


def _make(store: Database, lock: int) -> None:
    _clear(store)
    if store.path.exists() and store.path.stat().st_size:
        _upgrade(store, lock)
    else:
        _create(store, lock)


def _known(folder: Path, store: Database) -> bool:
    """Whether the installed library has made or upgraded the tables, and they are still those."""
    try:
        noted = json.loads((folder / KNOWN).read_text(encoding="utf-8"))[store.name]
        return noted == _facts(store) and not _copy_of(store).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remember(folder: Path, store: Database) -> None:
    path = folder / KNOWN
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        noted = {}
    write_whole(
        path, json.dumps({**noted, store.name: _facts(store)}, indent=1, sort_keys=True) + "\n"
    )


def write_whole(path: Path, text: str) -> None:
    """Write a small file so that a reader, or a process after a crash, sees the old text or the new
    one.
    """
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


def _facts(store: Database) -> dict[str, str | None]:
    return {"version": version(store.name), "revision": revision(store.path)}


def revision(path: Path) -> str | None:
    """The revision of a database's tables by Alembic's own record; None where there is none."""
    if not path.is_file():
        return None
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database,
    ):
        found = database.execute("SELECT version_num FROM alembic_version").fetchall()
        return str(found[0][0]) if len(found) == 1 else None
    return None


def _create(store: Database, lock: int) -> None:
    """Make the file under another name and rename it: a process that is killed leaves no half store
    behind.
    """
    store.path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
    unfinished = store.path.with_name(f"{store.path.name}{UNFINISHED}{os.getpid()}")
    store.create(unfinished, lock)
    with closing(sqlite3.connect(unfinished)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    for suffix in SIDE_FILES:
        store.path.with_name(store.path.name + suffix).unlink(missing_ok=True)
    unfinished.replace(store.path)
    _clear(store)


def _upgrade(store: Database, lock: int) -> None:
    """Upgrade the tables in place, for other processes may have them open; a copy is kept until it
    is done.

    Tables of a store that cannot be upgraded and holds nothing yet were left by a process that was
    killed while it made them: they are set aside and made anew.
    """
    copy = _copy_of(store)
    if copy.exists():
        _copy(copy, store.path)
    else:
        part = copy.with_name(f"{store.path.name}{UNFINISHED}copy")
        _copy(store.path, part)
        part.replace(copy)
    try:
        store.upgrade(store.path, lock)
    except DPFlowsError as error:
        # Of the copy, since an upgrade that failed may have lost rows.
        if _holds_rows(copy, store.used):
            _copy(copy, store.path)
            raise DPFlowsError(
                f"Expected {store.name} {version(store.name)} to upgrade its database "
                f"{store.path}, which it could not: it is as it was, and nothing was spent. "
                "Install the version that wrote it, or move the file away to begin a new one "
                f"({error})."
            ) from error
        _set_aside(store)
        _create(store, lock)
    copy.unlink(missing_ok=True)


def _copy_of(store: Database) -> Path:
    return store.path.with_name(store.path.name + BEFORE)


def _copy(source: Path, target: Path) -> None:
    """Copy a database through SQLite, which waits for writers and takes their log with it."""
    try:
        with (
            closing(sqlite3.connect(source, timeout=60)) as old,
            closing(sqlite3.connect(target, timeout=60)) as new,
        ):
            old.backup(new)
    except sqlite3.Error as error:
        raise DPFlowsError(
            f"Expected a database that can be read at {source}, got {error}: nothing was spent; "
            "restore it from a copy, or move it away to begin a new one."
        ) from error
    target.chmod(0o600)


def _holds_rows(path: Path, table: str) -> bool:
    """Whether a database holds anything of worth; where that cannot be told, it may."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            return bool(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    except sqlite3.OperationalError as error:
        return "no such table" not in str(error)
    except sqlite3.Error:
        return True


def _set_aside(store: Database) -> None:
    for suffix in ("", *SIDE_FILES):
        found = store.path.with_name(store.path.name + suffix)
        if found.exists():
            found.replace(store.path.with_name(f"{store.path.name}{UNUSABLE}{suffix}"))


def _clear(store: Database) -> None:
    """Remove what makers left that were killed, and side files of one that ended."""
    for left in store.path.parent.glob(f"{store.path.name}{UNFINISHED}*"):
        left.unlink(missing_ok=True)


def _create_mlflow(path: Path, lock: int) -> None:
    """MLflow's tables, and the experiment that it always has, with its artifacts beside the
    database.
    """
    import logging

    from mlflow.exceptions import MlflowException
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy.exc import SQLAlchemyError

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
    place = Home(path.parent).artifacts / "experiments"
    try:
        store = SqlAlchemyStore(f"sqlite:///{path.as_posix()}", place.as_uri())
        store.engine.dispose()
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise DPFlowsError(
            f"Expected MLflow to make its database in {path.parent}: nothing was spent; make sure "
            f"that the disk has room and may be written ({' '.join(str(error).split())[:200]})."
        ) from error


def _upgrade_mlflow(path: Path, lock: int) -> None:
    _run("MLflow", ["-m", "mlflow", "db", "upgrade", f"sqlite:///{path.as_posix()}"], {}, lock)


def _prefect_elsewhere() -> bool:
    """Whether the environment names another database than the file in Prefect's home."""
    return any(os.environ.get(name) for name in PREFECT_URLS)


def _prefect_file(path: Path, lock: int) -> None:
    _prefect_tables({PREFECT_URLS[0]: f"sqlite+aiosqlite:///{path.as_posix()}"}, lock)


def _prefect_tables(environment: Mapping[str, str], lock: int) -> None:
    _run("Prefect", ["-m", "prefect", "server", "database", "upgrade", "-y"], environment, lock)


def _run(library: str, command: list[str], environment: Mapping[str, str], lock: int) -> None:
    """Let a library upgrade its tables in a child, which holds the lock too: it may outlive this
    process.
    """
    # A server elsewhere has its own database; this command is about the local one.
    inherited = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    done = subprocess.run(
        [sys.executable, *command],
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=MAKING_SECONDS,
        check=False,
        pass_fds=(lock,),
        start_new_session=True,
    )
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-300:]
        raise DPFlowsError(
            f"Expected {library} to make its tables: nothing was spent; make sure that the disk "
            f"has room and may be written ({said})."
        )
