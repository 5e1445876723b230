"""Gradients, clips and label-level bounds of the session objective, for every loss and scorer."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from dpcore.errors import AssumptionNotMet, InputError
from dpcore.objective.base import readable
from dpcore.problem import Problem
from dpcore.ranking.documents import ScoredDocuments, padded_blocks
from dpcore.ranking.losses import SECOND, BayesRank, ListMLE, ListNet, make_ranking_loss, softmax
from dpcore.ranking.objective import SessionObjective
from dpcore.ranking.scorers import MLP, Linear, gradient, make_scorer, spectral_norm
from dpcore.ranking.sessions import Documents, Sessions

LINEAR_IN_LABELS = [
    BayesRank(1),
    BayesRank(2),
    BayesRank(1, "simplex"),
    BayesRank(2, "simplex"),
    BayesRank(1, "one_hot"),
    ListNet(),
    ListNet("uniform"),
]
LOSSES = [*LINEAR_IN_LABELS, ListMLE()]
SCORERS = [Linear(3), MLP(3, (4,), "tanh"), MLP(3, (5, 3), "sigmoid"), MLP(3, (4,), "relu", seed=3)]


def sessions_of(lengths, seed: int = 0, p: int = 3) -> Sessions:
    rng = np.random.default_rng(seed)
    count = int(np.sum(lengths))
    groups = np.repeat(np.arange(len(lengths)), lengths)
    return Sessions.from_rows(rng.normal(size=(count, p)), rng.integers(0, 3, count), groups)


SMALL = sessions_of([1, 2, 5, 3, 6, 2, 4, 1, 6])


def point(scorer, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=scorer.size) * 0.5


@pytest.mark.parametrize("scorer", SCORERS, ids=repr)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_gradient_is_the_finite_difference_of_the_value(loss, scorer):
    objective, w, h = SessionObjective(SMALL, loss, scorer), point(scorer), 1e-5
    steps = h * np.eye(scorer.size)
    numeric = (objective.value_sum(w + steps) - objective.value_sum(w - steps)) / (2 * h)
    assert objective.gradient_sum(w) == pytest.approx(numeric, abs=1e-8)


@pytest.mark.parametrize("scorer", SCORERS[:2], ids=repr)
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_clipped_and_capped_sums_are_those_of_single_sessions(loss, scorer):
    objective, w = SessionObjective(SMALL, loss, scorer), point(scorer)
    single = np.array([objective.take(np.array([j])).gradient_sum(w) for j in range(SMALL.n)])
    norms = np.maximum(np.linalg.norm(single, axis=1), 1e-300)
    clip = float(np.median(norms))
    expected = (single * np.minimum(1, clip / norms)[:, None]).sum(axis=0)
    assert objective.gradient_sum(w, clip) == pytest.approx(expected, abs=1e-12)
    assert objective.take(slice(2, 5)).gradient_sum(w) == pytest.approx(
        single[2:5].sum(axis=0), abs=1e-12
    )
    assert not objective.take(np.array([], dtype=int)).gradient_sum(w, clip).any()
    if loss.label_linear:
        bounds = np.maximum(objective.public.label_bounds(w, loss), 1e-300)
        expected = (single * np.minimum(1, 0.1 / bounds)[:, None]).sum(axis=0)
        assert objective.capped_gradient_sum(w, 0.1) == pytest.approx(expected, abs=1e-12)


def test_values_are_cut_to_their_range():
    objective = SessionObjective(SMALL, ListNet())
    values = [objective.take(np.array([j])).value_sum(np.ones(3))[0] for j in range(SMALL.n)]
    assert objective.value_sum(np.ones((2, 3)), 0.5) == pytest.approx(
        [np.minimum(values, 0.5).sum()] * 2
    )


def single_gradients(sessions, loss, scorer, w):
    objective = SessionObjective(sessions, loss, scorer)
    return np.array([objective.take(np.array([j])).gradient_sum(w) for j in range(sessions.n)])


@pytest.mark.parametrize("scorer", SCORERS[:2], ids=repr)
@pytest.mark.parametrize("loss", LINEAR_IN_LABELS, ids=repr)
def test_no_labels_move_a_gradient_by_more_than_its_bound(loss, scorer):
    """Adversarial labels: random ones, one relevant document each, all and none; the bound is met
    exactly by pairs.
    """
    rng, w, count = np.random.default_rng(0), point(scorer), len(SMALL.y)
    bounds = ScoredDocuments(SMALL.documents, scorer).label_bounds(w, loss)
    place = np.arange(count) - SMALL.documents.offsets[SMALL.documents.owner]
    labels = [np.zeros(count), np.full(count, 2.0), *[(place == i) * 2.0 for i in range(6)]]
    labels += [rng.integers(0, 3, count) * (rng.random(count) < rng.random()) for _ in range(20)]
    found = [
        single_gradients(Sessions(SMALL.documents, y, SMALL.queries), loss, scorer, w)
        for y in labels
    ]
    moves = np.array([[np.linalg.norm(a - b, axis=1) for a in found] for b in found]).max(
        axis=(0, 1)
    )
    longest = np.array([np.linalg.norm(a, axis=1) for a in found]).max(axis=0)
    assert (
        np.all(moves <= bounds + 1e-12)
        and np.max(moves[bounds > 1e-9] / bounds[bounds > 1e-9]) > 0.99
    )
    whole = 0.5 if loss.name == "bayesrank" and loss.target == "gain" else 1.0
    assert np.all(longest <= whole * bounds + 1e-12)
    directions = ScoredDocuments(SMALL.documents, scorer).longest_directions(w, loss)
    assert np.all(directions <= bounds + 1e-12)


def test_kept_bounds_belong_to_their_point_and_loss():
    public = ScoredDocuments(SMALL.documents)
    first = public.label_bounds(np.zeros(3), BayesRank())
    assert public.label_bounds(np.zeros(3), BayesRank()) is first
    w = np.ones(3)
    fresh = ScoredDocuments(SMALL.documents)
    assert np.array_equal(public.label_bounds(w, BayesRank()), fresh.label_bounds(w, BayesRank()))
    assert not np.array_equal(
        public.label_bounds(w, BayesRank(1, "simplex")), fresh.label_bounds(w, BayesRank())
    )
    w += 1.0
    assert public.known_bounds(w, BayesRank(1, "simplex")) is None


@pytest.mark.parametrize("k", [1, 2])
def test_directions_sum_to_zero(k):
    rng = np.random.default_rng(2)
    mask = np.arange(6) < np.array([6, 3, 1])[:, None]
    jacobian = BayesRank(k).jacobian(rng.normal(size=(3, 6)), mask)
    assert jacobian.sum(axis=1) == pytest.approx(0, abs=1e-14)
    assert not jacobian[~mask].any()


def test_two_ranks_are_the_sum_over_all_lists_of_two():
    rng = np.random.default_rng(3)
    s, y = rng.normal(size=5), np.array([2.0, 0.0, 1.0, 2.0, 0.0])
    p, gain = np.exp(s) / np.exp(s).sum(), 2**y - 1
    ideal = 3 + SECOND * 3
    expected = sum(
        p[i] * p[j] / (1 - p[i]) * (gain[i] + SECOND * gain[j]) / ideal
        for i, j in permutations(range(5), 2)
    )
    assert BayesRank(2).value(s[None], y[None], np.ones((1, 5), bool))[0] == pytest.approx(
        1 - expected, abs=1e-14
    )


def test_listmle_is_minus_log_of_the_permutation_probability():
    s, y = np.array([0.3, -1.0, 2.0, 0.1]), np.array([0.0, 2.0, 1.0, 0.0])
    e = np.exp(s)
    expected = -np.log(e[1] / e.sum()) - np.log(e[2] / (e[2] + e[0] + e[3]))
    assert ListMLE().value(s[None], y[None], np.ones((1, 4), bool))[0] == pytest.approx(
        expected, abs=1e-14
    )


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_extreme_scores_stay_finite(loss):
    s, y = (
        np.array([[800.0, -800.0, 0.0], [0.0, 900.0, -5.0]]),
        np.array([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0]]),
    )
    mask = np.array([[True, True, True], [True, True, False]])
    assert np.all(np.isfinite(loss.slope(s, y, mask))) and np.all(
        np.isfinite(loss.value(s, y, mask))
    )
    assert not loss.slope(s, y, mask)[1, 2]
    assert softmax(s, mask).sum(axis=1) == pytest.approx(1)


def test_blocks_hold_every_document_once():
    documents = sessions_of(np.random.default_rng(0).integers(1, 60, 80)).documents
    rows = np.concatenate([block.rows[block.mask] for block in padded_blocks(documents)])
    assert np.array_equal(np.sort(rows), np.arange(len(documents.X)))


def test_label_sum_is_the_one_vector_of_a_linear_listnet():
    objective = SessionObjective(SMALL, ListNet())
    assert objective.label_sum(np.eye(3)) == pytest.approx(
        -objective.gradient_sum(np.zeros(3)), abs=1e-12
    )
    silent = SessionObjective(
        Sessions(SMALL.documents, np.zeros(len(SMALL.y)), SMALL.queries), ListNet()
    )
    assert not silent.label_sum(np.eye(3)).any()


def test_spectral_normalisation_bounds_every_matrix():
    scorer = MLP(6, (20, 10))
    w = scorer.normalised(np.random.default_rng(0).normal(size=scorer.size) * 3)
    assert max(np.linalg.norm(matrix, 2) for matrix in scorer.matrices(w)) <= 1.02
    assert spectral_norm(np.zeros((3, 2))) == 0.0
    assert Linear(3).normalised(np.ones(3)).tolist() == [1, 1, 1]


def test_mlp_of_the_dissertation_has_its_size_and_scores_alike_in_and_out_of_blocks():
    scorer = MLP(46)
    assert scorer.size == 47 * 256 + 256
    small = MLP(3, (4, 2))
    X, w = np.random.default_rng(0).normal(size=(2, 5, 3)), np.ones(small.size) * 0.1
    scores, layers = small.forward(w, X)
    assert small.scores(w, X.reshape(-1, 3)) == pytest.approx(scores.ravel())
    assert gradient(layers, np.ones((2, 5))).shape == (small.size,)


def test_refusals():
    with pytest.raises(InputError, match="did you mean 'listnet'"):
        make_ranking_loss("listnett")
    with pytest.raises(InputError, match="k of 1 or 2"):
        BayesRank(3)
    with pytest.raises(InputError, match="did you mean 'mlp'"):
        make_scorer("mpl", 3)
    with pytest.raises(InputError, match="scorer of 3 features"):
        ScoredDocuments(SMALL.documents, Linear(4))
    with pytest.raises(AssumptionNotMet, match="linear in a bounded function"):
        SessionObjective(SMALL, ListMLE()).capped_gradient_sum(np.zeros(3), 1.0)
    with pytest.raises(InputError, match="documents and the scorer of these sessions"):
        changed = Documents(SMALL.documents.X + 1, SMALL.documents.offsets)
        sums, public = SessionObjective(SMALL, ListNet()), ScoredDocuments(changed)
        sums.check(Problem(n=sums.n, dimension=sums.dimension, loss=ListNet(), documents=public))


def test_sums_at_weights_beyond_reading_are_those_at_the_largest_that_are_read():
    objective = SessionObjective(SMALL, ListNet(), Linear(3))
    w = np.full(3, 1e305) * np.array([1.0, -1.0, 1.0])
    found = objective.gradient_sum(w, 1.0)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, objective.gradient_sum(readable(w), 1.0))
    with_gap = np.array([np.inf, np.nan, 1.0])
    np.testing.assert_array_equal(
        objective.gradient_sum(with_gap, 1.0), objective.gradient_sum(readable(with_gap), 1.0)
    )
