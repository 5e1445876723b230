"""What every reader yields, raw rows of one stretch of a file with bounded memory, and the bytes
that it reads: how a file is packed, and which formats are not read.

Tables with faults, of which a run reads some rows only: what is wrong with the others refuses
nothing.

A run on some blocks pays for the rows of these, so no row of another block may decide over whether
it is refused. The fast parsers stop at the first fault, wherever it stands; then the rows are taken
apart one by one here. Of a row that is not read only the cell that names its block is looked at.
What stays the operator's, and refuses: a row whose block cannot be read, for it may be of any; and
what belongs to no row, a damaged file, a header, a quote that never ends.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zipfile
import zlib
from codecs import lookup
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import pandas as pd
import pyarrow as pa

from dpcore.errors import InputError
from dpcore.preprocess.design import SHOWN, EncodingReport
from tasks.readers.parts import HEAD, PIECE, UTF32, Part, _hidden, _Whole
from tasks.schema import Schema

CELLS = 1_500_000  # cells of one chunk


# Column, 0-based rows of the chunk, what stands there, the rule.
Fault = tuple[str, np.ndarray, list[str], str]


class EmptyTable(InputError):
    """A file without a data row: refused where it is the only one, and no part where there are
    others.
    """


@dataclass(frozen=True, slots=True)
class Chunk:
    """``table``: a frame by column name, or a matrix (array or CSR) of features alone; ``labels``
    of a matrix, raw;
    ``queries``: the query id of each row (ranking files). ``source`` names the part that the rows
    came from, in which ``start`` rows precede them; ``faults`` are cells that the reader could not
    make a number of (NaN here)."""

    table: pd.DataFrame | Any
    labels: np.ndarray | None = None
    queries: np.ndarray | None = None
    source: str = ""
    start: int = 0
    faults: tuple[Fault, ...] = ()

    @property
    def rows(self) -> int:
        return int(self.table.shape[0])

    def take(self, rows: np.ndarray) -> Chunk:
        """Some rows of this chunk by their positions; its faults stay with the whole."""
        table = self.table.iloc[rows] if isinstance(self.table, pd.DataFrame) else self.table[rows]
        labels, queries = (
            None if part is None else part[rows] for part in (self.labels, self.queries)
        )
        return replace(self, table=table, labels=labels, queries=queries, faults=())


NESTED = (list, tuple, dict, set, np.ndarray, bytes, memoryview)


def is_nested(cells: pd.Series) -> bool:
    """Whether cells hold several values, or bytes, which are no text."""
    if isinstance(cells.dtype, pd.ArrowDtype):
        return pa.types.is_nested(cells.dtype.pyarrow_dtype)
    return cells.dtype == object and any(isinstance(cell, NESTED) for cell in cells)


def chunk_rows(columns: int) -> int:
    return max(1_000, CELLS // max(columns, 1))


def require_rows(part: Part) -> None:
    """Raise ``EmptyTable`` for a file without bytes."""
    if part.stat().st_size == 0:
        raise EmptyTable(f"{part}: the file is empty; give a file with rows.")


def no_rows(part: Part) -> EmptyTable:
    """The error for a file that is well but for its rows, of which it has none."""
    return EmptyTable(f"{part}: the file has no data rows; give a file with rows.")


def open_text(part: Part, encoding: str, errors: str = "strict") -> TextIO:
    """The unpacked file as text, lines as they end; a byte order mark of UTF-8 is read over."""
    known = lookup(encoding).name
    raw = open_bytes(part)
    name = "utf-8-sig" if known == "utf-8" else known
    return TextIOWrapper(raw, encoding=name, errors=errors, newline="")


# Which rows of a frame are read, shape (n,); None: all of them.
Mine = Callable[[pd.DataFrame], Any]
# Bytes that are no text are kept as single surrogates, which no text of a file can hold.
ESCAPE = "surrogateescape"


def undecoded(text: str) -> bool:
    """Whether some byte of ``text`` was no text in the declared encoding."""
    return not text.isascii() and any("\udc80" <= letter <= "\udcff" for letter in text)


def block_cells(schema: Schema, rows: Sequence[Sequence[Any]], names: list[str]) -> pd.DataFrame:
    """The cells that name the blocks of rows, empty where one cannot be read; without a column
    where a folder names the block of all.
    """
    column = None if schema.block is None else schema.block.column
    if column not in names:
        return pd.DataFrame(index=range(len(rows)))
    place = names.index(column)
    cells = [row[place] or "" if place < len(row) else "" for row in rows]
    return pd.DataFrame({column: ["" if undecoded(c) else c for c in cells]}, dtype=object)


def read_rows(
    schema: Schema, path: Part, rows: Iterable[list[str]], names: list[str], done: int, mine: Mine
) -> Iterator[tuple[pd.DataFrame, np.ndarray, int]]:
    """Text cells without the first ``done`` rows, chunk by chunk: the frame, which rows are read,
    the rows before it.

    In the others all cells are empty but the one that names the block. Raises ``InputError`` for a
    row that is read and has another number of cells than ``names``, or bytes that are no text.
    """
    start = done
    source = islice((row for row in rows if any(row) or len(row) > 1), done, None)
    while found := list(islice(source, chunk_rows(len(names)))):
        where = block_cells(schema, found, names)
        wanted = np.flatnonzero(mine(where))
        table = np.full((len(found), len(names)), "", dtype=object)
        for name in where:
            table[:, names.index(str(name))] = where[name]
        read = set(wanted.tolist())
        for k, row in enumerate(found):
            if k in read:
                table[k] = _whole(schema, path, start + k + 1, row, names)
            else:
                _require_line(path, start + k + 1, row, names)
        yield pd.DataFrame(table, columns=names), wanted, start
        start += len(found)


def _require_line(path: Part, number: int, row: list[str], names: list[str]) -> None:
    """Raise ``InputError`` for a row that is none and took others with it: which ones, nobody can
    tell.
    """
    if len(row) != len(names) and any("\n" in cell or "\r" in cell for cell in row):
        raise InputError(
            f"{path}: data row {number} holds a quote that does not end on its line, so that the "
            "rows after it are not told apart; correct the line, or text.quote."
        )


def _whole(schema: Schema, path: Part, number: int, row: list[str], names: list[str]) -> list[str]:
    if len(row) != len(names):
        count = "1 field" if len(row) == 1 else f"{len(row)} fields"
        raise InputError(
            f"{path}: Expected {len(names)} fields in data row {number}, got {count}; correct the "
            f"row, or text.separator (now {schema.text.separator!r}) and text.quote."
        )
    for name, cell in zip(names, row, strict=True):
        if undecoded(cell):
            raise InputError(
                f"{path}: data row {number}, column {name!r}: "
                f"{cell.encode('utf-8', ESCAPE)[:40]!r} is not {schema.text.encoding}; correct the "
                "row, or declare text.encoding, for example latin-1 or cp1251."
            )
    return row


def parquet_frame(
    schema: Schema, path: Part, batch: pa.RecordBatch, start: int, mine: Mine | None
) -> pd.DataFrame:
    """A batch as a frame; texts whose bytes are none are refused in the rows that are ``mine``
    (None: in all).
    """
    columns: dict[str, Any] = {}
    for name, cells in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary_decode()
        if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
            raw = cells.cast(pa.large_binary()).to_pylist()
            columns[name] = pd.Series(
                [None if c is None else c.decode("utf-8", ESCAPE) for c in raw], dtype=object
            )
        else:
            columns[name] = cells.to_pandas()
    frame = pd.DataFrame(columns, copy=False)
    texts = [name for name in frame if frame[name].dtype == object]
    spoiled = {
        name: frame[name].map(lambda c: isinstance(c, str) and undecoded(c)).to_numpy(bool)
        for name in texts
    }
    block = None if mine is None or schema.block is None else schema.block.column
    if block in spoiled:
        frame.loc[spoiled[block], block] = ""
    tally = EncodingReport(source=str(path), rows=start)
    wanted = (
        np.ones(len(frame), dtype=bool) if mine is None else np.asarray(mine(frame), dtype=bool)
    )
    for name, bad in spoiled.items():
        rows = np.flatnonzero(bad & wanted)
        if len(rows):
            tally.fault(
                rows,
                str(name),
                ["bytes that are no UTF-8"] * min(len(rows), SHOWN + 1),
                "correct the row",
            )
    tally.raise_faults()
    return frame


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


def foreign(head: bytes) -> str | None:
    """What a file is that begins so and is no text with separators; None for what may be one."""
    told = next((words for mark, words in FOREIGN if head.startswith(mark)), None)
    if told is not None:
        return told
    packed = next((name for name, mark in PACKED if mark.match(head)), None)
    if packed is not None:
        return f"file packed by {packed} inside another packing"
    if head.startswith(UTF32):
        return "text in UTF-32"
    return "binary file or one in UTF-16" if b"\0" in head else None


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
