"""Budgets at the terminal: what is checked and chosen when one is opened (delta, unit, how it is
counted), and the tables that people read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.table import Table
from rich.text import Text

from dpcore.errors import InputError
from flows.terminal import range_words
from tasks.ledger.records import Dataset, choose_order, price_for
from tasks.schema import Schema

HASH_SHOWN = 12


def check_counting(
    suited_to: str | None, runs: int | None, order: float | None, filter: str
) -> None:
    """Raise ``InputError`` for options of counting that do not go together."""
    if suited_to is None and runs is not None:
        raise InputError(f"Expected --for CONFIG with --runs, got --runs {runs} alone; name a run.")
    if suited_to is not None and (order is not None or filter != "rdp"):
        raise InputError(
            "Expected --for CONFIG to choose the counting, got --order or --filter beside it; "
            "leave one of them out."
        )


def suited(asked: Dataset, config: str, runs: int | None) -> tuple[float | None, str, str]:
    """Return order and filter that admit most runs like that of ``config`` under the promise that
    is ``asked``, and what is said of them; no record is read.

    With ``runs`` as many equal runs fill the budget, each with the least noise that lets all fit.
    """
    from dpcore.accounting.calibrate import calibrate, planned_events
    from dpcore.accounting.curves import epsilon_of
    from tasks import training
    from tasks.config import load_config
    from tasks.ledger.entries import Counting, ManyRuns, best_counting

    planned = training.plan_training(training.prepare(load_config(config, [])))
    events = planned.events
    if runs is not None:
        if planned.before is not None or "noise_multiplier" not in planned.parameters:
            raise InputError(
                f"Expected a plan with one noise multiplier for --runs, got {planned.name!r}; "
                "leave --runs out."
            )
        made = calibrate(
            planned.algorithm, planned.problem, ManyRuns(asked, runs), noise=planned.noise
        )
        events = planned_events(made, planned.problem, planned.noise)
    best = best_counting(asked, events)
    usual_order, budget = choose_order(
        asked.epsilon or 0.0, asked.delta or 0.0, asked.conversion, None
    )
    usual = Counting(
        usual_order, budget, price_for(replace(asked, order=usual_order, budget=budget), events)[1]
    )
    words = (
        f"Suited to {planned.name}: {best.option} admits {best.admitted} such runs, the usual "
        f"order {usual_order:g} {usual.admitted}."
    )
    if runs is not None:
        target = planned.target
        assert target is not None
        alone = epsilon_of(events.price(), target.delta, target.conversion)
        words += (
            f" Each of {runs} runs then has noise_multiplier {made.noise_multiplier:.6g} (by its "
            f"curve epsilon {alone:.4g} at delta {target.delta:g}): set privacy.epsilon to that."
        )
    return best.order, "gdp" if best.order is None else "rdp", words


GDP_ADVICE = (
    "This budget counts mu^2: full-batch Gaussian and pure releases fit it best. Training on "
    "random batches is charged as if on all rows; for that open data with the default filter."
)
# The largest delta of a budget for data whose n is not declared yet: up to 100,000 units it is
# below 1/n.
UNKNOWN_N_DELTA = 1e-5


def check_delta(name: str, schema: Schema | None, delta: float, confirmed: bool) -> None:
    """Raise ``InputError`` where publishing one unit would satisfy the promise, as far as
    declarations tell.

    Every reservation asks again with the n of its run.
    """
    n = None if schema is None else schema.n()
    if n is None and delta > UNKNOWN_N_DELTA and not confirmed:
        raise InputError(
            f"Expected --delta of at most {UNKNOWN_N_DELTA:g} for {name!r}, which has no data "
            f"schema that says its n, got {delta:g}: delta must stay below 1/n; lower it, write "
            "the schema first, or add --confirm-delta."
        )
    if n is not None and delta >= 1.0 / n:
        per = "" if schema is None or schema.public.n is not None else " (rows_per_block)"
        raise InputError(
            f"Expected --delta below 1/n={1.0 / n:.3g} for the public n={n}{per} of {name!r}, got "
            f"{delta:g}: it would allow a record to be published; for example --delta "
            f"{0.1 / n:.1g}."
        )


def unit_under(unit: str, adjacency: str) -> str:
    """The unit that a schema's one stands for: of sessions, replace_labels protects the labels
    alone.
    """
    return "session_labels" if (unit, adjacency) == ("session", "replace_labels") else unit


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
        read = range_words(entry["read"])
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
        table.add_row(
            model["entry"][:HASH_SHOWN], model["at"][:16], range_words(model["read"]), weights
        )
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


def _words(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
