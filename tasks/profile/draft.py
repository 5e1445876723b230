"""Draft a schema from a file for a human to review.

A draft reads the rows, so it says so: bounds and levels are suggestions to check against the
documentation, not facts to train on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from textwrap import indent
from typing import Any

import pandas as pd
import yaml
from pydantic import ValidationError

from dpcore.accounting import Events
from dpcore.errors import InputError
from tasks.data import FileReading
from tasks.profile.labels import as_identified, label_spec, likely_label, pairs_values
from tasks.profile.reasons import (
    bounds_of,
    code_reason,
    cut_levels,
    date_format,
    moments_of,
    number_marks,
    number_reasons,
    numbers_of,
    offered_as_block,
    offered_as_user,
)
from tasks.readers.cells import MARKS, layout_of
from tasks.readers.chunk import EmptyTable
from tasks.readers.parts import Part, partition, parts_at
from tasks.schema import QUERY, Schema, known_schemas
from tasks.schema.sections import TextSpec

MOST_LEVELS = 60
MOST_GRADE = 10  # the largest grade of a document
UNFINISHED = "NO SCHEMA YET: "
WARNING = """\
# Draft of a schema, made by reading private rows: bounds, levels and the count are suggestions, and so is every number
# in a comment. What was read of single rows is not covered by any epsilon: show it to nobody who may not see the rows.
# Replace each by what the documentation says, or a run's epsilon does not cover them; then remove the line `drafted`,
# which keeps every run with this schema from being released.
"""
PRIVATE = """\
# Draft of a schema from charged private estimates (see the ledger for their price): rare levels are missing and
# bounds are rounded; review it before training.
"""


@dataclass(slots=True)
class Draft:
    """A drafted schema as YAML, the quirks that were found, and (private drafts) what was
    charged.
    """

    values: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    events: Events | None = None
    reasons: dict[str, list[str]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """YAML that loads, each column with the reasons for it."""
        notes = "".join(f"# - {' '.join(note.split())}\n" for note in self.notes)
        body = "".join(self._section(key) for key in self.values)
        return (WARNING if self.events is None else PRIVATE) + notes + body

    def _section(self, key: str) -> str:
        if key != "columns":
            return _yaml({key: self.values[key]})
        lines = []
        for name, spec in self.values[key].items():
            lines += [f"  # {' '.join(reason.split())}\n" for reason in self.reasons.get(name, ())]
            lines.append(indent(_yaml({name: spec}), "  "))
        return f"{key}:\n{''.join(lines)}"


def _yaml(values: dict[str, Any]) -> str:
    """Values as YAML, what has no parts of its own on one line."""
    nested = any(isinstance(value, dict | list) for value in values.values())
    style: Any = {"default_flow_style": None if nested else False}
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=118, **style))


def draft_schema(place: str | Path, label: str | None = None, name: str | None = None) -> Draft:
    """Read a table of any format whole, in one file or in parts (a folder, a glob, a URL), and
    draft its schema.

    Kinds, bounds rounded outward, levels, label candidates; notes on constant columns, identifiers,
    columns equal to each other or to the label, dates, mixed types, duplicate names, encoding.
    Raises ``InputError`` for a file that cannot be read, or that is of another kind.
    """
    parts = parts_at(place, "the table to profile")
    if not parts:
        raise InputError(
            f"Expected a file to profile, got {str(place)!r}, which does not exist; correct the "
            "path."
        )
    named = draft_name(place, name)
    draft = Draft({"schema_version": 1, "name": named, "drafted": "from_rows"})
    path, layout = parts[0], layout_of(parts[0])
    if layout in ("letor", "svmlight"):
        if label is not None:
            raise InputError(
                f"Expected no --label for {path}: the first number of a line is its label; leave "
                "it out."
            )
        draft.values |= pairs_values(parts, layout, bounds_of, draft.notes)
        draft.values["source"]["path"] = str(place)
        return checked(draft)
    frame, found = cells_of(parts, draft.notes)
    text = _text_spec(frame, layout, found, draft.notes)
    if len(frame.columns) < 2:
        raise InputError(
            f"Expected a table of two columns or more in {path}, got {frame.columns[0]!r} alone: "
            "no separator was found; write the schema by hand, or export the table as CSV."
        )
    label = label or likely_label(frame, draft.notes, text)
    if label is not None and label not in frame:
        raise InputError(
            f"Expected a label column of {path}, got label={label!r}; it has "
            f"{', '.join(frame.columns)}."
        )
    others = frame.columns[frame.columns != label]
    columns = {c: _column(Seen(frame[c], text), draft.notes, draft.reasons) for c in others}
    _twins(frame, label, columns, draft.notes)
    source = {**found.pop("source", {}), "path": str(place)}
    draft.values |= {"public": {"n": round(0.8 * len(frame))}, "source": source, **found}
    draft.values["columns"] = columns
    if label is not None:
        _add_label(frame, label, draft, text)
    draft.values["split"] = {"kind": "hash", "test_share": 0.2}
    return checked(draft)


def _text_spec(
    frame: pd.DataFrame, layout: str, found: dict[str, Any], notes: list[str]
) -> TextSpec:
    """How the texts of a table are laid out; the marks of its numbers are told in ``found`` too."""
    if layout == "text" and (marks := number_marks(frame, notes)):
        found["text"] = {**found.get("text", {}), **marks}
    return TextSpec.model_validate(found.get("text", {}))


def cells_of(parts: Sequence[Part], notes: list[str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The cells of all parts, one after the other, with what their folders say, and the layout.

    Raises ``InputError`` for parts of other columns or another layout; those without rows are none.
    """
    read: list[tuple[Part, pd.DataFrame, dict[str, Any]]] = []
    empty: EmptyTable | None = None
    for part in parts:
        try:
            frame, found = FileReading(part).cells(notes)
        except EmptyTable as error:
            empty = empty or error
            continue
        read.append((part, frame.assign(**partition(part)), found))
    if not read and empty is not None:
        raise empty
    first, frame, layout = read[0]
    for part, other, found in read[1:]:
        if set(other) != set(frame) or found.get("text") != layout.get("text"):
            what = "laid out" if set(other) == set(frame) else "with the columns"
            raise InputError(
                f"{part}: Expected a part {what} as {first} is, got another; draft the parts that "
                "are alike, or write the schema by hand."
            )
    if len(read) > 1:
        notes[:] = [*dict.fromkeys(notes), f"{len(read)} parts, read in the order of their paths"]
    formats = {str(found.get("source")) for _, _, found in read}
    layout = layout if len(formats) == 1 else {k: v for k, v in layout.items() if k != "source"}
    rows = pd.concat([other[list(frame)] for _, other, _ in read], ignore_index=True)
    return rows, dict(layout)


