"""Select columns by noisy correlations, then train on them alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, check_assumptions, make, register
from dpcore.algorithms.noisy_correlations import NoisyCorrelations
from dpcore.errors import (
    AssumptionNotMet,
    if_given,
    require_count,
    require_nonnegative,
    require_open_unit,
    require_positive,
)
from dpcore.losses import Array
from dpcore.mechanisms import InTurn, Mechanism
from dpcore.penalties import features, top_columns
from dpcore.problem import Adjacency, Block, Problem, Requires

# Share of the columns that is kept when the caller names no number; more of them while the
# selection is faint, that is n mu_1 < FAINT: what it drops cannot come back.
KEPT_SHARE = 0.3
WIDE_SHARE = 0.4
FAINT = 400.0
# n mu_1 = (SELECTING (n mu_2)^2)^(1/3): the selection takes 2/3 of a small budget and 1/5 of a
# large one.
SELECTING = 700.0
# Second phases whose price rests on clipping alone, with their settings: the columns are ranked,
# now they are to converge. The clip norm is in units of the norm of the rows that are left.
SECOND: dict[str, dict[str, Any]] = {
    "ssadmm": {"steps": 128, "horizon": 1.0},
    "mpadmm": {"steps": 128, "horizon": 1.0},
    "dp_sgd": {"horizon": 2.0},
    "dp_adam": {},
}
SECOND_CLIP = 0.2
# Evidence (correlation over its noise) at which a weight keeps half of its size.
EVIDENCE = 3.0


@register("two_phase", "select")
@dataclass(frozen=True, slots=True, kw_only=True)
class TwoPhase(Algorithm):
    """One release of noisy correlations keeps ``keep`` columns; the rest of the budget trains
    ``second`` on them.

    Rows on K of d columns have norm about norm_bound sqrt(K / d) when no column dominates (with a
    constant column, that one holding half of the squared norm): the public norm of the second
    phase, whose clipping enforces it. The signal per unit of noise grows by sqrt(d / K), and only K
    noisy coordinates are left. ``share`` of mu^2 goes to the selection; left out, n mu_1 = (700 (n
    mu_2)^2)^(1/3), with mu = signal over noise and n halved under replace-one. K, shares and bounds
    are fixed beforehand and the columns follow from a release, so the price is that of an adaptive
    composition, exact for Gaussian releases (Dong, Roth & Su 2022, Corollary 3.3). ``second`` is
    any planned algorithm on clipped gradients, with ``settings``; other columns get weight exactly
    0. The constant column is always kept, beside ``keep`` others (default: three tenths of the
       columns, four tenths while n mu_1 < 400).

    A trained weight is then multiplied by z^4 / (z^4 + ``evidence``^4), z its column's noisy
    correlation over the noise in it: columns that were kept by chance shrink, at no cost, since all
    of it was released (after the garrote of Breiman 1995; 0 leaves the weights as they are). What
    it gains stands in ``docs/benchmarks.md``.
    """

    requires: ClassVar[Requires] = Requires(linear=True)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH
    releases: ClassVar[str] = "one vector of correlations and every iterate on the kept columns"
    argument: ClassVar[str] = (
        "A record enters the sum that selects columns with a gradient clipped to norm C, twice "
        "that when replaced, and the second phase is priced on columns that this release fixed "
        "(adaptive composition, Dong, Roth & Su 2022)."
    )
    asks: ClassVar[frozenset[str]] = frozenset({"columns"})
    small: ClassVar[dict[str, Any]] = {
        "keep": 2,
        "clip_norm": 0.05,
        "settings": {"steps": 2, "clip_norm": 0.05, "learning_rate": 0.5, "momentum": 0.5},
    }
    selects: ClassVar[bool] = True
    limit: ClassVar[dict[str, Any]] = {"keep": 4}

    noise_multiplier: float = 2.0
    keep: int | None = None
    share: float | None = None
    clip_norm: float | None = None
    evidence: float = EVIDENCE
    second: str = "ssadmm"
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        require_positive(noise_multiplier=self.noise_multiplier)
        if_given(require_count, keep=self.keep)
        if_given(require_open_unit, share=self.share)
        if_given(require_positive, clip_norm=self.clip_norm)
        require_nonnegative(evidence=self.evidence)
        self._checked()

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """What the fields that were left out come to on ``problem``."""
        first, trainer, second = self.phases(problem)
        odds = self._ratio(problem, self._mu(trainer, problem, len(second))) ** 2
        return {
            "keep": self.keep or self.kept(problem),
            "share": self.share or odds / (1.0 + odds),
            "clip_norm": first.clip(problem),
        }

    def kept(self, problem: Problem) -> int:
        """How many columns the second phase sees, without the constant one."""
        columns = problem.dimension - int(problem.intercept)
        if self.keep is not None:
            return min(self.keep, columns)
        trainer = self.trainer(problem)
        mu = self._mu(trainer, problem, len(trainer.plan(problem)))
        faint = _records(problem) * self._ratio(problem, mu) * mu < FAINT
        return ceil((WIDE_SHARE if faint else KEPT_SHARE) * columns)

    def trainer(self, problem: Problem) -> Algorithm:
        """The algorithm of the second phase on ``problem``, the restricted one; its noise
        multiplier is this one's.
        """
        settings = {
            "clip_norm": SECOND_CLIP * problem.norm_bound * problem.weight,
            **SECOND[self.second],
        }
        return make(
            self.second, {**settings, **self.settings, "noise_multiplier": self.noise_multiplier}
        )

    def _checked(self) -> None:
        """Raise for a second phase that this composition does not cover, or for settings that it
        does not have.
        """
        make(self.second, {**self.settings, "noise_multiplier": self.noise_multiplier})
        # The restricted norm bound is a guess at typical rows, so only proofs that rest on clipping
        # alone may use it.
        if self.second not in SECOND:
            raise AssumptionNotMet(
                "Expected a private, planned algorithm that clips gradients as second phase of "
                f"'two_phase', got second={self.second!r}; use 'ssadmm' or 'dp_sgd'."
            )

    def restricted(self, problem: Problem, columns: Array | None = None) -> Problem:
        """The problem of the second phase; its price depends on how many columns are kept, not on
        which.
        """
        kept = self.kept(problem)
        share = kept / (problem.dimension - int(problem.intercept))
        # the constant column stays: it is taken to hold half of the squared norm
        if problem.intercept:
            share = (1.0 + share) / 2.0
        # A plan knows no columns yet and asks only whether there are blocks.
        blocks = problem.blocks if columns is None else _blocks_of(problem.blocks, columns)
        size = kept + int(problem.intercept)
        return replace(
            problem, dimension=size, norm_bound=problem.norm_bound * sqrt(share), blocks=blocks
        )

    def phases(self, problem: Problem) -> tuple[NoisyCorrelations, Algorithm, Sequence[Mechanism]]:
        """The selection, the trainer on what is left, and the trainer's releases."""
        rest = self.restricted(problem)
        trainer = self.trainer(rest)
        check_assumptions(trainer, rest)
        second = trainer.plan(rest)
        mu = self._mu(trainer, problem, len(second))
        first = NoisyCorrelations(
            noise_multiplier=1.0 / (self._ratio(problem, mu) * mu), clip_norm=self.clip_norm
        )
        return first, trainer, second

    def _ratio(self, problem: Problem, mu: float) -> float:
        """Signal over noise of the selection in units of ``mu``, that of the second phase."""
        if self.share is not None:
            return sqrt(self.share / (1.0 - self.share))
        return float((SELECTING / (_records(problem) * mu)) ** (1.0 / 3.0))

    def _mu(self, trainer: Algorithm, problem: Problem, releases: int) -> float:
        """Signal over noise of the second phase."""
        rate = trainer.parameters(problem).get("sampling_rate", 1.0) or 1.0 / sqrt(problem.n)
        return rate * sqrt(releases) / self.noise_multiplier

    def plan(self, problem: Problem) -> Sequence[Mechanism]:
        first, _, second = self.phases(problem)
        return InTurn((first.plan(problem), second))

    def outline(self, problem: Problem) -> list[dict[str, Any]]:
        """Both phases in words and numbers; ``share``: of mu^2, signal over noise, before
        amplification.
        """
        first, trainer, second = self.phases(problem)
        share = 1.0 / (
            1.0 + first.noise_multiplier**2 * self._mu(trainer, problem, len(second)) ** 2
        )
        kept, rest = self.kept(problem), self.restricted(problem)
        columns = problem.dimension - int(problem.intercept)
        selection = {
            "phase": "select",
            "algorithm": "noisy_correlations",
            "columns": columns,
            "keep": kept,
        }
        training = {
            "phase": "train",
            "algorithm": self.second,
            "columns": kept,
            "norm_bound": rest.norm_bound,
        }
        return [
            {
                **selection,
                "releases": 1,
                "noise_multiplier": first.noise_multiplier,
                "share": share,
            },
            {
                **training,
                "releases": len(second),
                "noise_multiplier": trainer.noise_multiplier,
                "share": 1.0 - share,
            },
        ]

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the weights of the second phase in all columns, exactly 0 in those that were
        dropped; shape (d,).
        """
        first, trainer, _ = self.phases(problem)
        scores = first.fit(problem, budget, rng)
        columns = top_columns(scores, self.kept(problem), problem.intercept)
        on_columns: Any = _OnColumns(budget, columns)
        weights = np.zeros(problem.dimension)
        weights[columns] = trainer.fit(self.restricted(problem, columns), on_columns, rng)
        features(weights, problem.intercept)[...] *= self.trust(
            features(scores, problem.intercept), first, problem
        )
        return weights

    def trust(self, scores: Array, first: NoisyCorrelations, problem: Problem) -> Array:
        """z^4 / (z^4 + evidence^4) for z = score over its noise, in [0, 1]; the shape of
        ``scores``.
        """
        # The bound keeps a correlation of exactly 0 from overflowing the power.
        doubt = self.evidence * first.noise(problem) / np.maximum(np.abs(scores), 1e-300)
        return np.asarray(1.0 / (1.0 + np.minimum(doubt, 1e70) ** 4))


class _OnColumns:
    """A budget whose queries see some columns only; charging and noise stay with the budget behind
    it.
    """

    def __init__(self, budget: Budget, columns: Array) -> None:
        self._budget, self._columns = budget, columns
        self.note = budget.note

    def release(self, mechanism: Mechanism, query: Callable[[Any], Any]) -> Any:
        return self._budget.release(mechanism, lambda batch: query(batch.columns(self._columns)))


def _records(problem: Problem) -> float:
    """n, halved where a record is replaced: what a signal over noise is multiplied by."""
    return problem.n / problem.sensitivity(1.0)


def _blocks_of(blocks: tuple[Block, ...], columns: Array) -> tuple[Block, ...]:
    """What is left of each block on the kept columns, in their new numbers."""
    place = {int(column): index for index, column in enumerate(columns)}
    left = [(tuple(place[c] for c in block.columns if c in place), block.kind) for block in blocks]
    return tuple(Block(kept, kind) for kept, kind in left if kept)
