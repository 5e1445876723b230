"""``dpflows profile``: draft a schema from a file, for a person to review.

``dpflows init``: copy the configuration files of the package, to be edited.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from dpcore.accounting import Target
from dpcore.errors import InputError
from dpcore.problem import Adjacency
from tasks.data import FileReading
from tasks.home import CONF
from tasks.profile import Draft, checked, draft_private, draft_schema
from tasks.profile.private import budgets_of, dataset_of, payer, state_facts
from tasks.readers.parts import Part, parts_at


def profile_file(
    place: str,
    label: str | None,
    name: str | None,
    private: tuple[float, float, str | None] | None,
    output: Path | None,
    as_json: bool,
    charge: str | None = None,
) -> None:
    """Write the draft of the table at ``place`` (a file, a folder or glob of parts, a URL) to
    ``output`` or standard output, and what was noticed to standard error.

    ``private``: epsilon, delta and adjacency (None: the budget's, else add_remove) of the
    estimates; ``charge`` names the data set whose ledger counts them. A file that is known to
    belong to a budget is refused without it; for any other the price is said, and that nobody
    counts it.
    """
    if output is not None and output.exists():
        raise InputError(
            f"Expected a new file for --output, got {output}, which exists; choose another name, "
            "or remove it first where it is a draft that nobody has reviewed."
        )
    parts = table_parts(place)
    spent = None
    if private is None:
        draft, told = unpriced(place, parts, label, name, charge)
    elif label is None:
        raise InputError(
            "Expected --label with --private: guessing it would read the rows; name the column."
        )
    elif len(parts) > 1 or not isinstance(parts[0], Path):
        raise InputError(
            f"Expected one local file with --private, got {place!r}: estimates are charged for the "
            "rows of a file; join the parts, or declare bounds: private in a schema of them."
        )
    else:
        draft, told, spent = estimated(parts[0], label, name, private, charge)
    if output is not None:
        write_private(output, draft.text)
    print(told, *draft.notes, sep="\n", file=sys.stderr)  # noqa: T201
    if as_json:
        print(json.dumps(as_record(draft, spent, output), ensure_ascii=False))  # noqa: T201
    elif output is None:
        print(draft.text, end="")  # noqa: T201


def unpriced(
    place: str, parts: Sequence[Part], label: str | None, name: str | None, charge: str | None
) -> tuple[Draft, str]:
    """The draft that reads the rows themselves, and what to say about it."""
    if charge is not None:
        raise InputError(
            f"Expected --private with --charge {charge}: a draft that reads rows has no price."
        )
    draft = draft_schema(place, label, name)
    owners = sorted({owner for part in parts for owner in budgets_of(part)})
    if len(owners) == 1:
        state_facts(draft.values, dataset_of(owners[0]), draft.notes)
        checked(draft)
    elif owners:
        draft.notes.append(
            f"rows of {' and '.join(owners)}: what their budgets fixed is not in this draft"
        )
    return draft, (
        "This draft read private rows: review every bound and level before it is used or shown to "
        "anybody."
    )


def table_parts(place: str) -> list[Part]:
    """The files of a table; raises ``InputError`` where nothing is there."""
    try:
        parts = parts_at(place, "the table to profile")
    except OSError:  # too long a name
        parts = []
    if not parts:
        raise InputError(f"Expected a table at {place}, got no file; correct the path.")
    return parts


def write_private(path: Path, text: str) -> None:
    """Write a new file for its owner alone: it may hold bounds and levels of private rows."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InputError(
            f"Expected a file that can be written, got --output {path} ({error.strerror})."
        ) from error
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


def estimated(
    path: Path,
    label: str,
    name: str | None,
    private: tuple[float, float, str | None],
    charge: str | None,
) -> tuple[Draft, str, dict[str, object]]:
    """The private draft, what to say about its price, and the price."""
    epsilon, delta, given = private
    target = Target(epsilon, delta)
    if charge is not None:
        with payer(charge, path, given) as paying:
            adjacency, unit = paying.charge.adjacency, paying.charge.unit
            draft = draft_private(
                paying.reading, label, target, adjacency, name, paying.pay, paying.require
            )
            state_facts(draft.values, paying.dataset, draft.notes)
            checked(draft)
        told = (
            f"This draft cost ({epsilon:g}, {delta:g}) per {unit} under {adjacency}, charged to "
            f"the budget of {charge!r}."
        )
    else:
        owners = budgets_of(path)
        if owners:
            raise InputError(
                f"{path}: these are rows of {' and '.join(map(repr, owners))}, whose budget must "
                f"count the estimates; add --charge {owners[0]}."
            )
        adjacency = Adjacency(given or Adjacency.ADD_REMOVE)
        draft = draft_private(FileReading(path), label, target, adjacency, name)
        told = (
            f"This draft cost ({epsilon:g}, {delta:g}) per record under {adjacency}, and no ledger "
            "counts it: open the budget with that much less."
        )
    return (
        draft,
        told,
        {"epsilon": epsilon, "delta": delta, "adjacency": str(adjacency), "charged_to": charge},
    )


def as_record(
    draft: Draft, spent: dict[str, object] | None, output: Path | None
) -> dict[str, object]:
    """The draft as one object."""
    written = None if output is None else str(output)
    return {"schema": draft.values, "notes": draft.notes, "spent": spent, "written": written}


SUFFIXES = (".yaml", ".txt", ".json", ".sql", ".service", "Dockerfile")
TOP = PurePosixPath()


def copy_configs(folder: Path, force: bool = False) -> list[Path]:
    """Copy the configuration files to ``folder``/conf and return the paths written; those that are
    the same stay.

    Raises ``InputError`` and writes nothing where another file has one of the names, unless
    ``force``.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for init, got the file {folder}; name another folder.")
    sources = {folder / "conf" / name: source.read_bytes() for name, source in config_files(CONF)}
    missing: dict[Path, bytes] = {}
    edited: dict[Path, bytes] = {}
    for path, text in sources.items():
        if not path.exists():
            missing[path] = text
        elif path.read_bytes() != text:
            edited[path] = text
    if edited and not force:
        raise InputError(
            f"Expected no edited configuration in the folder, got {next(iter(edited))}, which "
            "differs from the package's; use another folder, or --force to overwrite it."
        )
    for path, text in (missing | edited).items():
        write_config(path, text)
    return list(missing | edited)


def write_config(path: Path, text: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    except OSError as error:
        raise InputError(
            f"Expected a folder that can be written, got {path}: {error.strerror}; name another."
        ) from error


def init_words(folder: Path, written: int) -> str:
    """What ``dpflows init`` did, and what comes next."""
    place = folder / "conf"
    if not written:
        done = f"Nothing was written: {place} holds all files of this version already, as they came"
    else:
        done = f"{written} files were written to {place}"
    return (
        f"{done}. Next: `dpflows train` in {folder.resolve()} trains on a built-in table (half a "
        "minute the first time, ten seconds later); edit conf/train.yaml, or describe your own "
        "table in conf/data."
    )


def config_files(root: Path, below: PurePosixPath = TOP) -> Iterator[tuple[PurePosixPath, Path]]:
    """Configuration files under ``root`` with their relative paths."""
    for item in sorted(root.iterdir(), key=lambda entry: entry.name):
        if item.is_dir() and item.name != "__pycache__":
            yield from config_files(item, below / item.name)
        elif item.name.endswith(SUFFIXES):
            yield below / item.name, item
