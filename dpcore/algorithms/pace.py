"""Step sizes of noisy descent when the caller names none: what stays stable, and how far the noise lets them reach."""

from __future__ import annotations

from math import isfinite

from dpcore.problem import Problem

# Largest step times the curvature bound of the data term: heavy-ball descent is stable up to 2 (1 + momentum).
STABLE = 4.0
MAX_MOMENTUM = 0.95
# Curvature that stands in for a loss without a bound (hinge), where stability is not at stake.
NOMINAL_CURVATURE = 0.25
# The same for a network: step size times clip norm of 0.8 at momentum 0.95, measured on held-out MNIST images.
NETWORK_CURVATURE = 2.0


def curvature_bound(problem: Problem) -> float:
    """Bound of the loss's curvature in its argument, or what stands in for one."""
    if isfinite(problem.loss.smoothness):
        return problem.loss.smoothness
    return NETWORK_CURVATURE if problem.kind == "network" else NOMINAL_CURVATURE * problem.weight


def longest_step(problem: Problem) -> float:
    """Largest stable step, 4 / (norm_bound^2 curvature + 4 l2): the ridge alone allows a step of 1 / l2."""
    return STABLE / (problem.norm_bound**2 * curvature_bound(problem) + STABLE * problem.l2)


def momentum_for(step: float, longest: float) -> float:
    """Momentum with which stable steps, ``longest`` at most, go as far as steps of size ``step`` without it."""
    return min(max(1.0 - longest / step, 0.0), MAX_MOMENTUM)


def reach(problem: Problem, horizon: float, mu: float, clip_norm: float) -> float:
    """Sum of the steps that the noise of the whole run supports: horizon * n mu / (S norm_bound).

    ``mu`` is the signal over noise of the run for sums of sensitivity 1, S = ``problem.sensitivity(clip_norm)``.
    """
    return horizon * problem.n * mu / (problem.sensitivity(clip_norm) * problem.norm_bound)
