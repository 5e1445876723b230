"""Noisy gradient descent whose steps come from a private backtracking line search; the budget grows
where it fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite, sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, NOT_PRINTED, Algorithm, Preset, register
from dpcore.algorithms.dp_sgd import DPSGD
from dpcore.descent.gradient import (
    NoisyGradient,
    loss_at_start,
    on_batch,
    usual_cap,
    usual_clip,
)
from dpcore.descent.line_search import (
    LineSearchSettings,
    State,
    angle_between,
    candidates,
)
from dpcore.errors import InputError
from dpcore.losses import Array
from dpcore.mechanisms import AboveThreshold, InTurn, Mechanism, Rounds
from dpcore.objective import Objective
from dpcore.objective.rounding import FAR, rounded_sum, within
from dpcore.problem import Adjacency, Problem, Requires

# Relative rounding of one product or sum in float32, the coarsest numbers that records may have.
UNIT_ROUNDING = 6e-8

PRINTED = "Chen (2020), 5.6.4, pp. 72-75"
PAPER = Preset(
    iterations=(50, f"{PRINTED}: epsilon / (2 x 50) an iteration"),
    sampling_rate=(0.1, PRINTED),
    search_ratio=(1.0, f"{PRINTED}: epsilon_BT = epsilon_iter, rho_grad = epsilon_iter^2 / 2"),
    search_every=(1, "Chen (2020), Algorithm 5.2, p. 69"),
    query=("difference", "Chen (2020), Algorithm 5.1, p. 63"),
    slope=("noisy", "Chen (2020), Algorithm 5.1, p. 63"),
    noise=("laplace", "Chen (2020), 5.6.6, pp. 76-78"),
    armijo=(0.5, f"{PRINTED}: alpha"),
    backtrack=(0.8, f"{PRINTED}: beta"),
    max_queries=(30, f"{NOT_PRINTED}max_it; 0.8^30 is 1/800"),
    first_step=(1.0, f"{NOT_PRINTED}the search goes down from it"),
    momentum=(0.0, "Chen (2020), Algorithm 5.2, p. 69"),
    decay=(False, "Chen (2020), Algorithm 5.2, p. 69"),
    clip_norm=(3.0, f"{PRINTED}: C_grad"),
    clip_loss=(1.0, f"{PRINTED}: C_obj"),
    budget_growth=("adaptive", "Chen (2020), Algorithm 5.3, p. 70"),
    growth=(0.3, f"{PRINTED}: xi"),
    angle_high=(1.1, f"{PRINTED}: phi_max"),
    angle_low=(0.5, f"{PRINTED}: phi_min"),
    angle_memory=(0.8, f"{PRINTED}: psi"),
    reset_every=(10, f"{PRINTED}: tau"),
    reset_factor=(1.2, f"{PRINTED}: varsigma"),
)
NETWORK = PAPER.but(
    iterations=(2000, f"{NOT_PRINTED}ten expected epochs of 1/q"),
    sampling_rate=(0.005, f"{PRINTED}: q = 1/200"),
    search_ratio=(1.0 / 3.0, "Chen (2020), 5.6.7, pp. 76-78: of (1 + ratio^2) / (2 m^2) a tenth"),
    noise=("gaussian", "Chen (2020), 5.6.7, pp. 76-78"),
    armijo=(0.001, f"{PRINTED}: alpha"),
    clip_loss=(3.0, f"{PRINTED}: C_obj"),
    budget_growth=("none", "Chen (2020), 5.6.7, pp. 76-78"),
    on_failure=("smallest_step", "Chen (2020), 5.6.7, pp. 76-78"),
)


@register("dp_blsgd", "cheb")
@dataclass(frozen=True, slots=True, kw_only=True)
class DPBLSGD(LineSearchSettings, Algorithm):
    """w <- w - eta v, v = momentum v + g, g = (sum clip(g_i, C) + noise) / (q n) + l2 w, eta from a
    private search.

    The search asks, for eta = eta_0 beta^k, k < ``max_queries``, by ``AboveThreshold`` on a batch
    of its own, whether

        sum_i [l_i(w) - l_i(w - eta v)] - q n armijo eta slope >= 0,   slope = <g, v>,

    with losses cut to [0, ``clip_loss``] (``query`` = "difference"; one record moves it by at most
    that). "quotient" divides both sides by eta ||v||: one record moves (l_i(w) - l_i(w - eta v)) /
    (eta ||v||) by at most R = ``problem.lipschitz``, because the loss is R-Lipschitz in w (linear
    models), for every eta and without cutting losses; what float32 may add is put into the divisor.
    ``slope`` "unbiased" subtracts the known energy of the noise from it, "noisy" does not.

    Chen (2020), Algorithms 5.1 to 5.3, with these repairs: every release reads a fresh batch and is
    priced for it (one batch that serves k queries costs up to thousands of times more than k
    amplified ones); the divisor q n is a public constant, never the realised size; the search has
    the proved price of ``AboveThreshold``, Laplace unless ``noise`` says gaussian; a query runs
    only if it and what must follow are affordable. The run may spend the price of ``iterations``
    rounds without failures and stops by itself at the last released iterate.

    Gradient: rho = 1 / (2 multiplier^2); search: epsilon_BT = ``search_ratio`` / multiplier, a half
    on the threshold and a quarter on each query. The search runs in every ``search_every``-th
    iteration, its step serves until the next. When it fails, a second gradient is drawn and
    averaged, with weights rho, and the search is repeated. Before that ``budget_growth`` "always"
    raises both budgets by ``growth``; "adaptive" compares the angle of the two gradients with the
    running mean of angles: above ``angle_high`` times it (or above 90 degrees) rho grows, below
    ``angle_low`` times it epsilon_BT does; "difference" (DP-AGD) raises rho and spends only the
    difference on the second gradient. ``on_failure`` "smallest_step" takes eta_0 beta^max_queries
    instead. Each growth of rho shrinks both clips once an iteration by ``clip_decay``. eta_0
    becomes min(eta_0, 1.2 max of the last ``reset_every`` steps).

    ``first_step`` left out is ``stretch`` times the step that ``dp_sgd`` derives from public facts.

    Where the budget goes on Adult, at the defaults, in the paper's form and beside ``dp_sgd``,
    stands in ``docs/benchmarks.md``.
    """

    requires: ClassVar[Requires] = Requires(l1=False, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "every iterate"
    argument: ClassVar[str] = (
        "A record enters each gradient sum clipped to norm C and each question of the search with "
        "a loss difference cut to a public bound, every release on a batch of its own (Chen 2020, "
        "ch. 5, repaired; Abadi et al. 2016)."
    )
    adaptive: ClassVar[bool] = True
    default_l2: ClassVar[float] = 1e-4
    small: ClassVar[dict[str, Any]] = {
        "iterations": 4,
        "clip_norm": 0.05,
        "clip_loss": 0.5,
        "search_every": 2,
    }
    limit: ClassVar[dict[str, Any]] = {
        "iterations": 300,
        "sampling_rate": 1.0,
        "clip_loss": 100.0,
        "momentum": 0.0,
    }
    presets: ClassVar[dict[str, Preset]] = {"paper": PAPER, "paper_network": NETWORK}

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        state = self.start(problem)
        return {
            "search_rate": self.loss_rate,
            "first_step": state.first_step,
            "momentum": self._descent(problem, state.clip_norm).step_and_momentum(problem)[1],
            "clip_norm": state.clip_norm,
            "clip_loss": state.clip_loss,
        }

    def start(self, problem: Problem) -> State:
        """The state before the first release, from public facts."""
        clip_norm = self.clip_norm or usual_clip(problem)
        step = (
            self.first_step
            or self.stretch * self._descent(problem, clip_norm).step_and_momentum(problem)[0]
        )
        zero = np.zeros(problem.dimension * problem.outputs)
        return State(
            w=zero,
            velocity=np.zeros_like(zero),
            multiplier=self.noise_multiplier,
            search_epsilon=self.search_ratio / self.noise_multiplier,
            clip_norm=clip_norm,
            clip_loss=self.clip_loss or usual_cap(problem),
            first_step=step,
            step=step,
        )

    def _descent(self, problem: Problem, clip_norm: float) -> DPSGD:
        """``dp_sgd`` with these gradients, whose rules for step size and momentum are used."""
        return DPSGD(
            noise_multiplier=self.noise_multiplier,
            steps=self.iterations,
            sampling_rate=self.sampling_rate,
            clip_norm=clip_norm,
            momentum=self.momentum,
            schedule="linear" if self.decay else "constant",
        )

    def by_quotient(self, problem: Problem) -> bool:
        """Whether the search asks difference quotients; raises ``InputError`` where their bound is
        unknown.
        """
        if self.query != "quotient":
            return False
        if problem.kind != "linear" or not isfinite(problem.lipschitz):
            raise InputError(
                "Expected a linear model and a loss of bounded slope for query='quotient', got "
                f"kind={problem.kind!r}, loss={problem.loss.name!r}; use query='difference'."
            )
        return True

    def gradient(self, problem: Problem, clip_norm: float, multiplier: float) -> NoisyGradient:
        """The release of a gradient sum."""
        return NoisyGradient.of(problem, clip_norm, multiplier, self.sampling_rate)

    def search(self, problem: Problem, clip_loss: float, epsilon: float) -> Mechanism:
        """The release of a step: epsilon/2 and epsilon/4 (Laplace), or rho = epsilon^2 / 2 split
        alike (Gaussian).
        """
        bound = problem.lipschitz if self.by_quotient(problem) else clip_loss
        unit = problem.sensitivity(bound)
        scales = (2.0, 4.0) if self.noise == "laplace" else (sqrt(3.0), sqrt(6.0))
        above = AboveThreshold(
            unit,
            scales[0] * unit / epsilon,
            scales[1] * unit / epsilon,
            self.max_queries,
            noise=self.noise,
        )
        return on_batch(problem, self.loss_rate, above)

    @property
    def loss_rate(self) -> float:
        """Sampling rate of the loss queries."""
        return self.sampling_rate if self.search_rate is None else self.search_rate

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        state = self.start(problem)
        gradient = self.gradient(problem, state.clip_norm, state.multiplier).mechanism
        search = self.search(problem, state.clip_loss, state.search_epsilon)
        searches = ceil(self.iterations / self.search_every)
        return InTurn((Rounds([gradient], self.iterations), Rounds([search], searches)))

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the last released iterate, shape (d,)."""
        state = self.start(problem)
        momentum = self._descent(problem, state.clip_norm).step_and_momentum(problem)[1]
        iteration = 0
        while self._iterate(problem, budget, state, momentum, iteration):
            iteration += 1
        return state.w

    def _iterate(
        self, problem: Problem, budget: Budget, state: State, momentum: float, iteration: int
    ) -> bool:
        """One update of ``state``; False where money ran out before it."""
        decay = max(1.0 - iteration / self.iterations, 1.0 / self.iterations) if self.decay else 1.0
        searching = iteration % self.search_every == 0
        gradient = self.gradient(problem, state.clip_norm, state.multiplier)
        search = self.search(problem, state.clip_loss, state.search_epsilon)
        if not budget.affords(gradient.mechanism, *([search] if searching else [])):
            return False
        mean = self._noisy_gradient(budget, gradient, state)
        weight = 1.0 / state.multiplier**2
        grown = False
        while searching:
            g = mean + problem.l2 * state.w
            index = self._first_step_down(
                problem, budget, search, state, g, momentum * state.velocity + g, weight
            )
            state.searches += 1
            if index < self.max_queries or self.on_failure == "smallest_step":
                state.step = state.first_step * self.backtrack**index
                break
            second, extra = self._second_gradient(problem, budget, state, weight)
            if second is None:
                return False
            grown |= self._grow(state, angle_between(mean, second))
            mean, weight = (weight * mean + extra * second) / (weight + extra), weight + extra
            search = self.search(problem, state.clip_loss, state.search_epsilon)
            if not budget.affords(search):
                return False
        self._move(problem, budget, state, mean, momentum, decay)
        self._settle(state, searching, grown)
        return True

    def _noisy_gradient(self, budget: Budget, gradient: NoisyGradient, state: State) -> Array:
        return gradient.mean(budget, state.w)

    def _second_gradient(
        self, problem: Problem, budget: Budget, state: State, weight: float
    ) -> tuple[Array | None, float]:
        """Another gradient at the same point and its weight 2 rho; None where it and a search are
        not affordable.
        """
        extra = 1.0 / state.multiplier**2
        if self.budget_growth == "difference":
            extra = self.growth * weight
        gradient = self.gradient(problem, state.clip_norm, 1.0 / sqrt(extra))
        if not budget.affords(
            gradient.mechanism, self.search(problem, state.clip_loss, state.search_epsilon)
        ):
            return None, extra
        return self._noisy_gradient(budget, gradient, state), extra

    def _grow(self, state: State, angle: float) -> bool:
        """Raise the budgets after a failed search as ``budget_growth`` says; whether rho grew."""
        more_gradient = self.budget_growth in ("always", "difference")
        more_search = self.budget_growth == "always"
        if self.budget_growth == "adaptive":
            more_gradient = angle > min(90.0, self.angle_high * state.mean_angle)
            more_search = not more_gradient and angle < self.angle_low * state.mean_angle
        if more_gradient:
            state.multiplier /= sqrt(1.0 + self.growth)
        if more_search:
            state.search_epsilon *= 1.0 + self.growth
        return more_gradient

    def _first_step_down(
        self,
        problem: Problem,
        budget: Budget,
        mechanism: Mechanism,
        state: State,
        g: Array,
        v: Array,
        weight: float,
    ) -> int:
        """Index of the first candidate that passes the noisy Armijo test, ``max_queries`` where
        none does.
        """
        etas = state.first_step * self.backtrack ** np.arange(self.max_queries)
        w, share = state.w, self.loss_rate * problem.n
        squares = np.concatenate([np.einsum("ij,ij->i", W, W) for W in candidates(w, v, etas)])
        falls = share * problem.l2 / 2 * (squares[0] - squares[1:])  # of the penalty
        slope = float(g @ v)
        if self.slope == "unbiased":
            sigma = problem.sensitivity(state.clip_norm) / (
                sqrt(weight) * self.sampling_rate * problem.n
            )
            slope -= len(g) * sigma**2
        wanted = self.armijo * share * etas * max(slope, 0.0)
        clip = unit = state.clip_loss
        divisor: Array = np.ones(self.max_queries)
        if self.by_quotient(problem):
            # A score that is off by e moves a margin loss by e at most and softmax by 2e, whose R
            # is sqrt 2 larger. Sums of whole losses round however near the points are.
            longest, unit = 2.0 * float(np.sqrt(squares.max())) + 1.0, problem.lipschitz
            rounding = 2.0 * (len(g) + 4) * UNIT_ROUNDING * longest
            rounding += 4.0 * rounded_sum(problem.n) * (longest + loss_at_start(problem) / unit)
            clip, divisor = np.inf, etas * float(np.linalg.norm(v)) + rounding
        public = within((falls - wanted) / divisor, FAR * unit)

        def query(batch: Objective) -> Array:
            values = np.concatenate([batch.value_sum(W, clip) for W in candidates(w, v, etas)])
            return np.asarray((values[0] - values[1:]) / divisor + public)

        return int(budget.release(mechanism, query))

    def _move(
        self,
        problem: Problem,
        budget: Budget,
        state: State,
        mean: Array,
        momentum: float,
        decay: float,
    ) -> None:
        g = mean + problem.l2 * state.w
        state.velocity = momentum * state.velocity + g
        state.w = state.w - decay * state.step * state.velocity
        angle = 90.0 if state.previous is None else angle_between(g, state.previous)
        if state.previous is not None:
            state.mean_angle = (
                self.angle_memory * state.mean_angle + (1.0 - self.angle_memory) * angle
            )
        state.previous = g
        budget.note(
            step_size=decay * state.step,
            noise_scale=state.multiplier,
            search_epsilon=state.search_epsilon,
            angle=angle,
            searches=float(state.searches),
            clip_norm=state.clip_norm,
        )

    def _settle(self, state: State, searched: bool, grown: bool) -> None:
        """Reset eta_0 after ``reset_every`` searched steps, shrink the clips after a growth of
        rho.
        """
        if searched:
            state.chosen.append(state.step)
        if len(state.chosen) == self.reset_every:
            state.first_step = min(self.reset_factor * max(state.chosen), state.first_step)
            state.chosen.clear()
        if grown:
            state.clip_norm *= 1.0 - self.clip_decay
            state.clip_loss *= 1.0 - self.clip_decay
