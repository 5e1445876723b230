"""Losses of one session: functions of its scores and labels. Arrays are padded blocks (B, n) with a
mask.

``slope`` is the derivative by the scores, 0 on padding. A loss that is linear in a bounded function
of the labels (``label_linear``) has the form value = const - sum_i c_i(y) P_i(s): what labels can
do to its gradient is then bounded by the directions u_i = grad P_i alone, which follow from
documents and parameters (``dpcore.ranking.objective``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Protocol

import numpy as np

from dpcore.errors import InputError, require_choice, unknown_name

Array = np.ndarray

TARGETS = ("gain", "simplex", "one_hot")
SECOND = 1.0 / np.log2(3.0)  # discount of the second rank


class RankingLoss(Protocol):
    """What a SessionObjective needs of a loss."""

    name: ClassVar[str]
    argument: ClassVar[str]
    convex: ClassVar[bool]
    label_linear: ClassVar[bool]

    @property
    def lipschitz(self) -> float: ...

    @property
    def smoothness(self) -> float: ...

    def value(self, s: Array, y: Array, mask: Array) -> Array: ...

    def slope(self, s: Array, y: Array, mask: Array) -> Array: ...


def softmax(s: Array, mask: Array) -> Array:
    """exp(s) / sum exp(s) over the last axis where ``mask``, 0 elsewhere; every row holds at least
    one document.
    """
    e = np.where(mask, s, -inf)
    e -= e.max(axis=-1, keepdims=True)
    np.exp(e, out=e)
    e /= e.sum(axis=-1, keepdims=True)
    return e


def gains(y: Array, mask: Array) -> Array:
    """2^y - 1, 0 on padding."""
    return np.where(mask, np.exp2(y) - 1.0, 0.0)


def simplex(y: Array, mask: Array) -> Array:
    """Gains over their sum; a session without relevant documents gets zeros."""
    g = gains(y, mask)
    total = g.sum(axis=-1, keepdims=True)
    return g / np.where(total > 0, total, 1.0)


def one_hot(y: Array, mask: Array) -> Array:
    """1 for one of the best labelled documents, zeros where none is relevant (Chen 2020, 6.5.5).

    The draw among equals goes by fixed public numbers, one a place in the list, so it does not
    depend on the other sessions of a batch. Whatever it picks, the result is one-hot or zero, and
    no more is used by the price.
    """
    draw = np.random.default_rng(0).random(y.shape[-1])
    best = np.max(np.where(mask, y, 0.0), axis=-1, keepdims=True)
    winner = np.argmax(np.where(mask & (y == best), draw, -1.0), axis=-1)
    hot = np.zeros(y.shape)
    np.put_along_axis(hot, winner[..., None], 1.0, axis=-1)
    marked: Array = hot * (best > 0)
    return marked


@dataclass(frozen=True)
class BayesRank:
    """1 - sum over top-k lists of NDCG@k * their permutation probability: 1 - sum_i c_i P_i, in [0,
    1].

    NDCG@k is a sum over ranks, so only the chance of each document at each of the first k ranks
    matters: P_i = p_i for k = 1 and P_i = p_i + P(second = i) / log2(3) for k = 2, exact, in O(n^2)
    instead of a sum over n^2 lists. ``target``: ``gain`` (c_i = gain_i over the best DCG@k, in [0,
    1]), ``simplex`` (c_i = gain_i / sum gain) or ``one_hot``. A session without relevant documents
    has gain 0. Kuo, Cheng & Wang (2009); Chen (2020), (6.7). Since sum_i P_i does not depend on the
    scores, sum_i u_i = 0.
    """

    name: ClassVar[str] = "bayesrank"
    argument: ClassVar[str] = "session"
    convex: ClassVar[bool] = False
    label_linear: ClassVar[bool] = True
    smoothness: ClassVar[float] = inf

    k: int = 1
    target: str = "gain"

    def __post_init__(self) -> None:
        if self.k not in (1, 2):
            raise InputError(
                f"Expected k of 1 or 2 for bayesrank, got k={self.k!r}; use listmle for the whole "
                "order."
            )
        require_choice(TARGETS, target=self.target)

    @property
    def lipschitz(self) -> float:
        """Covariance of c in [0, 1] and x: at most |x| / 2 a rank, linear scorer."""
        return 0.5 if self.k == 1 else inf

    def weights(self, y: Array, mask: Array) -> Array:
        """c, shape (B, n)."""
        if self.target == "simplex":
            return simplex(y, mask)
        if self.target == "one_hot":
            return one_hot(y, mask)
        g = gains(y, mask)
        best = g.max(axis=-1, keepdims=True)
        if self.k == 2 and g.shape[-1] > 1:
            best += SECOND * np.partition(g, -2, axis=-1)[..., -2:-1]
        return g / np.where(best > 0, best, 1.0)

    def chances(self, s: Array, mask: Array) -> Array:
        """P, shape (B, n)."""
        p = softmax(s, mask)
        return p if self.k == 1 else p + SECOND * np.einsum("bi,bil->bl", p, _second(s, mask))

    def jacobian(self, s: Array, mask: Array) -> Array:
        """dP_i / ds_d, shape (B, n, n)."""
        p = softmax(s, mask)
        first: Array = (
            np.einsum("bi,ij->bij", p, np.eye(p.shape[-1])) - p[..., :, None] * p[..., None, :]
        )
        if self.k == 1:
            return first
        q = _second(s, mask)
        joint = p[..., :, None] * q  # chance of the list (i, l)
        second = joint.sum(axis=-2)
        step = np.swapaxes(joint, -1, -2) - second[..., :, None] * p[..., None, :]
        step += (
            np.einsum("bi,ij->bij", second, np.eye(p.shape[-1])) - np.swapaxes(joint, -1, -2) @ q
        )
        jacobian: Array = first + SECOND * step
        return jacobian

    def value(self, s: Array, y: Array, mask: Array) -> Array:
        value: Array = 1.0 - np.sum(self.weights(y, mask) * self.chances(s, mask), axis=-1)
        return value

    def slope(self, s: Array, y: Array, mask: Array) -> Array:
        c = self.weights(y, mask)
        if self.k == 2:
            through_pairs: Array = -np.einsum("bi,bid->bd", c, self.jacobian(s, mask))
            return through_pairs
        p = softmax(s, mask)
        found: Array = p * ((c * p).sum(axis=-1, keepdims=True) - c)
        return found


def _second(s: Array, mask: Array) -> Array:
    """Chance of l at rank 2 given i at rank 1, shape (B, n, n): a softmax without i, and 0 in a
    session of one.
    """
    n = s.shape[-1]
    others = mask[..., None, :] & ~np.eye(n, dtype=bool)
    alone = ~others.any(axis=-1, keepdims=True)
    q = softmax(np.broadcast_to(s[..., None, :], others.shape), others | alone)
    return np.where(others, q, 0.0)


@dataclass(frozen=True)
class ListNet:
    """Top-1 cross-entropy -sum_i t_i log p_i. Cao et al. (2007), with the truth's distribution t
    stated here:

    t_i = gain_i / sum gain, gain = 2^y - 1 (the original takes a softmax of the labels, which gives
    irrelevant documents a share). A session without relevant documents contributes nothing, as if t
    = p (``empty`` = "skip"), or has t uniform.
    """

    name: ClassVar[str] = "listnet"
    argument: ClassVar[str] = "session"
    convex: ClassVar[bool] = True
    label_linear: ClassVar[bool] = True
    lipschitz: ClassVar[float] = 2.0  # |x_i - x_k| <= 2 |x|
    smoothness: ClassVar[float] = 1.0  # the variance of x under p is at most |x|^2
    target: ClassVar[str] = "simplex"

    empty: str = "skip"

    def __post_init__(self) -> None:
        require_choice(("skip", "uniform"), empty=self.empty)

    def truth(self, y: Array, mask: Array) -> Array:
        """t, shape (B, n); zeros for a skipped session."""
        t = simplex(y, mask)
        if self.empty == "uniform":
            t = np.where(
                t.sum(axis=-1, keepdims=True) > 0, t, mask / mask.sum(axis=-1, keepdims=True)
            )
        return t

    def value(self, s: Array, y: Array, mask: Array) -> Array:
        t = self.truth(y, mask)
        top = np.max(np.where(mask, s, -inf), axis=-1, keepdims=True)
        log_sum = top + np.log(
            np.sum(np.where(mask, np.exp(np.minimum(s - top, 0.0)), 0.0), axis=-1, keepdims=True)
        )
        value: Array = np.sum(t * (log_sum - np.where(mask, s, 0.0)), axis=-1)
        return value

    def slope(self, s: Array, y: Array, mask: Array) -> Array:
        t = self.truth(y, mask)
        slope: Array = softmax(s, mask) * t.sum(axis=-1, keepdims=True) - t
        return slope


def _flat(order: Array) -> Array:
    """Places (..., n) along the last axis as places in the flattened array."""
    n = order.shape[-1]
    found: Array = order + n * np.arange(order.size // n).reshape(*order.shape[:-1], 1)
    return found


@dataclass(frozen=True)
class ListMLE:
    """-log of the permutation probability of the order by label. Xia et al. (2008); Chen (2020),
    (6.6).

    Documents of equal label stand in the order of their rows (a fixed, public choice); places after
    the last relevant document say nothing and are left out, so a session without relevant documents
    contributes nothing.
    """

    name: ClassVar[str] = "listmle"
    argument: ClassVar[str] = "session"
    convex: ClassVar[bool] = True
    label_linear: ClassVar[bool] = False
    lipschitz: ClassVar[float] = inf  # one term a relevant document
    smoothness: ClassVar[float] = inf

    def _placed(self, s: Array, y: Array, mask: Array) -> tuple[Array, Array, Array, Array]:
        order = _flat(np.argsort(np.where(mask, -y, inf), axis=-1, kind="stable"))
        counted = (mask & (y > 0)).take(order)
        placed = np.where(mask, s, -inf).take(order)
        top = placed.max(axis=-1, keepdims=True)
        e = np.exp(placed - top)
        tail = np.cumsum(e[..., ::-1], axis=-1)[..., ::-1]
        return order, counted, e, np.maximum(tail, 1e-300)

    def value(self, s: Array, y: Array, mask: Array) -> Array:
        _, counted, e, tail = self._placed(s, y, mask)
        terms = np.log(tail) - np.log(np.maximum(e, 1e-300))
        value: Array = np.sum(np.where(counted, terms, 0.0), axis=-1)
        return value

    def slope(self, s: Array, y: Array, mask: Array) -> Array:
        order, counted, e, tail = self._placed(s, y, mask)
        share = e * np.cumsum(np.where(counted, 1.0 / tail, 0.0), axis=-1)
        slope = np.empty_like(share)
        slope.put(order, share - counted)
        return np.where(mask, slope, 0.0)


def target_of(loss: RankingLoss) -> str:
    """The bounded function of the labels (``TARGETS``) that a loss with ``label_linear`` is linear
    in.
    """
    named: Any = loss
    target: str = named.target
    return target


ranking_losses: dict[str, Callable[..., RankingLoss]] = {
    loss.name: loss for loss in (BayesRank, ListNet, ListMLE)
}


def make_ranking_loss(name: str, **parameters: Any) -> RankingLoss:
    """Return the ranking loss called ``name``; raise ``UnknownName`` with near misses."""
    if name not in ranking_losses:
        raise unknown_name("ranking loss", name, ranking_losses)
    try:
        return ranking_losses[name](**parameters)
    except TypeError as error:
        raise InputError(
            f"Expected parameters that loss {name!r} has, got {parameters}: {error}."
        ) from error
