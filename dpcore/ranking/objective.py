"""Sums over ranking sessions: values and gradients clipped per session, and what labels alone can do to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf

import numpy as np

from dpcore.errors import AssumptionNotMet, InputError
from dpcore.objective import readable
from dpcore.ranking.bounds import (
    Clipped,
    capped_sum,
    clipped_sum,
    directions_of,
    label_bounds,
    products_of,
    session_vectors,
    shrunk_vectors,
)
from dpcore.ranking.losses import RankingLoss, softmax
from dpcore.ranking.metrics import session_ap
from dpcore.ranking.scorers import Array, Layers, Linear, Scorer, gradient, gram
from dpcore.ranking.sessions import Documents, Sessions, check_rows
from dpcore.rounding import row_norms

# Lengths of the sessions of one padded block differ by at most this factor; a larger one for a few sessions, for there
# the calls cost more than the padding.
PADDING = 1.3
FEW, PADDING_FEW = 32, 2.0
# Label bounds are enlarged by this share: norms that clip a gradient may lie above it by half as much, by margins that
# differ between labels.
ROUNDING = 2.0**-18


@dataclass
class PaddedBlock:
    """Sessions of similar length: ``sessions`` (B,), features (B, n, p) and mask (B, n); row numbers for labels."""

    sessions: Array
    rows: Array
    mask: Array
    X: Array
    _gram: Array | None = field(default=None, repr=False)

    def labels(self, y: Array) -> Array:
        """Labels of all documents as (B, n), 0 on padding."""
        return np.where(self.mask, y[self.rows], 0.0)

    def gram(self, scorer: Scorer, layers: Layers) -> Array:
        """Inner products of the documents' score gradients, (B, n, n); kept where they do not depend on w."""
        if not scorer.constant:
            return gram(layers)
        if self._gram is None:
            self._gram = gram(layers)
        return self._gram


def padded_blocks(documents: Documents) -> list[PaddedBlock]:
    """All sessions in blocks of similar length, short ones first."""
    order = np.argsort(documents.lengths, kind="stable")
    lengths = documents.lengths[order]
    padding = PADDING if len(order) > FEW else PADDING_FEW
    blocks, start = [], 0
    while start < len(order):
        stop = int(np.searchsorted(lengths, max(lengths[start] * padding, lengths[start] + 1), "right"))
        sessions = order[start:stop]
        place = np.arange(lengths[stop - 1])
        mask = place < documents.lengths[sessions][:, None]
        rows = np.where(mask, documents.offsets[sessions][:, None] + place, documents.offsets[sessions][:, None])
        blocks.append(PaddedBlock(sessions, rows, mask, documents.X[rows]))
        start = stop
    return blocks


