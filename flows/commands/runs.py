"""``dpflows runs`` and ``dpflows show``: the trainings of this home, from its own list, without
MLflow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.terminal import print_whole, shown_run
from tasks.drawing import counted, metric_title, number
from tasks.home import Home
from tasks.record import index

NONE = "No finished training in {root}: `dpflows train` makes one"


def list_runs(data: str | None, last: int, rebuild: bool, as_json: bool) -> None:
    """Print the newest ``last`` trainings, of data set ``data`` or of all; ``rebuild`` asks MLflow
    for older ones.
    """
    home = listed(rebuild)
    found = index.runs(home, data)
    if as_json:
        sys.stdout.write(
            json.dumps({"schema_version": 1, "runs": found[:last], "count": len(found)}) + "\n"
        )
        return
    console = Console(soft_wrap=False)
    if not found:
        of = "" if data is None else f" on {data!r}"
        other = "; `dpflows runs --rebuild` lists those that MLflow's store holds."
        console.print(
            NONE.format(root=home.root) + of + other, soft_wrap=True, highlight=False, markup=False
        )
        return
    print_whole(console, runs_table(found[:last], len(found)))


def listed(rebuild: bool = False) -> Home:
    """The home, whose list is made again from MLflow's store where it was lost, or on demand."""
    home = Home.find()
    if rebuild or index.is_lost(home):
        from tasks.record.tracking import tracking_client

        added = index.rebuild(tracking_client(home.prepare()), home)
        if rebuild or added:
            sys.stderr.write(f"{added} runs of MLflow's store were added to the list.\n")
    return home


def runs_table(runs: Sequence[Mapping[str, Any]], count: int) -> Table:
    """One line a run, newest first; internal numbers are marked."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
    table.caption_justify = "left"
    table.add_column("run", no_wrap=True)
    table.add_column("when (UTC)", overflow="fold", min_width=10)
    for name in ("data", "algorithm"):
        table.add_column(name, overflow="fold", min_width=9)
    for name in ("epsilon", "delta", "metric"):
        table.add_column(name, justify="right", overflow="fold", min_width=5)
    table.add_column("may leave", overflow="fold", min_width=5)
    table.add_column("released as", overflow="fold", min_width=8)
    for run in runs:
        table.add_row(
            run["run_id"][: index.SHORT],
            str(run["at"])[:16].replace("T", " "),
            str(run["data"]),
            str(run["algorithm"]),
            _number(run["epsilon_spent"]),
            _number(run["delta"]),
            metric_text(run),
            "yes" if run["releasable"] else "no",
            index.released_as(run) or "-",
        )
    hidden = f", {count - len(runs)} older ones are not shown (--last)" if count > len(runs) else ""
    names = {metric_title(found[0]) for run in runs if (found := index.main_metric(run))}
    said = (
        f"metric: {', '.join(sorted(names))}; * is internal, an exact number on records. "
        if names
        else ""
    )
    table.caption = f"{said}{counted(count, 'run')}{hidden}; `dpflows show RUN` says more."
    return table


def metric_text(run: Mapping[str, Any]) -> str:
    """The first metric of a run, with a star where it is internal."""
    found = index.main_metric(run)
    return "-" if found is None else number(found[1]) + ("*" if found[2] == "internal" else "")


def _number(value: object) -> str:
    return "-" if value is None else f"{float(str(value)):.4g}"


def show_run(name: str, as_json: bool) -> None:
    """Print one run of the list; ``name`` is its id, or the beginning of it."""
    run = index.run_named(listed(), name)
    if as_json:
        sys.stdout.write(json.dumps({"schema_version": 1, "run": run}) + "\n")
    else:
        print_whole(Console(), shown_run(run))
