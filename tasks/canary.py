"""Canaries in a real training: planted among the records, looked for in the released weights, never released.

The canaries follow from public facts (dimension, norm bound, blocks) and coins; the public n of the data stays, which
under add_remove is a nominal divisor and no count. Price and charge are those of any training with this plan.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.sparse import csr_array, issparse, vstack

from dpcore.algorithms import registry
from dpcore.audit.canaries import Canaries, Guessed, guess, plant
from dpcore.errors import InputError
from dpcore.noise import secure_generator
from dpcore.objective import LinearObjective
from dpcore.problem import Adjacency
from dpcore.train import Planned
from tasks.config import TrainConfig
from tasks.training import Job, Sealed

Array = np.ndarray

CONFIDENCE = 0.95
FIGURE = "figures/canaries.png"
REASON = "canaries were added to the records (audit.canaries), so the model learned from records that are none"
TAG = "dpflows.canaries"


def check_canaries(job: Job) -> None:
    """Raise ``InputError``, before a file is opened, where canaries have no theorem or no place in this training."""
    config, schema = job.config, job.schema
    if config.audit is None:
        return
    faults = {
        "sessions of a ranking are no single records": job.ranker is not None,
        "a network's canaries would need gradients of their own": job.network is not None,
        "the attack scores one margin, so it needs a binary label": schema.label.kind != "binary",
        "a canary is a record and the unit is another": schema.unit != "record",
        "each coin adds or removes a record, so the theorem needs privacy.adjacency=add_remove": (
            config.privacy.adjacency is not Adjacency.ADD_REMOVE
        ),
        "a search (tune) splits the records before it trains": config.tune is not None,
        "bounds and levels must be declared: an estimate would be made without the canaries": (
            bool(schema.undeclared_columns)
        ),
        "evaluate.release would pay for a metric of a model that is never released": (
            config.evaluate.release is not None
        ),
    }
    for reason, found in faults.items():
        if found:
            raise InputError(
                f"Expected no audit.canaries here, got {config.audit.canaries}: {reason}; leave the section audit "
                "out, or use `dpflows audit RUN --empirical`."
            )


def plant_canaries(job: Job, planned: Planned, objective: Sealed) -> tuple[Sealed, Sealed]:
    """The sums over records and included canaries, and the canaries with their coins."""
    assert job.config.audit is not None
    sums: LinearObjective = objective.open()
    rng = np.random.default_rng(job.config.seed)
    like_rows = getattr(registry[planned.name], "bounds_rows_by", "") == "blocks"
    canaries = plant(job.problem, job.config.audit.canaries, rng, secure_generator(), like_rows)
    X, y = canaries.rows
    X = X.astype(sums.X.dtype)
    rows = vstack([sums.X, csr_array(X)], format="csr") if issparse(sums.X) else np.concatenate([sums.X, X])
    mixed = LinearObjective(rows, np.concatenate([sums.y, y]), job.problem.loss)
    mixed.check_records(job.problem.dimension, job.problem.norm_bound)
    return Sealed(mixed), Sealed(canaries)


def measure_canaries(planned: Planned, weights: Array, canaries: Sealed, folder: Path) -> dict[str, float]:
    """Lower bound on epsilon beside the claim, as internal numbers; a figure of both in ``folder``."""
    target = planned.target
    assert target is not None
    planted: Canaries = canaries.open()
    found = guess(planted, weights, np.zeros_like(weights), target.delta, CONFIDENCE)
    draw(planted, found, planned.spent_epsilon, folder / FIGURE)
    return {
        "internal.canary.epsilon_lower_bound": found.epsilon,
        "internal.canary.claimed_epsilon": planned.spent_epsilon,
        "internal.canary.count": float(len(planted.y)),
        "internal.canary.guesses": float(found.guesses),
        "internal.canary.right": float(found.right),
    }


def sentence(metrics: dict[str, float]) -> str:
    """One line for the person who trains."""
    bound, claim = metrics["internal.canary.epsilon_lower_bound"], metrics["internal.canary.claimed_epsilon"]
    verdict = "ABOVE the claim: noise or price is wrong" if bound > claim else "not above the claim"
    return (
        f"Canaries: {metrics['internal.canary.right']:.0f} of {metrics['internal.canary.guesses']:.0f} guesses right; "
        f"epsilon is at least {bound:.3g} ({CONFIDENCE:.0%} confidence), claimed {claim:.3g}: {verdict}."
    )


def reasons(config: TrainConfig) -> list[str]:
    """Why a run with canaries must never leave; empty for the others."""
    return [] if config.audit is None else [REASON]


def draw(canaries: Canaries, found: Guessed, claimed: float, path: Path) -> None:
    """Draw scores of included and left-out canaries, and bound against claim; write a PNG to ``path``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    scores, bars = figure.subplots(1, 2, width_ratios=(3, 1))
    edges = np.histogram_bin_edges(found.scores, bins=40)
    scores.hist(found.scores[canaries.included], edges, alpha=0.6, label="included", color="#1f5a99")
    scores.hist(found.scores[~canaries.included], edges, alpha=0.6, label="left out", color="#c2571a")
    scores.set_xlabel("score (margin under the released weights)")
    scores.set_ylabel("canaries")
    scores.legend(fontsize=8)
    drawn = bars.bar(["claimed", "lower bound"], [claimed, found.epsilon], color=["#555555", "#1f5a99"])
    bars.bar_label(drawn, fmt="%.3g")
    bars.set_ylabel("epsilon")
    figure.suptitle(f"{len(canaries.y)} canaries, {found.right} of {found.guesses} guesses right", fontsize=10)
    figure.savefig(path, dpi=120)
