"""The commands ``compare`` and ``crossval``: what happens around the flow, and what is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dpcore.errors import InputError
from flows.command import on_server
from flows.show import Terminal
from tasks.compare.config import CompareConfig, load_compare, of_training
from tasks.compare.protocol import ProtocolSection
from tasks.compare.ratios import CAPTION
from tasks.compare.session import charges, make_comparison
from tasks.config import TrainConfig, load_config
from tasks.home import Home

FAILED = 1
SHOWN = 60
WIDE = 120  # letters of a terminal


def run_comparison(config: str | None, overrides: Sequence[str], fresh: bool, as_json: bool) -> int:
    """``dpflows compare``; returns the exit code, 1 where a cell failed."""
    return run_and_print(load_compare(config, overrides), fresh, as_json)


def run_bench(config: str | None, overrides: Sequence[str], fresh: bool, as_json: bool) -> int:
    """``dpflows bench``: a comparison with other libraries among its lines."""
    settings = load_compare(config, overrides, "bench.yaml")
    if settings.peers is None:
        raise InputError("Expected a section peers to bench, got none; add one, or use `dpflows compare`.")
    return run_and_print(settings, fresh, as_json)


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
        Console().print(summary_table(summary, Console().width))
        if summary["ratios"]:
            Console().print(ratio_table(summary["ratios"]))
    return FAILED if summary["cells"]["failed"] else 0


def run_flow(settings: CompareConfig, fresh: bool) -> dict[str, Any]:
    """The flow of a comparison; imported when the server already starts."""
    from flows.compare import compare

    return compare(settings, fresh)


def summary_table(summary: Mapping[str, Any], width: int = WIDE) -> Table:
    """Means by setting, the first ``SHOWN`` of them, and where to look for all; fewer metrics on a narrow terminal."""
    rows = summary["means"]
    seen = dict.fromkeys(name for row in rows for name in row["metrics"])
    wanted = [name for name in summary["metrics"] if name in seen]
    names = [*wanted, *(name for name in seen if name not in wanted)][: 4 if width >= WIDE else 2]
    cells = summary["cells"]
    caption = (
        f"{cells['done']} cells done, {cells['failed']} failed, {cells['kept']} kept from before; "
        f"{summary['seconds']['flow']:.1f} s; run {summary['run_id']}; look: dpflows ui"
    )
    table = Table(title=f"Comparison: {summary['protocol']}", caption=caption, title_justify="left")
    given = any(row["noise_multiplier"] is not None for row in rows)
    for heading in ("line", "cells", *(["epsilon"] * given), *(name.replace("_", " ") for name in names), "seconds"):
        longest = max((len(row["name"]) for row in rows), default=0) if heading == "line" else 0
        table.add_column(heading, overflow="fold", min_width=min(longest, width // 2))
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


def ratio_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Our algorithms beside other libraries, in one part for each guarantee."""
    table = Table(title="Beside other libraries", caption=CAPTION, title_justify="left", caption_justify="left")
    for name in ("algorithm / library", found[0]["metric"].replace("_", " "), "library's", "ratio", "times faster"):
        table.add_column(name, overflow="fold")
    guarantees = [{key: one[key] for key in ("data", "adjacency", "epsilon", "delta")} for one in found]
    for guarantee in [one for index, one in enumerate(guarantees) if one not in guarantees[:index]]:
        table.add_section()
        shown = guarantee | {"epsilon": f"{guarantee['epsilon']:g}", "delta": f"{guarantee['delta']:g}"}
        table.add_row("{data}, {adjacency}, epsilon {epsilon}, delta {delta}".format(**shown))
        for one in (one for one, own in zip(found, guarantees, strict=True) if own == guarantee):
            numbers = [f"{one['ours']:.4f}", f"{one['theirs']:.4f}", _digits(one["ratio"], 4), _digits(one["speed"], 3)]
            table.add_row(f"{one['label']} / {one['peer']}", *numbers)
    return table


def _digits(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"
