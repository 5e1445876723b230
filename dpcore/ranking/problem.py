"""The public facts of a ranking problem, and what algorithms ask of them."""

from __future__ import annotations

from dpcore.errors import AssumptionNotMet
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.losses import RankingLoss
from dpcore.ranking.objective import ScoredDocuments
from dpcore.ranking.scorers import Linear, Scorer
from dpcore.ranking.sessions import Sessions


def ranking_problem(
    sessions: Sessions,
    loss: RankingLoss,
    scorer: Scorer | None = None,
    *,
    adjacency: Adjacency | str = Adjacency.REPLACE_LABELS,
    n: int | None = None,
    l2: float = 0.0,
    public: ScoredDocuments | None = None,
) -> Problem:
    """The public facts of learning to rank ``sessions``; documents are among them under replace-labels alone.

    ``n`` is the declared nominal count under add/remove; it is the exact number of sessions otherwise. ``public`` is
    ``objective.public`` where there is an objective already: what it has computed is then shared.
    """
    public = ScoredDocuments(sessions.documents, scorer) if public is None else public
    nominal = sessions.n if n is None else n
    return ranking_facts(nominal, public.scorer, loss, adjacency, l2=l2, documents=public)


def ranking_facts(
    n: int,
    scorer: Scorer,
    loss: RankingLoss,
    adjacency: Adjacency | str = Adjacency.REPLACE_LABELS,
    *,
    l2: float = 0.0,
    l1: float = 0.0,
    documents: ScoredDocuments | None = None,
) -> Problem:
    """The same before any session was read: enough for ``plan``. Under replace-labels ``fit`` needs ``documents``."""
    labels_only = Adjacency(adjacency) is Adjacency.REPLACE_LABELS
    return Problem(
        n=n,
        dimension=scorer.size,
        loss=loss,  # type: ignore[arg-type]
        adjacency=Adjacency(adjacency),
        unit="session_labels" if labels_only else "session",
        kind="ranking" if isinstance(scorer, Linear) else "ranking_network",
        l1=l1,
        l2=l2,
        documents=documents if labels_only else None,
    )


def public_documents(problem: Problem, name: str) -> ScoredDocuments:
    """The public documents of ``problem``; raise ``AssumptionNotMet`` where it has none."""
    if problem.documents is None:
        raise AssumptionNotMet(
            f"Expected public documents for {name!r} under {problem.adjacency}, got documents=None; build it by "
            "ranking_problem(sessions, loss, adjacency='replace_labels'), or use dp_sgd where documents are private."
        )
    return problem.documents


def require_linear_scorer(problem: Problem, name: str) -> None:
    """Raise ``AssumptionNotMet`` unless scores are linear in the features."""
    if problem.kind != "ranking":
        raise AssumptionNotMet(
            f"Expected a linear scorer for {name!r}, got kind={problem.kind!r}; use scorer='linear', privbr or dp_sgd."
        )
