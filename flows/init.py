"""``dpflows init``: copy the configuration files of the package, to be edited."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from dpcore.errors import InputError
from tasks.home import CONF

SUFFIXES = (".yaml", ".txt")
TOP = PurePosixPath()


def copy_configs(folder: Path, force: bool = False) -> list[Path]:
    """Copy the configuration files to ``folder``/conf and return the paths written; those that are the same stay.

    Raises ``InputError`` and writes nothing where another file has one of the names, unless ``force``.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for init, got the file {folder}; name another folder.")
    sources = {folder / "conf" / name: source.read_bytes() for name, source in config_files(CONF)}
    missing = {path: text for path, text in sources.items() if not path.exists()}
    edited = {path: text for path, text in sources.items() if path not in missing and path.read_bytes() != text}
    if edited and not force:
        raise InputError(
            f"Expected no edited configuration in the folder, got {next(iter(edited))}, which differs from the "
            "package's; use another folder, or --force to overwrite it."
        )
    for path, text in (missing | edited).items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
        except OSError as error:
            raise InputError(
                f"Expected a folder that can be written, got {path}: {error.strerror}; name another."
            ) from error
    return list(missing | edited)


def init_words(folder: Path, written: int) -> str:
    """What ``dpflows init`` did, and what comes next."""
    place = folder / "conf"
    if not written:
        done = f"Nothing was written: {place} holds all files of this version already, as they came"
    else:
        done = f"{written} files were written to {place}"
    return (
        f"{done}. Next: `dpflows train` in {folder.resolve()} trains on a built-in table (half a minute the first "
        "time, ten seconds later); edit conf/train.yaml, or describe your own table in conf/data."
    )


def config_files(root: Path, below: PurePosixPath = TOP) -> Iterator[tuple[PurePosixPath, Path]]:
    """Configuration files under ``root`` with their relative paths."""
    for item in sorted(root.iterdir(), key=lambda entry: entry.name):
        if item.is_dir() and item.name != "__pycache__":
            yield from config_files(item, below / item.name)
        elif item.name.endswith(SUFFIXES):
            yield below / item.name, item