def _add_label(frame: pd.DataFrame, label: str, draft: Draft, text: TextSpec) -> None:
    spec = label_spec(frame[label], bounds_of, draft.notes, text)
    if spec.get("kind") != "regression" and frame[label].isin(MARKS).any():
        spec["undeclared"] = "drop"  # rows without a label, under add_remove
    draft.values["label"] = spec
    _as_ranking(frame, label, draft)


def _as_ranking(frame: pd.DataFrame, label: str, draft: Draft) -> None:
    """Declare grades of documents where the table has a column of queries and small whole labels."""
    grades = pd.to_numeric(frame[label], errors="coerce")
    graded = (
        grades.notna().all() and (grades % 1 == 0).all() and grades.between(0, MOST_GRADE).all()
    )
    if QUERY not in frame or label == QUERY or not graded or grades.max() < 1:
        return
    queries = int(frame[QUERY].nunique())
    draft.values |= {"unit": "session", "public": {"n": round(0.8 * queries)}}
    draft.values["columns"][QUERY] = {"kind": "id"}
    draft.values["label"] = {
        "column": label,
        "kind": "relevance",
        "low": 0,
        "high": float(grades.max()),
    }
    draft.notes.append(
        f"label {label}: grades of documents of {queries} queries (column {QUERY}); unit: "
        "session_labels where the documents are public; binary or classes if rows have nothing to "
        "do with each other"
    )


def checked(draft: Draft) -> Draft:
    """The draft, with a first note on what is still missing where it is no schema yet."""
    draft.notes[:] = [note for note in draft.notes if not note.startswith(UNFINISHED)]
    try:
        Schema.model_validate(draft.values)
    except ValidationError as error:
        finding = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in finding["loc"])
        asked = where == "label" and "label" not in draft.values
        said = "name it with --label" if asked else f"{finding['msg']}; complete it by hand"
        draft.notes.insert(0, f"{UNFINISHED}{where or 'the draft'}: {said}")
    return draft


def draft_name(place: str | Part, name: str | None) -> str:
    """The name of a data set after that of its file or folder, before what is a pattern."""
    whole = re.split(r"[/\\][^/\\]*[*?\[]", str(place))[0]
    last = PurePath(whole.rstrip("/")).name.split(".")[0].lower()
    plain = name or re.sub(r"[^\w+-]+|_", "-", last) or "table"
    return f"my-{plain}" if plain in known_schemas() else plain


class Seen:
    """The cells of one column, and what they show."""

    def __init__(self, cells: pd.Series, text: TextSpec) -> None:
        self.text = text
        self.name, self.rows = str(cells.name), len(cells)
        self.full = cells[~cells.isin(MARKS)]
        self.texts = as_identified(self.full)
        self.distinct = self.texts.unique()
        self.blanks = len(cells) - len(self.full)
        marks = sorted(set(cells[cells.isin(MARKS)]) - {""})
        self.extra: dict[str, Any] = {"missing": marks} if marks else {}
        self.extra |= {"fill": "zeros"} if self.blanks else {}

    @cached_property
    def numbers(self) -> pd.Series:
        return numbers_of(self.full, self.text)

    @cached_property
    def share(self) -> float:
        """How many of the cells with a value are numbers."""
        return float(self.numbers.notna().mean())

    @cached_property
    def whole(self) -> bool:
        return self.share == 1.0 and bool((self.numbers % 1 == 0).all())

    @cached_property
    def date(self) -> str:
        """The format of dates; empty where the cells are none."""
        return date_format(self.full)


