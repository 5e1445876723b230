"""What a person sees of a training: its steps while it runs, and the table at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from tasks.drawing import metric_title, number

# Below this many releases a bar would only flicker.
LONG_FIT = 20
MOST_LETTERS = 10_000


class Terminal:
    """Steps and a bar on standard error where it is a terminal; only what must be said where it is
    not.
    """

    def __init__(
        self, console: Console, show: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        """``show`` prints the summary of a training as soon as its numbers are known."""
        self._console = console
        self._show = show
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Terminal:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, name: str) -> None:
        """The next step; its bar pulses beside the seconds until a total is known."""
        # A task keeps its total when it is reset, so each step gets one of its own.
        self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=None)

    def progress(self, done: int, total: int) -> None:
        if total >= LONG_FIT:
            self._bar.update(self._task, completed=done, total=total)

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def result(self, summary: Mapping[str, Any]) -> None:
        if self._show is None:
            return
        self._bar.stop()  # it would be drawn through the table where both go to one terminal
        self._show(summary)
        self._bar.start()


def natural_width(table: Table) -> int:
    """Letters that a table needs when nothing in it is folded."""
    return Console(width=MOST_LETTERS).measure(table).maximum


def print_whole(console: Console, table: Table) -> None:
    """Print a table; where it goes to a file or a pipe, which have no width, as wide as it is."""
    if not console.is_terminal:
        console = Console(file=console.file, width=natural_width(table))
    console.print(table, crop=False)


def print_part(console: Console, part: Table | Text) -> None:
    """Print a table or a paragraph; both whole where nothing has a width."""
    if isinstance(part, Table):
        print_whole(console, part)
    else:
        console.print(part, soft_wrap=not console.is_terminal)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end of a training, from its summary."""
    table = Table(title="Private training", show_header=False, title_justify="left")
    for name, value in summary_rows(summary):
        table.add_row(name, value)
    return table


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of the table's rows."""
    seconds = summary["seconds"]
    return [
        ("data set", str(summary["data"])),
        ("public n", f"{summary['public_n']} ({summary['n_kind']})"),
        ("dimension", str(summary["dimension"])),
        (
            "algorithm",
            str(summary["algorithm"]) + (f": {summary['reason']}" if summary["reason"] else ""),
        ),
        ("unit, adjacency", f"one {summary['unit']}, {summary['adjacency']}"),
        ("epsilon asked", f"{summary['epsilon_asked']:g} at delta {summary['delta']:g}"),
        ("epsilon spent", f"{summary['epsilon_spent']:.6g} at delta {summary['delta']:g}"),
        ("promise, charge", promise_and_charge(summary)),
        *selected_rows(summary),
        *metric_rows(summary),
        (
            "may be released",
            "yes, where audit and policy agree"
            if summary["releasable"]
            else f"no: {'; '.join(summary['reasons'])}",
        ),
        ("seconds", f"{seconds['fit']:.2f} fit, {seconds['flow']:.1f} flow"),
        ("run", f"{summary['run_id']} in experiment {summary['experiment']}"),
        ("look", "dpflows ui, dpflows ui --report"),
    ]


