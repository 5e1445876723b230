"""The files that a table consists of, here or on another file system.

A place is a file, a glob or a folder, as a path or as the URL of a file system that pyarrow opens
(``s3://``, ``gs://``, ...) or fsspec does (``https://``, ...); credentials come from the
environment alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob  # as the shell does: ``Path.glob`` takes no absolute pattern
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from dpcore.errors import InputError

if TYPE_CHECKING:
    from sqlalchemy import URL

HEAD = 512
PIECE, FAR = 2**14, 2**20  # bytes read at once of a packed file, and of one that is not here
WILD = re.compile(r"[*?\[]")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
NO_LEVEL = "__HIVE_DEFAULT_PARTITION__"  # how Hive names the folder of rows without a value


class _Whole(RawIOBase):
    """What unpacks a file and the file below it, read and closed as one."""

    def __init__(self, *files: Any) -> None:
        super().__init__()
        self.files = files

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return len(self.files) == 1

    def seek(self, offset: int, whence: int = 0) -> int:
        self.files[0].seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self.files[0].tell())

    def readinto(self, buffer: Any) -> int:
        piece = self.files[0].read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            for file in self.files:
                file.close()
        super().close()


class Facts(NamedTuple):
    """What a remote file tells of itself, under the names of ``os.stat``."""

    st_ino: int
    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True, slots=True)
class Remote:
    """A file on another file system, with what readers and fingerprints ask of a ``Path``."""

    url: str
    facts: Facts
    system: Any = field(compare=False, repr=False)
    place: str = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        return PurePosixPath(self.place).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.place).suffix

    def open(self, mode: str = "rb") -> BufferedReader:
        return BufferedReader(_Whole(self.system.open_input_file(self.place)), FAR)

    def stat(self) -> Facts:
        return self.facts

    def now(self) -> Facts:
        """What the file tells of itself now, past what its file system keeps of listings."""
        kept = getattr(getattr(self.system, "handler", None), "fs", None)
        if kept is not None:
            kept.invalidate_cache()
        return _facts(self.system.get_file_info(self.place))

    def is_file(self) -> bool:
        return True

    def is_dir(self) -> bool:
        return False

    def resolve(self) -> Remote:
        return self

    def __str__(self) -> str:
        return self.url


LARGE = 2**40  # how many rows there are is not asked, so they are kept as those of a large file are


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table or view with its condition, in place of a file; a text stands for its bytes."""

    address: str
    table: str
    where: str

    name = "a table of a database"
    suffix = ""
    place = ""

    def open(self, mode: str = "rb") -> BytesIO:
        """What stands for the bytes of a file: address without password, table and condition."""
        told = {"url": self.address, "table": self.table, "where": " ".join(self.where.split())}
        return BytesIO(json.dumps(told, sort_keys=True).encode())

    def stat(self) -> Facts:
        return Facts(0, LARGE, 0)

    def is_file(self) -> bool:
        return True

    def is_dir(self) -> bool:
        return False

    def resolve(self) -> SqlTable:
        return self

    def __str__(self) -> str:
        return f"{self.address} table {self.table}"


Part = Path | Remote | SqlTable


def is_url(place: str | Path) -> bool:
    """Whether a place is on another file system."""
    return SCHEME.match(str(place)) is not None


def is_wild(place: str | Path) -> bool:
    """Whether a place names its files by a pattern, or is no local path."""
    return bool(WILD.search(str(place)) or SCHEME.match(str(place)))


def parts_at(place: str | Path, what: str = "data.path") -> list[Part]:
    """The files of one place, none where nothing is there.

    A folder stands for all files below it, of which names that begin with a dot or an underscore
    are no parts (marks of success, metadata), nor are schemas (``.yaml``, ``.yml``), in a pattern
    either. Any other file is one: what is no table is refused by its name. The order of parts is
    that of their paths, code point by code point: part-10 comes before part-2. Raises
    ``InputError`` for a URL with a password, and for a file system that cannot be reached.
    """
    text = str(place)
    if SCHEME.match(text):
        return _remote(text, what)
    path = Path(place)
    if path.is_file():
        return [path]
    if path.is_dir():
        return list(_below(path))
    return list(_matched(text)) if WILD.search(text) else []


def _matched(pattern: str) -> list[Path]:
    found = [Path(name) for name in glob(pattern, recursive=True)]  # noqa: PTH207
    files = {file for name in found for file in ([name] if name.is_file() else _below(name))}
    return sorted((file for file in files if not _declares(file.name)), key=str)


