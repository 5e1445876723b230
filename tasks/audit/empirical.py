"""The empirical audit of a stored run: its algorithm and settings, attacked on synthetic
neighbours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpcore.audit import audit
from dpcore.errors import DPFlowsError
from dpcore.losses import make_loss
from dpcore.problem import Adjacency, Problem
from tasks.audit.subject import CONFIG, Subject

FITS = 500
# These follow from the number of records, which is another one here.
SIZES = ("noise_multiplier", "batch_size", "learning_rate", "sampling_rate")
# More steps take longer and show no more: the noise is calibrated to the claim of whatever is run.
STEPS = 32
FIGURE = "figures/empirical.png"
PREFIX = "internal.empirical."


def attack_run(subject: Subject, fits: int = FITS, workers: int = 2) -> dict[str, Any]:
    """Lower bounds on epsilon for the algorithm of a run at a claim of 4, beside what the run
    itself claims.

    The noise is calibrated to that claim, at which an attack has power; no record of the data is
    read.
    """
    statement = subject.statement
    if statement is None:
        return {"skipped": "a record without a statement names no algorithm that could be attacked"}
    training, promise = statement.training, statement.guarantee
    if training.loss == "cross_entropy":
        return {
            "skipped": "the attacks are on linear models; a network's clipped sums are "
            "replayed in the tests"
        }
    problem = Problem(
        n=statement.data.public_n,
        dimension=statement.data.dimension,
        loss=make_loss("logistic"),
        adjacency=Adjacency(promise.adjacency),
        l2=training.l2,
        norm_bound=statement.data.norm_bound,
    )
    given = json.loads(subject.files[CONFIG])["algorithm"]
    settings = {key: value for key, value in given.items() if key not in ("name", "preset", *SIZES)}
    steps = training.parameters.get("steps")
    if isinstance(steps, int):
        settings["steps"] = min(steps, STEPS)
    try:
        found = audit(training.algorithm, settings, problem=problem, fits=fits, workers=workers)
    except DPFlowsError as error:
        return {"skipped": str(error)}
    return {
        "claimed_by_the_run": promise.epsilon,
        "claimed_here": found.claimed,
        "lower_bound_any_mechanism": found.clopper_pearson,
        "lower_bound_gaussian_outputs": found.gaussian_tradeoff,
        "above_the_claim": found.exceeds,
        "statistic": found.statistic,
        "fits": found.fits,
        "confidence": found.confidence,
        "seconds": found.seconds,
    }


def metrics_of(measured: dict[str, Any]) -> dict[str, float]:
    """The numbers of a measurement by the names under which a run keeps them; none where it was
    skipped.
    """
    names = ("claimed_here", "lower_bound_any_mechanism", "lower_bound_gaussian_outputs", "fits")
    return {PREFIX + name: float(measured[name]) for name in names if name in measured}


def write_figure(measured: dict[str, Any], path: Path) -> None:
    """Draw both lower bounds beside the claim at which they were measured; write a PNG to
    ``path``.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    heights = [measured[f"lower_bound_{kind}"] for kind in ("any_mechanism", "gaussian_outputs")]
    bars = axes.bar(
        ["any mechanism", "Gaussian outputs"], heights, color=["#1f5a99", "#6f9fd0"], width=0.5
    )
    axes.bar_label(bars, fmt="%.3g")
    axes.axhline(measured["claimed_here"], color="#555555", linestyle="--")
    axes.annotate(
        f"claimed {measured['claimed_here']:.3g}",
        (0.5, measured["claimed_here"]),
        ha="center",
        va="bottom",
    )
    axes.set_ylim(0.0, 1.15 * max(*heights, measured["claimed_here"]))
    axes.set_ylabel("epsilon, at least (95 %)")
    axes.set_title(f"2 x {measured['fits']} fits on synthetic neighbours", fontsize=10)
    figure.savefig(path, dpi=120)
