"""Where clipping starts when the caller names no clip: one public rule for all gradient methods."""

from __future__ import annotations

import numpy as np

from dpcore.problem import Problem

# Clip norm by the argument of the loss, for rows of norm 1: small errors keep their gradient, large ones shrink, and so
# does the noise. A residual of a target in [-1, 1] is smaller than the slope of a margin, and softmax moves several
# scores at once. Flat optima, measured on Adult and credit (margin), MNIST (scores), bike and wine (residual).
CLIP_SHARE = {"margin": 0.4, "scores": 0.8, "residual": 0.1}


def clip_share(problem: Problem) -> float:
    """The clip norm for rows of norm 1."""
    return CLIP_SHARE.get(problem.loss.argument, CLIP_SHARE["margin"]) * problem.weight


def usual_clip(problem: Problem) -> float:
    """The clip norm C for rows of norm at most ``problem.norm_bound``."""
    return clip_share(problem) * problem.norm_bound


def loss_at_start(problem: Problem) -> float:
    """The largest loss of a record at w = 0: of margin 0, of a residual of 1 (a target in [-1, 1]), log K of softmax.

    Clips of losses are a share of it.
    """
    if problem.loss.argument == "scores":
        return float(np.log(problem.outputs))
    return float(problem.loss.value(np.array([0.0 if problem.loss.argument == "margin" else 1.0]))[0])
