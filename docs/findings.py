"""Make ``docs/findings.md`` and ``docs/grids.md`` from ``docs/data``:
``python docs/findings.py [--check]``.

``python docs/findings.py --take NAME FOLDER`` puts the cells of a finished comparison (the folder
of its ``cells.csv``) into ``docs/data/NAME.csv``; ``--add`` puts them to those that are there.
``claims.yaml`` says what is claimed, where, and which two lines of which run decide it; a verdict
is a rule, no opinion: whether Student's 95 % interval of the mean difference on equal folds and
draws leaves out 0.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from scipy.stats import t as student

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
PLACE = ("data", "loss", "l1", "l2", "adjacency", "epsilon", "noise_multiplier", "label")
LEVELS = ("epsilon", "noise_multiplier")
CELL = ("repeat", "fold", "draw")
KEPT = ("accuracy", "mean_squared_error", "objective", "minimisation_error", "map", "ndcg_at_1",
        "ndcg_at_8", "coverage_at_20", "coverage_at_30", "coverage_at_40", "gradient_evaluations",
        "loss_evaluations")  # fmt: skip
PANEL = [
    "data",
    "loss",
    "l1",
    "l2",
    "adjacency",
]  # a table each on the page of grids
LESS_IS_MORE = {
    "objective",
    "minimisation_error",
    "mean_squared_error",
    "gradient_evaluations",
    "loss_evaluations",
}
CERTAIN = 0.95


def take(name: str, folder: Path, add: bool = False) -> Path:
    """The numbers of the cells of one run, without what only a machine wants to know; ``add``
    keeps those that are there.
    """
    cells = pd.read_csv(folder / "cells.csv")
    cells = cells[cells["status"] == "done"].rename(columns=lambda key: key.removeprefix("metric."))
    metrics = [key for key in KEPT if key in cells and cells[key].notna().any()]
    kept = cells[[*PLACE, *CELL, "spent_epsilon", *metrics]]
    path = DATA / f"{name}.csv"
    if add:
        before = pd.read_csv(path)
        kept = pd.concat([before, further(kept, before)])
    kept = kept.sort_values([*PLACE, *CELL])
    kept.to_csv(path, index=False, float_format="%.6g")
    return path


def further(cells: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """``cells`` of another run beside those ``before``: on one fold they are further draws of the
    noise, and what has no noise is left out.
    """
    keys = [*PLACE, "repeat", "fold"]
    draws = before.groupby(keys, dropna=False)["draw"].max().add(1).rename("draws").reset_index()
    found = cells.merge(draws, on=keys, how="left")
    known, noisy = found.pop("draws"), found[list(LEVELS)].notna().any(axis=1)
    found["draw"] += known.fillna(0).astype(int)
    return found[noisy | known.isna()]


def of_label(cells: pd.DataFrame, label: str, metric: str, where: dict[str, Any]) -> pd.Series:
    """The values of one line by repeat and fold, means over draws of the noise, which are pairs of
    their own on one declared split alone; a line without privacy has no level.
    """
    chosen = cells[cells["label"] == label]
    for key, value in where.items():
        if key not in LEVELS or chosen[key].notna().any():
            chosen = chosen[chosen[key] == value]
    if chosen.empty:
        raise ValueError(f"no cell of {label!r} at {where}")
    splits = ["repeat", "fold"]
    by = list(CELL) if len(cells[splits].drop_duplicates()) == 1 else splits
    return chosen.groupby(by)[metric].mean().dropna()


def mean_and_error(values: pd.Series) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def verdict(difference: float, error: float, pairs: int, metric: str) -> str:
    """``reproduced`` where the first line is better by more than Student's interval is wide."""
    gain = -difference if metric in LESS_IS_MORE else difference
    if abs(gain) <= student.ppf(0.5 + CERTAIN / 2, pairs - 1) * error:
        return "undecided"
    return "reproduced" if gain > 0 else "contradicted"


def levels(cells: pd.DataFrame) -> list[tuple[str, float]]:
    """What the points of a run differ in: epsilon, or the noise that was given."""
    key = "epsilon" if cells["epsilon"].notna().any() else "noise_multiplier"
    return [(key, float(value)) for value in sorted(cells[key].dropna().unique())]


def lines_of(claim: dict[str, Any]) -> list[dict[str, Any]]:
    """A line for each metric and level of one claim, or those levels that it names (``at``)."""
    cells = pd.read_csv(DATA / f"{claim['run']}.csv")
    named = [found for found in levels(cells) if found[1] in claim.get("at", [found[1]])]
    found = []
    for metric in claim["metrics"]:
        for key, level in named:
            where = claim.get("where", {}) | {key: level}
            one, two = (of_label(cells, claim[side], metric, where) for side in ("first", "second"))
            both = (one - two).dropna()
            if len(both) < 3:
                raise ValueError(f"{claim['claim']}: {len(both)} pairs of cells are no spread")
            difference, error = mean_and_error(both)
            found.append(
                {
                    "metric": metric,
                    "level": f"{'eps' if key == 'epsilon' else 'noise'} {level:g}",
                    "first": mean_and_error(one[both.index]),
                    "second": mean_and_error(two[both.index]),
                    "difference": (difference, error),
                    "cells": len(both),
                    "verdict": verdict(difference, error, len(both), metric),
                }
            )
    return found