def _below(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*") if file.is_file())
    seen = [file for file in files if not _beside(file.relative_to(folder).parts)]
    return sorted(seen, key=lambda file: file.as_posix())


def _hidden(names: Sequence[str]) -> bool:
    return any(name.startswith((".", "_")) for name in names)


def _declares(name: str) -> bool:
    """Whether a file is a schema by its name."""
    return name.lower().endswith((".yaml", ".yml"))


def _beside(names: Sequence[str]) -> bool:
    """Whether a file of a folder is none of its parts."""
    return _hidden(names) or _declares(names[-1])


def _remote(url: str, what: str) -> list[Part]:
    shown = urlsplit(url)
    if shown.username or shown.password:
        raise InputError(
            f"Expected no user or password in {what} (a URL of "
            f"{shown.scheme}://{shown.hostname or ''}), got one; put credentials in the "
            "environment, as the file system's own tools read them."
        )
    if shown.scheme == "file":
        return parts_at(Path(unquote(shown.path)), what)
    system, place = _system(url, what)
    wild = WILD.search(place)
    base = place[: wild.start()].rpartition("/")[0] if wild else place
    try:
        info = system.get_file_info(base)
        if info.type == pafs.FileType.File and not wild:
            return [_file(url, place, info, system)]
        if info.type != pafs.FileType.Directory:
            return []
        infos = [
            i for i in system.get_file_info(pafs.FileSelector(base, recursive=True)) if i.is_file
        ]
    except (OSError, pa.ArrowException) as error:
        raise _unreachable(url, what, error) from None
    root = url[: len(url) - len(place)] if url.endswith(place) else f"{shown.scheme}://"
    rule = re.compile(_pattern(place)) if wild else None
    found: list[Part] = []
    for info in sorted(infos, key=lambda i: i.path):
        below = info.path.removeprefix(base).lstrip("/").split("/")
        inside = rule.fullmatch(info.path) if rule else not _hidden(below)
        if inside and not _declares(below[-1]):
            found.append(_file(root + info.path, info.path, info, system))
    return found


def _system(url: str, what: str) -> tuple[Any, str]:
    """The file system of a URL and the place on it; pyarrow's own, or that of fsspec."""
    try:
        return pafs.FileSystem.from_uri(url)
    except (OSError, pa.ArrowException, ValueError) as first:
        scheme = urlsplit(url).scheme
        if scheme in ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"):
            raise _unreachable(url, what, first) from None
        try:
            import fsspec

            system, place = fsspec.core.url_to_fs(url)
            return pafs.PyFileSystem(pafs.FSSpecHandler(system)), str(place)
        except (ImportError, ValueError, OSError) as error:
            raise _unreachable(url, what, error) from None


def _file(url: str, place: str, info: Any, system: Any) -> Remote:
    return Remote(url, _facts(info), system, place)


def _facts(info: Any) -> Facts:
    return Facts(0, info.size or 0, info.mtime_ns or 0)


def _unreachable(url: str, what: str, error: Exception) -> InputError:
    return InputError(
        f"Expected a place that can be read at {what}={url!r}, got: "
        f"{' '.join(str(error).split())[:200]}; correct the URL, or the credentials in the "
        "environment."
    )


def _pattern(place: str) -> str:
    """A glob as a regular expression: ``*`` and ``?`` stay within a folder, ``**/`` goes through
    any number of them.
    """
    text, i = "", 0
    while i < len(place):
        if place.startswith("**/", i):
            text, i = text + "(?:.+/)?", i + 3
        elif place.startswith("**", i):
            text, i = text + ".*", i + 2
        elif place[i] == "[" and (end := place.find("]", i + 2)) > 0:
            text, i = text + "[" + place[i + 1 : end].replace("!", "^", 1) + "]", end + 1
        else:
            text += {"*": "[^/]*", "?": "[^/]"}.get(place[i]) or re.escape(place[i])
            i += 1
    return text


def packed_or_not(file: Path) -> Path:
    """``file``, or the same without its .gz where only that is there."""
    plain = file.with_suffix("") if file.suffix == ".gz" else file
    return plain if plain.is_file() and not file.is_file() else file


def require_once(parts: Sequence[Part], what: str = "data.path") -> None:
    """Raise ``InputError`` where a file is named twice, by a link too: each of its records would be
    two.
    """
    seen: dict[Any, Part] = {}
    for part in parts:
        found = _place(part)
        if found in seen:
            first, other = str(seen[found]), str(part)
            got = f"{other!r} twice" if first == other else f"{first!r} and {other!r}, one file"
            raise InputError(
                f"Expected each file of {what} once, got {got}, whose records would count twice; "
                "name it once."
            )
        seen[found] = part


def _place(part: Part) -> Any:
    """Where a file really lies, whatever it is called."""
    facts = part.stat() if isinstance(part, Path) else None
    return (facts.st_dev, facts.st_ino) if facts and facts.st_ino else part.resolve()


def partition(part: Part) -> dict[str, str]:
    """The columns that the folders of a part name, as ``day=2024-01-31/ward=A/part-0.parquet`` does
    (Hive's layout).

    A value is percent-decoded; that of rows without one is the empty text.
    """
    found = {}
    for folder in PurePosixPath(part.as_posix() if isinstance(part, Path) else part.place).parts[
        :-1
    ]:
        name, equals, value = folder.partition("=")
        if equals and name:
            found[unquote(name)] = "" if value == NO_LEVEL else unquote(value)
    return found


UTF32 = (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")


def plain_url(url: URL) -> str:
    """A URL without password and without options, which may hold others."""
    return url._replace(password=None).set(query={}).render_as_string()


def secrets_of(url: URL) -> list[str]:
    """Texts of a URL that no message may hold: the password, and the values of options."""
    values = [v for v in url.query.values() for v in ([v] if isinstance(v, str) else v)]
    return [text for text in (url.password, *values) if text]
