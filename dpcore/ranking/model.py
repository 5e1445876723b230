"""A ranking model from names, and how good the iterates of its training are.

Stored models import this module, so nothing that it needs plans, prices or draws noise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dpcore.errors import InputError, unknown_name
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.documents import ranking_facts, ranking_problem
from dpcore.ranking.losses import RankingLoss, make_ranking_loss
from dpcore.ranking.metrics import Conventions, ranking_report
from dpcore.ranking.objective import SessionObjective
from dpcore.ranking.scorers import SCORERS, Scorer, make_scorer
from dpcore.ranking.sessions import FEATURES, Array, Documents, Sessions

# Loss that an algorithm is meant for, where none is named.
LOSSES = {"privbr": "bayesrank"}


USUAL = Conventions()


@dataclass(frozen=True)
class RankingModel:
    """Features, scorer and loss by name.

    ``features``: ``raw`` and within-session ``rank``, one or both. ``scorer``: ``linear``, or
    ``mlp`` with ``hidden`` widths, ``activation`` and a public ``seed`` of its start. ``loss``:
    ``listnet``, ``listmle`` or ``bayesrank`` with ``loss_parameters``.
    """

    features: tuple[str, ...] = FEATURES
    scorer: str = "linear"
    hidden: tuple[int, ...] = (256,)
    activation: str = "relu"
    seed: int = 0
    loss: str = "listnet"
    loss_parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        if not kinds or any(kind not in FEATURES for kind in kinds):
            raise InputError(
                f"Expected features among {', '.join(FEATURES)}, got features={self.features!r}."
            )
        object.__setattr__(self, "features", kinds)
        if self.scorer not in SCORERS:
            raise unknown_name("scorer", self.scorer, SCORERS)

    def make_loss(self) -> RankingLoss:
        """The loss with its parameters."""
        return make_ranking_loss(self.loss, **self.loss_parameters)

    def make_scorer(self, inputs: int) -> Scorer:
        """The scorer of documents with ``inputs`` described features."""
        if self.scorer == "linear":
            return make_scorer("linear", inputs)
        return make_scorer(
            self.scorer, inputs, hidden=self.hidden, activation=self.activation, seed=self.seed
        )

    def objective(self, sessions: Sessions) -> SessionObjective:
        """The sums over ``sessions``, given with their raw features."""
        described = sessions.features(*self.features)
        return SessionObjective(
            described, self.make_loss(), self.make_scorer(described.documents.dimension)
        )

    def problem(
        self,
        objective: SessionObjective,
        adjacency: Adjacency | str,
        n: int | None = None,
        l2: float = 0.0,
    ) -> Problem:
        """The public facts of ``objective``; ``n`` is the nominal count of add/remove."""
        nominal = n if Adjacency(adjacency) is Adjacency.ADD_REMOVE else None
        public = objective.public
        return ranking_problem(
            objective.sessions, objective.loss, adjacency=adjacency, n=nominal, l2=l2, public=public
        )

    def public_problem(
        self, inputs: int, n: int, adjacency: Adjacency | str, l2: float = 0.0, l1: float = 0.0
    ) -> Problem:
        """The problem before any session was read: of ``n`` sessions whose documents have
        ``inputs`` raw features.
        """
        scorer = self.make_scorer(inputs * len(self.features))
        return ranking_facts(n, scorer, self.make_loss(), adjacency, l2=l2, l1=l1)

    def scores(self, weights: Array, documents: Documents) -> Array:
        """Scores of documents given with their raw features, higher is better; shape
        (documents,).
        """
        described = documents.features(*self.features)
        return self.make_scorer(described.dimension).scores(weights, described.X)


def metric_curve(
    model: RankingModel,
    iterates: Iterable[tuple[int, Array]],
    test: Sessions,
    at: tuple[int, ...] = (1, 2, 4, 8),
    conventions: Conventions = USUAL,
) -> list[dict[str, float]]:
    """Rows (iteration, map, ndcg@k, ...) on ``test``, given with its raw features."""
    described = test.features(*model.features)
    scorer = model.make_scorer(described.documents.dimension)
    rows = []
    for t, w in iterates:
        report = ranking_report(described, scorer.scores(w, described.documents.X), at, conventions)
        rows.append(
            {
                "iteration": t,
                **{name: value for name, value in report.items() if isinstance(value, float)},
            }
        )
    return rows
