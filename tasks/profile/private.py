"""Draft a schema from charged estimates alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcore.accounting import Events, Target, release_once
from dpcore.accounting.budget import events_once
from dpcore.errors import InputError
from dpcore.estimate import Columns, EstimateColumns, calibrated, calibrated_gaussian, estimate_columns
from dpcore.mechanisms import Gaussian
from dpcore.problem import Adjacency
from tasks.profile.cells import MARKS, read_cells
from tasks.profile.draft import Draft, checked, draft_name
from tasks.profile.owner import Pay

# A profile belongs to no run, and bounds are chosen by the exponential mechanism, which has no exact form.
FORM = "rounded"


def counting(columns: int, target: Target, adjacency: Adjacency) -> Gaussian:
    """The noisy counts of all rows and of each column's numbers, for a tenth of epsilon: a record moves each by 1."""
    width = sqrt(columns + 1.0) * (1.0 if adjacency is Adjacency.ADD_REMOVE else 2.0)
    part = Target(0.1 * target.epsilon, target.delta / 2, target.conversion)
    return calibrated_gaussian(width, part, adjacency, FORM)


def estimate_of(
    numeric: Sequence[str],
    texts: Sequence[str],
    rows: int,
    adjacency: Adjacency,
    target: Target,
) -> EstimateColumns:
    """The calibrated estimate of bounds and levels."""
    estimate = EstimateColumns(numeric=tuple(numeric), texts=tuple(texts), n=rows, adjacency=adjacency)
    return calibrated(estimate, target, FORM)


@contextmanager
def free(events: Events) -> Iterator[None]:
    """No ledger counts the releases."""
    yield None


def draft_private(
    path: str | Path,
    label: str,
    target: Target,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    name: str | None = None,
    pay: Pay = free,
    require: Callable[[Sequence[Events]], None] | None = None,
    fixed_noise_seed: int | None = None,
) -> Draft:
    """Draft a schema of which only the layout of the file and its header are read for free; ``target`` pays the rest.

    A tenth of epsilon tells by noisy counts how many rows there are and which columns hold numbers, the rest estimates
    their bounds and the other columns' levels; the label's two texts are levels like any others. ``pay`` charges each
    of the two lists of releases before it is drawn; ``require`` is asked first whether there is room for both, however
    many columns turn out to hold numbers.
    """
    path, adjacency = Path(path), Adjacency(adjacency)
    draft = Draft({"schema_version": 1, "name": draft_name(path, name)})
    frame, layout = read_cells(path, [])
    if label not in frame:
        raise InputError(f"Expected a label column of {path}, got label={label!r}; it has {', '.join(frame.columns)}.")
    names = list(frame.columns)
    first = counting(len(names), target, adjacency)
    charged = events_once(first, adjacency=adjacency, unit="record", form=FORM)
    rest = Target(0.9 * target.epsilon, target.delta / 2, target.conversion)
    if require is not None:
        for k in range(len(names)):
            require((charged, estimate_of(names[:k], names[k:], 1, adjacency, rest).events(form=FORM)))
    numbers = {c: pd.to_numeric(frame[c], errors="coerce") for c in names}
    cells = Columns({c: v.to_numpy(dtype=float) for c, v in numbers.items()}, {}, len(frame))
    with pay(charged) as on_charge:
        counts = release_once(
            first,
            cells,
            lambda batch: np.array([batch.n, *_filled(batch, names)], dtype=float),
            adjacency=adjacency,
            unit="record",
            form=FORM,
            on_charge=on_charge,
            fixed_noise_seed=fixed_noise_seed,
        ).value
    rows = max(int(counts[0]), 1)
    if target.delta >= 1.0 / rows:
        draft.notes.append(
            f"delta={target.delta:g} is not below 1/n for about {rows} rows: publishing one of them at random would "
            "have satisfied it; take a smaller one from here on"
        )
    numeric = [c for c, hits in zip(names, counts[1:], strict=True) if c != label and hits > 0.6 * rows]
    texts = [c for c in names if c not in numeric]
    estimate = estimate_of(numeric, texts, rows, adjacency, rest)
    finite = {c: v[np.isfinite(v)] for c in numeric if (v := numbers[c].to_numpy(dtype=float)) is not None}
    cells = Columns(finite, {c: [t.encode() for t in frame[c] if t not in MARKS] for c in texts}, len(frame))
    with pay(estimate.events(form=FORM)) as on_charge:
        found = estimate_columns(estimate, cells, on_charge=on_charge, fixed_noise_seed=fixed_noise_seed, form=FORM)
    draft.events = charged.then(estimate.events(form=FORM))
    source = {**layout.pop("source", {}), "path": str(path)}
    draft.values |= {"public": {"n": round(0.8 * rows)}, "source": source, **layout}
    draft.values["columns"] = {c: _found(found[c]) for c in names if c != label}
    levels = list(found[label]["levels"])
    draft.values["label"] = {"column": label, "positive": levels[1:2], "negative": levels[:1]}
    if len(levels) > 2:
        draft.values["label"] = {"column": label, "kind": "classes", "levels": levels}
    draft.values["split"] = {"kind": "hash", "test_share": 0.2}
    if len(levels) < 2:
        draft.notes.append(f"label {label!r}: {len(levels)} texts were found; declare positive and negative by hand")
    return checked(draft)


def _filled(batch: Columns, names: Sequence[str]) -> list[int]:
    """How many cells of each column are numbers."""
    return [int(np.count_nonzero(~np.isnan(batch.numbers[c]))) for c in names]


def _found(fields: dict[str, Any]) -> dict[str, Any]:
    if "low" in fields:
        return {"kind": "numeric", **fields, "fill": "zeros"}
    if not fields["levels"]:
        return {"kind": "ignore"}
    return {"kind": "categorical", "levels": list(fields["levels"]), "unknown": "zeros", "fill": "zeros"}