class ScoredDocuments:
    """The public side under replace-labels: documents and a scorer, no labels. ``fit`` may use all of it."""

    def __init__(self, documents: Documents, scorer: Scorer | None = None) -> None:
        self.scorer: Scorer = scorer or Linear(documents.dimension)
        # Slopes of a session sum to 0, so a vector that all its documents share changes nothing but the rounding.
        self.documents = documents.centred() if isinstance(self.scorer, Linear) else documents
        if self.scorer.inputs != documents.dimension:
            raise InputError(f"Expected a scorer of {documents.dimension} features, got inputs={self.scorer.inputs}.")
        self._blocks: list[PaddedBlock] | None = None
        self._known: tuple[Array, RankingLoss, Clipped] | None = None  # the last w with its label bounds

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
            self._blocks = padded_blocks(self.documents)
        return self._blocks

    def forward(self, w: Array) -> Iterator[tuple[PaddedBlock, Array, Layers]]:
        """Each block with the scores (B, n) and the factored gradients of its documents at (``readable``) ``w``."""
        w = readable(w)
        for block in self.blocks:
            scores, layers = self.scorer.forward(w, block.X)
            yield block, scores, layers

    def label_bounds(self, w: Array, loss: RankingLoss) -> Array:
        """s_j(w): the most that a change of session j's labels moves its gradient, shape (n,). From X and w alone.

        With value = const - sum_i c_i P_i(s), u_i = grad P_i and c in [0, 1]^n (``gain``): |G - G'| <= sum_i |u_i|,
        and |G| = |sum (c_i - 1/2) u_i| <= half of it, for sum u_i = 0. With c on the simplex (or 0, or one-hot) G lies
        in the hull of the u_i, which holds 0, so label changes and G itself are at most the diameter max |u_i - u_k|.
        ListNet: G = sum (t_i - p_i) grad s_i, the diameter of the score gradients. The norms come from the Gram matrix
        of a session's documents, or from the vectors where too much cancels, and hold for the sums as computed:
        ``dpcore.ranking.bounds``. Infinite where a score gradient is: such a session contributes nothing.
        """
        self._require_label_linear(loss)
        known = self.known_bounds(w, loss)
        if known is not None:
            return known.norms
        bounds, totals = np.empty(self.n), np.empty(self.n)
        for block, scores, layers in self.forward(w):
            bounds[block.sessions], totals[block.sessions] = self._block_bounds(block, scores, layers, loss)
        bounds.setflags(write=False)
        self._known = (np.array(w), loss, Clipped(bounds, totals))
        return bounds

    def known_bounds(self, w: Array, loss: RankingLoss) -> Clipped | None:
        """The bounds of ``label_bounds`` where they were just computed: a full batch asks for them again."""
        if self._known is not None and self._known[1] == loss and np.array_equal(self._known[0], w):
            return self._known[2]
        return None

    def longest_directions(self, w: Array, loss: RankingLoss) -> Array:
        """max_i |u_i| of each session, shape (n,): at least half the diameter, at most all of it (0 is in the hull).

        A cheap public scale for clip norms. For ListNet the u_i are the score gradients minus their mean under p.
        """
        self._require_label_linear(loss)
        longest = np.empty(self.n)
        for block, scores, layers in self.forward(w):
            squared = _squared_directions(self.scorer, block, scores, layers, loss)
            longest[block.sessions] = np.sqrt(np.maximum(np.where(block.mask, squared, 0.0).max(axis=1), 0.0))
        return longest

    def _block_bounds(self, block: PaddedBlock, scores: Array, layers: Layers, loss: RankingLoss) -> Clipped:
        formed = isinstance(self.scorer, Linear) and loss.target == "gain" and loss.k == 1  # type: ignore[attr-defined]
        products = None if formed else block.gram(self.scorer, layers)
        found = label_bounds(layers, products, scores, block.mask, loss)
        return Clipped(found.norms * (1.0 + ROUNDING), found.sizes)

    def _require_label_linear(self, loss: RankingLoss) -> None:
        if not loss.label_linear:
            raise AssumptionNotMet(
                f"Expected a loss that is linear in a bounded function of the labels, got loss={loss.name!r}; use "
                "bayesrank or listnet, or clip whole sessions with dp_sgd."
            )


def _squared_directions(scorer: Scorer, block: PaddedBlock, scores: Array, layers: Layers, loss: RankingLoss) -> Array:
    """|u_i|^2, (B, n), up to rounding; for ListNet of score gradients minus their mean under p."""
    p = softmax(scores, block.mask)
    if isinstance(scorer, Linear) and getattr(loss, "k", 1) == 1:
        centred = block.X - np.matmul(p[:, None, :], block.X)
        squares = np.einsum("bnp,bnp->bn", centred, centred)
        return squares if loss.name == "listnet" else p * p * squares
    K = block.gram(scorer, layers)
    if loss.name == "listnet":
        Kp = np.matmul(K, p[..., None])[..., 0]
        return np.einsum("bii->bi", K) - 2.0 * Kp + np.sum(p * Kp, axis=1)[:, None]
    lengths = np.sqrt(np.einsum("bii->bi", K))
    return np.einsum("bii->bi", products_of(directions_of(loss, scores, block.mask, lengths), K))


