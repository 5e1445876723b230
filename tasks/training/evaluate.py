"""How good a trained model is on the records, beside the exact baselines: internal numbers, alike
for all kinds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite, nan
from pathlib import Path

import numpy as np

from dpcore.accounting.observers import Iterates
from tasks.data import Loaded
from tasks.drawing.curves import curve_figure
from tasks.kinds.base import Job, Metrics, Sealed
from tasks.kinds.quality import means_by_group

Array = np.ndarray


def measure(
    job: Job,
    weights: Array,
    loaded: Sealed,
    objective: Sealed,
    folder: Path | None = None,
    iterates: Sealed | None = None,
) -> dict[str, float]:
    """Exact numbers on records: internal, and released as well where the whole data set is declared
    public.

    On the test part where there is one, else on the training records. Keys carry their prefix. With
    ``folder`` the quality by ``evaluate.subgroup`` is written to ``report/subgroups.json``, and
    what its kind has to show to ``report/NAME.json``: numbers, and curves over the ``iterates``
    that were kept (``Kind.iterates``).
    """
    kind, sums = job.kind, objective.open()
    data: Loaded = loaded.open()
    part = kind.held_out(job, data, sums)
    named = {"": kind.quality(job, part, weights)}
    if job.config.evaluate.baselines:
        named |= kind.baselines(job, data.train, part, sums)
    exact = {
        f"{name}{key}": value for name, values in named.items() for key, value in values.items()
    }
    if data.groups is not None and (each := kind.by_record(job, part, weights)) is not None:
        metric, values = each
        exact |= means_by_group(job, values, metric, data.groups, folder)
    exact |= kind.counts(job, data)
    found = {f"internal.{key}": value for key, value in exact.items()}
    if job.public:
        found |= {f"released.{key}": value for key, value in named[""].items()}
    if folder is not None and kind.report:
        seen: Iterates | None = None if iterates is None else iterates.open()
        path = [] if seen is None else seen.path(weights)
        curve = kind.curve(job, path, part, sums) if len(path) > 2 else []
        write(job, folder, named, found, [row for row in curve if all(map(isfinite, row.values()))])
    return found


def write(
    job: Job, folder: Path, named: Mapping[str, Metrics], found: Metrics, curve: Sequence[Metrics]
) -> None:
    """The numbers as JSON, and the curves as figures; ``named``: the metrics of the model and of
    each baseline.
    """
    kind = job.kind
    stored = {
        "schema_version": 1,
        "internal": not job.public,
        **kind.page(job, named, found),
        "curve": list(curve),
    }
    (folder / kind.numbers).parent.mkdir(parents=True, exist_ok=True)
    (folder / kind.numbers).write_text(json.dumps(stored, indent=1), encoding="utf-8")
    if not curve:
        return
    (folder / kind.figures).mkdir(parents=True, exist_ok=True)
    rows = [{"label": f"private {kind.noun}", "curve": curve}]
    title = f"{job.schema.name}{kind.measured_on}{'' if job.public else ' (internal)'}"
    for metric in kind.curves(job):
        lines = {
            kind.baseline_words.get(name, name.rstrip("_").replace("_", " ")): values[metric]
            for name, values in named.items()
            if name and isfinite(values.get(metric, nan))
        }
        curve_figure(rows, lines, metric, title, folder / kind.figures / f"{metric}.png")
