"""The page of a comparison: one self-contained HTML file with protocol, table, figures, failures
and facts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tasks.compare.export import count_cells, write
from tasks.compare.figures import write_figures
from tasks.compare.grouping import SECONDS, Place, Record, done, is_private, metrics_of
from tasks.compare.ratios import ratios, rows_of, table
from tasks.compare.statistics import LEAST, LEVEL, Summary, explain, summarise
from tasks.drawing import metric_title, number
from tasks.drawing.html import Cell, figure, grid, heading, page, paragraph, rows
from tasks.drawing.sheet import description_of, write_frame

if TYPE_CHECKING:
    from mlflow import MlflowClient

PAGE = "comparison.html"
SHOWN_METRICS = 4  # columns of the table; all others stand in summary.csv
SHOWN_FAILURES = 50
INSIDE = (
    "title",
    "charge",
    "public",
    "machine",
    "metrics",
    "warnings",
    "data",
    "config",
    "effects",
    "printed",
    "reproducible",
)
"""Facts that have a place of their own on the page."""


def report(
    client: MlflowClient,
    run_id: str,
    folder: Path,
    records: Sequence[Record],
    facts: Mapping[str, Any],
) -> list[str]:
    """Write tables, figures and page to ``folder``, attach them under report/ and remove the
    folder; returns names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write(records, facts, folder)
    if beside := rows_of(ratios(records, facts)):
        write_frame(pd.DataFrame(beside), folder / "ratios")
    write_page(records, facts, write_figures(records, folder, facts), folder / PAGE)
    names = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    client.log_artifacts(run_id, str(folder), "report")
    shutil.rmtree(folder)
    return names


def write_page(
    records: Sequence[Record], facts: Mapping[str, Any], figures: Sequence[Path], path: Path
) -> Path:
    """Write the page; ``figures`` are the files of ``figures.write_figures``, of which the PNGs are
    put inside.

    ``facts`` may hold title, protocol, folds, repeats, draws, test_share, metrics, public, charge,
    seed, seconds, machine (a dict), warnings (a list), config (stands in facts.json alone); others
    are listed under their names.
    """
    title = str(facts.get("title") or "Comparison of private algorithms")
    parts = [*_opening(records, facts), *_parts(records, facts, figures)]
    text = page(title, parts, "broad")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    return beside.replace(path)


def _opening(records: Sequence[Record], facts: Mapping[str, Any]) -> Iterable[str]:
    """What a reader must know before a number: how it came about, what the data are, what is
    missing.
    """
    counts = count_cells(records)
    yield paragraph(_charge(facts), "note")
    if not _public(facts):
        yield paragraph(
            "Metrics are exact numbers on held-out records. Unless those records are public, they "
            "are internal: not part of any release.",
            "internal",
        )
    if not records:
        yield paragraph("No cell has run: there is nothing to show.", "internal")
    elif counts["failed"]:
        yield paragraph(
            f"{counts['failed']} of {counts['all']} cells failed; means are over the others.",
            "internal",
        )
    yield rows(_protocol(records, facts))


def _charge(facts: Mapping[str, Any]) -> str:
    if charge := facts.get("charge"):
        return f"Privacy of the data: {charge}."
    if _public(facts):
        return "Privacy of the data: public data, cells are free."
    return "Privacy of the data: not stated; every cell on private records spends budget."


def _public(facts: Mapping[str, Any]) -> bool:
    """Whether all data are public: ``facts["public"]`` is one answer, or one for each data set."""
    public = facts.get("public")
    return bool(public) and all(public.values()) if isinstance(public, Mapping) else public is True


def _values(records: Iterable[Record], key: str) -> list[Any]:
    return [record.get(key) for record in records]


def _epsilons(records: Iterable[Record]) -> list[float]:
    given = (record.get("epsilon") for record in records)
    return [value for value in given if value is not None]


