"""The files that a table consists of, here or on another file system, and how each is packed.

A place is a file, a glob or a folder, as a path or as the URL of a file system that pyarrow opens
(``s3://``, ``gs://``, ...) or fsspec does (``https://``, ...); credentials come from the
environment alone.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob  # as the shell does: ``Path.glob`` takes no absolute pattern
from io import BufferedReader, BytesIO, RawIOBase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from dpcore.errors import InputError

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
    are no parts (marks of success, metadata). The order of parts is that of their paths, code point
    by code point: part-10 comes before part-2. Raises ``InputError`` for a URL with a password, and
    for a file system that cannot be reached.
    """
    text = str(place)
    if SCHEME.match(text):
        return _remote(text, what)
    path = Path(place)
    if path.is_file():
        return [path]
    if path.is_dir():
        return list(_below(path))
    if WILD.search(text):
        found = [Path(name) for name in glob(text, recursive=True)]  # noqa: PTH207
        files = {file for name in found for file in ([name] if name.is_file() else _below(name))}
        return sorted(files, key=str)
    return []


def _below(folder: Path) -> list[Path]:
    files = (file for file in folder.rglob("*") if file.is_file())
    seen = [file for file in files if not _hidden(file.relative_to(folder).parts)]
    return sorted(seen, key=lambda file: file.as_posix())


def _hidden(names: Sequence[str]) -> bool:
    return any(name.startswith((".", "_")) for name in names)


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
        if rule.fullmatch(info.path) if rule else not _hidden(below):
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
    return Remote(url, Facts(0, info.size or 0, info.mtime_ns or 0), system, place)


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


def require_once(parts: Sequence[Part], what: str = "data.path") -> None:
    """Raise ``InputError`` where a file is named twice: each of its records would be two."""
    seen: set[Any] = set()
    for part in parts:
        found = part.resolve()
        if found in seen:
            raise InputError(
                f"Expected each file of {what} once, got {str(part)!r} twice, whose records would "
                "count twice; name it once."
            )
        seen.add(found)


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


# How a packed file begins.
PACKED = (
    ("gzip", re.compile(rb"\x1f\x8b")),
    ("bzip2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")),
    ("xz", re.compile(rb"\xfd7zXZ\x00")),
    ("zstd", re.compile(rb"\x28\xb5\x2f\xfd")),
    ("lz4", re.compile(rb"\x04\x22\x4d\x18")),
    ("zip", re.compile(rb"PK\x03\x04")),
)
# How a table that is no text begins. A workbook is a zip archive, so it is asked for before
# packings are.
TABLES = (
    ("parquet", re.compile(rb"PAR1")),
    ("feather", re.compile(rb"ARROW1|FEA1")),
    ("excel", re.compile(rb"\xd0\xcf\x11\xe0")),
    ("spss", re.compile(rb"\$FL[23]")),
    ("stata", re.compile(rb"<stata_dta>|[\x71-\x73][\x01\x02]\x01\x00")),
    ("sas", re.compile(rb"\x00{12}\xc2\xea\x81\x60|HEADER RECORD\*{7}LIBRARY")),
)


def packing(part: Part) -> str | None:
    """How a file is packed, whatever its name says: gzip, bzip2, xz, zstd, lz4, zip, or None."""
    with part.open("rb") as file:
        head = file.read(HEAD)
        found = next((name for name, mark in PACKED if mark.match(head)), None)
        return None if found == "zip" and not zipfile.is_zipfile(file) else found


def table_kind(part: Part) -> str | None:
    """The format of a binary table by its first bytes, None for text and for what is packed."""
    with part.open("rb") as file:
        head = file.read(HEAD)
        kind = next((name for name, mark in TABLES if mark.match(head)), None)
        if kind is None and head.startswith(b"PK\x03\x04") and zipfile.is_zipfile(file):
            members = set(zipfile.ZipFile(file).namelist())
            kind = "excel" if members & {"[Content_Types].xml", "mimetype"} else None
    return kind