def shown_run(run: Mapping[str, Any]) -> Table:
    """A run of the home's list, in the rows of a training's summary as far as the list holds
    them.
    """
    table = Table(title=f"Run {run['run_id']}", show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _run_rows(run):
        if value:
            table.add_row(name, Text(value))
    return table


def _run_rows(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of the table."""
    rows = [
        ("when (UTC)", str(run["at"])[:16].replace("T", " ")),
        ("data set", str(run["data"])),
        ("period", str(run.get("period") or "")),
        ("blocks", range_words(run["blocks"]) if run.get("blocks") else ""),
        ("public n", f"{run['public_n']:g}" if run.get("public_n") else ""),
        ("algorithm", str(run["algorithm"])),
        ("parameters", cell_text(run["parameters"])),
        ("unit, adjacency", f"one {run['unit']}, {run['adjacency']}"),
        ("epsilon asked", "" if run.get("epsilon_asked") is None else f"{run['epsilon_asked']:g}"),
        (
            "epsilon spent",
            f"{run['epsilon_spent']:.6g} at delta {run['delta']:g} (accountant "
            f"{run['accountant']})",
        ),
        *((name, number(value)) for name, value in _run_numbers(run).items()),
        (
            "may be released",
            "yes, where audit and policy agree"
            if run["releasable"]
            else f"no: {'; '.join(run['reasons'])}",
        ),
        ("ledger entry", str(run["ledger_entry"])),
        ("model", str(run.get("model") or "")),
    ]
    for one in run["releases"]:
        version, at = f"{one['name']}@{one['version']}", str(one["at"])[:16]
        rows.append(("released as", f"{version}, approved by {one['approved_by']}, {at}"))
    return [*rows, ("look", f"dpflows ui --report {run['run_id']}")]


def _run_numbers(run: Mapping[str, Any]) -> dict[str, float]:
    """Metrics by their names in words; those under ``internal`` that were released too stand there
    once.
    """
    twice = {key for key, value in run["released"].items() if run["internal"].get(key) == value}
    own = {key: value for key, value in run["internal"].items() if key not in twice}
    return {
        f"{metric_title(key)} ({kind})": value
        for kind, metrics in (("released", run["released"]), ("internal", own))
        for key, value in metrics.items()
        if isinstance(value, int | float)
    }


def promise_and_charge(numbers: Mapping[str, Any]) -> str:
    """Which epsilon is the promise and which the ledger charges, of a summary or a plan."""
    from tasks.record.wording import two_epsilons  # which takes a second to import

    epsilon = numbers["epsilon_spent"] if "epsilon_spent" in numbers else numbers["epsilon"]
    return two_epsilons(epsilon, numbers["delta"], numbers["accountant"], numbers["renyi_epsilon"])


def selected_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The setting that a charged search selected; nothing for another training."""
    search = summary["parameters"].get("tuning")
    if search is None:
        return []
    return [
        (
            "selected",
            f"{cell_text(search['selected'])} (of {search['settings']} settings, within epsilon)",
        )
    ]


# Metrics of the table by what they are called there; of those that a run has, the first two are
# shown.
QUALITY = {
    "accuracy": "accuracy",
    "mean_squared_error": "mean squared error, scaled label",
    "root_mean_squared_error": "root mean squared error, label's unit",
}
BESIDE = {"majority": "majority", "mean_label": "mean of the label", "non_private": "non-private"}


def metric_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows about the quality of a model, or of a ranking."""
    if "conventions" in summary:
        return ranking_rows(summary["internal"], summary)
    return quality_rows(summary["internal"], summary["released"])


def quality_rows(
    internal: Mapping[str, float | None], released: Mapping[str, float | None] | None = None
) -> list[tuple[str, str]]:
    """Accuracy (or errors of a regression) beside the baselines: exact numbers on records, so
    marked internal unless they are ``released`` as they are; below each what was released of it
    with noise.
    """
    rows = []
    for name, title in QUALITY.items():
        if (own := internal.get(name)) is None:
            continue
        left = (released or {}).get(name)
        rows.append(
            (f"{title} ({'released' if left == own else 'internal'})", _beside(name, internal))
        )
        if left not in (None, own):
            rows.append((f"{title} (released, with noise)", digits(float(left or 0))))
    return rows


def _beside(name: str, internal: Mapping[str, float | None]) -> str:
    """A metric, and in brackets those of the baselines."""
    found = ((label, internal.get(f"{key}_{name}")) for key, label in BESIDE.items())
    beside = ", ".join(f"{label} {digits(value)}" for label, value in found if value is not None)
    own = digits(float(internal[name] or 0))
    return f"{own} ({beside})" if beside else own


def digits(value: float) -> str:
    """Four decimals, or four digits of what is larger."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def ranking_rows(
    internal: Mapping[str, float | None], summary: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """MAP and NDCG@k beside the baselines, and what they mean; exact numbers on records, so marked
    internal.
    """
    labels = {
        "random_": "random order",
        "best_feature_": "best feature",
        "non_private_": "non-private",
    }
    rows = []
    for name in (key for key in internal if key.startswith(("map", "ndcg_at_"))):
        beside = [
            f"{label} {value:.4f}"
            for key, label in labels.items()
            if (value := internal.get(key + name)) is not None
        ]
        title = "MAP" if name == "map" else name.upper().replace("_AT_", "@")
        text = f"{internal[name]:.4f}" + (f" ({', '.join(beside)})" if beside else "")
        rows.append((f"{title} (internal)", text))
    conventions = summary["conventions"]
    tested = (
        f"{internal['sessions_test']:.0f} queries, {internal['sessions_empty']:.0f} without a "
        "relevant document"
    )
    meaning = (
        f"those: {conventions['empty']}; ties: {conventions['ties']}; discount: "
        f"{conventions['discount']}"
    )
    meaning += "; gain: the grade" if conventions["gain"] == "linear" else ""
    meaning += f"; shorter than k: {conventions['short']}" if conventions["short"] != "keep" else ""
    return [*rows, ("metrics over (internal)", f"{tested} ({meaning})")]


def plan_table(report: Mapping[str, Any]) -> Table:
    """The table of ``dpflows plan``."""
    table = Table(title="Plan (no record was read)", show_header=False, title_justify="left")
    for name, value in report.items():
        if name != "schema_version" and value not in (None, "", [], {}):
            table.add_row(name.replace("_", " "), cell_text(value))
    table.add_row("promise, charge", promise_and_charge(report))
    return table


def cell_text(value: object) -> str:
    """A value of the plan as a person reads it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_inside(inner)}" for key, inner in value.items())
    return "\n".join(map(cell_text, value)) if isinstance(value, list) else str(value)


def _inside(value: object) -> str:
    """A value within a line: lists stay on it."""
    return f"[{', '.join(map(cell_text, value))}]" if isinstance(value, list) else cell_text(value)


def range_words(blocks: list[str]) -> str:
    return blocks[0] if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]} ({len(blocks)})"
