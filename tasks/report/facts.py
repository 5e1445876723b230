"""What the report of a run is made of: its own files and numbers, other draws of it, and the ledger's view."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from dpcore.errors import InputError
from tasks.quality import SUBGROUPS
from tasks.report.share import Share
from tasks.statement import Statement

STATEMENT = "privacy/statement.json"
TRACE = "privacy/trace.json"
METRICS = "privacy/metrics.json"
CURVES = "figures"
OWN_FIGURE = "figures/budget.png"
# Numbers and curves of a ranking or a network.
EXACT = ("report/ranking.json", "report/network.json")
INTERNAL = "internal."


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a report shows. ``draws`` are the internal metrics of other finished runs of the same config."""

    run_id: str
    name: str
    statement: Statement
    metrics: Mapping[str, float] = field(default_factory=dict)
    trace: Sequence[Mapping[str, float]] = ()
    draws: Sequence[Mapping[str, float]] = ()
    share: Share | None = None
    subgroups: Mapping[str, Any] | None = None
    noisy: Mapping[str, Any] | None = None
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    conventions: Mapping[str, Any] = field(default_factory=dict)
    curve: Sequence[Mapping[str, float]] = ()

    @property
    def internal(self) -> dict[str, float]:
        """Exact numbers on records, without their prefix; what is no number is left out."""
        return finite_under(self.metrics)


def finite_under(metrics: Mapping[str, float]) -> dict[str, float]:
    """The finite internal metrics without their prefix."""
    return {k.removeprefix(INTERNAL): v for k, v in metrics.items() if k.startswith(INTERNAL) and isfinite(v)}


def read_facts(
    folder: Path,
    run_id: str,
    name: str,
    metrics: Mapping[str, float],
    draws: Sequence[Mapping[str, float]],
    share: Share | None,
) -> Facts:
    """Facts from the files of a run in ``folder``. Raises ``InputError`` where there is no statement to explain."""
    path = folder / STATEMENT
    if not path.is_file():
        raise InputError(
            f"Expected a run with a privacy statement, got {run_id!r}, which has none; choose a finished training."
        )
    try:
        statement = Statement.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(
            f"Expected a privacy statement that this version reads, got another in run {run_id!r}; `dpflows audit` "
            "says what is wrong."
        ) from None
    pictures = {
        found.relative_to(folder).as_posix(): found.read_bytes()
        for found in sorted((folder / CURVES).rglob("*.png"))
        if found.relative_to(folder).as_posix() != OWN_FIGURE
    }
    trace = read_json(folder / TRACE)
    exact = next((found for name in EXACT if isinstance(found := read_json(folder / name), dict)), {})
    return Facts(
        run_id=run_id,
        name=name,
        statement=statement,
        metrics=dict(metrics),
        trace=trace if isinstance(trace, list) else [],
        draws=[finite_under(one) for one in draws],
        share=share,
        subgroups=read_json(folder / SUBGROUPS),
        noisy=read_json(folder / METRICS),
        pictures=pictures,
        conventions=exact.get("conventions", {}),
        curve=exact.get("curve", ()),
    )


def read_json(path: Path) -> Any:
    """The value of a JSON file, None where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
