"""The public facts of a learning problem: all that the price of a run may depend on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dpcore.errors import (
    AssumptionNotMet,
    InputError,
    require_count,
    require_nonnegative,
    require_positive,
)
from dpcore.losses import Loss, Weighted


class Adjacency(StrEnum):
    """Which two data sets are neighbours."""

    ADD_REMOVE = "add_remove"  # one record more or fewer
    REPLACE_ONE = "replace_one"  # one record has other values; n is public
    REPLACE_LABELS = "replace_labels"  # one session has other labels; documents are public


@dataclass(frozen=True, slots=True)
class Block:
    """Columns that belong to one attribute.

    ``one_hot``: parts are >= 0 and sum to at most 1 in every row (levels, hat functions, a lone 0/1
    column). ``numeric``: one column with values in [0, 1]. ``fine``: these columns tell finer what
    those of the block before tell already; an algorithm that releases marginals may leave the block
    out where they say that it carries too little.
    """

    columns: tuple[int, ...]
    kind: str = "one_hot"
    fine: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("one_hot", "numeric"):
            raise InputError(
                f"Expected kind one_hot or numeric for a block, got kind={self.kind!r}."
            )
        if not self.columns or (self.kind == "numeric" and len(self.columns) != 1):
            raise InputError(
                "Expected at least one column in a block, one if numeric, got "
                f"columns={self.columns!r}."
            )
        if self.fine and self.kind != "one_hot":
            raise InputError(f"Expected kind one_hot for a fine block, got kind={self.kind!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is minimised, mean_i loss(x_i, y_i; w) + l2/2 ||w||^2 + l1 ||w||_1, and who counts as a
    neighbour.

    ``n`` counts the training part: the exact public count under replace-one and replace-labels, a
    declared nominal count (a divisor and a rate, never the real count) under add/remove.
    ``norm_bound`` bounds ||x||_2 with the constant column in it. ``outputs`` is the number of
    weight vectors (classes of a softmax model). ``documents`` is the public side of ranking
    sessions under replace-labels (a ``ScoredDocuments``), None where they are private too.
    """

    n: int
    dimension: int
    loss: Loss
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    unit: str = "record"
    kind: str = "linear"
    l1: float = 0.0
    l2: float = 0.0
    norm_bound: float = 1.0
    blocks: tuple[Block, ...] = ()
    intercept: bool = False
    outputs: int = 1
    documents: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_count(n=self.n, dimension=self.dimension, outputs=self.outputs)
        require_positive(norm_bound=self.norm_bound)
        require_nonnegative(l1=self.l1, l2=self.l2)
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))

    @property
    def lipschitz(self) -> float:
        """Bound on the gradient norm of one record's data term: norm_bound * slope bound of the
        loss.
        """
        return self.norm_bound * self.loss.lipschitz

    @property
    def smoothness(self) -> float:
        """Bound on the Hessian norm of the mean, ridge included: norm_bound^2 * curvature bound +
        l2.
        """
        return self.norm_bound**2 * self.loss.smoothness + self.l2

    @property
    def weight(self) -> float:
        """The largest class weight of the loss, 1 without: rules that were measured without weights
        scale by it.
        """
        return self.loss.largest if isinstance(self.loss, Weighted) else 1.0

    def sensitivity(self, clip: float) -> float:
        """Largest move between neighbours of a sum of contributions, each of L2 norm <= ``clip``.

        C when a record is added or removed, 2C when it (or a session's labels) is replaced.
        """
        require_positive(clip=clip)
        return clip if self.adjacency is Adjacency.ADD_REMOVE else 2.0 * clip

    def check_count(self, n: int) -> None:
        """Raise ``InputError`` unless ``n`` records are at least one, and exactly as many as are
        public.
        """
        if n == 0:
            raise InputError(
                "Expected at least one record, got an empty table; check the path and the split."
            )
        if self.adjacency is not Adjacency.ADD_REMOVE and n != self.n:
            raise InputError(
                f"Expected exactly n={self.n} records under {self.adjacency}, where n is public, "
                f"got {n}; declare the exact count of the training part, or use "
                "adjacency=add_remove with a nominal n."
            )


Need = tuple[bool, str, str, str]  # unmet or not; what is needed, what it is, and the way out


@dataclass(frozen=True, slots=True, kw_only=True)
class Requires:
    """What the proof (or the formula) of an algorithm needs; checked before a record is read,
    refused in words.
    """

    linear: bool = False
    ranking: bool = False
    smooth: bool = False
    convex: bool = False
    strongly_convex: bool = False
    bounded_gradient: bool = False
    l1: bool = True  # False: the algorithm has no way to handle an L1 penalty
    # True: sums over ranking sessions do as well, whose documents have no bound on their norm
    sessions: bool = False
    # True: weights of shape (outputs * dimension,) of a joint loss are handled
    softmax: bool = False

    def check(self, name: str, problem: Problem) -> None:
        """Raise ``AssumptionNotMet`` naming the first need that the problem does not meet."""
        for unmet, need, got, way_out in (*self._of_model(problem), *self._of_loss(problem)):
            if unmet:
                raise AssumptionNotMet(f"Expected {need} for {name!r}, got {got}; use {way_out}.")

    def _of_model(self, problem: Problem) -> tuple[Need, ...]:
        return (
            (
                problem.loss.argument == "scores" and problem.kind == "linear" and not self.softmax,
                "a loss of one margin",
                f"loss={problem.loss.name!r}",
                "loss='logistic', which trains one class against the rest",
            ),
            (
                self.linear and problem.kind != "linear",
                "a linear model",
                f"kind={problem.kind!r}",
                "dp_sgd",
            ),
            (
                problem.kind.startswith("ranking") and not (self.ranking or self.sessions),
                "a linear model of single rows",
                f"kind={problem.kind!r}",
                "dp_sgd, dp_adam, or a ranking algorithm such as privbr",
            ),
            (
                self.ranking and not problem.kind.startswith("ranking"),
                "ranking sessions",
                f"kind={problem.kind!r}",
                "dp_sgd",
            ),
        )

    def _of_loss(self, problem: Problem) -> tuple[Need, ...]:
        loss = problem.loss.name
        return (
            (
                self.smooth and problem.smoothness == float("inf"),
                "a smooth loss",
                f"loss={loss!r}",
                "loss='huber_hinge' or an algorithm that needs no smoothness",
            ),
            (
                self.convex and not problem.loss.convex,
                "a convex loss",
                f"loss={loss!r}",
                "loss='logistic' or an algorithm that needs no convexity",
            ),
            (
                self.strongly_convex and problem.l2 <= 0,
                "a strongly convex objective",
                f"l2={problem.l2!r}",
                "l2 > 0, for example 0.001",
            ),
            (
                self.bounded_gradient and problem.lipschitz == float("inf"),
                "a loss of bounded slope",
                f"loss={loss!r}",
                "loss='huber_regression' or an algorithm that clips, such as dp_sgd",
            ),
            (
                not self.l1 and problem.l1 > 0,
                "a problem without L1 penalty",
                f"l1={problem.l1!r}",
                "l1=0 or an algorithm with a proximal step",
            ),
        )
