"""The commands ``compare`` and ``crossval``: what happens around the flow, and what is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from dpcore.errors import InputError
from dpcore.objective import compiled
from flows.commands.train import on_server
from flows.terminal import Terminal, digits, natural_width, print_whole
from tasks.compare import load_compare
from tasks.compare.charge import charges
from tasks.compare.config import CompareConfig, ProtocolSection
from tasks.compare.ratios import CAPTION
from tasks.compare.resume import make_comparison
from tasks.compare.variants import of_training
from tasks.config import TrainConfig, load_config
from tasks.drawing import metric_title
from tasks.home import Home

FAILED = 1
SHOWN = 60  # lines of the table
SHOWN_METRICS = 4


def run_comparison(config: str | None, overrides: Sequence[str], fresh: bool, as_json: bool) -> int:
    """``dpflows compare``; returns the exit code, 1 where a cell failed."""
    return run_and_print(load_compare(config, overrides), fresh, as_json)


def run_bench(config: str | None, overrides: Sequence[str], fresh: bool, as_json: bool) -> int:
    """``dpflows bench``: a comparison with other libraries among its lines."""
    settings = load_compare(config, overrides, "bench.yaml")
    if settings.peers is None:
        raise InputError(
            "Expected a section peers to bench, got none; add one, or use `dpflows compare`."
        )
    return run_and_print(settings, fresh, as_json)


def show_speed(as_json: bool, rows: int = 1_000_000) -> None:
    """``dpflows bench --speed``: ratios of one run on made-up rows; nothing is spent. What an
    interrupted one has measured already is kept in the home folder.
    """
    from tasks.peers.bench import measured

    home = Home.find().root
    compiled.use(True, home / "kernels")
    found = measured(rows, kept=home / "speed.jsonl")
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    table = Table("what", "to", "ratio", "ns a row", title=f"{rows:,} rows, {found['passes']}")
    for one in found["lines"]:
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.3f}"
        table.add_row(one["what"], one["to"], ratio, f"{one['ns_a_row']:.1f}")
    Console().print(table)


def run_crossval(
    config: str | None,
    overrides: Sequence[str],
    sizes: Mapping[str, int],
    fresh: bool,
    as_json: bool,
) -> int:
    """``dpflows crossval``: the same engine on one training configuration."""
    protocol = ProtocolSection.model_validate({"name": "crossval", **sizes})
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
        console = Console()
        print_whole(console, summary_table(summary, console.width if console.is_terminal else None))
        if summary["ratios"]:
            print_whole(console, ratio_table(summary["ratios"]))
    return FAILED if summary["cells"]["failed"] else 0


def run_flow(settings: CompareConfig, fresh: bool) -> dict[str, Any]:
    """The flow of a comparison; imported when the server already starts."""
    from flows.compare import compare

    return compare(settings, fresh)


def summary_table(summary: Mapping[str, Any], width: int | None = None) -> Table:
    """Means and spread by setting, the first ``SHOWN`` of them, and where to look for all; nothing
    is cut off.

    A terminal of ``width`` letters gets as many metrics as fit beside whole lines, at least one;
    then names are folded.
    """
    seen = dict.fromkeys(name for row in summary["means"] for name in row["metrics"])
    wanted = [name for name in summary["metrics"] if name in seen]
    names = [*wanted, *(name for name in seen if name not in wanted)][:SHOWN_METRICS]
    table = _means_table(summary, names)
    while width is not None and natural_width(table) > width and len(names) > 1:
        names = names[:-1]
        table = _means_table(summary, names)
    return table


def _caption(summary: Mapping[str, Any]) -> str:
    cells = summary["cells"]
    spread = ["mean ± standard deviation over cells"]
    done = (
        f"{cells['done']} cells done, {cells['failed']} failed, {cells['kept']} kept from before; "
        f"{summary['seconds']['flow']:.1f} s; run {summary['run_id']}; look: dpflows ui"
    )
    failures = (
        f"failed {one['cells']}x: {one['data']} {one['label']}: {one['error']}"
        for one in summary["failures"]
    )
    return "\n".join([*spread * any(row["sd"] for row in summary["means"]), done, *failures])


def _means_table(summary: Mapping[str, Any], names: Sequence[str]) -> Table:
    """The table with these metrics. Names may be folded, numbers stay whole."""
    rows = summary["means"]
    table = Table(
        title=f"Comparison: {summary['protocol']}",
        caption=_caption(summary),
        title_justify="left",
        caption_justify="left",
    )
    given = any(row["noise_multiplier"] is not None for row in rows)
    table.add_column("line", overflow="fold", min_width=12)
    for heading in ("cells", *(["epsilon"] * given), *names, "seconds"):
        table.add_column("\n".join(metric_title(heading).split()), no_wrap=True)
    for row in rows[:SHOWN]:
        numbers = [_with_spread(row["metrics"].get(name), row["sd"].get(name)) for name in names]
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.2f}"
        spent = "" if row["spent_epsilon"] is None else f"{row['spent_epsilon']:.4g}"
        table.add_row(row["name"], str(row["cells"]), *([spent] * given), *numbers, seconds)
    if len(rows) > SHOWN:
        table.add_row(f"... and {len(rows) - SHOWN} more")
    return table


def _with_spread(mean: float | None, sd: float | None) -> str:
    if mean is None:
        return ""
    return digits(mean) + ("" if sd is None else f" ± {sd:.2g}")


def ratio_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Our algorithms beside other libraries, in one part for each guarantee."""
    table = Table(
        title="Beside other libraries",
        caption=CAPTION,
        title_justify="left",
        caption_justify="left",
    )
    for name in (
        "algorithm / library",
        metric_title(found[0]["metric"]),
        "library's",
        "ratio",
        "times faster",
    ):
        table.add_column(name, overflow="fold")
    guarantees = [
        {key: one[key] for key in ("data", "adjacency", "epsilon", "delta")} for one in found
    ]
    for guarantee in [one for index, one in enumerate(guarantees) if one not in guarantees[:index]]:
        table.add_section()
        shown = guarantee | {
            "epsilon": f"{guarantee['epsilon']:g}",
            "delta": f"{guarantee['delta']:g}",
        }
        table.add_row("{data}, {adjacency}, epsilon {epsilon}, delta {delta}".format(**shown))
        for one in (one for one, own in zip(found, guarantees, strict=True) if own == guarantee):
            numbers = [
                f"{one['ours']:.4f}",
                f"{one['theirs']:.4f}",
                _digits(one["ratio"], 4),
                _digits(one["speed"], 3),
            ]
            table.add_row(f"{one['label']} / {one['peer']}", *numbers)
    return table


def _digits(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"
