"""Which column of a table is the label, and of what kind, where nobody said it."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from dpcore.errors import InputError
from tasks.readers.cells import MARKS

# Words that a label is called by, alone or in a longer name.
LABELS = ("label", "target", "class", "y", "outcome", "income", "churn", "default", "survived", "attrition", "event")
# More classes than this are no classes, and more whole numbers than this are amounts.
MOST_CLASSES = 60
MOST_CODES = 10


def guess_label(frame: pd.DataFrame, notes: list[str]) -> str:
    """The likeliest label, with a note that it was guessed and what else it could be.

    In this order: the last column with a telling name and two values, the last column of the table where it has two
    values, a telling name with a few values, a telling name, the last column of the table where it holds numbers, any
    column of two values, the last column.
    """
    columns = [str(c) for c in frame.columns]
    sizes = {c: filled(frame[c]).nunique() for c in columns}
    two = [c for c in columns if sizes[c] == 2]
    named = [c for c in columns if telling(c) and sizes[c] > 1]
    few = [c for c in named if sizes[c] <= MOST_CODES]
    last = columns[-1:] if columns[-1] in two else []
    numbers = columns[-1:] if pd.to_numeric(filled(frame[columns[-1]]), errors="coerce").notna().all() else []
    groups = ([c for c in named if c in two], last, few, named, numbers, two, columns)
    found = next(group[-1] for group in groups if group)
    notes.append(f"label candidates (two values): {', '.join(two) or 'none'}")
    others = [c for c in dict.fromkeys([*two, *named]) if c != found]
    if others or found not in (*two, *named):
        words = f", it could be {', '.join(others)}" if others else ", nothing tells it"
        notes.append(f"label {found}: guessed{words}; say it with --label")
    return found


def telling(name: str) -> bool:
    """Whether a word of the name says that it is a label."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower())
    return any(word in LABELS for word in words)


def filled(cells: pd.Series) -> pd.Series:
    """The cells with a value."""
    return cells[~cells.isin(MARKS)]


def label_spec(cells: pd.Series, bounds: Any, notes: list[str]) -> dict[str, Any]:
    """The declaration of a label; ``bounds(cells, numbers)`` suggests those of a regression.

    Two values: binary. Texts, or a few whole numbers: classes. Other numbers: regression. Raises ``InputError`` for a
    column that is none of these.
    """
    name, full = str(cells.name), filled(cells)
    if len(full) < len(cells):
        notes.append(f"label {name}: {len(cells) - len(full)} rows without a label; leave them out of the file")
    counts = full.value_counts()
    if len(counts) < 2:
        raise InputError(f"Expected a label of two values or more, got {len(counts)} in column {name!r}; see --label.")
    if len(counts) == 2:
        negative, positive = (str(v) for v in counts.index)
        notes.append(f"label {name}: {positive!r}, the rarer value, is taken as positive")
        return {"column": name, "positive": positive, "negative": negative}
    numbers = pd.to_numeric(full, errors="coerce")
    numeric = bool(numbers.notna().all())
    if numeric and not ((numbers % 1 == 0).all() and len(counts) <= MOST_CODES):
        low, high = bounds(full, numbers)
        return {"column": name, "kind": "regression", "low": low, "high": high}
    if len(counts) > MOST_CLASSES:
        raise InputError(
            f"Expected a label of numbers or of at most {MOST_CLASSES} classes, got {len(counts)} texts in column "
            f"{name!r}, for which nothing can be drafted; name another column with --label."
        )
    levels = [str(v) for v in (sorted(counts.index, key=float) if numeric else sorted(counts.index))]
    notes.append(
        f"label {name}: {len(levels)} classes"
        + ("; write kind: regression with low and high if they are amounts" if numeric else "")
    )
    return {"column": name, "kind": "classes", "levels": levels}
