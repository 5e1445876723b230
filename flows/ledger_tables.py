"""What a person sees of the ledger: tables and paragraphs from the plain reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

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
            "open" if state == "reserved" else state: number for state, number in row["entries"].items() if number
        }
        runs = ", ".join(f"{number} {state}" for state, number in counts.items()) or "none"
        left = "no limit" if row["left"] is None else f"{row['share_left']:.0%}: epsilon {row['fits_epsilon']:.3g} fits"
        table.add_row(row["dataset"], guarantee(row), left, runs)
    return [Text(f"Ledger {where}"), table]


def detail_parts(report: Mapping[str, Any]) -> list[Any]:
    """Return the promise and the blocks of one data set, then its newest entries."""
    table = _table("entry", "state", "cost", "releases", "read", "at (UTC)")
    for entry in report["entries"]:
        cost = "" if entry["cost"] is None else f"{entry['cost']:.6g}"
        read = _range(entry["read"])
        table.add_row(entry["entry"][:HASH_SHOWN], entry["state"], cost, str(entry["releases"]), read, entry["at"][:16])
    shown = f"The newest {len(report['entries'])} of {report['entry_count']} entries:"
    return [*remaining_parts(report), Text(shown), table]


def remaining_parts(report: Mapping[str, Any]) -> list[Any]:
    """Return the blocks of a data set with what they have left, under its whole guarantee."""
    parts: list[Any] = [Text(f"{report['dataset']}: {guarantee(report)}. It bounds {report['bounds']}.")]
    if not report["limited"]:
        return parts
    diagnostic = any("realised_epsilon" in row for row in report["blocks"])
    table = _table("block", "spent", "left", "share left", *(["realised epsilon (diagnostic)"] if diagnostic else []))
    for row in report["blocks"]:
        more = [f"{row['realised_epsilon']:.4f}"] if diagnostic else []
        table.add_row(row["block"], f"{row['spent']:.6g}", f"{row['left']:.6g}", f"{row['share_left']:.1%}", *more)
    words = (
        f"Counted at order {report['order']:g}, {report['budget']:.6g} for each block. What is left here admits a run "
        f"of Gaussian releases of epsilon {report['fits_epsilon']:.4g} at delta {report['delta']:g}."
    )
    untouched = "No block was touched yet: each has its whole budget."
    return [*parts, table if report["blocks"] else Text(untouched), Text(words)]


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
    return f"({row['epsilon']:g}, {row['delta']:g}) per {row['unit']}, {row['adjacency']}, {row['conversion']}"


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
