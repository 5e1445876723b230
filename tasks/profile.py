"""Draft a schema from a file for a human to review.

A draft reads the rows, so it says so: bounds and levels are suggestions to check against the documentation, not facts
to train on. ``draft_private`` gives the same from charged releases.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from dpcore.accounting import Budget, Events, Target
from dpcore.errors import InputError
from dpcore.estimate import Columns, EstimateColumns, calibrated, calibrated_gaussian, estimate_columns
from dpcore.noise import secure_generator
from dpcore.problem import Adjacency
from tasks.readers.chunk import is_gzip, require_rows, truncated
from tasks.schema.files import known_schemas

MARKS = ("", "?", "NA", "N/A", "n/a", "null", "NULL", "None", "nan", "NaN", "-", ".")
DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y%m%d")
LABELS = ("label", "target", "class", "y", "outcome", "income", "churn", "default", "survived", "attrition", "event")
MOST_LEVELS = 60
ENCODINGS = ("utf-8", "cp1252", "latin-1")
WARNING = """\
# Draft of a schema, made by reading private rows: bounds, levels and the count are suggestions.
# Replace each by what the documentation says before training, or the run's epsilon does not cover them.
"""
PRIVATE = """\
# Draft of a schema from charged private estimates (see the ledger for their price): rare levels are missing and
# bounds are rounded; review it before training.
"""


@dataclass(slots=True)
class Draft:
    """A drafted schema as YAML, the quirks that were found, and (private drafts) what was charged."""

    values: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    events: Events | None = None

    @property
    def text(self) -> str:
        notes = "".join(f"# - {note}\n" for note in self.notes)
        body = yaml.safe_dump(self.values, sort_keys=False, allow_unicode=True, width=118, default_flow_style=None)
        return (WARNING if self.events is None else PRIVATE) + notes + body


def draft_schema(path: str | Path, label: str | None = None, name: str | None = None) -> Draft:
    """Read a separated text or Parquet file whole and draft its schema.

    Kinds, bounds rounded outward, levels, label candidates; notes on constant columns, identifiers, columns equal to
    each other or to the label, dates, mixed types, duplicate names, encoding. Raises ``InputError`` for a file that
    cannot be read at all.
    """
    path = Path(path)
    draft = Draft({"schema_version": 1, "name": _name(path, name)})
    frame, layout = _read(path, draft.notes)
    label = label or _label(frame, draft.notes)
    if label not in frame:
        raise InputError(f"Expected a label column of {path}, got label={label!r}; it has {', '.join(frame.columns)}.")
    columns = {c: _column(frame[c], draft.notes) for c in frame.columns if c != label}
    _twins(frame, label, columns, draft.notes)
    draft.values |= {"public": {"n": len(frame)}, "source": {"path": str(path)}, **layout}
    draft.values |= {"columns": columns, "label": _label_spec(frame[label], draft.notes)}
    draft.values["split"] = {"kind": "hash", "test_share": 0.2}
    draft.values["public"]["n"] = round(0.8 * len(frame))
    return draft


def draft_private(
    path: str | Path,
    label: str,
    target: Target,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    name: str | None = None,
    on_charge: Any = None,
    fixed_noise_seed: int | None = None,
) -> Draft:
    """Draft a schema of which only the layout of the file and its header are read for free; ``target`` pays the rest.

    A tenth of epsilon tells by noisy counts how many rows there are and which columns hold numbers, the rest estimates
    their bounds and the other columns' levels; the label's two texts are levels like any others.
    """
    path, adjacency = Path(path), Adjacency(adjacency)
    draft = Draft({"schema_version": 1, "name": _name(path, name)})
    frame, layout = _read(path, [])
    if label not in frame:
        raise InputError(f"Expected a label column of {path}, got label={label!r}; it has {', '.join(frame.columns)}.")
    names = list(frame.columns)
    width = sqrt(len(names) + 1.0) * (1.0 if adjacency is Adjacency.ADD_REMOVE else 2.0)
    first = calibrated_gaussian(width, Target(0.1 * target.epsilon, target.delta / 2, target.conversion), adjacency)
    secret = secure_generator() if fixed_noise_seed is None else np.random.default_rng(fixed_noise_seed)
    numbers = {c: pd.to_numeric(frame[c], errors="coerce") for c in names}
    cells = Columns({c: v.to_numpy(dtype=float) for c, v in numbers.items()}, {}, len(frame))
    door = Budget(Events.of([first], adjacency=adjacency), cells, secret, on_charge=on_charge)  # type: ignore[arg-type]
    counts = door.release(first, lambda batch: np.array([batch.n, *_filled(batch, names)], dtype=float))
    rows = max(int(counts[0]), 1)
    numeric = [c for c, hits in zip(names, counts[1:], strict=True) if c != label and hits > 0.6 * rows]
    texts = [c for c in names if c not in numeric]
    estimate = EstimateColumns(numeric=tuple(numeric), texts=tuple(texts), n=rows, adjacency=adjacency)
    rest = Target(0.9 * target.epsilon, target.delta / 2, target.conversion)
    estimate = calibrated(estimate, rest)
    finite = {c: v[np.isfinite(v)] for c in numeric if (v := numbers[c].to_numpy(dtype=float)) is not None}
    cells = Columns(finite, {c: [t.encode() for t in frame[c] if t not in MARKS] for c in texts}, len(frame))
    found = estimate_columns(estimate, cells, on_charge=on_charge, fixed_noise_seed=fixed_noise_seed)
    draft.events = Events.of([first, *estimate.plan()], adjacency=adjacency)
    draft.values |= {"public": {"n": round(0.8 * rows)}, "source": {"path": str(path)}, **layout}
    draft.values["columns"] = {c: _found(found[c]) for c in names if c != label}
    levels = list(found[label]["levels"])
    draft.values["label"] = {"column": label, "positive": levels[1:2], "negative": levels[:1]}
    draft.values["split"] = {"kind": "hash", "test_share": 0.2}
    if len(levels) != 2:
        draft.notes.append(f"label {label!r}: {len(levels)} texts were found; declare positive and negative by hand")
    return draft


def _filled(batch: Columns, names: Sequence[str]) -> list[int]:
    """How many cells of each column are numbers."""
    return [int(np.count_nonzero(~np.isnan(batch.numbers[c]))) for c in names]


def _found(fields: dict[str, Any]) -> dict[str, Any]:
    if "low" in fields:
        return {"kind": "numeric", **fields, "fill": "zeros"}
    if not fields["levels"]:
        return {"kind": "ignore"}
    return {"kind": "categorical", "levels": list(fields["levels"]), "unknown": "zeros", "fill": "zeros"}


def _name(path: Path, name: str | None) -> str:
    plain = name or path.name.split(".")[0].lower().replace("_", "-").replace(" ", "-")
    return f"my-{plain}" if plain in known_schemas() else plain


def _read(path: Path, notes: list[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The whole file as text cells, and the ``text``/``source`` keys that say how it is laid out."""
    if not path.is_file():
        raise InputError(f"Expected a file to profile, got {str(path)!r}, which does not exist; correct the path.")
    require_rows(path)
    if path.suffix == ".parquet":
        frame = pd.read_parquet(path)
        return frame.astype(object).where(frame.notna(), "").astype(str), {}
    try:
        with (gzip.open if is_gzip(path) else open)(path, "rb") as file:
            raw = file.read()
    except (EOFError, gzip.BadGzipFile):
        raise truncated(path) from None
    encoding = next(e for e in ENCODINGS if _decodes(raw, e))
    if encoding != "utf-8":
        notes.append(f"the file is not UTF-8; {encoding} decodes it, but check for cp1251 and others")
    if raw.startswith(b"\xef\xbb\xbf"):
        notes.append("the file starts with a byte order mark, which is read over")
    lines = raw.decode(encoding).removeprefix("\ufeff").splitlines()
    separator = _separator(lines[:50])
    rows = [r for r in csv.reader(lines, delimiter=separator, skipinitialspace=True) if r]
    text: dict[str, Any] = {} if separator == "," else {"separator": separator}
    text |= {} if encoding == "utf-8" else {"encoding": encoding}
    names, body = _header(rows, text, notes)
    if not body:
        raise InputError(f"{path}: the file has no data rows; give a file with rows.")
    if uneven := sum(len(r) != len(names) for r in body):
        notes.append(f"{uneven} lines have another number of fields than the header")
    body = [(r + [""] * len(names))[: len(names)] for r in body]
    frame = pd.DataFrame({n: [r[i].strip() for r in body] for i, n in enumerate(names)}, dtype=object)
    if _only_with_comma(frame):
        text["decimal"] = ","
        notes.append("some columns are numbers only with a decimal comma")
        frame = frame.apply(lambda c: c.str.replace(",", ".") if _comma_numbers(c) else c)
    return frame, {"text": text} if text else {}


