"""Which column of a table is the label, and of what kind, where nobody said it.

Drafts for files of numbered features: LETOR with queries, SVMlight without.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from dpcore.errors import InputError
from dpcore.identity import canonical
from tasks.profile.reasons import numbers_of
from tasks.readers.cells import MARKS
from tasks.readers.chunk import open_text, require_rows
from tasks.readers.parts import Part
from tasks.schema.sections import TextSpec

PLAIN_TEXT = TextSpec()
# Words that a label is called by, alone or in a longer name.
LABELS = (
    "label",
    "target",
    "class",
    "y",
    "outcome",
    "income",
    "churn",
    "default",
    "survived",
    "attrition",
    "event",
)
# More classes than this are no classes, and more whole numbers than this are amounts.
MOST_CLASSES = 60
MOST_CODES = 10
# A value beside two others stands for a damaged cell where it is in fewer rows, and all such in at
# most this share.
STRAY, MOST_STRAY = 10, 0.01
# Columns that a note names.
MOST_NAMED = 8
ASKED = "label: not told by the table"


def likely_label(frame: pd.DataFrame, notes: list[str], text: TextSpec = PLAIN_TEXT) -> str | None:
    """The label where the table tells it, else None and a note that asks for it with what it could
    be.

    A telling name counts 2, two values count 1, and standing last counts 1 for what can be a label:
    two values, numbers or a few texts. Told is a column with at least 2 more than any other: one
    sign alone is not believed.
    """
    votes, shown = {}, {}
    for name in map(str, frame.columns):
        size, what = values_of(frame[name], text)
        if what:
            votes[name] = 2 * telling(name) + (size == 2) + (name == str(frame.columns[-1]))
            shown[name] = f"{name} ({size} {what})"
    best = max(votes, key=votes.__getitem__, default="")
    others = [name for name in votes if votes[name] and name != best]
    if votes.get(best, 0) >= 2 + max((votes[name] for name in others), default=0):
        told = could_be([shown[name] for name in others])
        notes.append(f"label {best}: by its name, values and place{told}; say another by --label")
        return best
    notes.append(
        f"{ASKED}{could_be([shown[name] for name, count in votes.items() if count])}; say it with "
        "--label"
    )
    return None


def values_of(cells: pd.Series, text: TextSpec) -> tuple[int, str]:
    """How many values a column has and what they are; what is empty for one that can be no
    label.
    """
    full = filled(cells)
    size = full.nunique()
    numbers = size > 1 and bool(numbers_of(full, text).notna().all())
    if size < 2 or not (numbers or size <= MOST_CLASSES):
        return size, ""
    return size, "numbers" if numbers and size > 2 else "values"


def could_be(columns: list[str]) -> str:
    """Some columns in words."""
    more = f" and {len(columns) - MOST_NAMED} more" if len(columns) > MOST_NAMED else ""
    return f"; it could be {', '.join(columns[:MOST_NAMED])}{more}" if columns else ""


def telling(name: str) -> bool:
    """Whether a word of the name says that it is a label."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower())
    return any(word in LABELS for word in words)


def as_identified(cells: pd.Series) -> pd.Series:
    """The text that each cell counts by: 1 and 1.0 are one level, and so are true and TRUE."""
    return cells.map({text: canonical(text) for text in cells.unique()})


def filled(cells: pd.Series) -> pd.Series:
    """The cells with a value."""
    return cells[~cells.isin(MARKS)]


def stray_values(counts: pd.Series, text: TextSpec) -> list[str]:
    """Texts that stand in a few rows beside two values that all the others have; none where a third
    is no rarity, or all are numbers, which may be rare amounts.
    """
    few = counts[2:]
    if numbers_of(pd.Series(counts.index), text).notna().all():
        return []
    rare = bool(len(few)) and few.max() < STRAY and few.sum() <= MOST_STRAY * counts.sum()
    return [str(value) for value in few.index] if rare and counts.iloc[1] >= 10 * STRAY else []


def without_strays(
    name: str, counts: pd.Series, text: TextSpec, notes: list[str]
) -> tuple[pd.Series, dict[str, Any]]:
    """How often each value stands, without damaged ones, and what leaves their rows out."""
    damaged = stray_values(counts, text)
    if not damaged:
        return counts, {}
    notes.append(
        f"label {name}: {', '.join(map(repr, damaged))} in {counts[damaged].sum()} rows beside two "
        "values: damaged cells? undeclared: drop leaves such rows out; kind: classes if they are "
        "classes"
    )
    return counts.drop(damaged), {"undeclared": "drop"}


