"""``dpflows profile``: draft a schema from a file, for a person to review."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dpcore.accounting import Target
from dpcore.errors import InputError
from dpcore.problem import Adjacency
from tasks.profile import Draft, draft_private, draft_schema


def profile_file(
    path: Path,
    label: str | None,
    name: str | None,
    private: tuple[float, float, str] | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write the draft of ``path`` to ``output`` or standard output, and what was noticed to standard error.

    ``private``: epsilon, delta and adjacency of the estimates. They are paid before a ledger for the data exists, so
    the price is said, to be taken off the budget that is opened.
    """
    if output is not None and output.exists():
        raise InputError(f"Expected a new file for --output, got {output}, which exists; choose another name.")
    if not path.is_file():
        raise InputError(f"Expected a table at {path}, got no file; correct the path.")
    if private is None:
        draft = draft_schema(path, label, name)
        told = "This draft read private rows: review every bound and level before it is used or shown to anybody."
    else:
        if label is None:
            raise InputError("Expected --label with --private: guessing it would read the rows; name the column.")
        epsilon, delta, adjacency = private
        draft = draft_private(path, label, Target(epsilon, delta), Adjacency(adjacency), name)
        told = f"This draft cost ({epsilon:g}, {delta:g}) under {adjacency}: open the budget with that much less."
    if output is not None:
        output.write_text(draft.text, encoding="utf-8")
    print(told, *draft.notes, sep="\n", file=sys.stderr)  # noqa: T201
    if as_json:
        print(json.dumps(as_record(draft, private, output), ensure_ascii=False))  # noqa: T201
    elif output is None:
        print(draft.text, end="")  # noqa: T201


def as_record(draft: Draft, private: tuple[float, float, str] | None, output: Path | None) -> dict[str, object]:
    """The draft as one object."""
    spent = None if private is None else dict(zip(("epsilon", "delta", "adjacency"), private, strict=True))
    written = None if output is None else str(output)
    return {"schema": draft.values, "notes": draft.notes, "spent": spent, "written": written}