def _decodes(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _separator(lines: Sequence[str]) -> str:
    """The separator that gives the most fields, the same number on most lines."""

    def score(mark: str) -> tuple[int, int]:
        widths = [len(r) for r in csv.reader(lines, delimiter=mark, skipinitialspace=True) if r]
        common = max(set(widths), key=widths.count, default=1)
        return (widths.count(common) if common > 1 else 0, common)

    return max((",", ";", "\t", "|", " "), key=score)


def _header(rows: list[list[str]], text: dict[str, Any], notes: list[str]) -> tuple[list[str], list[list[str]]]:
    """Column names and data rows; a first row with a number in it is data."""
    first = [cell.strip() for cell in rows[0]] if rows else []
    if any(_is_number(cell) for cell in first):
        notes.append("the file has no header; the columns are numbered, name them in text.names")
        names = [f"c{i + 1}" for i in range(len(first))]
        text |= {"header": False, "names": names}
        return names, rows
    if len(set(first)) < len(first):
        twice = sorted({n for n in first if first.count(n) > 1})
        notes.append(f"columns share a name: {', '.join(twice)}; text.names gives each its own")
        seen: dict[str, int] = {}
        for i, cell in enumerate(first):
            seen[cell] = seen.get(cell, 0) + 1
            first[i] = cell if seen[cell] == 1 else f"{cell}_{seen[cell]}"
        text["names"] = first
    return first, rows[1:]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _comma_numbers(cells: pd.Series) -> bool:
    full = cells[~cells.isin(MARKS)]
    return bool(len(full) and full.str.fullmatch(r"[-+]?\d*,\d+|[-+]?\d+").all() and full.str.contains(",").any())


def _only_with_comma(frame: pd.DataFrame) -> bool:
    return any(_comma_numbers(frame[c]) for c in frame)


def _column(cells: pd.Series, notes: list[str]) -> dict[str, Any]:
    """The suggested declaration of one column."""
    name, full = str(cells.name), cells[~cells.isin(MARKS)]
    distinct, blank = full.unique(), len(full) < len(cells)
    marks = sorted(set(cells[cells.isin(MARKS)]) - {""})
    extra: dict[str, Any] = ({"missing": marks} if marks else {}) | ({"fill": "zeros"} if blank else {})
    if blank:
        notes.append(f"{name}: {len(cells) - len(full)} cells without a value; decide on a fill")
    if len(distinct) <= 1:
        notes.append(f"{name}: constant" if len(distinct) else f"{name}: empty")
        return {"kind": "ignore"}
    numbers = pd.to_numeric(full, errors="coerce")
    share = float(numbers.notna().mean())
    whole = share == 1.0 and bool((numbers % 1 == 0).all())
    if len(distinct) == len(cells) and len(cells) > 20 and (whole or share < 0.5) and not _date_format(full):
        notes.append(f"{name}: a value of its own in every row, an identifier")
        return {"kind": "id"}
    if share == 1.0 and not (form := _date_format(full)):
        if set(numbers.unique()) == {0, 1}:
            return {"kind": "flag", **extra}
        low, high = outward(float(numbers.min()), float(numbers.max()))
        if whole and len(distinct) <= 12:
            notes.append(f"{name}: {len(distinct)} whole numbers; categorical if they are codes")
        return {"kind": "numeric", "low": low, "high": high, **extra}
    if 0.5 < share < 1.0:
        odd = next(t for t, n in zip(full, numbers, strict=True) if pd.isna(n))
        notes.append(f"{name}: mixed types, mostly numbers but also {odd!r}")
    if form := _date_format(full):
        days = pd.to_datetime(full, format=form)
        notes.append(f"{name}: dates as {form}")
        bounds = {"low": f"{days.min().year}-01-01", "high": f"{days.max().year}-12-31"}
        return {"kind": "date", "format": form, **bounds, "parts": ["elapsed"], **extra}
    if len(distinct) > MOST_LEVELS:
        notes.append(f"{name}: {len(distinct)} different texts, free text or an identifier")
        return {"kind": "ignore"}
    return {"kind": "categorical", "levels": sorted(map(str, distinct)), **extra}


def _date_format(full: pd.Series) -> str:
    sample = full.iloc[:200]
    for form in DATES:
        if pd.to_datetime(sample, format=form, errors="coerce").notna().all():
            if form == "%Y%m%d" and not sample.str.fullmatch(r"(19|20)\d{6}").all():
                continue
            if pd.to_datetime(full, format=form, errors="coerce").notna().all():
                return form
    return ""


def outward(low: float, high: float) -> tuple[float, float]:
    """Bounds rounded outward to two leading digits of the larger one, so that they say less about single rows."""
    size = max(abs(low), abs(high))
    if size == 0.0:
        return 0.0, 0.0
    unit = 10.0 ** (floor(log10(size)) - 1)
    bounds = floor(low / unit) * unit, ceil(high / unit) * unit
    digits = max(0, -floor(log10(unit)))
    return round(bounds[0], digits), round(bounds[1], digits)


def _label(frame: pd.DataFrame, notes: list[str]) -> str:
    """The likeliest label: a telling name, else the last column of two values, else the last column."""
    columns = [str(c) for c in frame.columns]
    two = [c for c in columns if frame[c][~frame[c].isin(MARKS)].nunique() == 2]
    notes.append(f"label candidates (two values): {', '.join(two) or 'none'}")
    named = [c for c in columns if any(c.lower() == word or c.lower().endswith(f" {word}") for word in LABELS)]
    return (named or two or columns)[-1]


def _label_spec(cells: pd.Series, notes: list[str]) -> dict[str, Any]:
    counts = cells.value_counts()
    name = str(cells.name)
    if len(counts) == 2:
        negative, positive = (str(v) for v in counts.index)
        notes.append(f"label {name}: {positive!r}, the rarer value, is taken as positive")
        return {"column": name, "positive": positive, "negative": negative}
    numbers = pd.to_numeric(cells, errors="coerce")
    if numbers.notna().all() and len(counts) > 2:
        low, high = outward(float(numbers.min()), float(numbers.max()))
        return {"column": name, "kind": "regression", "low": low, "high": high}
    notes.append(f"label {name}: {len(counts)} values, {', '.join(map(repr, list(counts.index)[:5]))}; check the rows")
    return {
        "column": name,
        "positive": str(counts.index[1]) if len(counts) > 1 else "?",
        "negative": str(counts.index[0]),
    }


def _twins(frame: pd.DataFrame, label: str, columns: dict[str, Any], notes: list[str]) -> None:
    """Note columns that say the same as another one or as the label."""
    codes = {c: pd.factorize(frame[c])[0] for c in frame}
    seen: dict[bytes, str] = {codes[label].tobytes(): label}
    for name in columns:
        key = codes[name].tobytes()
        if columns[name]["kind"] in ("ignore", "id"):
            continue
        if key in seen:
            notes.append(f"{name}: says the same as {'the label' if seen[key] == label else seen[key]}")
            columns[name] = {"kind": "ignore"}
        else:
            seen[key] = name
