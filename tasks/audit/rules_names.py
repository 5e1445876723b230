"""Rules on names: what a training of this tool writes is listed, and everything else was added by
somebody.

A list of what is forbidden finds only what its author thought of: a parameter with a count, levels
or weights in it would pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tasks.audit.findings import Finding, block
from tasks.audit.subject import (
    CONFIG,
    CURVE,
    MECHANISMS,
    METRICS,
    READABLE,
    STATEMENT,
    TRACE,
    Subject,
)
from tasks.record.model import FILE as INVENTORY

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
        *(f"report/{name}" for name in ("report.html", "subgroups.json")),
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
        known = name in TAGS or undefined or name.startswith("mlflow.")
        if not known and not _registered(name):
            yield _added("tag_unknown", name, "tag")


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


RULES = (parameters, tags, files)
