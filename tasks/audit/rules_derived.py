"""Rules that derive what the statement says: from the configuration, the ledger's opening, and the
statement itself.

Rules on names: what a training of this tool writes is listed, and everything else was added by
somebody.

A list of what is forbidden finds only what its author thought of: a parameter with a count, levels
or weights in it would pass.

Rules for the texts beside the statement: readable forms, curve, trace. Each has its hash in the
commit record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

from dpcore.algorithms import registry
from dpcore.algorithms.base import under_new_names
from tasks.audit.findings import RETRAIN, Finding, block, note, warn
from tasks.audit.subject import (
    CONFIG,
    CURVE,
    MECHANISMS,
    METRICS,
    READABLE,
    STATEMENT,
    TRACE,
    Subject,
    digest,
)
from tasks.record.sources import INVENTORY
from tasks.record.statement import is_note, noise_form
from tasks.record.wording import RENDERED, rendered_again

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
    asked_for: Any = given.get("name")
    if registry.knows(asked_for):  # by a paper's name for it, or as that is spelled there
        asked_for = registry[asked_for].name
    return {"algorithm.name": (asked_for, name), **pairs}


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
            "it",
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

PARAMS = frozenset(
    {
        *(f"data.{name}" for name in ("name", "n", "dimension", "public")),
        *(f"preprocess.{name}" for name in ("normalise", "numeric", "intercept")),
        *(f"objective.{name}" for name in ("loss", "l1", "l2")),
        *(
            f"privacy.{name}"
            for name in ("unit", "adjacency", "epsilon", "delta", "accountant", "conversion")
        ),
        "privacy.best_order",
        "algorithm.name",
        "algorithm.preset",
        "config.sha256",
        "seed",
    }
)
TRAINING = (
    "data",
    "releasable",
    "reasons",
    "ledger_entry",
    "ledger_head",
    "canaries",
    "model",
    "algorithm",
    "flow_run",
    "sums",
)
LATER = ("owner", "model", "ended", "audit", "released_as", "recovered", "first_run")
OTHERS = (
    "period",
    "warm_start",
    "left_out",
    "public_set",
    "challenge",
    "comparison",
    "kind",
    "command",
)
TAGS = frozenset(f"dpflows.{name}" for name in (*TRAINING, *LATER, *OTHERS)) | {"dpflows"}
# What MLflow writes itself, and its pages where somebody renames a run or gives it a colour.
MLFLOW_TAGS = frozenset(
    f"mlflow.{name}"
    for name in (
        *("runName", "runColor", "user", "source.name", "source.type", "source.git.commit"),
        *("source.git.branch", "source.git.repoURL", "parentRunId", "rootRunId", "loggedArtifacts"),
        *("note.content", "log-model.history"),
    )
)
NOTE = "mlflow.note.content"
NOT_FINITE = "not_finite."
FILES = frozenset(
    {
        *(
            CONFIG,
            STATEMENT,
            *READABLE,
            MECHANISMS,
            CURVE,
            TRACE,
            METRICS,
            INVENTORY,
            "tables/attributes.json",
        ),
        *("figures/budget.png", "figures/canaries.png", "figures/empirical.png", "audit.json"),
        *(f"report/{name}" for name in ("report.html", "subgroups.json", "terms.json")),
        "figures/terms.svg",
    }
)
GONE = "Delete it from the run, or train again"


def parameters(run: Subject) -> Iterator[Finding]:
    """Every parameter is one that a training writes."""
    found = run.statement
    own = (
        {f"algorithm.{name}" for name in found.training.parameters} if found is not None else set()
    )
    for name in run.params:
        known = name in PARAMS or name in own or (found is None and name.startswith("algorithm."))
        if not known and not _registered(name):
            yield _added("param_unknown", name, "parameter")


def tags(run: Subject) -> Iterator[Finding]:
    """Every tag is one that this tool writes, or MLflow itself."""
    for name in run.tags:
        undefined = name.startswith(
            (f"{NOT_FINITE}internal.", f"{NOT_FINITE}released.", f"{NOT_FINITE}spent.")
        )
        if not (name in TAGS or name in MLFLOW_TAGS or undefined or _registered(name)):
            yield _added("tag_unknown", name, "tag")
    written, found = run.tags.get(NOTE), run.statement
    if written is not None and found is not None and not is_note(written, found, run.run_id):
        yield warn(
            "note_changed",
            NOTE,
            "the description of the run is not the one that a training writes",
            "Nothing says what of the records it tells, and MLflow's pages show it",
            "Read it, and delete what is no public fact",
        )


def beside(run: Subject) -> Iterator[Finding]:
    """Nothing is attached to the run, its model or its versions that no training or release
    writes.
    """
    for what in run.attached:
        yield block(
            "attached",
            what,
            f"{what} was added in MLflow",
            "No training or release of dpflows writes it, so nothing says what of the records it "
            "shows",
            GONE,
        )


def files(run: Subject) -> Iterator[Finding]:
    """Every file is one that a training or an audit writes."""
    for path in run.artifacts:
        if path not in FILES and not _registered(path):
            yield _added("file_unknown", path, "file")


def _registered(name: str) -> bool:
    """Whether a parameter, a tag or a file is one of those that a kind of model or an option adds
    to its runs.
    """
    # With the libraries of a training, which an audit of plain runs need not have.
    from tasks.kinds import KINDS
    from tasks.options import OPTIONS

    return any(
        name in kind.param_names
        or (
            kind.report
            and (name == kind.numbers or re.fullmatch(rf"{kind.figures}/\w+\.png", name))
        )
        for kind in KINDS
    ) or any(name in (*option.files, *option.names) for option in OPTIONS)


def _added(code: str, name: str, kind: str) -> Finding:
    return block(
        code,
        name,
        f"the {kind} {name} was added to the run",
        "No training of dpflows writes it, so nothing says what of the records it shows",
        GONE,
    )


NAME_RULES = (parameters, tags, files, beside)


def texts(run: Subject) -> Iterator[Finding]:
    """Readable statement, curve and trace are those that the training wrote."""
    committed = dict(run.ledger.hashes) if run.ledger is not None else {}
    for name in (*READABLE, CURVE, TRACE):
        data = run.files.get(name)
        if name not in committed:
            yield from _unvouched(run, name, data)
        elif data is None:
            yield block(
                "text_missing",
                name,
                f"{name} is not stored",
                "It was removed after the training",
                RETRAIN,
            )
        elif digest(data) != committed[name]:
            yield block(
                "text_changed",
                name,
                f"{name} is not the file whose hash the ledger holds",
                "It was changed or exchanged after the training, and people read it",
                RETRAIN,
            )


def _unvouched(run: Subject, name: str, data: bytes | None) -> Iterator[Finding]:
    """A file of a run from before its hash was kept: what can be made again is compared."""
    found = run.statement
    if data is None or found is None:
        return
    if name in RENDERED:
        if rendered_again(found, name) != data:
            yield warn(
                "text_unvouched",
                name,
                f"{name} is not what this version writes for the statement, and the ledger holds "
                "no hash of it",
                "The wording of another version, or a change: nothing tells them apart",
                "A release makes the text again from the statement",
            )
    elif name == CURVE:
        if _json(data) != found.renyi.model_dump(mode="json"):
            yield block(
                "text_changed",
                name,
                "the curve is not that of the statement",
                "It was changed",
                RETRAIN,
            )
    else:
        yield note(
            "text_unvouched",
            name,
            "the ledger holds no hash of the trace",
            "Its names excuse curves of the run, but no metric of quality",
            "Nothing to do",
        )


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


TEXT_RULES = (texts,)
