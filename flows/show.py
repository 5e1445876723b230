"""What a person sees of a training: its steps while it runs, and the table at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from tasks.release.statement_text import two_epsilons

# Below this many releases a bar would only flicker.
LONG_FIT = 20
MOST_LETTERS = 10_000


class Terminal:
    """Steps and a bar on standard error where it is a terminal; only what must be said where it is not."""

    def __init__(self, console: Console, show: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        """``show`` prints the summary of a training as soon as its numbers are known."""
        self._console = console
        self._show = show
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Terminal:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, name: str) -> None:
        self._bar.reset(self._task, description=name, total=None)

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


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end of a training, from its summary."""
    table = Table(title="Private training", show_header=False, title_justify="left")
    for name, value in summary_rows(summary):
        table.add_row(name, value)
    return table


def summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and texts of the table's rows."""
    internal, seconds = summary["internal"], summary["seconds"]
    return [
        ("data set", str(summary["data"])),
        ("public n", f"{summary['public_n']} ({summary['n_kind']})"),
        ("dimension", str(summary["dimension"])),
        ("algorithm", str(summary["algorithm"]) + (f": {summary['reason']}" if summary["reason"] else "")),
        ("unit, adjacency", f"one {summary['unit']}, {summary['adjacency']}"),
        ("epsilon asked", f"{summary['epsilon_asked']:g} at delta {summary['delta']:g}"),
        ("epsilon spent", f"{summary['epsilon_spent']:.6g} at delta {summary['delta']:g}"),
        ("promise, charge", promise_and_charge(summary)),
        *selected_rows(summary),
        *(ranking_rows(internal, summary) if "conventions" in summary else quality_rows(internal)),
        (
            "may be released",
            "yes, where audit and policy agree" if summary["releasable"] else f"no: {'; '.join(summary['reasons'])}",
        ),
        ("seconds", f"{seconds['fit']:.2f} fit, {seconds['flow']:.1f} flow"),
        ("run", f"{summary['run_id']} in experiment {summary['experiment']}"),
        ("look", "dpflows ui, dpflows ui --report"),
    ]


def promise_and_charge(numbers: Mapping[str, Any]) -> str:
    """Which epsilon is the promise and which the ledger charges, of a summary or a plan."""
    epsilon = numbers["epsilon_spent"] if "epsilon_spent" in numbers else numbers["epsilon"]
    return two_epsilons(epsilon, numbers["delta"], numbers["accountant"], numbers["renyi_epsilon"])


def selected_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The setting that a charged search selected; nothing for another training."""
    search = summary["parameters"].get("tuning")
    if search is None:
        return []
    return [("selected", f"{shown(search['selected'])} (of {search['settings']} settings, within epsilon)")]


# Metrics of the table by what they are called there; of those that a run has, the first two are shown.
QUALITY = {
    "accuracy": "accuracy",
    "mean_squared_error": "mean squared error, scaled label",
    "root_mean_squared_error": "root mean squared error, label's unit",
}
BESIDE = {"majority": "majority", "mean_label": "mean of the label", "non_private": "non-private"}


def quality_rows(internal: Mapping[str, float | None]) -> list[tuple[str, str]]:
    """Accuracy (or errors of a regression) beside the baselines; exact numbers on records, so marked internal."""
    rows = []
    for name, title in QUALITY.items():
        if (own := internal.get(name)) is None:
            continue
        found = ((label, internal.get(f"{key}_{name}")) for key, label in BESIDE.items())
        beside = [f"{label} {digits(value)}" for label, value in found if value is not None]
        rows.append((f"{title} (internal)", digits(own) + (f" ({', '.join(beside)})" if beside else "")))
    return rows


def digits(value: float) -> str:
    """Four decimals, or four digits of what is larger."""
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"


def ranking_rows(internal: Mapping[str, float | None], summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """MAP and NDCG@k beside the baselines, and what they mean; exact numbers on records, so marked internal."""
    labels = {"random_": "random order", "best_feature_": "best feature", "non_private_": "non-private"}
    rows = []
    for name in (key for key in internal if key == "map" or key.startswith("ndcg_at_")):
        beside = [
            f"{label} {value:.4f}" for key, label in labels.items() if (value := internal.get(key + name)) is not None
        ]
        title = "MAP" if name == "map" else name.upper().replace("_AT_", "@")
        text = f"{internal[name]:.4f}" + (f" ({', '.join(beside)})" if beside else "")
        rows.append((f"{title} (internal)", text))
    conventions = summary["conventions"]
    tested = f"{internal['sessions_test']:.0f} queries, {internal['sessions_empty']:.0f} without a relevant document"
    meaning = f"those: {conventions['empty']}; ties: {conventions['ties']}; discount: {conventions['discount']}"
    return [*rows, ("metrics over (internal)", f"{tested} ({meaning})")]


def plan_table(report: Mapping[str, Any]) -> Table:
    """The table of ``dpflows plan``."""
    table = Table(title="Plan (no record was read)", show_header=False, title_justify="left")
    for name, value in report.items():
        if name != "schema_version" and value not in (None, "", []):
            table.add_row(name.replace("_", " "), shown(value))
    table.add_row("promise, charge", promise_and_charge(report))
    return table


def shown(value: object) -> str:
    """A value of the plan as a person reads it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_inside(inner)}" for key, inner in value.items())
    return "\n".join(map(shown, value)) if isinstance(value, list) else str(value)


def _inside(value: object) -> str:
    """A value within a line: lists stay on it."""
    return f"[{', '.join(map(shown, value))}]" if isinstance(value, list) else shown(value)
