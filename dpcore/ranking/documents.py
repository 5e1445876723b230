"""The public facts of a ranking problem, and what algorithms ask of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dpcore.errors import AssumptionNotMet, InputError
from dpcore.objective.base import readable
from dpcore.problem import Adjacency, Problem
from dpcore.ranking.bounds import (
    LOSSY,
    Clipped,
    about_mean,
    directions_of,
    label_bounds,
    lengths_of,
    squares_of,
)
from dpcore.ranking.losses import RankingLoss, softmax, target_of
from dpcore.ranking.scorers import Array, Layers, Linear, Scorer, gram
from dpcore.ranking.sessions import Documents, Sessions

# Lengths of the sessions of one padded block differ by at most this factor; a larger one for a few
# sessions, for there the calls cost more than the padding, most of all for linear scores, where a
# document costs little.
PADDING = 1.3
FEW, PADDING_FEW, PADDING_FEW_LINEAR = 32, 3.0, 4.0
# Label bounds are enlarged by this share: norms that clip a gradient may lie above it by half as
# much, by margins that differ between labels.
ROUNDING = 2.0**-18


@dataclass
class PaddedBlock:
    """Sessions of similar length: ``sessions`` (B,), features (B, n, p) and mask (B, n); row
    numbers for labels.
    """

    sessions: Array
    rows: Array
    mask: Array
    X: Array
    _gram: Array | None = field(default=None, repr=False)
    _lengths: Array | None = field(default=None, repr=False)
    _layers: Layers | None = field(default=None, repr=False)

    def labels(self, y: Array) -> Array:
        """Labels of all documents as (B, n), 0 on padding."""
        return np.where(self.mask, y[self.rows], 0.0)

    def gram(self, scorer: Scorer, layers: Layers) -> Array:
        """Inner products of the documents' score gradients, (B, n, n); kept where they do not
        depend on w.
        """
        if not scorer.constant:
            return gram(layers)
        if self._gram is None:
            self._gram = gram(layers)
        return self._gram

    @property
    def layers(self) -> Layers:
        """The gradients of linear scores, which are the documents; kept."""
        if self._layers is None:
            self._layers = [(self.X, np.ones((*self.mask.shape, 1)))]
        return self._layers

    @property
    def lengths(self) -> Array:
        """Norms of the documents, (B, n); kept."""
        if self._lengths is None:
            self._lengths = lengths_of(self.X)
        return self._lengths


def padded_blocks(documents: Documents, few: float = PADDING_FEW) -> list[PaddedBlock]:
    """All sessions in blocks of similar length, short ones first; ``few`` is the padding of a few
    sessions.
    """
    order = np.argsort(documents.lengths, kind="stable")
    lengths = documents.lengths[order]
    padding = PADDING if len(order) > FEW else few
    blocks, start = [], 0
    while start < len(order):
        stop = int(
            np.searchsorted(lengths, max(lengths[start] * padding, lengths[start] + 1), "right")
        )
        sessions = order[start:stop]
        place = np.arange(lengths[stop - 1])
        mask = place < documents.lengths[sessions][:, None]
        rows = np.where(
            mask, documents.offsets[sessions][:, None] + place, documents.offsets[sessions][:, None]
        )
        blocks.append(PaddedBlock(sessions, rows, mask, documents.X[rows]))
        start = stop
    return blocks


class ScoredDocuments:
    """The public side under replace-labels: documents and a scorer, no labels. ``fit`` may use all
    of it.
    """

    def __init__(self, documents: Documents, scorer: Scorer | None = None) -> None:
        self.scorer: Scorer = scorer or Linear(documents.dimension)
        # Slopes of a session sum to 0, so a vector that all its documents share changes nothing but
        # the rounding.
        self.documents = documents.centred() if isinstance(self.scorer, Linear) else documents
        if self.scorer.inputs != documents.dimension:
            raise InputError(
                f"Expected a scorer of {documents.dimension} features, got "
                f"inputs={self.scorer.inputs}."
            )
        self._blocks: list[PaddedBlock] | None = None
        self._scored: tuple[Array, list[Array]] | None = None
        # the last w with its label bounds
        self._known: tuple[Array, RankingLoss, Clipped] | None = None

    @property
    def n(self) -> int:
        """Number of sessions."""
        return self.documents.n

    @property
    def dimension(self) -> int:
        """Number of parameters."""
        return self.scorer.size

    @property
    def blocks(self) -> list[PaddedBlock]:
        if self._blocks is None:
            self._blocks = padded_blocks(
                self.documents, PADDING_FEW_LINEAR if self.scorer.constant else PADDING_FEW
            )
        return self._blocks

    def forward(self, w: Array) -> Iterator[tuple[PaddedBlock, Array, Layers]]:
        """Each block with the scores (B, n) and the factored gradients of its documents at
        (``readable``) ``w``.
        """
        w = readable(w)
        if self.scorer.constant:
            for block, scores in zip(self.blocks, self._kept_scores(w), strict=True):
                yield block, scores, block.layers
            return
        for block in self.blocks:
            scores, layers = self.scorer.forward(w, block.X)
            yield block, scores, layers

    def _kept_scores(self, w: Array) -> list[Array]:
        """The scores of each block; those of the last w are kept, for bounds and gradients ask for
        the same.
        """
        if self._scored is None or not np.array_equal(self._scored[0], w):
            self._scored = np.array(w), [self.scorer.scores(w, block.X) for block in self.blocks]
        return self._scored[1]

    def label_bounds(self, w: Array, loss: RankingLoss) -> Array:
        """s_j(w): the most that a change of session j's labels moves its gradient, shape (n,). From
        X and w alone.

        With value = const - sum_i c_i P_i(s), u_i = grad P_i and c in [0, 1]^n (``gain``): |G - G'|
        <= sum_i |u_i|, and |G| = |sum (c_i - 1/2) u_i| <= half of it, for sum u_i = 0. With c on
        the simplex (or 0, or one-hot) G lies in the hull of the u_i, which holds 0, so label
        changes and G itself are at most the diameter max |u_i - u_k|.
        ListNet: G = sum (t_i - p_i) grad s_i, the diameter of the score gradients. The norms come
        from the Gram matrix of a session's documents, or from the vectors where too much cancels,
        and hold for the sums as computed: ``dpcore.ranking.bounds``. Infinite where a score
        gradient is: such a session contributes nothing.
        """
        self._require_label_linear(loss)
        known = self.known_bounds(w, loss)
        if known is not None:
            return known.norms
        bounds, totals = np.empty(self.n), np.empty(self.n)
        for block, scores, layers in self.forward(w):
            bounds[block.sessions], totals[block.sessions] = self._block_bounds(
                block, scores, layers, loss
            )
        bounds.setflags(write=False)
        self._known = (np.array(w), loss, Clipped(bounds, totals))
        return bounds

    def known_bounds(self, w: Array, loss: RankingLoss) -> Clipped | None:
        """The bounds of ``label_bounds`` where they were just computed: a full batch asks for them
        again.
        """
        if self._known is not None and self._known[1] == loss and np.array_equal(self._known[0], w):
            return self._known[2]
        return None

    def longest_directions(self, w: Array, loss: RankingLoss) -> Array:
        """max_i |u_i| of each session, shape (n,): at least half the diameter, at most all of it (0
        is in the hull).

        A cheap public scale for clip norms. For ListNet the u_i are the score gradients minus their
        mean under p.
        """
        self._require_label_linear(loss)
        longest = np.empty(self.n)
        for block, scores, layers in self.forward(w):
            squared = _squared_directions(self.scorer, block, scores, layers, loss)
            longest[block.sessions] = np.sqrt(
                np.maximum(np.where(block.mask, squared, 0.0).max(axis=1), 0.0)
            )
        return longest

    def _block_bounds(
        self, block: PaddedBlock, scores: Array, layers: Layers, loss: RankingLoss
    ) -> Clipped:
        formed = (
            isinstance(self.scorer, Linear)
            and target_of(loss) == "gain"
            and getattr(loss, "k", 1) == 1
        )
        known = block.lengths if formed else block.gram(self.scorer, layers)
        found = label_bounds(layers, known, scores, block.mask, loss)
        return Clipped(found.norms * (1.0 + ROUNDING), found.sizes)

    def _require_label_linear(self, loss: RankingLoss) -> None:
        if not loss.label_linear:
            raise AssumptionNotMet(
                "Expected a loss that is linear in a bounded function of the labels, got "
                f"loss={loss.name!r}; use bayesrank or listnet, or clip whole sessions with dp_sgd."
            )


def _squared_directions(
    scorer: Scorer, block: PaddedBlock, scores: Array, layers: Layers, loss: RankingLoss
) -> Array:
    """|u_i|^2, (B, n), up to rounding; for ListNet of score gradients minus their mean under p."""
    p = softmax(scores, block.mask)
    if isinstance(scorer, Linear) and getattr(loss, "k", 1) == 1:
        squares, margin = about_mean(p, block.X, block.lengths)
        lossy = margin.max(axis=1) > LOSSY * squares.max(axis=1)
        if lossy.any():
            squares[lossy] = (
                lengths_of(block.X[lossy] - np.matmul(p[lossy, None, :], block.X[lossy])) ** 2
            )
        return squares if loss.name == "listnet" else p * p * squares
    K = block.gram(scorer, layers)
    if loss.name == "listnet":
        Kp = np.matmul(K, p[..., None])[..., 0]
        centred_squares: Array = (
            np.einsum("bii->bi", K) - 2.0 * Kp + np.sum(p * Kp, axis=1)[:, None]
        )
        return centred_squares
    lengths = np.sqrt(np.einsum("bii->bi", K))
    return squares_of(directions_of(loss, scores, block.mask, lengths), K)


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
    """The public facts of learning to rank ``sessions``; documents are among them under
    replace-labels alone.

    ``n`` is the declared nominal count under add/remove; it is the exact number of sessions
    otherwise. ``public`` is ``objective.public`` where there is an objective already: what it has
    computed is then shared.
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
    """The same before any session was read: enough for ``plan``. Under replace-labels ``fit`` needs
    ``documents``.
    """
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
    documents: ScoredDocuments | None = problem.documents
    if documents is None:
        raise AssumptionNotMet(
            f"Expected public documents for {name!r} under {problem.adjacency}, got "
            "documents=None; build it by ranking_problem(sessions, loss, "
            "adjacency='replace_labels'), or use dp_sgd where documents are private."
        )
    return documents


def require_linear_scorer(problem: Problem, name: str) -> None:
    """Raise ``AssumptionNotMet`` unless scores are linear in the features."""
    if problem.kind != "ranking":
        raise AssumptionNotMet(
            f"Expected a linear scorer for {name!r}, got kind={problem.kind!r}; use "
            "scorer='linear', privbr or dp_sgd."
        )
