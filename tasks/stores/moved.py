"""A home folder at another path than the one it was made at: seen before anything is read, and put
right.

MLflow writes down where artifacts lie, as whole paths. After a move, or a restore from a backup,
these lead to the old
place: to nothing, or worse, to the folder that the copy was taken of.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

from dpcore.errors import DPFlowsError, InputError
from tasks.home import Home
from tasks.stores import making_stores, sqlite_file

# Below the home folder, where the artifacts of experiments lie.
BELOW = ("artifacts", "experiments")
# Columns of MLflow's tables that hold a place, and the tags of ours that do.
PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
TAGS = (("model_version_tags", "dpflows.bundle"),)


@dataclass(frozen=True, slots=True)
class Moved:
    """What was put right: how many places in MLflow's store, and which of them have no folder."""

    places: int
    missing: tuple[str, ...]


def require_in_place(home: Home) -> None:
    """Raise ``InputError`` where the stores in ``home`` were made at another path; nothing is read
    from there then.
    """
    old = made_at(home)
    if old is not None:
        raise InputError(
            f"Expected a home folder where it was made, got {home.root}, whose stores say {old}: "
            "it was moved, or restored from a copy. Nothing is lost and no run was changed; "
            f"`dpflows move {old} {home.root}` puts their places right."
        )


def _places(file: Path) -> list[str]:
    """Where the experiments of MLflow's database keep files; none of a store that is not made yet,
    or that others will complain of.
    """
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=30)) as database:
            found = database.execute("SELECT artifact_location FROM experiments").fetchall()
    except sqlite3.Error:
        return []
    return [row[0] for row in found if row[0]]


def made_at(home: Home) -> Path | None:
    """The folder that MLflow's database in ``home`` was made in, where it is another one; None
    where it is this.
    """
    file = sqlite_file(os.environ.get("MLFLOW_TRACKING_URI") or home.tracking_uri)
    if file is None or file.parent != home.root or not file.is_file():
        return None
    # A store that other home folders share has places in each of them, and some in its own.
    roots = [root for place in _places(file) if (root := root_of(place)) is not None]
    if any(root == home.root or _same(root, home.root) for root in roots):
        return None
    return next(iter(roots), None)


def root_of(place: str) -> Path | None:
    """The home folder of an experiment's place; None for a place that no home folder has."""
    parts = urlsplit(place)
    if parts.scheme not in ("", "file"):
        return None
    path = Path(unquote(parts.path) if parts.scheme else place)
    return path.parents[2] if len(path.parents) > 3 and path.parts[-3:-1] == BELOW else None


def _same(old: Path, new: Path) -> bool:
    try:
        return old.samefile(new)
    except OSError:
        return False


def move(old: Path, new: Path) -> Moved:
    """Move the home folder ``old`` to ``new`` where that does not exist yet, and put the places in
    its stores right.

    A folder that is at ``new`` already was moved there, or restored from a copy: only its stores
    change then, in one transaction. Raises ``InputError`` where neither is a home folder, and
    ``DPFlowsError`` where the store is in use.
    """
    old, new = old.absolute(), new.absolute()
    if old == new:
        raise InputError(
            f"Expected two folders, got {old} twice; give the old path of the home folder and its "
            "new one."
        )
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri is None or sqlite_file(uri) == old / "mlflow.db":  # set for the old folder
        uri = Home(new).tracking_uri
    if not new.exists():
        _rename(old, new)
    file = sqlite_file(uri)
    if file is not None and not file.is_file():
        raise InputError(
            f"Expected a home folder with its store at {new}, got no {file}; correct the path."
        )
    with making_stores(new):
        return _rebase(uri, old, new)


def _rename(old: Path, new: Path) -> None:
    if not (old / "mlflow.db").is_file():
        raise InputError(
            f"Expected a home folder at {old} or at {new}, got none; correct the paths."
        )
    try:
        with making_stores(old):
            new.parent.mkdir(parents=True, exist_ok=True)
            old.rename(new)
    except OSError as error:
        raise InputError(
            f"Expected to move {old} to {new}, got {error.strerror}: nothing was changed; copy it "
            "there yourself, then call this again."
        ) from error


def _rebase(uri: str, old: Path, new: Path) -> Moved:
    engine = create_engine(uri)
    try:
        with engine.begin() as connection:
            changed, places = 0, set()
            for table, column, condition in _columns(connection):
                found = connection.execute(
                    text(f"SELECT DISTINCT {column} FROM {table} WHERE {condition}")
                ).scalars()
                for place in [one for one in found if one]:
                    moved = rebased(str(place), old, new)
                    if moved is not None:
                        update = (
                            f"UPDATE {table} SET {column} = :new WHERE {column} = :old AND "
                            f"{condition}"
                        )
                        changed += connection.execute(
                            text(update), {"new": moved, "old": place}
                        ).rowcount
                        places |= {moved} if table != "experiments" else set()
    except DBAPIError as error:
        said = " ".join(str(error.orig).split())
        raise DPFlowsError(
            f"Expected MLflow's store at {new} to take new places, got {said}: nothing was "
            "changed; end what uses it and call this again."
        ) from error
    finally:
        engine.dispose()
    missing = sorted(place for place in places if not _path(place).exists())
    return Moved(changed, tuple(missing))


def _columns(connection: Connection) -> Iterator[tuple[str, str, str]]:
    """Table, column and condition of everything that may hold a place."""
    inspector = inspect(connection)
    tables = set(inspector.get_table_names())
    for table, column in PLACES:
        if table in tables and column in {found["name"] for found in inspector.get_columns(table)}:
            yield table, column, "1 = 1"
    for table, key in TAGS:
        if table in tables:
            quote = connection.dialect.identifier_preparer.quote
            yield table, "value", f"{quote('key')} = '{key}'"


def rebased(place: str, old: Path, new: Path) -> str | None:
    """``place``, a path or a file URI below ``old``, as it is below ``new``; None where it is not
    below.
    """
    for before, after in ((old.as_uri(), new.as_uri()), (str(old), str(new))):
        if place == before or place.startswith(f"{before}/"):
            return after + place[len(before) :]
    return None


def _path(place: str) -> Path:
    parts = urlsplit(place)
    return Path(unquote(parts.path)) if parts.scheme == "file" else Path(place)
