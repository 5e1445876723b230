"""Parts of a ranking data set for cross-validation: LETOR's partition files, or a public split by
query.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpcore.errors import InputError
from dpcore.ranking.sessions import Sessions
from tasks.data import load
from tasks.schema import Schema


def partition_parts(schema: Schema, folder: Path | str, count: int = 5) -> list[Sessions]:
    """The sessions of S1 to S``count`` in ``folder`` (plain or gzip), one part a file, as LETOR's
    folds need them.

    Raises ``InputError`` naming the file that is missing, or whatever is wrong inside one.
    """
    encoder = schema.encoder(normalise="none", intercept=False)
    one_file = schema.model_copy(
        update={"split": schema.split.model_copy(update={"kind": "none", "path": ()})}
    )
    parts = []
    for number in range(1, count + 1):
        names = [Path(folder) / f"S{number}{ending}" for ending in (".txt", ".txt.gz")]
        found = next((name for name in names if name.is_file()), None)
        if found is None:
            raise InputError(
                f"Expected the partition file {names[0].name} (or .gz) in "
                f"data.path={str(folder)!r}; give the folder that holds S1 to S5."
            )
        train = load(one_file, encoder, [str(found)]).train
        if not isinstance(train, Sessions):
            raise InputError(
                f"Expected ranking sessions in {found}, got rows; use a schema with "
                "source.format=letor."
            )
        parts.append(train)
    return parts


def query_parts(sessions: Sessions, count: int = 5, seed: int = 0) -> list[Sessions]:
    """``count`` parts of nearly equal size, drawn by query from the public ``seed``."""
    order = np.random.default_rng(seed).permutation(sessions.n)
    if not 3 <= count <= sessions.n:
        raise InputError(
            f"Expected 3 to {sessions.n} parts of {sessions.n} sessions, got parts={count!r}."
        )
    return [sessions.take(np.sort(order[i::count])) for i in range(count)]
