"""One door for every noisy number: made in one place, in the form that was asked for, in one
process.
"""

from __future__ import annotations

import ast
import copy
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpcore.accounting import Allowance, Events, open_door, release_once
from dpcore.errors import DPFlowsError
from dpcore.losses import make_loss
from dpcore.mechanisms import Gaussian, Laplace, laplace_for
from dpcore.noise import secure_generator
from dpcore.objective import LinearObjective
from tasks.ledger import Ledger

ROOT = Path(__file__).resolve().parents[3]
RECORDS = LinearObjective(np.ones((50, 2)) * 0.5, np.ones(50), make_loss("logistic"))
EVENTS = Events.of([Gaussian(1.0, 50.0)] * 8, adjacency="add_remove")

# Where a budget or a secret generator may be made: the door, the coins of canaries, and fits of an
# attack.
MAKERS = {
    "Budget": {"dpcore/accounting/budget.py"},
    "secure_generator": {
        "dpcore/accounting/budget.py",
        "tasks/options/canaries.py",
        "dpcore/audit/attack.py",
    },
}


def uses(path: Path) -> set[str]:
    """Names of MAKERS that a module calls, or hands to somebody who would."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for part in (
            [node.func, *node.args, *(k.value for k in node.keywords)]
            if isinstance(node, ast.Call)
            else []
        ):
            name = (
                part.id
                if isinstance(part, ast.Name)
                else part.attr
                if isinstance(part, ast.Attribute)
                else ""
            )
            found |= {name} & MAKERS.keys()
    return found


def test_a_budget_and_a_secret_generator_are_made_by_the_door_alone() -> None:
    found: dict[str, set[str]] = {name: set() for name in MAKERS}
    for package in ("dpcore", "tasks", "flows"):
        for path in (ROOT / package).rglob("*.py"):
            for name in uses(path):
                found[name].add(path.relative_to(ROOT).as_posix())
    # Canaries look at a budget of their own kind, which the door makes.
    assert found["Budget"] - {"dpcore/audit/canaries.py"} <= MAKERS["Budget"]
    assert found["secure_generator"] == MAKERS["secure_generator"]


def in_child(act: Callable[[], Any]) -> str:
    """The name of the error that ``act`` raises in a forked child, or "nothing"."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        word = "nothing"
        try:
            act()
        except BaseException as error:
            word = type(error).__name__
        finally:
            os.write(write, word.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        word = pipe.read()
    os.waitpid(pid, 0)
    return word


def drawn(budget: Any) -> Any:
    return budget.release(Gaussian(1.0, 50.0), lambda batch: batch.gradient_sum(np.zeros(2), 1.0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    "what", ["budget", "adaptive budget", "allowance", "its room", "reservation", "generator"]
)
def test_what_holds_budget_or_noise_refuses_in_a_forked_child(what: str, tmp_path: Path) -> None:
    """A fork copies memory: eight children of one allowance spent 2.8 times as much as there
    was.
    """
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.init("d", 3.0, 1e-6, "add_remove")
    reservation = ledger.reserve("d", EVENTS)
    # With a plain generator it is the budget itself that refuses.
    budget, adaptive = (
        open_door(EVENTS, RECORDS, adaptive=one, fixed_noise_seed=0) for one in (False, True)
    )
    allowance, secret = Allowance(3.0, 1e-6), secure_generator()
    acts: dict[str, Callable[[], Any]] = {
        "budget": lambda: drawn(budget),
        "adaptive budget": lambda: drawn(adaptive),
        "allowance": lambda: allowance.charge(EVENTS),
        "its room": lambda: allowance.room,
        "reservation": reservation.on_charge,
        "generator": lambda: secret.normal(),
    }
    assert in_child(acts[what]) == "DPFlowsError"
    acts[what]()  # the maker goes on


def test_an_allowance_refuses_before_it_waits_for_a_lock_that_nobody_opens() -> None:
    """A fork may copy a lock that another thread of the parent holds; a child that waits for it
    waits for ever.
    """
    allowance = Allowance(3.0, 1e-6)

    def hurried() -> None:
        signal.alarm(10)
        allowance.charge(EVENTS)

    with allowance._lock:
        assert in_child(hurried) == "DPFlowsError"


def test_a_forked_copy_of_a_secret_draws_nothing_whatever_is_asked_of_it() -> None:
    secret = secure_generator()
    for name in (
        "random",
        "standard_normal",
        "integers",
        "bit_generator",
        "permutation",
        "spawn",
        "laplace",
    ):
        assert in_child(lambda name=name: getattr(secret, name)) == "DPFlowsError", name


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"]
)
def test_neither_a_budget_nor_a_secret_is_copied(copied: Callable[[Any], Any]) -> None:
    for thing in (open_door(EVENTS, RECORDS), secure_generator()):
        with pytest.raises(TypeError, match="process"):
            copied(thing)


@pytest.mark.parametrize("form", ["rounded", "discrete"])
def test_a_single_release_is_charged_before_it_is_asked_and_has_the_form(form: str) -> None:
    told: list[str] = []
    mechanism = laplace_for(2.0, 0.25, form)
    assert mechanism.pure_epsilon == pytest.approx(0.25, rel=1e-12)
    assert bool(mechanism.rounding) == (form == "discrete")
    released = release_once(
        Laplace(2.0, mechanism.scale),
        RECORDS,
        lambda batch: told.append("asked") or np.array([float(batch.n), 7.25]),
        adjacency="add_remove",
        unit="record",
        noise=form,
        on_charge=lambda: told.append("charged"),
    )
    assert told == ["charged", "asked"]
    [stored] = released.events
    assert (stored.rounding > 0) == (form == "discrete")


def test_a_release_that_the_charge_refuses_asks_nothing() -> None:
    asked: list[int] = []

    def refuse() -> None:
        raise DPFlowsError("no room")

    with pytest.raises(DPFlowsError, match="no room"):
        release_once(
            Laplace(1.0, 1.0),
            RECORDS,
            lambda batch: asked.append(1),
            adjacency="add_remove",
            unit="record",
            noise="rounded",
            on_charge=refuse,
        )
    assert not asked