def _protocol(records: Sequence[Record], facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    private = [record for record in records if is_private(record)]
    cells = {(record.get("repeat"), record.get("fold")) for record in records}
    draws = sum(map(done, private))
    found = [
        ("data", _listed(_values(records, "data"))),
        ("adjacency", _listed(_values(private, "adjacency"))),
        ("delta", _listed(_short(record.get("delta") or 0.0) for record in private)),
        ("epsilon", _listed(map(_short, _epsilons(private)))),
        ("noise multiplier", _listed(map(_short, _noises(records)))),
        (
            "cells",
            f"{len(records)} trainings: a cell is one algorithm at one setting on one fold of one "
            f"repeat, with one draw of its noise. All algorithms share the same {len(cells)} "
            f"(repeat, fold) {'pair' if len(cells) == 1 else 'pairs'}",
        ),
        ("noise draws", f"{draws}, one in each private cell that ended, {seeds_of(facts)}"),
    ]
    return [*((name, value) for name, value in found if value), *_others(facts)]


def seeds_of(facts: Mapping[str, Any]) -> str:
    """Where the noise of a cell comes from, in words."""
    if facts.get("reproducible"):
        return (
            "with a fixed seed of its own (reproducible: true): the same numbers come again, and "
            "none may be released"
        )
    others = "; libraries draw from their own generators" if facts.get("libraries") else ""
    return f"with a seed of its own from the operating system, which is kept nowhere{others}"


def _noises(records: Sequence[Record]) -> list[float]:
    """The noise multipliers that were given in place of epsilon."""
    return list(
        dict.fromkeys(
            r["noise_multiplier"] for r in records if r.get("noise_multiplier") is not None
        )
    )


def _others(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Facts without a place of their own, under their own names."""
    kept = [
        (str(name), value)
        for name, value in facts.items()
        if name not in INSIDE and value is not None
    ]
    return [(name.replace("_", " "), _worded(value)) for name, value in kept]


def _parts(
    records: Sequence[Record], facts: Mapping[str, Any], figures: Sequence[Path]
) -> Iterable[str]:
    if pictures := [file for file in figures if file.suffix == ".png"]:
        yield heading("Figures")
        yield from (figure(file.read_bytes(), description_of(file)) for file in pictures)
    metrics = metrics_of(records, facts)
    if metrics:
        yield heading("Table")
        yield _table(records, facts, _columns(metrics))
    if beside := ratios(records, facts):
        yield heading("Beside other libraries")
        yield table(beside)
    yield heading("How to read the numbers")
    yield from map(paragraph, explain(records, facts))
    yield from _failures(records)
    if warnings := _warnings(records, facts):
        yield heading("Warnings")
        yield from map(paragraph, warnings)
    if machine := facts.get("machine"):
        yield heading("Machine")
        yield rows(
            [(str(name).replace("_", " "), _worded(value)) for name, value in machine.items()]
        )


def _columns(metrics: Sequence[str]) -> list[str]:
    """The first metrics and time."""
    first = [name for name in metrics if name != SECONDS][:SHOWN_METRICS]
    return [*first, *(name for name in metrics if name == SECONDS)]


def _table(records: Sequence[Record], facts: Mapping[str, Any], metrics: Sequence[str]) -> str:
    tables = {
        metric: {summary.place: summary for summary in summarise(records, metric, facts)}
        for metric in metrics
    }
    first = tables[metrics[0]]
    given = bool(_noises(records))
    names = ["algorithm", "data and objective", "adjacency", "delta"]
    names += ["noise multiplier"] * given + ["epsilon"]
    names += [metric_title(name) for name in metrics]
    names += ["to the best", "p (Holm)", "cells", "failed"]
    lines = [_row(place, [tables[metric][place] for metric in metrics], given) for place in first]
    # one setting needs no column: the caption says it
    if len({place.setting for place in first}) == 1:
        names, lines = [names[0], *names[2:]], [[line[0], *line[2:]] for line in lines]
    tested = metric_title(metrics[0])
    caption = (
        f"Mean ± standard deviation over cells; to the best: mean difference of {tested} to the "
        f"best algorithm at the same guarantee, with its {LEVEL:.0%} interval, and the p-value of "
        "a test that it is 0."
    )
    alone = f"{next(iter(first)).setting.title}. " if "data and objective" not in names else ""
    return grid(f"{alone}{caption} Press a column's name to sort.", names, lines, sort=True)


def _row(place: Place, summaries: Sequence[Summary], given: bool) -> list[Cell]:
    relation, first = place.relation, summaries[0]
    cells: list[Cell] = [
        (place.label, place.label),
        (place.setting.title, place.setting.title),
        (
            relation.adjacency if relation else "no privacy",
            relation.adjacency if relation else None,
        ),
        (f"{relation.delta:g}" if relation else "–", relation.delta if relation else None),
        *([_number(place.noise)] if given else []),
        _number(first.epsilon),
        *map(_mean, summaries),
    ]
    ended: list[Cell] = [(str(first.cells), first.cells), (str(first.failed), first.failed)]
    return [*cells, *_to_the_best(first), *ended]


def _to_the_best(summary: Summary) -> list[Cell]:
    """The mean difference to the best algorithm with its interval, and the p-value of its test."""
    paired = summary.paired
    if paired is None:
        best = summary.place.relation is not None and summary.mean is not None
        return [("best" if best else "–", 0.0 if best else None), ("–", None)]
    interval = (
        "" if paired.low is None else f" [{_signed(paired.low)}, {_signed(paired.high or 0.0)}]"
    )
    if paired.pairs < LEAST:
        interval = " (too few cells for an interval)"
    return [(f"{_signed(paired.mean)}{interval}", paired.mean), _probability(paired.p_holm)]


def _mean(summary: Summary) -> Cell:
    if summary.mean is None:
        return ("–", None)
    spread = "" if summary.sd is None else f" ± {number(summary.sd, 2)}"
    return (f"{number(summary.mean)}{spread}", summary.mean)


def _probability(p: float | None) -> Cell:
    if p is None:
        return ("–", None)
    return ("< 0.001" if p < 0.001 else f"{p:.3f}", p)


def _failures(records: Sequence[Record]) -> Iterable[str]:
    failed = [record for record in records if not done(record)]
    if not failed:
        return
    yield heading("Cells that failed")
    names = ["algorithm", "data", "adjacency", "epsilon", "repeat", "fold", "error"]
    shown = failed[:SHOWN_FAILURES]
    lines = [[_worded(record.get(key)) for key in ("label", *names[1:])] for record in shown]
    more = (
        f"; the first {len(shown)} of {len(failed)}, all are in cells.csv"
        if len(failed) > len(shown)
        else ""
    )
    yield grid(f"Cells without a result{more}.", names, lines)


def _warnings(records: Sequence[Record], facts: Mapping[str, Any]) -> list[str]:
    """Each warning once, with the number of cells that have it."""
    counts: dict[str, int] = {}
    for record in records:
        for text in dict.fromkeys(map(str, record.get("warnings") or ())):
            counts[text] = counts.get(text, 0) + 1
    told = [
        f"{text} ({count} {'cell' if count == 1 else 'cells'})" for text, count in counts.items()
    ]
    return [*map(str, facts.get("warnings") or ()), *told]


def _listed(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None))


def _worded(value: object) -> str:
    if isinstance(value, float):
        return _short(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_worded(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_worded, value))
    return "–" if value is None else str(value)


def _number(value: float | None) -> Cell:
    return ("–", None) if value is None else (_short(value), value)


def _short(value: float) -> str:
    """A number that somebody chose, as it was written."""
    return f"{float(value):.4g}"


def _signed(value: float) -> str:
    return f"{value:+#.2g}" if value else "0"