def together(lines: list[dict[str, Any]]) -> str:
    """One word for a claim: what all its lines say, or that they differ."""
    said = {line["verdict"] for line in lines}
    if len(said) == 1:
        return said.pop()
    decided = sorted(said - {"undecided"})
    return f"{decided[0]} in part" if len(decided) == 1 else "one way and the other"


def number(pair: tuple[float, float], signed: bool = False) -> str:
    mean, error = pair
    kind = ".0f" if abs(mean) >= 100 else ".4f"
    kind = ".1e" if max(abs(mean), error) < 1e-3 else kind
    return f"{mean:{'+' if signed else ''}{kind}} ± {error:{kind}}"


def page() -> str:
    found = yaml.safe_load((DATA / "claims.yaml").read_text(encoding="utf-8"))
    parts = ["# Findings\n", found["opening"]]
    measured = [(claim, lines_of(claim)) for claim in found["claims"]]
    parts += ["## Claim by claim\n", "| claim | where | verdict |\n| --- | --- | --- |"]
    parts += [
        f"| {claim['claim']} | {claim['stands']} | {together(lines)} |" for claim, lines in measured
    ]
    for claim, lines in measured:
        parts += ["", f"### {claim['claim']}\n", f"{claim['stands']}. **{together(lines)}.** "
                  f"{claim['why']}\n"]  # fmt: skip
        parts.append(
            f"| metric | at | {claim['first']} | {claim['second']} | difference | pairs | says |\n"
            "| --- | --- | --- | --- | --- | --- | --- |"
        )
        parts += [
            f"| {line['metric']} | {line['level']} | {number(line['first'])} | "
            f"{number(line['second'])} | {number(line['difference'], True)} | {line['cells']} | "
            f"{line['verdict']} |"
            for line in lines
        ]
        parts.append(f"\nCells: `docs/data/{claim['run']}.csv`.")
    parts += ["", "## Commands\n"]
    for name, command in found["runs"].items():
        parts.append(f"`docs/data/{name}.csv`:\n\n```text\n{command.strip()}\n```\n")
    parts += ["## Not measured\n", found["not_measured"]]
    return "\n".join(parts).rstrip() + "\n"


def grids() -> str:
    """The page of whole grids: a table for each data set, setting, adjacency and metric."""
    found = yaml.safe_load((DATA / "claims.yaml").read_text(encoding="utf-8"))
    parts = ["# Grids\n", found["grids_opening"]]
    for run, title in found["grids"].items():
        cells = pd.read_csv(DATA / f"{run}.csv")
        parts += [f"\n## {title}\n", f"Cells: `docs/data/{run}.csv`."]
        for panel, inside in cells[cells["epsilon"].notna()].groupby(PANEL, sort=False):
            shared = (cells[PANEL[:-1]] == list(panel[:-1])).all(axis=1)
            beside = cells[cells["epsilon"].isna() & shared]
            for metric in (key for key in KEPT if key in cells):
                data, loss, l1, l2, adjacency = panel
                penalties = [f"{k} = {v:g}" for k, v in (("l1", l1), ("l2", l2)) if v]
                heading = ", ".join([data, loss, *penalties, adjacency])
                parts += ["", f"### {heading}: {metric}\n", grid(inside, beside, metric)]
    return "\n".join(parts).rstrip() + "\n"


def grid(cells: pd.DataFrame, beside: pd.DataFrame, metric: str) -> str:
    """Mean ± standard error of each line (rows) at each epsilon (columns)."""
    epsilons = sorted(cells["epsilon"].unique())
    rows = [["line", *(f"{epsilon:g}" for epsilon in epsilons)], ["---"] * (1 + len(epsilons))]
    for label, own in beside.groupby("label", sort=False):
        if own[metric].notna().any():
            rows.append([str(label), short(own[metric]), *[""] * (len(epsilons) - 1)])
    for label, own in cells.groupby("label", sort=False):
        at = [own.loc[own["epsilon"] == epsilon, metric] for epsilon in epsilons]
        rows.append([str(label), *(short(values) if len(values) else "" for values in at)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def short(values: pd.Series) -> str:
    return number(mean_and_error(values))


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["--take"], ["--add"]):
        path = take(arguments[1], Path(arguments[2]), arguments[0] == "--add")
        sys.stdout.write(f"{path}\n")
        return 0
    pages = {HERE / "findings.md": page(), HERE / "grids.md": grids()}
    if arguments == ["--check"]:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in pages.items()))
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