def label_spec(
    cells: pd.Series, bounds: Any, notes: list[str], text: TextSpec = PLAIN_TEXT
) -> dict[str, Any]:
    """The declaration of a label; ``bounds(cells, numbers)`` suggests those of a regression.

    Two values: binary. Texts, or a few whole numbers: classes. Other numbers: regression. Raises
    ``InputError`` for a column that is none of these.
    """
    name, full = str(cells.name), filled(cells)
    if blanks := len(cells) - len(full):
        notes.append(f"label {name}: {blanks} rows without a label; leave them out of the file")
    texts = as_identified(full)
    counts = texts.value_counts()
    counts, left_out = without_strays(name, counts, text, notes)
    if len(counts) < 2:
        raise InputError(
            f"Expected a label of two values or more, got {len(counts)} in column {name!r}; see "
            "--label."
        )
    if len(counts) == 2:
        negative, positive = (str(v) for v in counts.index)
        notes.append(f"label {name}: {positive!r}, the rarer value, is taken as positive")
        return {"column": name, "positive": positive, "negative": negative, **left_out}
    numbers = numbers_of(full, text)
    numeric = bool(numbers.notna().all())
    if numeric and not ((numbers % 1 == 0).all() and len(counts) <= MOST_CODES):
        low, high = bounds(full, numbers)
        return {"column": name, "kind": "regression", "low": low, "high": high}
    if len(counts) > MOST_CLASSES:
        raise InputError(
            f"Expected a label of numbers or of at most {MOST_CLASSES} classes, got {len(counts)} "
            f"texts in column {name!r}, for which nothing can be drafted; name another column with "
            "--label."
        )
    order = dict(zip(texts, numbers if numeric else texts, strict=True))
    levels = [str(value) for value in sorted(counts.index, key=order.__getitem__)]
    notes.append(
        f"label {name}: {len(levels)} classes"
        + ("; write kind: regression with low and high if they are amounts" if numeric else "")
    )
    return {"column": name, "kind": "classes", "levels": levels}


def pairs_values(
    parts: Sequence[Part], layout: str, bounds: Any, notes: list[str]
) -> dict[str, Any]:
    """The fields of a schema for LETOR or SVMlight files; ``bounds(cells, numbers)`` rounds
    outward.

    All features have the bounds of the widest: which of them are alike is not in the file. Absent
    features are 0.
    """
    labels, queries = [], set()
    width, low, high = 0, 0.0, 0.0
    for path, number, words in _pairs(parts):
        labels.append(words[0])
        for word in words[1:]:
            name, _, value = word.partition(":")
            if name == "qid":
                queries.add(value)
                continue
            try:
                width, amount = max(width, int(name)), float(value)
            except ValueError:
                raise InputError(
                    f"{path}, line {number}: {word!r} is no index:value; correct the line."
                ) from None
            low, high = min(low, amount), max(high, amount)
    first, last = bounds(pd.Series([str(low), str(high)], name="features"), pd.Series([low, high]))
    notes.append(
        f"features: {width} of them, all with the bounds of the widest; give groups of their own "
        "bounds"
    )
    cells = pd.Series(labels, name="label", dtype=object)
    values: dict[str, Any] = {"source": {"format": layout}}
    if layout == "letor":
        grades = pd.to_numeric(cells, errors="coerce")
        if grades.isna().any():
            raise InputError(
                f"{parts[0]}: Expected grades of relevance as labels, got "
                f"{cells[grades.isna()].iloc[0]!r}."
            )
        spec = {"column": "grade", "kind": "relevance", "low": 0, "high": max(1, int(grades.max()))}
        notes.append(f"{len(queries)} queries; a session is one query with its documents")
        values |= {"unit": "session", "public": {"n": len(queries)}}
    else:
        spec = label_spec(cells, bounds, notes)
        values |= {"public": {"n": len(labels)}}
    values["features"] = [{"name": "feature", "count": width, "low": first, "high": last}]
    return values | {"label": spec, "split": {"kind": "none"}}


def _pairs(parts: Sequence[Part]) -> Iterator[tuple[Part, int, list[str]]]:
    """Part, line and words of each line that is no comment."""
    for path in parts:
        require_rows(path)
        with open_text(path, "utf-8", "replace") as file:
            for number, line in enumerate(file, 1):
                if words := line.partition("#")[0].split():
                    yield path, number, words


def released_label(name: str, levels: list[str], notes: list[str]) -> dict[str, Any]:
    if len(levels) < 2:
        notes.append(
            f"label {name!r}: {len(levels)} texts were found; declare positive and negative by hand"
        )
    if len(levels) > 2:
        return {"column": name, "kind": "classes", "levels": levels}
    return {"column": name, "positive": levels[1:2], "negative": levels[:1]}


def released_column(fields: dict[str, Any]) -> dict[str, Any]:
    if "low" in fields:
        return {"kind": "numeric", **fields, "fill": "zeros"}
    if not fields["levels"]:
        return {"kind": "ignore"}
    return {
        "kind": "categorical",
        "levels": list(fields["levels"]),
        "unknown": "zeros",
        "fill": "zeros",
    }
