"""The commands ``compare`` and ``crossval``: what happens around the flow, and what is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.command import on_server
from flows.show import Terminal
from tasks.compare.config import CompareConfig, load_compare, of_training
from tasks.compare.protocol import ProtocolSection
from tasks.compare.session import charges, make_comparison
from tasks.config import TrainConfig, load_config
from tasks.home import Home

FAILED = 1
SHOWN = 60


def run_comparison(config: str | None, overrides: Sequence[str], fresh: bool, as_json: bool) -> int:
    """``dpflows compare``; returns the exit code, 1 where a cell failed."""
    return run_and_print(load_compare(config, overrides), fresh, as_json)


def run_crossval(
    config: str | None, overrides: Sequence[str], sizes: Mapping[str, int], fresh: bool, as_json: bool
) -> int:
    """``dpflows crossval``: the same engine on one training configuration."""
    protocol = ProtocolSection(name="crossval", **sizes)  # type: ignore[arg-type]
    return run_and_print(of_training(load_config(config, overrides), protocol), fresh, as_json)


def run_and_print(settings: CompareConfig, fresh: bool, as_json: bool) -> int:
    """Refuse early what can be refused from public facts, then run the flow on a local server."""
    home = Home.find()
    with Terminal(Console(stderr=True)) as terminal:
        terminal.step("plan")
        charges(make_comparison(settings, home, fresh), home)
        store = TrainConfig(tracking=settings.tracking)
        summary = on_server(store, home.prepare(), terminal, lambda: run_flow(settings, fresh))
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        Console().print(summary_table(summary))
    return FAILED if summary["cells"]["failed"] else 0


def run_flow(settings: CompareConfig, fresh: bool) -> dict[str, Any]:
    """The flow of a comparison; imported when the server already starts."""
    from flows.compare import compare

    return compare(settings, fresh)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Means by setting, the first ``SHOWN`` of them, and where to look for all."""
    rows = summary["means"]
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))[:4]
    cells = summary["cells"]
    caption = (
        f"{cells['done']} cells done, {cells['failed']} failed, {cells['kept']} kept from before; "
        f"{summary['seconds']['flow']:.1f} s; run {summary['run_id']}; look: dpflows ui"
    )
    table = Table(title=f"Comparison: {summary['protocol']}", caption=caption, title_justify="left")
    given = any(row["noise_multiplier"] is not None for row in rows)
    for heading in ("line", "cells", *(["epsilon"] * given), *(name.replace("_", " ") for name in names), "seconds"):
        table.add_column(heading, overflow="fold")
    for row in rows[:SHOWN]:
        numbers = [f"{row['metrics'][name]:.4f}" if name in row["metrics"] else "" for name in names]
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.2f}"
        spent = "" if row["spent_epsilon"] is None else f"{row['spent_epsilon']:.4g}"
        table.add_row(row["name"], str(row["cells"]), *([spent] * given), *numbers, seconds)
    if len(rows) > SHOWN:
        table.add_row(f"... and {len(rows) - SHOWN} more")
    for failure in summary["failures"]:
        table.add_row(f"failed {failure['cells']}x: {failure['data']} {failure['label']}: {failure['error']}")
    return table
