"""Targets from raw cells: +1 and -1, a scaled number, a class, a grade of relevance."""

from __future__ import annotations

import numpy as np
import pandas as pd

from dpcore.identity import canonical
from dpcore.preprocess.parts import factors
from dpcore.preprocess.tally import Tally
from tasks.schema import LabelSpec

BAD = -9


def decode_labels(label: LabelSpec, cells: pd.Series, tally: Tally, strip: bool = True) -> np.ndarray:
    """Targets as float64, shape (n,); undeclared texts and non-finite numbers become faults of ``tally``.

    Binary: {-1, +1}. Regression: clipped to [low, high] and scaled linearly onto ``scaled_to``. Classes: the position
    in ``levels``. Relevance: a whole number from 0 to ``high``. NaN marks rows to be left out (``undeclared: drop``).
    """
    if label.kind in ("regression", "relevance") or label.positive_from is not None:
        return _numbers(label, cells, tally)
    codes, uniques = factors(cells)
    if label.kind == "classes":
        known = {canonical(text, strip): float(k) for k, text in enumerate(label.levels)}
    else:
        known = {canonical(text, strip): sign for sign, texts in label.signs for text in texts}
    found = [known.get(label_text(label, value, strip), BAD) for value in uniques]
    y = np.array([*found, BAD], dtype=float)[codes]
    rows = np.flatnonzero(y == BAD)
    if len(rows) and label.undeclared == "drop":
        tally.count("dropped", label.column, y == BAD)
        y[rows] = np.nan
    elif len(rows):
        shown = ["no value" if codes[r] < 0 else repr(canonical(uniques[codes[r]], strip)) for r in rows[:11]]
        rule = (
            f"declared are {', '.join(map(repr, list(known)[:12]))}; correct the row or the label's declaration, or "
            "leave such rows out by label.undeclared: drop (under add_remove)"
        )
        tally.fault(rows, label.column, [f"{text} is not a declared label" for text in shown], rule)
    return y


def label_text(label: LabelSpec, value: object, strip: bool) -> str:
    """The canonical text of a label, without the declared ending."""
    text = canonical(value, strip)
    return canonical(text.removesuffix(label.strip_end), strip) if label.strip_end else text


def _numbers(label: LabelSpec, cells: pd.Series, tally: Tally) -> np.ndarray:
    values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=float)
    bad = ~np.isfinite(values)
    if label.kind == "relevance":
        bad |= (values < 0) | (values > float(label.high or 0)) | (values != np.floor(values))
    if bad.any():
        rows = np.flatnonzero(bad)
        shown = [f"{cells.iloc[r]!r} is not a usable target" for r in rows[:11]]
        rule = f"a whole number up to {label.high} is needed" if label.kind == "relevance" else "a number is needed"
        tally.fault(rows, label.column, shown, f"{rule}; correct the row")
        return values
    if label.positive_from is not None:
        return np.where(values >= label.positive_from, 1.0, -1.0)
    if label.kind == "relevance":
        return values
    low, high = float(label.low or 0.0), float(label.high or 0.0)
    tally.count("clipped", label.column, (values < low) | (values > high))
    return scale_target(values, low, high, label.scaled_to)


def scale_target(values: np.ndarray, low: float, high: float, onto: tuple[float, float]) -> np.ndarray:
    """Clip to [low, high] and map linearly onto ``onto``."""
    share = (np.clip(values, low, high) - low) / (high - low)
    return np.clip(onto[0] + share * (onto[1] - onto[0]), *onto)


def unscale_target(targets: np.ndarray, low: float, high: float, onto: tuple[float, float]) -> np.ndarray:
    """Inverse of ``scale_target`` inside the bounds: predictions in the label's own unit."""
    return low + (targets - onto[0]) / (onto[1] - onto[0]) * (high - low)
