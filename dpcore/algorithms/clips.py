"""Where clipping starts when the caller names no clip, and the pace that goes with it, for all gradient methods."""

from __future__ import annotations

import numpy as np

from dpcore.problem import Problem
from dpcore.weighted import without_weights

# Clip norm by the argument of the loss, for rows of norm 1: small errors keep their gradient, large ones shrink, and so
# does the noise. A residual of a target in [-1, 1] is smaller than the slope of a margin, and softmax moves several
# scores at once. Flat optima, measured on Adult and credit (margin), MNIST (scores), bike and wine (residual).
CLIP_SHARE = {"margin": 0.4, "scores": 0.8, "residual": 0.1}
# Summed steps in units of n mu / S, and steps of fixed length, relative to those for margins. S is in proportion to the
# clip norm, so with 0.25 a residual gets the same summed steps as a margin; a target in [-1, 1] is a shorter way off.
PACE_SHARE = {"residual": 0.25}
# Cap of losses in units of the loss at w = 0: a margin may become worse than 0, while a target in [-1, 1] has its
# largest residual there, wherever predictions stay between its bounds.
LOSS_SHARE = {"margin": 3.0, "scores": 3.0, "residual": 1.0}


def clip_share(problem: Problem) -> float:
    """The clip norm for rows of norm 1."""
    return CLIP_SHARE.get(problem.loss.argument, CLIP_SHARE["margin"]) * problem.weight


def usual_clip(problem: Problem) -> float:
    """The clip norm C for rows of norm at most ``problem.norm_bound``."""
    return clip_share(problem) * problem.norm_bound


def pace_share(problem: Problem) -> float:
    """What a horizon or a fixed step that was measured on margins is multiplied by."""
    return PACE_SHARE.get(problem.loss.argument, 1.0)


def loss_at_start(problem: Problem) -> float:
    """The largest loss of a record at w = 0: at margin 0, at residual 1 (a target in [-1, 1]), log K of softmax."""
    if problem.loss.argument == "scores":
        return float(np.log(problem.outputs))
    return float(problem.loss.value(np.array([0.0 if problem.loss.argument == "margin" else 1.0]))[0])


def slope_at_start(problem: Problem) -> float:
    """Size of the slope of a margin loss at w = 0, class weights left out."""
    return abs(float(without_weights(problem.loss).slope(np.zeros(1))[0]))


def usual_cap(problem: Problem) -> float:
    """The cap of a record's loss where candidates are compared."""
    return LOSS_SHARE.get(problem.loss.argument, LOSS_SHARE["margin"]) * loss_at_start(problem)
