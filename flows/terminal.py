"""What a person sees of a training: its steps while it runs, and the table at its end.

What a person sees of the ledger: tables and paragraphs from the plain reports.
"""

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

from tasks.drawing.words import metric_title, number

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
        ("blocks", _range(run["blocks"]) if run.get("blocks") else ""),
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


HASH_SHOWN = 12


def answer_table(values: Mapping[str, Any], title: str) -> Table:
    """Return names and values, one a row; hashes are shown whole, to be copied."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in values.items():
        if value not in (None, []):
            table.add_row(name.replace("_", " "), Text(_words(value)))
    return table


def overview_parts(rows: list[dict[str, Any]], where: str) -> list[Any]:
    """Return one row for each data set of a ledger."""
    table = _table("data set", "guarantee", "least left", "runs")
    for row in rows:
        counts = {
            "open" if state == "reserved" else state: number
            for state, number in row["entries"].items()
            if number
        }
        runs = ", ".join(f"{number} {state}" for state, number in counts.items()) or "none"
        left = (
            "no limit"
            if row["left"] is None
            else f"{row['share_left']:.0%}: epsilon {row['fits_epsilon']:.3g} fits"
        )
        table.add_row(row["dataset"], guarantee(row), left, runs)
    return [Text(f"Ledger {where}"), table]


def detail_parts(report: Mapping[str, Any]) -> list[Any]:
    """Return the promise and the blocks of one data set, then its newest entries."""
    table = _table("entry", "state", "cost", "releases", "read", "at (UTC)")
    for entry in report["entries"]:
        cost = "" if entry["cost"] is None else f"{entry['cost']:.6g}"
        read = _range(entry["read"])
        table.add_row(
            entry["entry"][:HASH_SHOWN],
            entry["state"],
            cost,
            str(entry["releases"]),
            read,
            entry["at"][:16],
        )
    shown = f"The newest {len(report['entries'])} of {report['entry_count']} entries:"
    return [*remaining_parts(report), Text(shown), table]


def remaining_parts(report: Mapping[str, Any]) -> list[Any]:
    """Return the blocks of a data set with what they have left, under its whole guarantee."""
    parts: list[Any] = [
        Text(f"{report['dataset']}: {guarantee(report)}. It bounds {report['bounds']}.")
    ]
    if not report["limited"]:
        return parts
    diagnostic = any("realised_epsilon" in row for row in report["blocks"])
    table = _table(
        "block",
        "spent",
        "left",
        "share left",
        *(["realised epsilon (diagnostic)"] if diagnostic else []),
    )
    for row in report["blocks"]:
        more = [f"{row['realised_epsilon']:.4f}"] if diagnostic else []
        table.add_row(
            row["block"],
            f"{row['spent']:.6g}",
            f"{row['left']:.6g}",
            f"{row['share_left']:.1%}",
            *more,
        )
    counted = "in mu^2" if report["order"] is None else f"at order {report['order']:g}"
    words = (
        f"Counted {counted}, {report['budget']:.6g} for each block. What is left here admits a run "
        f"of Gaussian releases of epsilon {report['fits_epsilon']:.4g} at delta "
        f"{report['delta']:g}."
    )
    if like_last := report.get("like_last"):
        words += f" {like_last_words(like_last)}"
    untouched = "No block was touched yet: each has its whole budget."
    return [*parts, table if report["blocks"] else Text(untouched), Text(words)]


def like_last_words(found: Mapping[str, Any]) -> str:
    """How many runs like the last fit, here and in a budget that counts as suits them best."""
    here, best = found["admitted"], found["best_admitted"]
    words = f"{found['left']} more runs like the last fit here, of {here} in a whole budget"
    if found["better"]:
        words += f"; one opened with {found['better']} would admit {best}"
    return f"{words}."


def explanation(report: Mapping[str, Any]) -> list[Any]:
    """Return the answers as paragraphs, then the models that they are about."""
    parts: list[Any] = []
    for question, answer in report["answers"].items():
        parts += [Text(question.replace("_", " ").capitalize(), style="bold"), Text(answer), Text()]
    table = _table("entry", "trained (UTC)", "read", "weights (SHA-256)")
    for model in report["models"]:
        weights = model["hashes"].get("weights", "")[:HASH_SHOWN]
        table.add_row(model["entry"][:HASH_SHOWN], model["at"][:16], _range(model["read"]), weights)
    return [*parts, Text("Models", style="bold"), table]


def guarantee(row: Mapping[str, Any]) -> str:
    """Return the guarantee of a report in one line."""
    if not row["limited"]:
        return "public data, no limit"
    return (
        f"({row['epsilon']:g}, {row['delta']:g}) per {row['unit']}, {row['adjacency']}, "
        f"{row['conversion']}"
    )


def _table(*headings: str) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(heading)
    return table


def _range(blocks: list[str]) -> str:
    return blocks[0] if len(blocks) == 1 else f"{blocks[0]} to {blocks[-1]} ({len(blocks)})"


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
