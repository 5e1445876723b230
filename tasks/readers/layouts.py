"""How a file is laid out, from its first bytes: what can be drafted, and words about what cannot."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pandas as pd
from scipy.io import arff

from dpcore.errors import InputError
from dpcore.identity import canonical
from tasks.readers.chunk import is_gzip, require_rows, truncated
from tasks.readers.text import open_text

PAIRS = re.compile(r"[^\s,;]+(\s+qid:\S+)?(\s+\d+:[^\s:]+)+\s*(#.*)?")
HEAD = 4096


def layout_of(path: Path) -> str:
    """``arff``, ``letor``, ``svmlight``, ``parquet`` or ``text``. Raises ``InputError`` for a file that is no table."""
    if not path.is_file():
        raise InputError(f"Expected a file to profile, got {str(path)!r}, which does not exist; correct the path.")
    require_rows(path)
    if path.suffix == ".parquet":
        return "parquet"
    try:
        with (gzip.open if is_gzip(path) else open)(path, "rb") as file:
            head = file.read(HEAD)
    except (EOFError, gzip.BadGzipFile):
        raise truncated(path) from None
    kind = next((words for mark, words in FOREIGN if head.startswith(mark)), None)
    if kind is None and b"\0" in head:
        kind = "binary file or one in UTF-16"
    if kind is not None:
        raise InputError(
            f"Expected text with separators, Parquet, ARFF, LETOR or SVMlight to draft a schema, got a {kind} in "
            f"{path}; export it as CSV, or write the schema by hand (`dpflows init` copies examples)."
        )
    lines = head.decode("latin-1").splitlines()
    lines = [line for line in (lines[:-1] if len(head) == HEAD else lines) if line.strip()]
    if any(re.match(r"@relation\b", line, re.IGNORECASE) for line in lines):
        return "arff"
    told = [line for line in lines if not line.startswith("#")]
    if told and all(PAIRS.fullmatch(line.strip()) for line in told):
        return "letor" if all(" qid:" in line.replace("\t", " ") for line in told) else "svmlight"
    return "text"


# First bytes of what is no table of text.
FOREIGN = (
    (b"PK\x03\x04", "zip archive or a spreadsheet"),
    (b"\xd0\xcf\x11\xe0", "spreadsheet"),
    (b"{", "JSON document"),
    (b"[", "JSON document"),
    (b"<", "document in XML or HTML"),
    (b"%PDF", "PDF document"),
    (b"\x89HDF", "HDF5 file"),
    (b"\x93NUMPY", "NumPy array"),
    (b"\x00\x00\x08", "file of images or labels (format: idx)"),
)


def arff_cells(path: Path, ids: str | None = None) -> pd.DataFrame:
    """All of an ARFF file as text cells; raises ``InputError`` for what no reader here reads.

    Numbers of the column ``ids`` have to tell whole numbers apart.
    """
    try:
        with open_text(path, "utf-8") as file:
            records, _ = arff.loadarff(file)
    except (arff.ArffError, NotImplementedError, ValueError, StopIteration) as error:
        raise InputError(
            f"{path}: not readable as ARFF: {' '.join(str(error).split())}; attributes of kind string and sparse rows "
            "are not read: export it as CSV."
        ) from None
    frame = pd.DataFrame(records)
    for name in frame.columns:
        if frame[name].dtype == object:
            frame[name] = frame[name].str.decode("utf-8").replace("?", "")
        else:
            frame[name] = [canonical(value, unit=True) if name == ids else _number(value) for value in frame[name]]
    return frame.astype(object)


def _number(value: float) -> str:
    """A number as a text file would hold it."""
    if value != value:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
