"""Files of numbers: SVMlight, LETOR, the space-separated ``.dat`` layout, MNIST's idx, CIFAR-10's
binary batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from dpcore.errors import InputError
from dpcore.features import FeatureGroup
from tasks.readers.chunk import (
    Chunk,
    chunk_rows,
    no_rows,
    open_bytes,
    open_text,
    require_rows,
    unpacked,
)
from tasks.readers.parts import Part
from tasks.schema import Schema

CIFAR_ROW = 1 + 3 * 32 * 32  # one label byte, then the red, green and blue planes
IDX_BYTES = 0x08  # type code of unsigned bytes


@contextmanager
def _unpacked(path: Part) -> Iterator[None]:
    try:
        with unpacked(path):
            yield
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not readable as text ({error.reason}); check source.format."
        ) from None


def width(schema: Schema) -> int:
    return sum(g.count for g in schema.features)


def read_svmlight(schema: Schema, path: Part) -> Iterator[Chunk]:
    """Yield SVMlight or LETOR lines: ``label [qid:q] index:value ... [# comment]``, indices from 1,
    absent is 0.

    The width is the declared number of features, whatever indices occur. Blank and comment lines
    are read over. With
    ``format: letor``, and wherever labels are grades of relevance, every line needs a query id and
    a numeric label; elsewhere query ids are read over. A declared mark of a missing value, NaN or
    inf is read as NaN where the feature has a fill. Raises ``InputError`` with file and line.
    """
    return read_pairs(
        path, schema.groups, schema.source.format == "letor" or schema.label.kind == "relevance"
    )


def read_pairs(path: Part, groups: Sequence[FeatureGroup], ranked: bool) -> Iterator[Chunk]:
    """The same for the features of ``groups``; ``ranked`` asks for a query id in every line."""
    require_rows(path)
    columns = sum(g.count for g in groups)
    gaps = Gaps.of(groups)
    first, rows = 1, 0
    with _unpacked(path), open_text(path, "utf-8") as file:
        while lines := list(islice(file, chunk_rows(columns))):
            parsed = [
                p for i, line in enumerate(lines) if (p := _line(path, first + i, line, ranked))
            ]
            if parsed:
                yield _chunk(path, parsed, gaps, ranked)
            rows += len(parsed)
            first += len(lines)
    if not rows:
        raise no_rows(path)


def _line(path: Part, number: int, line: str, ranked: bool) -> tuple[int, str, str, str] | None:
    """(line number, label, query id, pairs) of one line; None for a blank or comment line."""
    body = line.partition("#")[0].strip()
    if not body:
        return None
    label, _, rest = body.replace("\t", " ").partition(" ")
    query, rest = "", rest.lstrip()
    if rest.startswith("qid:"):
        query, _, rest = rest[4:].partition(" ")
    if ranked:
        if not query:
            raise InputError(
                f"{path}, line {number}: no query id (qid:...); every document needs one."
            )
        try:
            float(label)
        except ValueError:
            raise InputError(
                f"{path}, line {number}: the label {label!r} is not a number; correct the line."
            ) from None
    return number, label, query, rest


@dataclass(frozen=True, slots=True)
class Gaps:
    """Where values may be missing: ``fillable`` (columns,), and the declared texts that say so."""

    fillable: np.ndarray
    marks: frozenset[str]

    @classmethod
    def of(cls, groups: Sequence[FeatureGroup]) -> Gaps:
        fillable = np.repeat([g.fill is not None for g in groups], [g.count for g in groups])
        return cls(
            fillable, frozenset(mark for g in groups if g.fill is not None for mark in g.missing)
        )

    def number(self, column: int, text: str) -> float:
        """The value of a cell; NaN where it is missing and has a fill. Raises ``ValueError`` for
        other texts.
        """
        value = np.nan if text in self.marks and self.fillable[column] else float(text)
        if np.isfinite(value) or self.fillable[column]:
            return value
        raise ValueError(text)


def _chunk(path: Part, parsed: list[tuple[int, str, str, str]], gaps: Gaps, ranked: bool) -> Chunk:
    columns = len(gaps.fillable)
    counts = np.array([p[3].count(":") for p in parsed])
    cells = " ".join(p[3] for p in parsed).replace(":", " ").split()
    if gaps.marks:
        cells[1::2] = ["nan" if cell in gaps.marks else cell for cell in cells[1::2]]
    try:
        flat = np.array(cells, dtype=object).astype(np.float64)
    except ValueError:
        raise _bad_pair(path, parsed, gaps) from None
    index, value = flat[0::2], flat[1::2]
    row = np.repeat(np.arange(len(parsed)), counts)
    sound = len(flat) == 2 * counts.sum() and len(index) == len(row)
    if sound:
        rising = (np.diff(index) > 0) | (np.diff(row) > 0)
        sound = bool(((index >= 1) & (index <= columns) & (index % 1 == 0)).all() and rising.all())
        sound = sound and bool(
            (np.isfinite(value) | gaps.fillable[index.astype(np.int32) - 1]).all()
        )
    if not sound:
        raise _bad_pair(path, parsed, gaps)
    ends = np.append(0, np.cumsum(counts)).astype(np.int32)
    table = csr_array((value, index.astype(np.int32) - 1, ends), shape=(len(parsed), columns))
    queries = np.array([p[2] for p in parsed], dtype=object) if ranked else None
    return Chunk(table, np.array([p[1] for p in parsed], dtype=object), queries)


def _bad_pair(path: Part, parsed: list[tuple[int, str, str, str]], gaps: Gaps) -> InputError:
    """The error for the first line whose index:value pairs are not as they should be."""
    columns = len(gaps.fillable)
    for number, _, _, pairs in parsed:
        last = 0
        for pair in pairs.split():
            left, colon, right = pair.partition(":")
            place = f"{path}, line {number}: {pair!r}"
            if not colon or not left.isdigit():
                return InputError(f"{place} is not index:value; correct the line.")
            if not 1 <= int(left) <= columns:
                return InputError(
                    f"{place}: indices go from 1 to the {columns} declared features; correct the "
                    "line."
                )
            if int(left) <= last:
                return InputError(f"{place}: indices must rise within a line; correct the line.")
            last = int(left)
            try:
                gaps.number(last - 1, right)
            except ValueError:
                return InputError(
                    f"{place}: the value is not a finite number; correct the line, or declare a "
                    "fill of its features and the text under missing."
                )
    return InputError(f"{path}: not readable as index:value pairs; check source.format.")


PAIRS = re.compile(r"[^\s,;]+(\s+qid:\S+)?(\s+\d+:[^\s:]+)+\s*(#.*)?")
HEAD = 4096


def pairs_of(part: Part) -> str | None:
    """``letor`` or ``svmlight`` where a file begins with index:value pairs; None for others."""
    with _unpacked(part), open_bytes(part) as file:
        head = file.read(HEAD)
    lines = head.decode("latin-1").removeprefix("\xef\xbb\xbf").splitlines()
    return pairs_layout(lines[:-1] if len(head) == HEAD else lines)


def pairs_layout(lines: Sequence[str]) -> str | None:
    """The same for the first lines of a file."""
    told = [line for line in lines if line.strip() and not line.startswith("#")]
    if not told or not all(PAIRS.fullmatch(line.strip()) for line in told):
        return None
    return "letor" if all(" qid:" in line.replace("\t", " ") for line in told) else "svmlight"


def read_dat(schema: Schema, path: Part) -> Iterator[Chunk]:
    """Yield the ``.dat`` layout: numbers between blanks, the label last, no header.

    The marks of missing values are those of features with a fill; without one, a text is refused.
    """
    require_rows(path)
    columns = width(schema) + 1
    options: dict[str, Any] = {
        "sep": r"\s+",
        "header": None,
        "keep_default_na": False,
        "na_values": ["nan", "NaN", *Gaps.of(schema.groups).marks],
    }
    with _unpacked(path), open_text(path, "utf-8") as file:
        try:
            with pd.read_csv(
                file, dtype=np.float64, chunksize=chunk_rows(columns), **options
            ) as reader:
                for frame in reader:
                    if frame.shape[1] != columns:
                        raise InputError(
                            f"{path}: lines of {frame.shape[1]} numbers, declared are "
                            f"{columns - 1} features and the label; correct features."
                        )
                    values = frame.to_numpy()
                    yield Chunk(values[:, :-1], values[:, -1])
        except pd.errors.EmptyDataError:
            raise no_rows(path) from None
        except ValueError as error:
            if isinstance(error, InputError | UnicodeDecodeError):
                raise
            raise _bad_number(path, columns, error) from None


def _bad_number(path: Part, columns: int, error: ValueError) -> InputError:
    with open_text(path, "utf-8") as file:
        for number, line in enumerate(file, start=1):
            cells = line.split()
            if cells and len(cells) != columns:
                return InputError(
                    f"{path}, line {number}: {len(cells)} numbers, expected {columns}; correct the "
                    "line."
                )
            for position, cell in enumerate(cells, start=1):
                try:
                    float(cell)
                except ValueError:
                    return InputError(
                        f"{path}, line {number}, column {position}: {cell!r} is not a number; "
                        "correct the line."
                    )
    return InputError(f"{path}: {' '.join(str(error).split())}; correct the file.")


def read_idx(schema: Schema, files: Sequence[Part]) -> Iterator[Chunk]:
    """Yield images and labels of a pair of idx files (LeCun's layout: big-endian sizes, then
    unsigned bytes).
    """
    images, labels = _idx_pair(files)
    X, y = _idx(images, 3), _idx(labels, 1)
    if len(X) != len(y):
        raise InputError(
            f"{images}: {len(X)} images, but {labels} has {len(y)} labels; give files of one part."
        )
    X = X.reshape(len(X), -1)
    step = chunk_rows(X.shape[1])
    for start in range(0, len(X), step):
        yield Chunk(X[start : start + step], y[start : start + step])


def _idx_pair(files: Sequence[Part]) -> tuple[Part, Part]:
    if len(files) == 1 and isinstance(files[0], Path) and "images-idx3" in files[0].name:
        files = [files[0], files[0].with_name(files[0].name.replace("images-idx3", "labels-idx1"))]
    if len(files) != 2 or not files[1].is_file():
        raise InputError(
            f"Expected two idx files, images and labels, got {[str(f) for f in files]}; give both "
            "under data.path."
        )
    return files[0], files[1]


def _idx(path: Part, dimensions: int) -> np.ndarray:
    require_rows(path)
    with _unpacked(path), open_bytes(path) as file:
        raw = file.read()
    if (
        len(raw) < 4 + 4 * dimensions
        or raw[:2] != b"\0\0"
        or raw[2] != IDX_BYTES
        or raw[3] != dimensions
    ):
        raise InputError(
            f"{path}: not an idx file of unsigned bytes with {dimensions} dimensions; check the "
            "file."
        )
    sizes = tuple(int(s) for s in np.frombuffer(raw, ">u4", dimensions, 4))
    if len(raw) != 4 + 4 * dimensions + int(np.prod(sizes)):
        raise InputError(
            f"{path}: the header announces {sizes}, the file has another length; fetch it again."
        )
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(sizes)


def read_cifar10(schema: Schema, path: Part) -> Iterator[Chunk]:
    """Yield one binary CIFAR-10 batch: rows of a label byte and 3,072 pixel bytes."""
    require_rows(path)
    with _unpacked(path), open_bytes(path) as file:
        raw = np.frombuffer(file.read(), np.uint8)
    if len(raw) % CIFAR_ROW:
        raise InputError(
            f"{path}: {len(raw)} bytes are no multiple of {CIFAR_ROW}; give the binary version's "
            "batches."
        )
    rows = raw.reshape(-1, CIFAR_ROW)
    step = chunk_rows(CIFAR_ROW)
    for start in range(0, len(rows), step):
        yield Chunk(rows[start : start + step, 1:], rows[start : start + step, 0])


READERS: dict[str, Callable[[Schema, Part], Iterator[Chunk]]] = {
    "svmlight": read_svmlight,
    "letor": read_svmlight,
    "dat": read_dat,
    "cifar10": read_cifar10,
}
