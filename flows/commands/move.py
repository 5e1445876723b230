"""``dpflows move``: a home folder at a new path."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tasks.stores.moved import move


def move_home(old: Path, new: Path, as_json: bool) -> None:
    """Move the folder, or put right one that was moved or restored, and say what changed."""
    found = move(old.expanduser(), new.expanduser())
    answer = {
        "schema_version": 1,
        "old": str(old.expanduser().absolute()),
        "new": str(new.expanduser().absolute()),
        "places": found.places,
        "missing": list(found.missing),
    }
    if as_json:
        sys.stdout.write(json.dumps(answer) + "\n")
        return
    sys.stdout.write(
        f"{found.places} places in MLflow's store lead to {answer['new']} now; ledger, statements "
        f"and bundles hold "
        f"none. Set DPFLOWS_HOME={answer['new']}.\n"
    )
    for place in found.missing:
        sys.stdout.write(f"Not there: {place} (in a store, but not in the folder).\n")
