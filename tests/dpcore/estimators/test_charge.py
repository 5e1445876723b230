"""Nothing is paid for nothing: whatever fails, the budget is as it was or the model is there."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpcore
from dpcore.accounting import Allowance, Target
from dpcore.algorithms import registry
from dpcore.estimators import DPClassifier, DPRanker, DPRegressor, InternalWarning, PrivacyWarning
from dpcore.losses import make_loss
from dpcore.objective import LinearObjective
from dpcore.problem import Problem
from dpcore.train import plan, run

RNG = np.random.default_rng(0)
X = RNG.random((40, 3))
Y = (X[:, 0] > 0.5).astype(int)
QUERIES = np.repeat(np.arange(8), 5)
SOURCE = Path(dpcore.__file__).parent
# Between the charge and the first draw, and between the last draw and the end of fit, these call
# everything else.
WALKED = {str(path) for path in (SOURCE / "estimators").glob("*.py")} | {
    str(SOURCE / "train" / "running.py"),
    str(SOURCE / "train" / "planning.py"),
    str(SOURCE / "accounting" / "limits.py"),
}
# The one assignment that stores the model, for which the walk looks; the end of a lock; the end of
# the walk.
SPARED = ("PrivateEstimator._run.<locals>.store", "lock.__exit__", "setprofile")


class Planted(Exception):
    """The fault that is planted."""


def fit_with_fault(fit: Callable[[], Any], budget: Allowance, number: int) -> str:
    """Call ``fit``; the call ``number`` that a walked file makes after the charge raises. Its name,
    "" for none.
    """
    seen = 0
    planted = ""

    def trace(frame: Any, event: str, called: Any) -> None:
        nonlocal seen, planted
        if event not in ("call", "c_call") or planted or not budget.history:
            return
        caller = frame.f_back if event == "call" else frame
        name = frame.f_code.co_qualname if event == "call" else getattr(called, "__qualname__", "")
        if caller is None or caller.f_code.co_filename not in WALKED or name in SPARED:
            return
        seen += 1
        if seen > number:
            planted = name
            raise Planted(name)

    sys.setprofile(trace)
    try:
        fit()
    except Planted:
        pass
    finally:
        sys.setprofile(None)
    return planted


def classifier(budget: Allowance, **change: Any) -> tuple[Any, Callable[[], Any]]:
    model = DPClassifier(
        "output_gd", classes=[0, 1], adjacency="replace_one", budget=budget, steps=2, **change
    )
    return model, lambda: model.fit(X, Y)


def sampled(budget: Allowance) -> tuple[Any, Callable[[], Any]]:
    model = DPClassifier("dp_sgd", classes=[0, 1], n=40, budget=budget, steps=2, bounds=(0.4, 0.6))
    return model, lambda: model.fit(X, Y)


def regressor(budget: Allowance) -> tuple[Any, Callable[[], Any]]:
    model = DPRegressor(
        n=40, target_bounds=(0, 1), budget=budget, steps=2, l1=0.001, bounds=(0.4, 0.6)
    )
    return model, lambda: model.fit(X, X[:, 0])


def ranker(budget: Allowance) -> tuple[Any, Callable[[], Any]]:
    model = DPRanker(adjacency="add_remove", n=8, budget=budget, steps=2)
    return model, lambda: model.fit(X, Y, groups=QUERIES)


MAKERS = {"full_batch": classifier, "sampled": sampled, "regressor": regressor, "ranker": ranker}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MAKERS)
def test_a_fault_at_any_call_after_the_charge_costs_nothing_or_leaves_the_model(kind: str) -> None:
    relation = "replace_one" if kind == "full_batch" else "add_remove"
    outcomes: list[bool] = []
    for number in range(400):
        budget = Allowance(3.0, 1e-5, relation)
        model, fit = MAKERS[kind](budget)
        name = fit_with_fault(fit, budget, number)
        if not name:
            break
        stored = hasattr(model, "weights_")
        outcomes.append(stored)
        assert stored == (len(budget.history) == 1), (
            f"call {number}, {name}, lost what was paid for"
        )
        assert stored == (budget.spent > 0.0)
        if stored:
            scores = model.predict(X, QUERIES) if kind == "ranker" else model.predict(X)
            assert (
                np.all(np.isfinite(scores))
                and model.spent_.epsilon <= 1.0 + 1e-9
                and model.blocked_ == ()
            )
    else:
        raise AssertionError("the walk did not end")
    assert outcomes.count(False) >= 3 and outcomes.count(True) >= 5, (
        "the walk saw both sides of the draw"
    )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"random_state": "a"}, ValueError),
        ({"random_state": -1}, ValueError),
        ({"random_state": 1.5}, ValueError),
    ],
)
@pytest.mark.parametrize("kind", ["classifier", "ranker"])
@pytest.mark.filterwarnings("ignore")
def test_a_bad_random_state_is_refused_before_the_charge(
    kind: str, change: dict[str, Any], error: type
) -> None:
    budget = Allowance(3.0, 1e-5)
    with pytest.raises(error):
        if kind == "classifier":
            DPClassifier(classes=[0, 1], n=40, budget=budget, **change).fit(X, Y)
        else:
            DPRanker(adjacency="add_remove", n=8, budget=budget, **change).fit(X, Y, groups=QUERIES)
    assert budget.spent == 0.0 and budget.history == []


def test_warnings_turned_into_errors_cost_nothing_or_come_when_the_model_is_stored() -> None:
    budget = Allowance(3.0, 1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weak = DPClassifier(classes=[0, 1], n=40, epsilon=0.01, budget=budget)
        with pytest.raises(PrivacyWarning):  # from public facts: before the charge
            weak.fit(X, Y)
        assert budget.spent == 0.0 and not hasattr(weak, "weights_")
        cut = DPClassifier(
            "dp_sgd", classes=[0, 1], n=40, bounds=(0.4, 0.6), budget=budget, steps=2
        )
        with pytest.raises(InternalWarning):  # from the records: after the model is stored
            cut.fit(X, Y)
    assert len(budget.history) == 1 and cut.predict(X).shape == (40,) and cut.trace_


LINEAR = sorted(name for name, cls in registry.items() if not cls.requires.ranking and cls.private)


@pytest.mark.parametrize("name", LINEAR)
def test_no_algorithm_warns_after_the_charge(name: str) -> None:
    """Much noise makes large numbers; with warnings as errors the model is there all the same."""
    relation = str(sorted(registry[name].adjacencies)[0])
    budget = Allowance(40.0, 1e-5, relation)
    model = DPClassifier(
        name,
        epsilon=0.02,
        classes=[0, 1],
        n=40,
        adjacency=relation,
        budget=budget,
        **registry[name].small,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrivacyWarning)
        warnings.simplefilter("ignore", InternalWarning)
        model.fit(X, Y)
    assert len(budget.history) == 1 and model.weights_.size


class Overflowing:
    """An algorithm whose numbers overflow, as noise may make those of any."""

    adaptive = private = False

    def fit(self, problem: Any, budget: Any, rng: Any) -> np.ndarray:
        return np.exp(np.full(problem.dimension, 1e4))


@pytest.mark.filterwarnings("error")
def test_an_overflow_in_training_is_no_error_of_a_paid_fit() -> None:
    """What numpy says of it follows from noise and records, so it is said nowhere."""
    loss = make_loss("logistic")
    planned = plan(
        "dp_sgd", {}, Problem(n=40, dimension=3, loss=loss, norm_bound=2.0), Target(1.0, 1e-5)
    )
    loud: Any = Overflowing()
    result = run(replace(planned, algorithm=loud), LinearObjective(X, 2.0 * Y - 1.0, loss))
    assert np.all(np.isinf(result.weights))


@pytest.mark.filterwarnings("ignore")
def test_a_fit_that_is_refused_keeps_the_earlier_model_and_what_is_known_of_it() -> None:
    budget = Allowance(1.0, 1e-5)
    # n is counted: blocked
    model = DPClassifier(epsilon=0.95, delta=1e-6, classes=[0, 1], budget=budget).fit(X, Y)
    before, blocked = model.predict(X), model.blocked_
    assert blocked and not model.releasable_
    model.set_params(n=40, classes=["no", "yes"])
    with pytest.raises(Exception, match="budget"):
        model.fit(X[:, :2], np.where(Y, "yes", "no"))
    assert np.array_equal(model.predict(X), before) and model.blocked_ == blocked


@pytest.mark.filterwarnings("ignore")
def test_an_allowance_takes_back_one_of_two_equal_charges() -> None:
    budget = Allowance(3.0, 1e-5)
    events = DPClassifier(classes=[0, 1], n=40).fit(X, Y).events_
    budget.charge(events)
    paid = budget.spent
    with pytest.raises(Planted), budget.reserved(events):
        raise Planted
    assert budget.spent == paid and len(budget.history) == 1
    with pytest.raises(Planted), budget.reserved(events) as draw:
        draw()
        raise Planted
    assert budget.spent == 2 * paid and len(budget.history) == 2
