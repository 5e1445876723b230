"""Canaries in a real training: planted among the records, looked for in what is released, never
released.

The canaries follow from public facts (dimension, norm bound) and coins; the public n of the data
stays: under add_remove it is a nominal divisor and no count, under replace_one canaries take the
places of records. Price and charge are those of any training with this plan. The attack knows the
records, so its numbers are internal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from dpcore.algorithms import registry
from dpcore.audit.bounds import promise_of
from dpcore.audit.canaries import Canaries, CanaryWatch, Guessed, guess, plant, planted
from dpcore.errors import InputError
from dpcore.noise import secure_generator
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency
from dpcore.train import Planned
from tasks.config import TrainConfig
from tasks.drawing.curves import BLUE, DPI, GREY, INK, ORANGE, canvas
from tasks.kinds.base import Job, Sealed, Words
from tasks.ledger import Ledger
from tasks.options.base import Option, Run

LEAST, MOST = 20, 1000


def count_of(config: TrainConfig, dimension: int) -> int:
    """How many canaries a run gets: the number given, else one for each column, from 20 to
    1,000.
    """
    assert config.audit is not None
    return config.audit.canaries or min(max(dimension, LEAST), MOST)


Array = np.ndarray

CONFIDENCE = 0.95
FIGURE = "figures/canaries.png"
REASON = (
    "canaries were added to the records (audit.canaries), so the model learned from records that "
    "are none"
)
TAG = "dpflows.canaries"
PREFIX = "internal.canary."


def plant_canaries(job: Job, planned: Planned, objective: Sealed) -> tuple[Sealed, Sealed]:
    """The sums over records and canaries, and the watch that looks for them."""
    sums: LinearObjective = objective.open()
    rng = np.random.default_rng(job.config.seed)
    within_blocks = registry[planned.name].bounds_rows_by == "blocks"
    canaries = plant(
        job.problem,
        count_of(job.config, job.problem.dimension),
        rng,
        secure_generator(),
        within_blocks,
    )
    mixed, watch = planted(sums, canaries, rng)
    mixed.check(job.problem)
    return Sealed(mixed), Sealed(watch)


def bound_by_canaries(
    planned: Planned, weights: Array, watch: Sealed, objective: Sealed, folder: Path
) -> dict[str, float]:
    """Lower bounds on epsilon beside the claim, as internal numbers; a figure of both in
    ``folder``.
    """
    target = planned.target
    assert target is not None
    looked: CanaryWatch = watch.open()
    canaries = looked.canaries
    scores = looked.scores(planned, weights, objective.open())
    found = guess(canaries, scores, target.delta, CONFIDENCE, promise_of(target, planned.events))
    numbers = {
        "epsilon_lower_bound": found.epsilon,
        "claimed_epsilon": planned.spent_epsilon,
        "p_value": found.p_value,
        "count": float(len(canaries.y)),
        "guesses": float(found.guesses),
        "right": float(found.right),
        "releases_seen": float(looked.looked),
    }
    if target.accountant_of(planned.events) == "gdp":
        numbers["gaussian_lower_bound"] = found.gaussian_epsilon
    write_figure(canaries, found, numbers, folder / FIGURE)
    return {PREFIX + name: value for name, value in numbers.items()}


def sentence(metrics: dict[str, float]) -> str:
    """One line for the person who trains."""
    found = {
        key.removeprefix(PREFIX): value for key, value in metrics.items() if key.startswith(PREFIX)
    }
    gaussian = found.get("gaussian_lower_bound")
    also = "" if gaussian is None else f", {gaussian:.3g} for Gaussian outputs"
    refuted = found["p_value"] <= 1.0 - CONFIDENCE
    verdict = (
        "the claim is REFUTED: noise or price is wrong" if refuted else "nothing against the claim"
    )
    return (
        f"Canaries: {found['right']:.0f} of {found['guesses']:.0f} guesses right; epsilon is at "
        f"least {found['epsilon_lower_bound']:.3g}{also} ({CONFIDENCE:.0%} confidence), claimed "
        f"{found['claimed_epsilon']:.3g}; chance of such guesses under the claim at most "
        f"{found['p_value']:.2g}: {verdict}."
    )


def write_figure(canaries: Canaries, found: Guessed, numbers: dict[str, float], path: Path) -> None:
    """Draw the scores by coin, and bounds against claim; write a PNG to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, [scores, bars] = canvas(4.6, rows=2)
    edges = np.histogram_bin_edges(found.scores, bins=40)
    yes, no = ("first label", "other label") if canaries.paired else ("included", "left out")
    for name, group, colour in ((yes, canaries.included, BLUE), (no, ~canaries.included, ORANGE)):
        scores.hist(found.scores[group], edges, alpha=0.65, label=name, color=colour)
    scores.set_xlabel("score of a canary: what the releases say of its coin")
    scores.set_ylabel("canaries")
    scores.legend(fontsize=9, frameon=False)
    scores.set_title(
        f"{len(canaries.y)} canaries, {found.right} of {found.guesses} guesses right",
        loc="left",
        fontsize=10,
    )
    titles = {
        "claimed": "claimed_epsilon",
        "at least": "epsilon_lower_bound",
        "Gaussian": "gaussian_lower_bound",
    }
    shown = {label: numbers[key] for label, key in titles.items() if key in numbers}
    colours = [GREY, BLUE, BLUE][: len(shown)]
    drawn = bars.barh(list(shown), list(shown.values()), color=colours, height=0.62)
    bars.bar_label(drawn, fmt=" %.3g", fontsize=9, color=INK)
    bars.invert_yaxis()
    bars.grid(axis="y", visible=False)
    bars.margins(x=0.14)
    bars.set_xlabel("epsilon")
    figure.savefig(path, dpi=DPI)


class Audit(Option):
    """Canaries are planted before anything is reserved, and looked for once the run is
    committed.
    """

    name = "audit"
    asked = "config.audit"
    titles: ClassVar[Mapping[str, str]] = {
        "before_reserve": "plant canaries",
        "after_commit": "find canaries",
    }
    files: ClassVar[tuple[str, ...]] = (FIGURE,)
    names: ClassVar[tuple[str, ...]] = (TAG,)

    def check(self, job: Job) -> None:
        """Under replace_one they take the places of as many records, since the number of records is
        public.
        """
        count, n = count_of(job.config, job.problem.dimension), job.problem.n
        if job.config.privacy.adjacency is Adjacency.REPLACE_ONE and 2 * count > n:
            raise InputError(
                f"Expected audit.canaries of at most half of n={n} under replace_one, where they "
                f"take the places of records, got {count}; lower it, or use "
                "privacy.adjacency=add_remove."
            )

    def before_reserve(self, run: Run) -> Run:
        sums, watch = plant_canaries(run.job, run.planned, run.sums)
        return replace(run, sums=sums, observers=(*run.observers, watch))

    def after_commit(self, run: Run, ledger: Ledger) -> Run:
        [watch] = [one for one in run.observers if isinstance(one.open(), CanaryWatch)]
        found = bound_by_canaries(run.planned, run.weights, watch, run.known, run.place)
        return replace(run, metrics={**run.metrics, **found}, notes=(sentence(found),))

    def words(self, job: Job, planned: Planned | None) -> Words:
        count, dimension = count_of(job.config, job.problem.dimension), job.problem.dimension
        hidden = (
            f"audit.canaries={count} share {dimension} columns and hide each other: about as many "
            "canaries as columns show most."
        )
        return Words(
            reasons=(REASON,),
            warnings=(hidden,) if count > 2 * dimension else (),
            tags={TAG: str(count)},
        )
