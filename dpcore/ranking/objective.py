"""Sums over ranking sessions: values and gradients clipped per session, and what labels alone can
do to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import partial
from math import inf

import numpy as np

from dpcore.errors import InputError
from dpcore.objective.base import readable
from dpcore.objective.rounding import row_norms
from dpcore.problem import Problem
from dpcore.ranking.bounds import Clipped, capped_sum, clipped_sum, session_vectors, shrunk_vectors
from dpcore.ranking.documents import PaddedBlock, ScoredDocuments
from dpcore.ranking.losses import RankingLoss
from dpcore.ranking.metrics import session_ap
from dpcore.ranking.scorers import Array, Layers, Scorer, gradient
from dpcore.ranking.sessions import Sessions, check_rows


class SessionObjective:
    """Sums of a ranking loss and its gradient over sessions; one session is one record.

    ``gradient_sum(w, clip_norm)`` scales each session's gradient down to norm C, so that a session
    (documents and labels) added or removed moves the sum by C and a replaced one, or replaced
    labels, by 2C at most.
    """

    def __init__(self, sessions: Sessions, loss: RankingLoss, scorer: Scorer | None = None) -> None:
        public = ScoredDocuments(sessions.documents, scorer)
        self._set(Sessions(public.documents, sessions.y, sessions.queries), public, loss)

    def _set(self, sessions: Sessions, public: ScoredDocuments, loss: RankingLoss) -> None:
        self.sessions, self.public, self.loss = sessions, public, loss
        self._labels: tuple[Array, list[Array]] | None = None  # y, and what each block shows of it

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
        batch = copy(self)
        batch._set(sessions, ScoredDocuments(sessions.documents, self.public.scorer), self.loss)
        return batch

    def _slopes(self, w: Array) -> Iterator[tuple[PaddedBlock, Array, Layers, Array]]:
        """Each block with the scores, the factored gradients and the derivative of the loss by the
        scores at ``w``.
        """
        if self._labels is None or self._labels[0] is not self.sessions.y:
            self._labels = (
                self.sessions.y,
                [block.labels(self.sessions.y) for block in self.public.blocks],
            )
        for (block, scores, layers), y in zip(self.public.forward(w), self._labels[1], strict=True):
            yield block, scores, layers, self.loss.slope(scores, y, block.mask)

    def gradient_sum(self, w: Array, clip_norm: float = inf) -> Array:
        """Sum over sessions of the gradient at ``w``, each scaled down to norm ``clip_norm``; shape
        (dimension,).
        """
        total = np.zeros(self.dimension)
        for block, _, layers, slope in self._slopes(w):
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
        """Layers and slope of the session at place ``j`` of a block, computed from that session
        alone.
        """
        own = block.mask[j][None, block.mask[j]]
        scores, layers = self.public.scorer.forward(readable(w), block.X[j][None, block.mask[j]])
        return layers, self.loss.slope(
            scores, self.sessions.y[block.rows[j][None, block.mask[j]]], own
        )

    def capped_gradient_sum(self, w: Array, cap: float) -> Array:
        """Sum over sessions of min(1, cap / s_j) times the gradient, with s_j of ``label_bounds``;
        (dimension,).

        Replaced labels of one session move it by at most ``cap``, whatever the sessions are.
        """
        total = np.zeros(self.dimension)
        self.public._require_label_linear(self.loss)
        known = self.public.known_bounds(w, self.loss)
        for block, scores, layers, slope in self._slopes(w):
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
        """Sum over sessions of the loss, each cut to [0, ``clip``], for every row of ``W`` (k, d);
        shape (k,).
        """
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

        ``M`` (k, p) is a map from features, Xc_j the documents of session j minus their mean, t_j
        its gains over their sum. A session without relevant documents contributes 0: t uniform.
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
        """Sum over sessions of the average precision when each single feature ranks, highest first;
        shape (p,).

        Ties are averaged; a session without relevant documents adds 0. Replaced labels or a
        replaced session move each sum by at most 1 either way, an added or removed session all sums
        the same way by at most 1.
        """
        documents = self.sessions.documents
        columns = range(documents.dimension)
        return np.array(
            [
                session_ap(self.sessions.y, documents.X[:, c], documents.offsets).sum()
                for c in columns
            ]
        )

    def check(self, problem: Problem) -> None:
        """Raise ``InputError`` unless sessions, public documents and parameters are as ``problem``
        declares.

        Its ``norm_bound`` is not used: whole sessions are clipped, or bounded through their public
        documents.
        """
        problem.check_count(self.n)
        if problem.documents is not None:
            self._check_documents(problem.documents)
        if self.dimension != problem.dimension:
            raise InputError(
                f"Expected {problem.dimension} parameters as the problem declares, got "
                f"{self.dimension}."
            )
        check_rows(self.sessions.documents.X, self.sessions.y)

    def _check_documents(self, public: ScoredDocuments) -> None:
        """Raise ``InputError`` unless ``public``, on which the price rests, has exactly these
        documents and scorer.
        """
        mine, theirs = self.sessions.documents, public.documents
        same = mine is theirs or (
            np.array_equal(mine.offsets, theirs.offsets) and np.array_equal(mine.X, theirs.X)
        )
        if not same or public.scorer != self.public.scorer:
            raise InputError(
                "Expected problem.documents to be the documents and the scorer of these sessions; "
                "build the problem by ranking_problem(sessions, ...)."
            )
