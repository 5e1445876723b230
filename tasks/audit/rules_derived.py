"""Rules that derive what the statement says: from the configuration, the ledger's opening, and the
statement itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

from dpcore.algorithms.base import under_new_names
from tasks.audit.findings import Finding, block
from tasks.audit.rules_run import RETRAIN
from tasks.audit.subject import CONFIG, STATEMENT, Subject
from tasks.record.statement import noise_form

ROUNDED = 1e-9
# Settings that are words for a choice made from public facts, and what a preset fills in.
CHOSEN = ("auto", None)
OTHERWISE = ("name", "preset")


def asked(run: Subject) -> Iterator[Finding]:
    """The statement promises what the configuration asked for: target, adjacency, noise, algorithm,
    objective.
    """
    found = run.statement
    if found is None:
        return
    try:
        stored = json.loads(run.files[CONFIG])
        privacy, objective, algorithm = (
            stored.get(key) or {} for key in ("privacy", "objective", "algorithm")
        )
        pairs = {
            "privacy.delta": (privacy.get("delta"), found.guarantee.delta),
            "privacy.conversion": (privacy.get("conversion"), found.guarantee.conversion),
            "privacy.adjacency": (privacy.get("adjacency"), str(found.guarantee.adjacency)),
            "privacy.epsilon": (privacy.get("epsilon"), found.guarantee.target_epsilon),
            "privacy.accountant": (privacy.get("accountant"), found.guarantee.accountant),
            "privacy.noise": (privacy.get("noise"), noise_form(found.mechanisms).partition(":")[0]),
            "objective.l1": (objective.get("l1"), found.training.l1),
            "objective.l2": (objective.get("l2"), found.training.l2),
            **_settings(
                under_new_names(found.training.algorithm, algorithm),
                under_new_names(found.training.algorithm, found.training.parameters),
                found.training.algorithm,
            ),
        }
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return  # the configuration's own rule says so
    for name, (given, stated) in pairs.items():
        if given not in CHOSEN and not _same(given, stated):
            yield block(
                "not_as_configured",
                name,
                f"the configuration asks for {name} = {given}, the statement has {stated}",
                "One of them is not of this run",
                RETRAIN,
            )
    if found.guarantee.epsilon > found.guarantee.target_epsilon * (1 + 1e-6):
        yield block(
            "epsilon_above_target",
            "epsilon",
            f"epsilon {found.guarantee.epsilon:.6g} is above the "
            f"{found.guarantee.target_epsilon:.6g} asked for",
            "A plan is calibrated to what was asked",
            RETRAIN,
        )


def _settings(
    given: Mapping[str, Any], stated: Mapping[str, Any], name: str
) -> dict[str, tuple[Any, Any]]:
    """Settings of the algorithm that the configuration gives and the statement lists under the same
    name.
    """
    pairs = {
        f"algorithm.{key}": (value, stated[key])
        for key, value in given.items()
        if key not in OTHERWISE and key in stated and not isinstance(value, dict | list)
    }
    return {"algorithm.name": (given.get("name"), name), **pairs}


def _same(given: Any, stated: Any) -> bool:
    if isinstance(given, bool) or isinstance(stated, bool) or not isinstance(given, int | float):
        return bool(given == stated)
    return isinstance(stated, int | float) and isclose(given, stated, rel_tol=ROUNDED)


def consistent(run: Subject) -> Iterator[Finding]:
    """Data that the ledger gave a budget are private, and a run may leave exactly where nothing
    speaks against it.
    """
    found = run.statement
    if found is None:
        return
    if found.data.public and run.ledger is not None and run.ledger.limited:
        yield block(
            "public_flag",
            "data.public",
            f"the statement calls {found.ledger.dataset!r} public, the ledger holds a budget for "
            f"it",
            "Exact numbers on private rows would leave",
            "Declare `public: false` in its data schema, and train again",
        )
    if found.releasable != (not found.reasons):
        yield block(
            "releasable_inconsistent",
            STATEMENT,
            "the statement gives reasons and says that the run may leave, or the other way round",
            "It was changed",
            RETRAIN,
        )


RULES = (asked, consistent)
