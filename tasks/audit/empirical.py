"""The empirical audit of a stored run: its algorithm and settings, attacked on synthetic neighbours."""

from __future__ import annotations

import json
from typing import Any

from dpcore.audit import audit
from dpcore.errors import DPFlowsError
from dpcore.losses import make_loss
from dpcore.problem import Adjacency, Problem
from tasks.audit.subject import CONFIG, Subject

FITS = 500
# These follow from the number of records, which is another one here.
SIZES = ("noise_multiplier", "batch_size", "learning_rate", "sampling_rate")


def measure_run(subject: Subject, fits: int = FITS, workers: int = 2) -> dict[str, Any]:
    """Lower bounds on epsilon for the algorithm of a run at a claim of 4, beside what the run itself claims.

    The noise is calibrated to that claim, at which an attack has power; no record of the data is read.
    """
    statement = subject.statement
    if statement is None:
        return {"skipped": "a record without a statement names no algorithm that could be attacked"}
    training, promise = statement.training, statement.guarantee
    if training.loss == "cross_entropy":
        return {"skipped": "the attacks are on linear models; a network's clipped sums are replayed in the tests"}
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
