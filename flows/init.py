"""``dpflows init``: copy the configuration files of the package, to be edited."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from dpcore.errors import InputError

SUFFIXES = (".yaml", ".txt")
TOP = PurePosixPath()


def copy_configs(folder: Path, force: bool = False) -> list[Path]:
    """Copy all configuration files to ``folder``/conf and return their paths.

    Raises ``InputError`` and writes nothing where a file is there already, unless ``force``.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"Expected a folder for init, got the file {folder}; name another folder.")
    sources = {folder / "conf" / name: source for name, source in config_files(files("conf"))}
    there = [path for path in sources if path.exists()]
    if there and not force:
        raise InputError(f"Expected a folder without configuration, got {there[0]}; use another folder, or --force.")
    for path, source in sources.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read_bytes())
        except OSError as error:
            raise InputError(
                f"Expected a folder that can be written, got {path}: {error.strerror}; name another."
            ) from error
    return list(sources)


def config_files(root: Traversable, below: PurePosixPath = TOP) -> Iterator[tuple[PurePosixPath, Traversable]]:
    """Configuration files under ``root`` with their relative paths."""
    for item in sorted(root.iterdir(), key=lambda entry: entry.name):
        if item.is_dir() and item.name != "__pycache__":
            yield from config_files(item, below / item.name)
        elif item.name.endswith(SUFFIXES):
            yield below / item.name, item
