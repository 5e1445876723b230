"""An option for the tests of registration: a noisy count of the training records, charged beside
the training.

A name for the tracked run asks for it. Nothing in the product knows of this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting import Events
from dpcore.errors import InputError
from dpcore.mechanisms import Laplace, laplace_for
from dpcore.train import Planned
from tasks.kinds.base import Job, Words
from tasks.kinds.charge import charge_of
from tasks.ledger import Ledger, Reservation, charged_once
from tasks.options.base import Option, Run

EPSILON = 0.25
FILE = "report/headcount.json"


def mechanism_of(job: Job) -> Laplace:
    """One record more or less moves the count by 1."""
    return laplace_for(1.0, EPSILON, job.config.privacy.noise)


class Headcount(Option):
    name = "headcount"
    asked = "config.tracking.name"
    titles: ClassVar[Mapping[str, str]] = {
        "before_plan": "look around",
        "before_reserve": "find a clicker",
        "before_fit": "clear the throat",
        "after_fit": "breathe out",
        "after_commit": "count heads",
    }
    files: ClassVar[tuple[str, ...]] = (FILE,)
    names: ClassVar[tuple[str, ...]] = ("dpflows.headcount",)

    def check(self, job: Job) -> None:
        if job.problem.n < 2:
            raise InputError(
                f"Expected heads to count, got n={job.problem.n}; leave tracking.name out."
            )

    def entry(self, job: Job) -> Events:
        return charge_of(job).events(mechanism_of(job))

    def before_plan(self, job: Job) -> Job:
        return replace(job, warnings=(*job.warnings, "heads are counted"))

    def before_reserve(self, run: Run) -> Run:
        return replace(run, notes=("The clicker is found.",))

    def before_fit(self, run: Run, reservation: Reservation) -> Run:
        return replace(run, notes=(f"Heads are counted for entry {reservation.entry_id} too.",))

    def after_fit(self, run: Run, reservation: Reservation) -> Run:
        return replace(run, notes=(f"{len(run.weights)} weights, no heads yet.",))

    def after_commit(self, run: Run, ledger: Ledger) -> Run:
        records: Any = run.known.open()

        def tell(count: Any, events: Events, entry: str) -> str:
            return json.dumps(
                {
                    "count": float(count[0]),
                    "mechanisms": json.loads(events.to_json()),
                    "entry": entry,
                }
            )

        count, text = charged_once(
            ledger,
            charge_of(run.job),
            mechanism_of(run.job),
            records,
            lambda rows: np.array([rows.n]),
            tell,
            "count",
        )
        (run.place / FILE).parent.mkdir(exist_ok=True)
        (run.place / FILE).write_text(text, encoding="utf-8")
        return replace(
            run,
            metrics={**run.metrics, "released.headcount": float(count[0])},
            notes=("Heads counted.",),
        )

    def words(self, job: Job, planned: Planned | None) -> Words:
        return Words(
            warnings=("a count of heads leaves as well",),
            released=(f"the number of heads with noise: epsilon {EPSILON:g} more",),
            limits=("Heads are counted, not hats.",),
            report={"headcount": EPSILON},
            tags={"dpflows.headcount": "yes"},
        )