def _column(seen: Seen, notes: list[str], reasons: dict[str, list[str]]) -> dict[str, Any]:
    """The suggested declaration of one column; what stands behind it goes to ``reasons``."""
    if seen.blanks:
        notes.append(f"{seen.name}: {seen.blanks} cells without a value; decide on a fill")
    drafts = (draft(seen, notes, reasons) for draft in DRAFTS)
    return next(found for found in drafts if found is not None)


def _constant(seen: Seen, notes: list[str], reasons: dict[str, list[str]]) -> dict[str, Any] | None:
    if len(seen.distinct) > 1:
        return None
    notes.append(f"{seen.name}: constant" if len(seen.distinct) else f"{seen.name}: empty")
    return {"kind": "ignore"}


def _identifier(
    seen: Seen, notes: list[str], reasons: dict[str, list[str]]
) -> dict[str, Any] | None:
    if len(seen.distinct) == seen.rows > 20 and (seen.whole or seen.share < 0.5) and not seen.date:
        notes.append(f"{seen.name}: a value of its own in every row, an identifier")
        return {"kind": "id"}
    if offer := offered_as_user(seen.name, seen.full, seen.rows, notes):
        reasons[seen.name] = offer
        return {"kind": "id"}
    return None


def _number(seen: Seen, notes: list[str], reasons: dict[str, list[str]]) -> dict[str, Any] | None:
    if seen.share < 1.0:
        if seen.share > 0.5:
            odd = next(t for t, n in zip(seen.full, seen.numbers, strict=True) if pd.isna(n))
            notes.append(f"{seen.name}: mixed types, mostly numbers but also {odd!r}")
        return None
    if seen.full.str.fullmatch(r"0[0-9]+").any():
        notes.append(f"{seen.name}: digits with leading zeros, codes and no numbers")
        return None
    if seen.date:
        return None
    if set(seen.numbers.unique()) == {0, 1}:
        return {"kind": "flag", **seen.extra}
    low, high = bounds_of(seen.full, seen.numbers)
    reasons[seen.name] = number_reasons(seen.name, seen.numbers, seen.whole, notes)
    if seen.whole and len(seen.distinct) <= 12:
        few = len(seen.distinct)
        notes.append(f"{seen.name}: {few} whole numbers; categorical if they are codes")
    return {"kind": "numeric", "low": low, "high": high, **seen.extra}


def _code(seen: Seen, notes: list[str], reasons: dict[str, list[str]]) -> dict[str, Any] | None:
    few = seen.whole and len(seen.distinct) <= MOST_LEVELS
    reason = code_reason(seen.name) if few and set(seen.numbers.unique()) != {0, 1} else ""
    if not reason:
        return None
    reasons[seen.name] = [reason]
    return _levels(seen, notes, reasons)


def _date(seen: Seen, notes: list[str], reasons: dict[str, list[str]]) -> dict[str, Any] | None:
    if not seen.date:
        return None
    days = moments_of(seen.full, seen.date)
    first, last = days.min(), days.max()
    end = f"{last.year}-12-31"
    high = end if last <= pd.Timestamp(end) else f"{last.year + 1}-01-01"
    notes.append(f"{seen.name}: dates as {seen.date}")
    reasons[seen.name] = offered_as_block(seen.name, seen.date, days)
    bounds = {"low": f"{first.year}-01-01", "high": high}
    return {"kind": "date", "format": seen.date, **bounds, "parts": ["elapsed"], **seen.extra}


def _levels(seen: Seen, notes: list[str], reasons: dict[str, list[str]]) -> dict[str, Any]:
    many = len(seen.distinct)
    if many <= MOST_LEVELS:
        order = dict(zip(seen.texts, seen.numbers if seen.whole else seen.texts, strict=True))
        levels = sorted(map(str, seen.distinct), key=order.__getitem__)
        return {"kind": "categorical", "levels": levels, **seen.extra}
    if cut := cut_levels(seen.name, seen.texts, notes):
        reasons[seen.name] = cut[1]
        return {**cut[0], **seen.extra}
    notes.append(f"{seen.name}: {many} different texts, free text or an identifier")
    return {"kind": "ignore"}


# What a column may be, in the order in which it is asked; levels at last.
DRAFTS = (_constant, _identifier, _code, _number, _date, _levels)


def _twins(
    frame: pd.DataFrame, label: str | None, columns: dict[str, Any], notes: list[str]
) -> None:
    """Note columns that say the same as another one or as the label."""
    codes = {c: pd.factorize(frame[c])[0] for c in frame}
    seen: dict[bytes, str] = {} if label is None else {codes[label].tobytes(): label}
    for name in columns:
        key = codes[name].tobytes()
        if columns[name]["kind"] in ("ignore", "id"):
            continue
        if key in seen:
            notes.append(
                f"{name}: says the same as {'the label' if seen[key] == label else seen[key]}"
            )
            columns[name] = {"kind": "ignore"}
        else:
            seen[key] = name