class SessionObjective:
    """Sums of a ranking loss and its gradient over sessions; one session is one record.

    ``gradient_sum(w, clip_norm)`` scales each session's gradient down to norm C, so that a session (documents and
    labels) added or removed moves the sum by C and a replaced one, or replaced labels, by 2C at most.
    """

    def __init__(self, sessions: Sessions, loss: RankingLoss, scorer: Scorer | None = None) -> None:
        public = ScoredDocuments(sessions.documents, scorer)
        self._set(Sessions(public.documents, sessions.y, sessions.queries), public, loss)

    def _set(self, sessions: Sessions, public: ScoredDocuments, loss: RankingLoss) -> None:
        self.sessions, self.public, self.loss = sessions, public, loss

    @property
    def n(self) -> int:
        """Number of sessions."""
        return self.sessions.n

    @property
    def dimension(self) -> int:
        """Number of parameters of the scorer."""
        return self.public.dimension

    def take(self, rows: Array | slice) -> SessionObjective:
        """The sessions ``rows`` as an objective of their own."""
        if isinstance(rows, slice):
            rows = np.arange(self.n)[rows]
        sessions = self.sessions.take(rows)
        batch = object.__new__(SessionObjective)
        batch._set(sessions, ScoredDocuments(sessions.documents, self.public.scorer), self.loss)
        return batch

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over sessions of the gradient at ``w``, each scaled down to norm ``clip_norm``; shape (dimension,)."""
        total = np.zeros(self.dimension)
        for block, scores, layers in self.public.forward(w):
            slope = self.loss.slope(scores, block.labels(self.sessions.y), block.mask)
            if clip_norm < inf:
                if self.public.scorer.constant:
                    vectors = session_vectors(block.X, slope)
                    total += shrunk_vectors(vectors, row_norms(vectors), clip_norm)
                else:
                    total += clipped_sum(layers, slope, clip_norm, partial(self._alone, w, block))
            else:
                total += gradient(layers, slope)
        return total

    def _alone(self, w: Array, block: PaddedBlock, j: int) -> tuple[Layers, Array]:
        """Layers and slope of the session at place ``j`` of a block, computed from that session alone."""
        own = block.mask[j][None, block.mask[j]]
        scores, layers = self.public.scorer.forward(readable(w), block.X[j][None, block.mask[j]])
        return layers, self.loss.slope(scores, self.sessions.y[block.rows[j][None, block.mask[j]]], own)

    def capped_gradient_sum(self, w: Array, cap: float) -> Array:
        """Sum over sessions of min(1, cap / s_j) times the gradient, with s_j of ``label_bounds``; (dimension,).

        Replaced labels of one session move it by at most ``cap``, whatever the sessions are.
        """
        total = np.zeros(self.dimension)
        self.public._require_label_linear(self.loss)
        known = self.public.known_bounds(w, self.loss)
        for block, scores, layers in self.public.forward(w):
            slope = self.loss.slope(scores, block.labels(self.sessions.y), block.mask)
            if known is not None:
                found = Clipped(known.norms[block.sessions], known.sizes[block.sessions])
            else:
                found = self.public._block_bounds(block, scores, layers, self.loss)
            if self.public.scorer.constant:
                total += shrunk_vectors(session_vectors(block.X, slope), found.norms, cap)
            else:
                total += capped_sum(layers, slope, found, cap)
        return total

    def value_sum(self, W: Array, clip: float = inf) -> Array:
        """Sum over sessions of the loss, each cut to [0, ``clip``], for every row of ``W`` (k, d); shape (k,)."""
        W = np.atleast_2d(W)
        total = np.zeros(len(W))
        for k, w in enumerate(W):
            for block in self.public.blocks:
                scores = self.public.scorer.scores(readable(w), block.X)
                values = self.loss.value(scores, block.labels(self.sessions.y), block.mask)
                total[k] += float(np.minimum(np.maximum(values, 0.0), clip).sum())
        return total

    def label_sum(self, M: Array, clip_norm: float = inf) -> Array:
        """sum_j clip(M Xc_j' t_j, C), shape (k,): all that a linear ListNet asks of the labels.

        ``M`` (k, p) is a map from features, Xc_j the documents of session j minus their mean, t_j its gains over their
        sum. A session without relevant documents contributes 0: t uniform.
        """
        documents = self.sessions.documents
        gain = np.exp2(self.sessions.y) - 1.0
        starts = documents.offsets[:-1]
        total = np.add.reduceat(gain, starts)
        t = (
            gain / np.where(total > 0, total, 1.0)[documents.owner]
            - (total > 0)[documents.owner] / documents.lengths[documents.owner]
        )
        sums = np.add.reduceat(t[:, None] * documents.X, starts, axis=0) @ M.T
        return shrunk_vectors(sums, row_norms(sums), clip_norm)

    def feature_precision_sum(self) -> Array:
        """Sum over sessions of the average precision when each single feature ranks, highest first; shape (p,).

        Ties are averaged; a session without relevant documents adds 0. Replaced labels or a replaced session move each
        sum by at most 1 either way, an added or removed session all sums the same way by at most 1.
        """
        documents = self.sessions.documents
        columns = range(documents.dimension)
        return np.array([session_ap(self.sessions.y, documents.X[:, c], documents.offsets).sum() for c in columns])

    def check_records(self, dimension: int, norm_bound: float) -> None:
        """Raise ``InputError`` unless the scorer has ``dimension`` parameters and labels and features are in range.

        ``norm_bound`` is not used: whole sessions are clipped, or bounded through their public documents.
        """
        if self.dimension != dimension:
            raise InputError(f"Expected {dimension} parameters as the problem declares, got {self.dimension}.")
        check_rows(self.sessions.documents.X, self.sessions.y)

    def check_documents(self, public: ScoredDocuments) -> None:
        """Raise ``InputError`` unless ``public``, on which the price rests, has exactly these documents and scorer."""
        mine, theirs = self.sessions.documents, public.documents
        same = mine is theirs or (np.array_equal(mine.offsets, theirs.offsets) and np.array_equal(mine.X, theirs.X))
        if not same or public.scorer != self.public.scorer:
            raise InputError(
                "Expected problem.documents to be the documents and the scorer of these sessions; build the problem by "
                "ranking_problem(sessions, ...)."
            )
