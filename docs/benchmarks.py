"""Fill the tables of ``docs/benchmarks.md`` that stand between marks, ``<!-- table: NAME -->`` and
``<!-- end -->``: ``python docs/benchmarks.py [--check]``.

``docs/data/benchmarks/tables.yaml`` says what each shows of which cells, a CSV file beside it with
a line a fold and draw: means of lines, or differences of two lines on equal folds and draws,
each with its standard error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

HERE = Path(__file__).resolve().parent
PAGE = HERE / "benchmarks.md"
DATA = HERE / "data" / "benchmarks"
CELL = ["fold", "draw"]
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def values_of(cells: pd.DataFrame, metric: str, **where: Any) -> pd.Series:
    """The values of one line by fold and draw; empty where none was measured."""
    for key, value in where.items():
        cells = cells[cells[key] == value]
    return cells.set_index(CELL)[metric].dropna()


def shown(values: pd.Series, digits: int, signed: bool = False, error: bool = True) -> str:
    """Mean and standard error of ``values``, the mean alone where it is of one or without
    ``error``.
    """
    if values.empty:
        return ""
    mean = f"{values.mean():{'+' if signed else ''}.{digits}f}"
    if not error or len(values) < 2:
        return mean
    return f"{mean} ± {values.std(ddof=1) / len(values) ** 0.5:.{digits}f}"


def table(spec: dict[str, Any]) -> str:
    """One table: a line for each table of data and line of ours, a column for each epsilon."""
    cells = pd.read_csv(DATA / f"{spec['cells']}.csv")
    levels, digits = spec["epsilon"], spec.get("digits", 2)
    each = digits if isinstance(digits, list) else [digits] * len(spec["metrics"])
    wanted = list(zip(spec["metrics"], each, strict=True))
    head = f"| {spec.get('head', '')} | {' | '.join(f'eps {level:g}' for level in levels)} |"
    lines = [head, "|" + "---|" * (len(levels) + 1)]
    for name in spec["data"]:
        for label in spec.get("lines", [spec.get("first")]):
            row = []
            for level in levels:
                parts = [
                    part(cells, spec, metric, {"data": name, "epsilon": level}, label, places)
                    for metric, places in wanted
                ]
                row.append(" / ".join(parts) if all(parts) else "")
            if any(row):
                who = f"{name} {label}" if "lines" in spec else name
                lines.append(f"| {who} | {' | '.join(row)} |")
    return "\n".join(lines)


def part(
    cells: pd.DataFrame,
    spec: dict[str, Any],
    metric: str,
    where: dict[str, Any],
    label: str,
    digits: int,
) -> str:
    """One number of a table."""
    values = values_of(cells, metric, label=label, **where)
    if "second" not in spec:
        return shown(values, digits, error=spec.get("error", True))
    other = values_of(cells, metric, label=spec["second"], **where)
    return shown((values - other).dropna(), digits, signed=True)


def page() -> str:
    """The page with its tables made anew."""
    specs = yaml.safe_load((DATA / "tables.yaml").read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    return MARKED.sub(lambda found: f"{found[1]}{table(specs[found[2]])}\n{found[3]}", text)


def main(arguments: list[str]) -> int:
    text = page()
    if arguments == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
