"""Rules for the texts beside the statement: readable forms, curve, trace. Each has its hash in the
commit record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tasks.audit.findings import Finding, block, note, warn
from tasks.audit.rules_run import RETRAIN, digest
from tasks.audit.subject import CURVE, READABLE, TRACE, Subject
from tasks.record.wording import RENDERED, rendered_again


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
                f"no hash of it",
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


RULES = (texts,)
