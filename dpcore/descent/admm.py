"""Linearised ADMM for mean loss(x) + l2/2 ||x||^2 + h(z) with x = z: its updates, its steps, what
the family shares.

    x+ = (-g - y + rho z + x / eta) / (rho + 1/eta) = x - k (g + y + rho (x - z)),   k = eta / (1 +
        eta rho)
    z+ = prox_{h/r}(x+ + y / rho),   r = rho (1 - momentum),   y+ = y + rho (x+ - z+)

Chen (2020), (4.8)-(4.10); Ouyang, He, Tran & Gray (2013). g is the (noisy) gradient at x, the only
quantity that depends on records. k is the step that x really takes: it never exceeds 1/rho, so a
large rho is early stopping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpcore.descent.gradient import (
    RANKING_HORIZON,
    STEP_RULES,
    contracting_step,
    decay_total,
    decays,
    longest_step,
    momentum_for,
    ranks_columns,
    step_share,
    total_step,
    usual_clip,
)
from dpcore.errors import (
    if_given,
    require_below_one,
    require_choice,
    require_count,
    require_positive,
)
from dpcore.losses import Array
from dpcore.penalties import Penalty, penalties
from dpcore.problem import Problem

SCHEDULES = ("constant", "linear", "epoch")
OUTPUTS = ("z", "x")

# rho in units of 1 / (first step): x and z then agree to a tenth of a step, and the steps are
# hardly shortened.
COUPLING = 0.1
# Sum of the steps, in units of (norm_bound * noise of the whole run)^-1, where columns need no
# ranking. From Adult.
HORIZON = 1.5


def usual_horizon(problem: Problem) -> float:
    """The horizon H where the caller names none, ``ADMMSettings``."""
    return (RANKING_HORIZON if ranks_columns(problem) else HORIZON) * step_share(problem)


@dataclass(frozen=True, slots=True)
class Iterate:
    """Primal x, its sparse copy z and the dual y, each of one shape (d,) or (parties, d) for x and
    y.
    """

    x: Array
    z: Array
    y: Array

    @classmethod
    def start(cls, size: int) -> Iterate:
        """All zero."""
        return cls(np.zeros(size), np.zeros(size), np.zeros(size))

    def pull(self, rho: float) -> Array:
        """y + rho (x - z): what the constraint adds to the gradient."""
        pull: Array = self.y + rho * (self.x - self.z)
        return pull

    def moved(
        self, x: Array, rho: float, penalty: Penalty, dimension: int, momentum: float = 0.0
    ) -> Iterate:
        """The iterate after x became ``x``: z by the proximal step, y by the dual step. Reads no
        record.

        With ``momentum`` x follows each gradient 1 / (1 - momentum) times, and so does z the
        penalty: else they would come to rest where it is as much weaker.
        """
        centre = (x + self.y / rho).reshape(-1, dimension)
        z = penalty.prox(centre, 1.0 / (rho * (1.0 - momentum))).reshape(x.shape)
        return Iterate(x, z, self.y + rho * (x - z))

    def output(self, name: str) -> Array:
        """The vector to return: z is exactly sparse, x is where the gradient was taken."""
        return self.z if name == "z" else self.x


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps k_t that x takes, the penalty parameter rho and the momentum. With ``relative`` decay
    d_t k_t is ``first`` d_t, of a given learning rate (``rate``) eta d_t / (1 + eta d_t rho).
    """

    first: float
    rho: float
    momentum: float
    relative: Callable[[], Array]
    rate: bool = False

    def size(self, decay: Any) -> Any:
        """The step at ``decay``, a number or an array."""
        eta = self.first * decay
        return eta / (1.0 + eta * self.rho) if self.rate else eta

    @property
    def sizes(self) -> Array:
        """All steps, shape (steps,)."""
        return np.asarray(self.size(self.relative()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ADMMSettings:
    """What ssADMM, mpADMM and DP-ADMM have in common; what is left out follows from public facts
    (``steps_for``).

    ``clip_norm`` C bounds a record's gradient (of the data term); default ``clips``.
    ``learning_rate`` eta and ``penalty_parameter`` rho are the papers'; without them the steps k_t
    sum to ``horizon`` * n mu / (S norm_bound), S = ``problem.sensitivity(C)``, mu the signal of the
    whole run over its noise: a direction of curvature h is worth learning when h > 1 / H.
    ``horizon`` left out is 1.5, or 0.08 where ``selection.ranks_columns``, a quarter of either for
    residuals.

    ``step_rule`` "paper": eta = 2 / (l2 + L), the longest step that contracts (Chen 2020, Theorem
    3.1), where ``learning_rate`` is left out; the presets of the papers take it.

    ``schedule``: ``constant``, ``linear`` to 0, or ``epoch`` (eta / h, h the current epoch, Chen
    2020, 4.6.4). ``penalty`` names a class of ``dpcore.penalties``; its strength is ``problem.l1``.
    """

    noise_multiplier: float = 2.0
    steps: int = 128
    clip_norm: float | None = None
    learning_rate: float | None = None
    penalty_parameter: float | None = None
    momentum: float | None = None
    schedule: str = "constant"
    horizon: float | None = None
    penalty: str = "l1"
    output: str = "z"
    step_rule: str = "horizon"

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)
        require_count(steps=self.steps)
        require_choice(SCHEDULES, schedule=self.schedule)
        require_choice(OUTPUTS, output=self.output)
        require_choice(STEP_RULES, step_rule=self.step_rule)
        require_choice(tuple(penalties), penalty=self.penalty)
        if_given(
            require_positive,
            clip_norm=self.clip_norm,
            learning_rate=self.learning_rate,
            penalty_parameter=self.penalty_parameter,
            horizon=self.horizon,
        )
        if_given(require_below_one, momentum=self.momentum)

    def comes_to(self, problem: Problem, steps: Steps) -> dict[str, float]:
        """What the fields that were left out come to on ``problem``, with its ``steps``."""
        return {
            "clip_norm": self.clip(problem),
            "learning_rate": steps.first if self.learning_rate is None else self.learning_rate,
            "penalty_parameter": steps.rho,
            "momentum": steps.momentum,
            "horizon": self.horizon or usual_horizon(problem),
        }

    def clip(self, problem: Problem) -> float:
        """The clip norm C."""
        return usual_clip(problem) if self.clip_norm is None else self.clip_norm

    def steps_for(self, problem: Problem, mu: float, steps_per_epoch: float = 1.0) -> Steps:
        """Steps, rho and momentum; ``mu`` is the signal over noise of the run for a sum of
        sensitivity 1.
        """
        relative = partial(decays, self.schedule, self.steps, steps_per_epoch)
        eta = self.learning_rate
        if eta is None and self.step_rule == "paper":
            eta = contracting_step(problem)
        if eta is not None:
            momentum = self.momentum or 0.0
            rho = COUPLING / eta if self.penalty_parameter is None else self.penalty_parameter
            return Steps(eta, rho, momentum, relative, rate=True)
        longest = longest_step(problem)
        step = total_step(
            problem, self.horizon or usual_horizon(problem), mu, self.clip(problem)
        ) / decay_total(self.schedule, self.steps, steps_per_epoch)
        momentum = momentum_for(step, longest) if self.momentum is None else self.momentum
        first = min(step * (1.0 - momentum), longest)
        if self.penalty_parameter is not None:
            # The x-step cannot be longer than 1 / rho, whatever eta.
            first = first / (1.0 + first * self.penalty_parameter)
        rho = COUPLING / first if self.penalty_parameter is None else self.penalty_parameter
        return Steps(first, rho, momentum, relative)
