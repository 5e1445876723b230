"""Sums of columns as one release, and the scaling of the columns that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf, sqrt

import numpy as np

from dpcore.descent.gradient import NoisyGradient
from dpcore.errors import AssumptionNotMet
from dpcore.losses import Array
from dpcore.objective import LinearObjective
from dpcore.objective.base import unscaled
from dpcore.objective.rows import SUM_TOLERANCE
from dpcore.penalties import soft_threshold
from dpcore.problem import Adjacency, Block, Problem

# Variance that no column is taken to be below, so that a rare level gets no more of the norm than
# it can carry.
LEAST_VARIANCE = 1e-3
# Range of the released variance of a numeric column in [0, 1].
NUMERIC_VARIANCE = (1e-4, 0.25)
# Share of the rows in the largest bin above which a fine block is used: what is left is less than
# the equal share, one of seven, of a stretch between two of the eight hats that the column has
# beside it. That names a scale and proves nothing: the bar was set between columns of Bank (82 %,
# where fine bins lose) and of Adult (92 %, where they gain). docs/benchmarks.md has other tables.
DOMINANT = 6.0 / 7.0
# From this n * mu of the gradients on fine blocks have sums in the release. Below it their means
# are guessed from the coarser block: no gradients could tell their bins from chance, which is what
# the sums are for (``Watch``; on Adult from 2,200, on bank-additional from 1,600 on), and noise
# would hide most of 256 sums.
TOLD_FROM = 2000.0
# Share of the steps, from the first on, whose noisy gradients say whether a fine block moves. Their
# mean has noise that falls with the root of their number, and the block loses their part of the
# summed steps, 1 - (1 - 1/8)^2: a quarter.
WATCHED = 1.0 / 8.0
# Enlarges the marginals' sensitivity to cover blocks whose sum passes 1 by rounding.
ROUNDED = 1.0 + 10 * SUM_TOLERANCE


@dataclass(frozen=True, slots=True)
class Marginals:
    """The first release: column sums around public centres, and second moments of the numeric
    columns.

    t_j = sum_i (x_ij - c_j) with c = 1/k in a block of k parts and 1/2 alone, then sum_i ((u_i -
    1/2)^2 - 1/8) for each numeric column u. The real count of records stands inside the sums, so
    one record moves them by its own term only. Columns that no block names count as numeric; the
    constant column, if any, is the last and is not released.

    ``guessed``: fine blocks without sums of their own, each behind the block that tells the same
    coarsely; their means are guessed from that block's.
    """

    blocks: tuple[Block, ...]
    centers: Array
    numeric: Array
    intercept: bool
    guessed: tuple[tuple[Block, Block], ...] = ()

    @classmethod
    def of(cls, problem: Problem, signal: float = inf) -> Marginals:
        """Layout of ``problem`` at n * mu = ``signal``; raises ``AssumptionNotMet`` for blocks that
        overlap or name no feature.

        Both are public. Below ``TOLD_FROM`` fine blocks are guessed.
        """
        blocks = every_block(problem)
        centers = np.zeros(problem.dimension - int(problem.intercept))
        for block in blocks:
            centers[list(block.columns)] = 1.0 / max(len(block.columns), 2)
        numeric = np.array(
            [block.columns[0] for block in blocks if block.kind == "numeric"], dtype=int
        )
        guessed = refined(blocks) if signal < TOLD_FROM else ()
        return cls(blocks, centers, numeric, problem.intercept, guessed)

    @property
    def released(self) -> list[Block]:
        """The blocks that have sums."""
        guessed = {block for _, block in self.guessed}
        return [block for block in self.blocks if block not in guessed]

    @property
    def summed(self) -> Array:
        """Their columns, ascending."""
        guessed = [column for _, block in self.guessed for column in block.columns]
        return np.delete(np.arange(len(self.centers)), guessed)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """L2 sensitivity of the release.

        Every block with sums counts, used or not: which of the fine ones is used is read from this
        release, so they are paid for first. Add/remove, per block of k >= 2 parts h >= 0 with sum s
        <= 1: |h - 1/k|^2 <= s^2 - 2 s/k + 1/k, convex in s, so at most 1 - 1/k; 1/4 for a lone
        part, 1/4 + 1/64 for a numeric column. Replace-one: |h - h'|^2 <= 2 per block and 1 for a
        lone part; for a numeric (a - b)^2 (1 + (a + b)^2) <= 1 with a, b in [-1/2, 1/2].
        """
        total = 0.0
        for block in self.released:
            k = len(block.columns)
            if adjacency is Adjacency.ADD_REMOVE:
                total += (
                    1.0 - 1.0 / k
                    if k > 1
                    else 0.25 + (1.0 / 64.0 if block.kind == "numeric" else 0.0)
                )
            else:
                total += 2.0 if k > 1 else 1.0
        return ROUNDED * sqrt(total)

    def query(self, batch: LinearObjective) -> Array:
        """The exact sums, shape (columns with sums + numeric columns,)."""
        rows = batch.within(self.blocks)
        features = len(self.centers)
        totals = rows.column_sum()[:features]
        # sum (u - 1/2)^2 - 1/8 = sum u^2 - sum u + count / 8
        second = (rows.square_sum()[:features] - totals)[self.numeric] + batch.n / 8.0
        return np.concatenate([(totals - batch.n * self.centers)[self.summed], second])

    def moments(self, released: Array, n: int) -> tuple[Array, Array]:
        """Means and variances of the columns from the released sums, within their ranges: parts of
        a block are >= 0 with a sum of at most 1; (features,) each.

        Not so those of a fine block: that would leave most of its bins without rows, and ``Watch``
        would let a block move on what is left.
        """
        summed = self.summed
        found = np.zeros(len(self.centers))
        found[summed] = self.centers[summed] + released[: len(summed)] / n
        means = np.clip(found, 0.0, 1.0)
        for block in self.blocks:
            if len(block.columns) > 1 and not block.fine:
                means[list(block.columns)] = within_block(found[list(block.columns)])
        for coarse, block in self.guessed:
            means[list(block.columns)] = spread(means[list(coarse.columns)], len(block.columns))
        variances = means * (1.0 - means)
        seconds = released[len(summed) :] / n + 0.125
        variances[self.numeric] = np.clip(
            seconds - (means[self.numeric] - 0.5) ** 2, *NUMERIC_VARIANCE
        )
        return means, variances

    def idle(self, means: Array) -> Array:
        """Columns of the fine blocks that stay unused, by the released ``means`` alone; a mask
        (features,).

        A fine block is used where its largest bin (the largest hat of the coarser block, if it is
        guessed) holds more than ``DOMINANT``: then nearly all rows lie in one bin, the others have
        values of their own, and coarser columns cannot tell those apart.
        """
        mask = np.zeros(len(self.centers), dtype=bool)
        for block in self.blocks:
            columns = list(block.columns)
            mask[columns] = block.fine and not (self.intercept and means[columns].max() > DOMINANT)
        return mask

    def scaling(self, released: Array, noise: float, problem: Problem) -> Scaling:
        """Shift and scale of the columns from the released sums; ``noise`` is the std of a released
        mean.

        Fine blocks that are used do not count in R: the typical row, in the largest bin, has next
        to nothing of them, and 256 noisy variances would say more of the noise than of the rows.
        """
        features = len(self.centers)
        means, variances = self.moments(released, problem.n)
        floor = LEAST_VARIANCE + noise
        scale = (variances + floor) ** -0.5
        scale[self.idle(means)] = 0.0
        counted = scale * ~self.fine
        if not self.intercept:  # without a constant column nothing could undo a shift
            scale /= np.sqrt(np.sum(counted**2 * (variances + means**2)))
            return Scaling(np.zeros(features), scale, False)
        constant = 2.0 * (1.0 + floor) ** -0.5
        radius = np.sqrt(np.sum(counted**2 * variances) + constant**2)
        return Scaling(np.append(means, 0.0), np.append(scale, constant) / radius, True)

    @property
    def fine(self) -> Array:
        """Which columns belong to fine blocks, a mask (features,)."""
        mask = np.zeros(len(self.centers), dtype=bool)
        mask[[column for block in self.blocks if block.fine for column in block.columns]] = True
        return mask

    def fine_terms(self, view: Scaling) -> list[tuple[Array, Array]]:
        """Of each fine block that ``view`` uses and that has sums: its columns, and hats over its
        bins, as many as the block before it (what tells the same coarsely) has columns, two at
        least.
        """
        found = []
        released = set(self.released)
        for before, block in pairwise((Block((0,)), *self.blocks)):
            columns = np.array(block.columns)
            if block.fine and block in released and view.scale[columns].max() > 0.0:
                hats = max(len(before.columns), 2)
                at = (np.arange(len(columns)) + 0.5) / len(columns) * (hats - 1)
                smooth = np.maximum(1.0 - np.abs(at[:, None] - np.arange(hats)), 0.0)
                found.append((columns, smooth))
        return found


def every_block(problem: Problem) -> tuple[Block, ...]:
    """The blocks of ``problem``, and one for each column that none names."""
    features = problem.dimension - int(problem.intercept)
    named = [column for block in problem.blocks for column in block.columns]
    if len(set(named)) < len(named) or any(not 0 <= column < features for column in named):
        raise AssumptionNotMet(
            f"Expected blocks that name each of the {features} feature columns at most once "
            "and not the constant column for 'scaled_gd', got others; correct blocks."
        )
    alone = sorted(set(range(features)) - set(named))
    return (*problem.blocks, *(Block((column,), "numeric") for column in alone))


def refined(blocks: Sequence[Block]) -> tuple[tuple[Block, Block], ...]:
    """Each fine block behind the one before it, where that has parts of its own."""
    return tuple(pair for pair in pairwise(blocks) if pair[1].fine and len(pair[0].columns) > 1)


def within_block(parts: Array) -> Array:
    """The nearest parts >= 0 with a sum of at most 1 (Duchi et al. 2008, ICML, Figure 1)."""
    kept: Array = np.maximum(parts, 0.0)
    if kept.sum() <= 1.0:
        return kept
    falling = np.sort(parts)[::-1]
    over = (np.cumsum(falling) - 1.0) / np.arange(1, len(parts) + 1)
    nearest: Array = np.maximum(parts - max(over), 0.0)
    return nearest


def spread(hats: Array, bins: int) -> Array:
    """Means of that many ``bins`` where all that is known are the means of ``hats`` over the same
    range: the largest in the bin below its top, the rest evenly.
    """
    largest = int(hats.argmax())
    means = np.full(bins, (1.0 - hats[largest]) / max(bins - 1, 1))
    means[min(largest * bins // (len(hats) - 1), bins - 1)] = hats[largest]
    return means


@dataclass(frozen=True, slots=True)
class Scaling:
    """Rows scale * (x - shift), and the linear map between weights for them and weights for x."""

    shift: Array
    scale: Array
    intercept: bool

    def without(self, columns: Array) -> Scaling:
        """The same with ``columns``, a mask (d,), at scale 0."""
        return replace(self, scale=np.where(columns, 0.0, self.scale))

    def weights(self, w: Array) -> Array:
        """Weights for x of the models with weights ``w`` for the scaled rows, shape (k, d)."""
        return unscaled(w, self.shift, self.scale, self.intercept)

    def scaled(self, weights: Array) -> Array:
        """Weights ``w`` for the scaled rows of models with ``weights`` for x, shape (k, d): the
        inverse of ``weights``, with 0 for columns that the scaling leaves out.
        """
        raw = np.where(self.scale > 0.0, weights, 0.0)
        if self.intercept:
            raw[:, -1] += raw @ self.shift
        scaled: Array = raw / np.where(self.scale > 0.0, self.scale, 1.0)
        return scaled

    def pull_back(self, gradient: Array) -> Array:
        """Transpose of ``weights``: gradients in the weights for x as gradients in ``w``, shape (k,
        d).
        """
        constant = gradient[:, -1:] if self.intercept else 0.0
        return self.scale * (gradient - self.shift * constant)

    @property
    def stretch(self) -> float:
        """Bound on the operator norm of ``weights``."""
        return float(self.scale.max() + np.linalg.norm(self.shift * self.scale))

    def prox(self, w: Array, strength: float) -> Array:
        """Proximal step of strength * ||weights for x||_1 without the constant, in the scaled
        coordinates.
        """
        if strength == 0.0:
            return w
        shrunk = soft_threshold(w, strength * self.scale)
        if self.intercept:
            shrunk[:, -1] = w[:, -1]
        return shrunk


@dataclass(slots=True)
class Watch:
    """Whether single bins of a used fine block tell more than chance, from the noisy gradients of
    the first steps, in which its weights stand still; no release of its own.

    With s, m the scales and means and G the mean of the noisy gradients, r_j = n G_j / s_j
    estimates the sum over the rows of bin j of the clipped slopes a_i, up to a multiple of m_j. d_j
    is what hats over the bins, fitted to r_j / (n m_j), leave of it. If bins had nothing of their
    own, E d_j^2 would be at most (1 - h_j) (S_j + N_j), h_j the leverage: S_j = n m_j a_j^2 by the
    drawing of rows, |a_i| <= a_j = C / (s_j^2 (1 - m_j)^2 + s_0^2)^(1/2), and N_j by the noise. A
    weight for each bin pays where what it learns exceeds what drawing adds, S_j, so a block stays
    still if e = sum_j u_j (d_j^2 - (1 - h_j) (S_j + N_j) - S_j) <= 0, u_j = (n m_j a_j)^2 / (S_j +
    N_j)^2: the locally most powerful score test, for bounded slopes (White 1982, Econometrica
    50(1)), at the bar of Akaike's criterion.

    By chance e is about -sum_j u_j S_j. Where twice that is below the standard deviation of e, (2
    sum_j u_j^2 (S_j + N_j)^2)^(1/2), noise would decide: such a block is not watched, and moves.
    """

    view: Scaling
    problem: Problem
    means: Array
    clip: float
    rate: float
    noise: float
    steps: int
    terms: list[tuple[Array, Array]] = field(default_factory=list)
    total: Array | float = 0.0
    seen: int = 0

    @classmethod
    def of(
        cls,
        layout: Marginals,
        view: Scaling,
        means: Array,
        gradient: NoisyGradient,
        noise: float,
        steps: int,
        problem: Problem,
    ) -> Watch:
        """For a descent on ``view`` by ``steps`` of ``gradient``, whose sums have ``noise``."""
        watched = max(int(WATCHED * steps), 1)
        rate = gradient.rows / problem.n
        made = cls(view, problem, means, gradient.clip_norm, rate, noise, watched)
        made.terms = [term for term in layout.fine_terms(view) if made._told(term[0])]
        return made

    @property
    def held(self) -> Array:
        """Columns that stand still, a mask (d,): those of the blocks that are watched."""
        mask = np.zeros(len(self.view.scale), dtype=bool)
        for columns, _ in self.terms:
            mask[columns] = True
        return mask

    def sees(self, gradient: Array) -> bool:
        """Take the noisy mean ``gradient`` (k, d) in; whether that was the last one to take."""
        self.seen += 1
        self.total = self.total + gradient / self.steps
        return self.seen == self.steps

    def silent(self) -> Array:
        """Columns of the blocks that tell no more than chance, a mask (d,)."""
        mask = np.zeros(len(self.view.scale), dtype=bool)
        for columns, smooth in self.terms:
            mask[columns] = self._excess(columns, smooth) <= 0.0
        return mask

    def _spread(self, columns: Array) -> tuple[Array, Array, Array]:
        """S_j, N_j of all outputs and u_j, (k,) each; u is 0 of the largest bin."""
        n, s, m = self.problem.n, self.view.scale[columns], self.means[columns]
        constant = self.view.scale[-1]
        bound = self.clip / np.sqrt((s * (1.0 - m)) ** 2 + constant**2)
        bound = np.minimum(bound, self.problem.loss.lipschitz)
        drawn = n * m * bound**2 * (1.0 + (1.0 / self.rate - 1.0) / self.steps)
        noisy = (self.noise / self.rate) ** 2 / self.steps / s**2
        noisy = noisy * self.problem.outputs
        use = (n * m * bound / (drawn + noisy)) ** 2
        use[m.argmax()] = 0.0
        return drawn, noisy, use

    def _told(self, columns: Array) -> bool:
        """Whether chance and twice the bar lie a standard deviation apart."""
        drawn, noisy, use = self._spread(columns)
        return float(2.0 * use @ drawn) >= sqrt(2.0 * float(np.sum((use * (drawn + noisy)) ** 2)))

    def _excess(self, columns: Array, smooth: Array) -> float:
        drawn, noisy, use = self._spread(columns)
        sums = self.problem.n * np.asarray(self.total)[:, columns] / self.view.scale[columns]
        root = np.sqrt(drawn + noisy)
        basis, sizes, _ = np.linalg.svd(
            (self.means[columns] / root)[:, None] * smooth, full_matrices=False
        )
        basis = basis[:, sizes > 1e-9 * sizes[0]]
        left = sums - root * ((sums / root) @ basis @ basis.T)
        chance = (1.0 - np.sum(basis**2, axis=1)) * root**2
        return float(use @ (np.sum(left**2, axis=0) - chance - drawn))
