"""DPRanker behaves as an estimator, states its guarantee whole and keeps to its budget; the
comparison around it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from sklearn.base import clone

from dpcore.accounting import Allowance, Target
from dpcore.accounting.observers import Call, Iterates
from dpcore.errors import AssumptionNotMet, BudgetExceeded, InputError
from dpcore.estimators import DPRanker
from dpcore.mechanisms import Gaussian
from dpcore.ranking.model import RankingModel
from dpcore.ranking.sessions import Sessions
from dpcore.ranking.synthetic import FEATURES, search
from dpcore.train import plan
from tests.dpcore.ranking.cells import Entry, Fold, crossval, paired, run_cell, summary


def table(sessions: int = 500):
    made = search(sessions)
    X = np.column_stack([made[f"feature_{i}"] for i in range(1, FEATURES + 1)])
    return X, made["grade"], made["query"]


X, Y, Q = table()
TRAIN = Q % 5 > 0
RANDOM = 0.45


@pytest.mark.parametrize(
    ("parameters", "algorithm", "unit"),
    [
        ({}, "listnet_one_shot", "session_labels"),
        ({"adjacency": "add_remove", "n": 400}, "dp_sgd", "session"),
        ({"adjacency": "replace_one"}, "dp_sgd", "session"),
        ({"loss": "listmle"}, "dp_sgd", "session_labels"),
        ({"scorer": "mlp", "hidden": (8,), "activation": "tanh"}, "dp_sgd", "session_labels"),
        ({"algorithm": "privbr", "steps": 5, "features": ("raw",)}, "privbr", "session_labels"),
        ({"algorithm": "best_feature", "features": "raw"}, "best_feature", "session_labels"),
    ],
)
def test_fit_rank_and_state_the_guarantee(parameters, algorithm, unit):
    ranker = DPRanker(epsilon=2.0, random_state=0, **parameters).fit(
        X[TRAIN], Y[TRAIN], groups=Q[TRAIN]
    )
    assert ranker.planned_.name == algorithm
    assert ranker.score(X[~TRAIN], Y[~TRAIN], Q[~TRAIN]) > RANDOM + 0.1
    assert ranker.spent_.epsilon <= 2.0 and ranker.spent_.unit == unit
    assert f"one {unit} under {parameters.get('adjacency', 'replace_labels')}" in str(ranker.spent_)
    assert ranker.releasable_
    shuffled = np.random.default_rng(0).permutation(np.flatnonzero(~TRAIN))
    whole = ranker.predict(X[~TRAIN], Q[~TRAIN])
    again = np.empty(len(X))
    again[shuffled] = ranker.predict(X[shuffled], Q[shuffled])
    assert again[~TRAIN] == pytest.approx(whole, abs=1e-12)


def test_clone_keeps_parameters_of_the_algorithm_and_shares_the_budget():
    budget = Allowance(1.0, 1e-5, "replace_labels")
    ranker = DPRanker(algorithm="privbr", steps=7, budget=budget, epsilon=0.6)
    copy = clone(ranker)
    assert copy.get_params()["steps"] == 7 and copy.budget is budget
    copy.fit(X[TRAIN], Y[TRAIN], groups=Q[TRAIN])
    with pytest.raises(BudgetExceeded, match="allowance"):
        ranker.set_params(epsilon=90.0, noise_multiplier=1.0).fit(
            X[TRAIN], Y[TRAIN], groups=Q[TRAIN]
        )
    assert len(budget.history) == 1


def test_the_model_without_privacy_is_never_releasable():
    ranker = DPRanker("non_private", l2=0.01, loss="listmle").fit(
        X[TRAIN], Y[TRAIN], groups=Q[TRAIN]
    )
    assert not ranker.releasable_ and ranker.spent_.epsilon == np.inf
    assert ranker.score(X[~TRAIN], Y[~TRAIN], Q[~TRAIN]) > RANDOM + 0.2


def test_a_counted_n_blocks_release():
    ranker = DPRanker(adjacency="add_remove").fit(X, Y, groups=Q)
    assert not ranker.releasable_ and "declare n" in ranker.blocked_[0]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"algorithm": "privbrr"}, "did you mean 'privbr'"),
        ({"loss": "lisnet"}, "did you mean 'listnet'"),
        ({"scorer": "mpl"}, "did you mean 'mlp'"),
        ({"features": ("log",)}, "features among raw, rank"),
        ({"adjacency": "replace_label"}, "did you mean 'replace_labels'"),
        ({"stepps": 3, "algorithm": "privbr"}, "did you mean 'steps'"),
    ],
)
def test_wrong_names_are_refused_with_near_misses(parameters, words):
    with pytest.raises(InputError, match=words):
        DPRanker(**parameters).fit(X[:50], Y[:50], groups=Q[:50])


def test_groups_are_asked_for_in_words():
    with pytest.raises(InputError, match="groups=query_ids"):
        DPRanker().fit(X, Y)
    ranker = DPRanker().fit(X, Y, groups=Q)
    with pytest.raises(InputError, match="rank features"):
        ranker.predict(X)
    with pytest.raises(InputError, match="24 features"):
        ranker.predict(X[:, :3], Q)
    with pytest.raises(AssumptionNotMet, match="loss listnet"):
        DPRanker(algorithm="listnet_one_shot", loss="listmle").fit(X, Y, groups=Q)


def default_of(adjacency: str, **model):
    return plan(
        "auto", {}, RankingModel(**model).public_problem(24, 400, adjacency), Target(1.0, 1e-5)
    )


def test_default_follows_from_who_is_protected_before_a_session_is_read():
    assert default_of("replace_labels").name == "listnet_one_shot"
    assert default_of("replace_labels", scorer="mlp", hidden=(8,)).name == "dp_sgd"
    assert "no linear ListNet" in default_of("replace_labels", loss="listmle").reason
    private = default_of("add_remove")
    assert (private.name, private.parameters["clip_norm"], private.parameters["steps"]) == (
        "dp_sgd",
        0.3,
        10,
    )
    assert "documents are private" in private.reason


def test_kept_iterates_are_spread_and_end_with_the_last():
    kept = Iterates(4, of="gradients")
    assert kept.path(np.array([-1.0])) == []
    for t in range(23):
        kept.asked(Call("capped_gradient_sum", (np.array([float(t)]), 1.0), 5))
        kept.released(Gaussian(1.0, 1.0), None, lambda batch: batch, None)
        # a release that asks for no gradient
        kept.released(Gaussian(1.0, 1.0), None, lambda batch: batch, None)
    *points, (end, weights) = kept.path(np.array([-1.0]))
    numbers = [t for t, w in points if w[0] == t]
    assert (
        numbers == [t for t, _ in points]
        and numbers[0] == 0
        and numbers[-1] == 22
        and len(numbers) <= 5
    )
    assert (end, weights[0]) == (23, -1.0)
    assert len({b - a for a, b in pairwise(numbers[:-1])}) == 1


def test_comparison_rows_are_plain_and_curves_follow_the_iterates():
    sessions = Sessions.from_rows(X, Y, Q)
    fold = Fold(sessions.take(np.arange(400)), sessions.take(np.arange(400, 500)))
    entry = Entry("privbr", "privbr", {"steps": 6}, RankingModel(loss="bayesrank"))
    row = run_cell(entry, fold, Target(4.0, 1e-5), every=2)
    assert [point["iteration"] for point in row["curve"]] == [0, 2, 4]
    assert (
        row["curve"][-1]["map"] > row["curve"][0]["map"] and row["conventions"]["empty"] == "skip"
    )
    batches = Entry(
        "paper", "privbr", {"steps": 3, "noise_multiplier": 2.0}, entry.model, preset="paper"
    )
    assert len(run_cell(batches, fold, None, every=1)["curve"]) == 3
    parts = [sessions.take(np.arange(i, 500, 5)) for i in range(5)]
    entries = [
        Entry("default"),
        Entry("best feature", "best_feature", model=RankingModel(("raw",))),
    ]
    rows = list(crossval(entries, parts, (1.0,), 1e-5, draws=1))
    table = summary(rows)
    assert [line["cells"] for line in table] == [5, 5] and table[0]["mean"] > table[1][
        "mean"
    ] > RANDOM
    [difference] = paired(rows, "default", "best feature")
    assert difference["difference"] == pytest.approx(table[0]["mean"] - table[1]["mean"])