def open_bytes(part: Part) -> BinaryIO:
    """The unpacked bytes of a file; raises ``InputError`` for an archive of several files or with a
    password.
    """
    packed = packing(part)
    raw = part.open("rb")
    if packed is None:
        return raw
    found: Any
    if packed == "gzip":
        found = (gzip.GzipFile(fileobj=raw),)
    elif packed == "bzip2":
        found = (bz2.BZ2File(raw),)
    elif packed == "xz":
        found = (lzma.LZMAFile(raw),)  # noqa: SIM115  (closed as one with what is below it)
    elif packed == "zip":
        found = _member(part, raw)
    else:
        found = (pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), packed),)
    return BufferedReader(_Whole(*found, raw), PIECE)


def _member(part: Part, raw: BinaryIO) -> Any:
    archive = zipfile.ZipFile(raw)
    members = [m for m in archive.infolist() if not m.is_dir()]
    members = [m for m in members if not _hidden(m.filename.split("/"))]
    if len(members) != 1 or members[0].flag_bits & 1:
        archive.close()
        raw.close()
        found = f"{len(members)} files" if len(members) != 1 else "one with a password"
        raise InputError(
            f"{part}: Expected one table in a zip archive, got {found}; unpack it first."
        )
    return archive.open(members[0]), archive


def bytes_stream(part: Part) -> Any:
    """The unpacked bytes as a stream of Arrow; by its own means, without the interpreter, for local
    files.
    """
    packed = packing(part)
    if isinstance(part, Path) and packed not in ("xz", "zip"):
        return pa.input_stream(str(part), compression={"bzip2": "bz2"}.get(packed or "", packed))
    return pa.PythonFile(open_bytes(part), mode="r")


@contextmanager
def unpacked(part: Part) -> Iterator[None]:
    """Turn what unpacking says of a damaged file into a one-line ``InputError``."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile):
        raise truncated(part) from None
    except OSError as error:
        if isinstance(error, FileNotFoundError | PermissionError) or packing(part) is None:
            raise
        raise truncated(part) from None


def truncated(part: Part) -> InputError:
    return InputError(f"{part}: the compressed file ends too early or is damaged; fetch it again.")


# First bytes of what is no table of text.
FOREIGN = (
    (b"PK\x03\x04", "zip archive or a spreadsheet"),
    (b"\xd0\xcf\x11\xe0", "spreadsheet"),
    (b"{", "JSON document"),
    (b"[", "JSON document"),
    (b"<", "document in XML or HTML"),
    (b"%PDF", "PDF document"),
    (b"\x89HDF", "HDF5 file"),
    (b"SQLite format 3", "SQLite database, whose tables source.kind: sql reads,"),
    (b"\x93NUMPY", "NumPy array"),
    (b"\x00\x00\x08", "file of images or labels (format: idx)"),
)
UTF32 = (b"\xff\xfe\x00\x00", b"\x00\x00\xfe\xff")


def foreign(head: bytes) -> str | None:
    """What a file is that begins so and is no text with separators; None for what may be one."""
    told = next((words for mark, words in FOREIGN if head.startswith(mark)), None)
    packed = next((name for name, mark in PACKED if mark.match(head)), None)
    if told is None and packed is not None:
        return f"file packed by {packed} inside another packing"
    if told is None and head.startswith(UTF32):
        return "text in UTF-32"
    return "binary file or one in UTF-16" if told is None and b"\0" in head else told


def refuse_foreign(part: Part, encoding: str) -> None:
    """Raise ``InputError`` for a file that was not read as a table, where its first bytes say
    what it is; with a declared encoding of wide letters they say nothing.
    """
    if "16" in encoding or "32" in encoding:
        return
    with open_bytes(part) as file:
        head = file.read(HEAD)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) and not head.startswith(UTF32):
        return  # its mark says UTF-16, and so does the error
    if (told := foreign(head)) is not None:
        raise InputError(
            f"{part}: Expected text with separators, got a {told}; export it as CSV, or declare "
            "source.format, or text.encoding (utf-16-le, utf-32, ...)."
        )
