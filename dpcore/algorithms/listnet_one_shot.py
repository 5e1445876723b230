"""Learning to rank from one noisy vector: all that a linear ListNet asks of the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpcore.accounting.budget import Budget
from dpcore.algorithms.base import BOTH, Algorithm, register
from dpcore.errors import AssumptionNotMet, require_count, require_nonnegative, require_positive
from dpcore.losses import Array
from dpcore.mechanisms import Gaussian, Mechanism
from dpcore.objective.rounding import UNIT, row_norms
from dpcore.problem import Adjacency, Problem, Requires
from dpcore.ranking.documents import ScoredDocuments, public_documents, require_linear_scorer
from dpcore.ranking.losses import ListNet

# Directions in which the documents of a session hardly differ are left out: they carry noise and
# next to no order.
LEAST_VARIANCE = 1e-6
# Ridge, in units of the mean curvature and of the noise multiplier.
RIDGE_SHARE = 0.4
# Candidates for the strength of the prior, on a logarithmic scale.
STRENGTHS = 64


@register("listnet_one_shot")
@dataclass(frozen=True, slots=True, kw_only=True)
class ListNetOneShot(Algorithm):
    """Minimise sum_j [log sum exp(X_j w)] - <w, b> + ridge, where b = sum_j X_j' t_j is released
    once, with noise.

    t_j are the gains of session j over their sum (uniform where nothing is relevant, so that such a
    session adds 0 to the centred b). Everything but b follows from public documents, so one
    Gaussian release is the whole price; there is no step size, number of steps, sampling or
    composition. Replace-labels, with M = U' the ``components`` leading principal directions of the
    documents within their sessions:

      b = sum_j clip(M Xc_j' t_j, C),  C = ``clip_share`` * median_j diam(M X_j),  divided by D =
      min(2 C, max_j diam).

    A label change moves M Xc_j' t_j inside the hull of the M x_i, hence by at most diam(M X_j);
    clipping projects on the C-ball, so it is 1-Lipschitz and its values are at most 2 C apart; so
    the released b / D has sensitivity 1 (proved; "empty or not" enters through b alone). The noise
    of b is known, so a direction of variance h is shrunk by v / (v + sigma^2), v = s h^``prior``, s
    the strength that makes the noisy b most likely (empirical Bayes, post-processing), and w solves
    one Newton step from 0 with the public curvature sum_j Cov_uniform(M X_j), ridge ``ridge`` times
    its mean (left out: 0.4 times the noise multiplier): b is clipped so low that the next steps
    change nothing. On MQ2008 all this is flat: prior 1 to 3 and ridges four times apart stay within
    0.005 MAP.

    Where documents are private there is no M, D or curvature: w is the noisy sum of session
    contrasts clip(Xc_j' t_j, ``clip_norm``) / n, with sensitivity C under add/remove and 2C under
    replace-one.
    """

    requires: ClassVar[Requires] = Requires(ranking=True, l1=False)
    adjacencies: ClassVar[frozenset[Adjacency]] = BOTH | {Adjacency.REPLACE_LABELS}
    releases: ClassVar[str] = "one sum over sessions"
    argument: ClassVar[str] = (
        "Other labels of a session, or another session where documents are private, move the one "
        "released vector by at most the stored sensitivity, for each contribution is projected on "
        "a ball (linear ListNet of Cao et al. 2007; proof in the algorithm's documentation)."
    )
    asks: ClassVar[frozenset[str]] = frozenset({"label_sum"})
    small: ClassVar[dict[str, Any]] = {"components": 2, "clip_norm": 0.05}
    small_problem: ClassVar[dict[str, Any]] = {"kind": "ranking"}

    noise_multiplier: float = 2.0
    components: int = 40
    clip_share: float = 0.05
    prior: float = 1.5
    ridge: float | None = None
    clip_norm: float = 0.3

    def __post_init__(self) -> None:
        require_positive(
            noise_multiplier=self.noise_multiplier,
            clip_share=self.clip_share,
            clip_norm=self.clip_norm,
        )
        require_nonnegative(prior=self.prior, ridge=0.0 if self.ridge is None else self.ridge)
        require_count(components=self.components)

    def plan(self, problem: Problem) -> list[Mechanism]:
        require_linear_scorer(problem, "listnet_one_shot")
        if problem.loss.name != "listnet":
            raise AssumptionNotMet(
                f"Expected loss listnet for 'listnet_one_shot', got loss={problem.loss.name!r}; "
                "use listnet or dp_sgd."
            )
        if problem.adjacency is Adjacency.REPLACE_LABELS:
            return [Gaussian(1.0, self.noise_multiplier)]
        sensitivity = problem.sensitivity(self.clip_norm)
        return [Gaussian(sensitivity, self.noise_multiplier * sensitivity)]

    def resolved(self, problem: Problem) -> dict[str, Any]:
        """The ridge that is used where none was given."""
        return {"ridge": RIDGE_SHARE * self.noise_multiplier if self.ridge is None else self.ridge}

    def fit(self, problem: Problem, budget: Budget, rng: np.random.Generator) -> Array:
        """Return the weights of the features, shape (p,).

        Raises ``AssumptionNotMet``, before anything is released, for a problem without its public
        documents.
        """
        [release] = self.plan(problem)
        if problem.adjacency is not Adjacency.REPLACE_LABELS:
            identity = np.eye(problem.dimension)
            return np.asarray(
                budget.release(release, lambda data: data.label_sum(identity, self.clip_norm))
                / problem.n
            )
        M, curvature, clip_norm, bound = self.public_side(problem)
        noisy = budget.release(release, lambda data: data.label_sum(M, clip_norm) / bound) * bound
        spread = curvature / curvature[0]
        noisy = noisy * shrinkage(noisy, self.noise_multiplier * bound, spread**self.prior)
        ridge = self.resolved(problem)["ridge"]
        return np.asarray(
            M.T @ (noisy / (curvature + ridge * curvature.mean() + problem.n * problem.l2))
        )

    def public_side(self, problem: Problem) -> tuple[Array, Array, float, float]:
        """The map M (k, p), the curvature (k,) of the objective at 0 along its rows, C and D; from
        documents alone.
        """
        documents = public_documents(problem, "listnet_one_shot").documents
        centred = documents.centred().X
        share = 1.0 / documents.lengths[documents.owner]
        curvature, directions = np.linalg.eigh(centred.T @ (share[:, None] * centred))
        order = np.argsort(curvature)[::-1][: self.components]
        curvature, M = curvature[order], directions[:, order].T
        if curvature[0] <= 0:  # all documents of every session are alike: any weights rank alike
            return np.eye(1, problem.dimension), np.ones(1), 1.0, 1.0
        keep = curvature > LEAST_VARIANCE * curvature[0]
        curvature, M = curvature[keep], M[keep]
        mapped = ScoredDocuments(type(documents)(centred @ M.T, documents.offsets))
        diameters = mapped.label_bounds(np.zeros(len(M)), ListNet())
        clip_norm = self.clip_share * float(np.median(diameters))
        clip_norm = clip_norm if clip_norm > 0 else self.clip_share * float(diameters.max())
        # The released sums are mapped after they are summed, the diameters before: both round,
        # relative to the rows.
        work = int(documents.lengths.max()) + len(M) * problem.dimension + 16
        largest = float(diameters.max()) + 4 * work * UNIT * float(row_norms(centred).max())
        return M, curvature, clip_norm, min(2.0 * clip_norm, largest)


def shrinkage(noisy: Array, sigma: float, shape: Array) -> Array:
    """v / (v + sigma^2) with v = s * ``shape`` and s the maximum of the likelihood of noisy ~ N(0,
    v + sigma^2); (k,).

    Without noise nothing is shrunk. The maximum is looked for on a grid; 0 signal is among the
    candidates' limits.
    """
    if sigma <= 0.0:
        return np.ones_like(noisy)
    low = np.log(sigma**2) - 8.0
    high = np.log(max(float((noisy**2).max()), sigma**2) / float(shape.min())) + 3.0
    v = np.exp(np.linspace(low, high, STRENGTHS))[:, None] * shape
    cost = np.sum(np.log(v + sigma**2) + noisy**2 / (v + sigma**2), axis=1)
    best = v[np.argmin(cost)]
    return np.asarray(best / (best + sigma**2))
