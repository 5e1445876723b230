"""Bounds of sessions hold for the numbers that are computed, however much cancels in them."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from math import inf, isqrt

import numpy as np
import pytest

from dpcore.ranking import bounds
from dpcore.ranking.bounds import session_norms
from dpcore.ranking.documents import ScoredDocuments
from dpcore.ranking.losses import BayesRank, ListNet, RankingLoss, softmax
from dpcore.ranking.objective import SessionObjective
from dpcore.ranking.scorers import MLP, Linear, Scorer
from dpcore.ranking.sessions import Documents, Sessions
from tests.dpcore.ranking.test_objective import LINEAR_IN_LABELS

OFFSETS = {"none": 0.0, "thousand": 1e3, "largest": 99_990.0}
SPREADS = {"wide": 1.0, "narrow": 1e-3, "ulp": 0.0, "tiny": 1e-320}


def documents_of(n: int, p: int, offset: float, spread: float, seed: int = 0) -> Documents:
    """One session; spread 0 means rows that are one unit in the last place apart."""
    rng = np.random.default_rng(seed)
    X = offset + spread * rng.random((n, p))
    if spread == 0.0:
        X = np.where(rng.random((n, p)) < 0.5, X, np.nextafter(X, inf))
    return Documents(X, np.array([0, n]))


def objective_of(
    documents: Documents, y: np.ndarray, loss: RankingLoss, scorer: Scorer
) -> SessionObjective:
    return SessionObjective(Sessions(documents, y, np.arange(documents.n)), loss, scorer)


def length(values) -> Fraction:
    """Squared norm, exact."""
    return sum((Fraction(float(value)) ** 2 for value in np.ravel(values)), Fraction(0))


def exact_directions(X: np.ndarray, p: np.ndarray, loss: RankingLoss) -> list[list[Fraction]]:
    """u_i of a linear scorer for the chances as computed, exact."""
    rows = [[Fraction(float(x)) for x in row] for row in X]
    if loss.name == "listnet":
        return rows
    chances = [Fraction(float(value)) for value in p]
    mean = [
        sum((c * x for c, x in zip(chances, column, strict=True)), Fraction(0))
        for column in zip(*rows, strict=True)
    ]
    return [
        [c * (x - m) for x, m in zip(row, mean, strict=True)]
        for c, row in zip(chances, rows, strict=True)
    ]


def needed(u: list[list[Fraction]], target: str) -> Fraction:
    """The square of what a bound must reach: of the diameter, exact; of the sum of norms, cut below
    it by 1e-30.
    """
    if target != "gain":
        return max(
            sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for x, y in combinations(u, 2)
        )
    return sum((root(sum(x * x for x in row)) for row in u if any(row)), Fraction(0)) ** 2


def root(square: Fraction) -> Fraction:
    """The root to 200 digits after the point, rounded down."""
    return Fraction(isqrt(square.numerator * 10**400 // square.denominator), 10**200)


@pytest.mark.parametrize("small", [0, bounds.SMALL], ids=["products", "formed"])
@pytest.mark.parametrize("offset", OFFSETS.values(), ids=OFFSETS)
@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
def test_label_bounds_are_at_least_the_exact_ones(
    offset: float, spread: float, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SMALL", small)
    for n in (2, 5):
        documents = documents_of(n, 3, offset, spread, seed=n)
        for gap in (0.0, 12.0, 20.0, 36.0, 70.0):
            w = gap / max(spread, 1e-6) * np.array([1.0, -0.5, 0.25])
            for loss in (BayesRank(1), BayesRank(1, "simplex"), ListNet()):
                public = ScoredDocuments(documents)
                bound = Fraction(float(public.label_bounds(w, loss)[0]))
                [(block, scores, _)] = list(public.forward(w))
                exact = needed(
                    exact_directions(public.documents.X, softmax(scores, block.mask)[0], loss),
                    loss.target,
                )
                assert bound**2 >= exact
                if exact > Fraction(1, 10**200):
                    assert (
                        bound**2 <= exact * Fraction(101, 100) ** 2
                        or exact < (Fraction(spread) / 10**6) ** 2
                    )


SCORERS = [Linear(3), MLP(3, (40,), "tanh"), MLP(3, (30,), "relu", seed=1)]


@pytest.mark.parametrize("scorer", SCORERS, ids=repr)
@pytest.mark.parametrize("offset", OFFSETS.values(), ids=OFFSETS)
def test_labels_move_a_capped_sum_by_no_more_than_the_cap(scorer: Scorer, offset: float) -> None:
    """Every pair of one-hot labels and others, at caps far below the bound; sums as they are
    released, exact norms.
    """
    worst, rng = 0.0, np.random.default_rng(0)
    labels = [
        np.zeros(4),
        np.full(4, 2.0),
        *(2.0 * np.eye(4)),
        *rng.integers(0, 3, (2, 4)).astype(float),
    ]
    for spread in SPREADS.values():
        documents = documents_of(4, 3, offset, spread)
        for size in (0.0, 0.3, 1e4):
            w = size * rng.normal(size=scorer.size)
            for loss in LINEAR_IN_LABELS:
                bound = float(ScoredDocuments(documents, scorer).label_bounds(w, loss)[0])
                cap = max(bound / 2, 1e-140)
                sums = [
                    objective_of(documents, y, loss, scorer).capped_gradient_sum(w, cap)
                    for y in labels
                ]
                first, second = max(
                    combinations(sums, 2), key=lambda pair: np.linalg.norm(pair[0] - pair[1])
                )
                assert length(first - second) <= Fraction(cap) ** 2
                if bound > 1e-140:
                    worst = max(worst, np.linalg.norm(first - second) / cap)
    # all documents are alike to it
    saturated = offset > 0.0 and getattr(scorer, "activation", "") == "tanh"
    assert worst > 0.99 or saturated


@pytest.mark.parametrize("scorer", SCORERS, ids=repr)
@pytest.mark.parametrize("n", [2, 8, 34])
def test_one_session_moves_a_clipped_sum_by_no_more_than_the_clip(scorer: Scorer, n: int) -> None:
    rng = np.random.default_rng(n)
    for offset in OFFSETS.values():
        for spread in SPREADS.values():
            documents = documents_of(n, 3, offset, spread)
            for loss in (BayesRank(1), BayesRank(2), ListNet()):
                objective = objective_of(
                    documents, rng.integers(0, 3, n).astype(float), loss, scorer
                )
                for clip in (1e-3, 1e-9, 0.3):
                    moved = objective.gradient_sum(0.1 * rng.normal(size=scorer.size), clip)
                    assert length(moved) <= Fraction(clip) ** 2


@pytest.mark.parametrize("scorer", [SCORERS[0], SCORERS[2]], ids=repr)
def test_the_rounding_of_others_does_not_move_with_a_session(scorer: Scorer) -> None:
    """A thousand sessions whose terms cancel to a ten-thousandth of a millionth, and one more
    before them.
    """
    many = [documents_of(3, 3, 99_990.0, 1e-10, seed=k).X for k in range(1000)]
    first = documents_of(3, 3, 99_990.0, 1.0, seed=1001).X
    w, clip = 1e-3 * np.ones(scorer.size), 1e-9
    sums = []
    for rows in (many, [first, *many]):
        documents = Documents(np.vstack(rows), 3 * np.arange(len(rows) + 1))
        y = np.tile([2.0, 0.0, 1.0], len(rows))
        sums.append(objective_of(documents, y, BayesRank(1), scorer).gradient_sum(w, clip))
    assert np.linalg.norm(sums[1] - sums[0]) <= clip * (1 + 1e-9)


@pytest.mark.parametrize("n", [3, 12])
def test_session_norms_are_at_least_the_exact_ones(n: int) -> None:
    """Layers of nearly equal rows with slopes that sum to 0: products between documents lose all
    digits.
    """
    rng = np.random.default_rng(0)
    for offset, spread in ((0.0, 1.0), (1e5, 1e-9), (1e5, 0.0), (1e-160, 1e-161), (1e5, 1e-320)):
        A = offset + spread * rng.random((1, n, 5))
        D = 1.0 + 1e-12 * rng.random((1, n, 60))
        c = rng.normal(size=(1, n))
        c[0, -1] = -c[0, :-1].sum()
        norm, _ = session_norms([(A, D)], c)
        total = [
            [
                sum(
                    Fraction(c[0, i]) * Fraction(A[0, i, k]) * Fraction(D[0, i, j])
                    for i in range(n)
                )
                for k in range(5)
            ]
            for j in range(0, 60, 1)
        ]
        assert Fraction(float(norm[0])) ** 2 >= sum(value**2 for row in total for value in row)


def test_golden_label_bounds(shared) -> None:
    for row in json.loads((shared / "golden" / "p08_label_bounds.json").read_text())["rows"]:
        X, w = np.array(row["X"]), np.array(row["w"])
        spread = np.abs(X - X.mean(axis=0)).max()
        for target in ("simplex", "one_hot", "gain"):
            true = row["gain_sum" if target == "gain" else "simplex_diameter"]
            bound = ScoredDocuments(Documents(X, np.array([0, len(X)]))).label_bounds(
                w, BayesRank(1, target)
            )[0]
            assert bound >= true * (1 - 1e-9)
            assert bound <= 1.01 * true or true < 1e-6 * spread
