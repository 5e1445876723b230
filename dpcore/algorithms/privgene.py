"""Genetic search: parents and the winner are chosen by the exponential mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, NOT_PRINTED, Algorithm, Preset, register
from dpcore.descent.gradient import loss_at_start
from dpcore.descent.line_search import public_part
from dpcore.errors import if_given, require_count, require_fraction, require_positive
from dpcore.losses import Array
from dpcore.mechanisms import Exponential, Mechanism, Rounds
from dpcore.objective import Objective
from dpcore.problem import Adjacency, Problem, Requires

# Cap of a record's loss, in units of its loss at w = 0, by the argument of the loss. A margin can
# fall far below 0: with a cap of 2 the best model by cut losses of Adult and credit gives every
# record surely to the larger class.
LOSS_SHARE = {"margin": 6.0}
OTHER_SHARE = 2.0


@register("privgene")
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivGene(Algorithm):
    """``generations`` times: two parents by the exponential mechanism, then crossover and mutation;
    last, the best.

    Zhang, Xiao, Yang, Zhang & Winslett (2013). The score of w is minus the sum of losses cut to [0,
    C], minus the public n l2/2 ||w||^2. Scores move by at most C, one way under add/remove and both
    ways under replace-one; a choice has bounded range r = noise scale ratio and costs r^2 / 8 in
    zCDP. A child takes each coordinate from either parent with equal chance, and a share
    ``mutations`` of the coordinates (one at least, on average) moves by a normal step whose size
    falls from ``mutation_size`` / norm_bound to a hundredth of it. Scale of the Gumbel noise:
    noise_multiplier * sensitivity. Starts, crossover and mutation use the public generator.
    """

    requires: ClassVar[Requires] = Requires(l1=False, softmax=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "every parent"
    argument: ClassVar[str] = (
        "A record moves the score of every candidate by at most the bound to which its loss is "
        "cut, one way when added and both ways when replaced (Zhang et al. 2013; bounded range "
        "after Durfee & Rogers 2019)."
    )
    default_l2: ClassVar[float] = 1e-4
    small: ClassVar[dict[str, Any]] = {"population": 5, "generations": 2, "clip_loss": 0.5}
    limit: ClassVar[dict[str, Any]] = {"generations": 150, "population": 40, "clip_loss": 10.0}
    limit_gap: ClassVar[float] = 0.05
    presets: ClassVar[dict[str, Preset]] = {
        "paper": Preset(
            population=(200, f"{NOT_PRINTED}Zhang et al. (2013), from memory"),
            generations=(100, f"{NOT_PRINTED}the texts at hand name the method alone"),
        )
    }
    renamed: ClassVar[dict[str, str]] = {"reach": "mutation_size"}

    noise_multiplier: float = 2.0
    population: int = 20
    generations: int = 60
    clip_loss: float | None = None
    mutations: float = 0.02
    mutation_size: float = 12.0

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier, mutation_size=self.mutation_size)
        require_count(population=self.population, generations=self.generations)
        require_fraction(mutations=self.mutations)
        if_given(require_positive, clip_loss=self.clip_loss)

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        return {"clip_loss": self.clip(problem)}

    def clip(self, problem: Problem) -> float:
        """The cap C of a record's loss."""
        if self.clip_loss is not None:
            return self.clip_loss
        return LOSS_SHARE.get(problem.loss.argument, OTHER_SHARE) * loss_at_start(problem)

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        cap = self.clip(problem)
        choice = Exponential(
            cap, self.noise_multiplier * cap, problem.adjacency is not Adjacency.ADD_REMOVE
        )
        return Rounds([choice], 2 * self.generations + 1)

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the winner of the last generation, shape (d,)."""
        choice = self.plan(problem)[0]
        sizes = self.mutation_size / problem.norm_bound * np.geomspace(1.0, 0.01, self.generations)
        width = problem.dimension * problem.outputs
        crowd = np.concatenate(
            [np.zeros((1, width)), rng.normal(scale=sizes[0] / 2, size=(self.population, width))]
        )
        for size in sizes:
            parents = [crowd[self._best(problem, budget, choice, crowd)] for _ in range(2)]
            crowd = self._offspring(parents, size, rng)
            budget.note(step_size=float(size))
        return np.asarray(crowd[self._best(problem, budget, choice, crowd)])

    def _offspring(self, parents: list[Array], size: float, rng: np.random.Generator) -> Array:
        """Both parents and ``population`` children, shape (population + 2, d)."""
        shape = (self.population, len(parents[0]))
        children = np.where(rng.random(shape) < 0.5, parents[0], parents[1])
        chance = max(self.mutations, 1.0 / shape[1])
        children = children + rng.normal(scale=size, size=shape) * (rng.random(shape) < chance)
        return np.concatenate([parents, children])

    def _best(self, problem: Problem, budget: Budget, choice: Mechanism, crowd: Array) -> int:
        cap = self.clip(problem)
        penalty = problem.n * problem.l2 / 2 * np.einsum("ij,ij->i", crowd, crowd)
        public = public_part(penalty, cap)

        def query(records: Objective) -> Array:
            return np.asarray(-(records.value_sum(crowd, cap) + public))

        return int(budget.release(choice, query))
