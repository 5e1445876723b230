"""Which points of a trace become the curves of a run, and under which names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# A figure shows no more points than this, and one batch carries them.
CURVE_POINTS = 1000


def curve_name(key: str) -> str:
    """``spent.epsilon``, a name that has its prefix already, or ``released.NAME``."""
    if key.startswith(("internal.", "released.")):
        return key
    return "spent.epsilon" if key == "spent_epsilon" else f"released.{key}"


def thin(rows: Sequence[Mapping[str, float]], most: int) -> list[Mapping[str, float]]:
    """At most ``most`` of ``rows``, evenly spread, with the first and the last one."""
    if len(rows) <= most:
        return list(rows)
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(index * step)] for index in range(most)]
