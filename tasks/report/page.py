"""The report of one run: one self-contained page, internal to the operator.

The metrics of a run beside the baselines and other draws, as rows of a table and of a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from dpcore.metrics import less_is_better
from tasks.drawing import BASELINES, TITLES, html, metric_title, number, odds, percent_in_words
from tasks.drawing.terms import term_section
from tasks.record.explain import MOST_DRAWN
from tasks.record.wording import (
    accountant_words,
    algorithm_words,
    curve_words,
    in_words,
    mechanism_lines,
    right_guess,
    unit_words,
)
from tasks.report import figures
from tasks.report import figures as report_figures
from tasks.report.facts import Facts
from tasks.report.figures import Row

# Counts, times and attacks that stand among the internal numbers and say nothing about quality.
OTHER = ("rows_", "sessions_", "fit_seconds", "curve.", "subgroup.", "canary.", "empirical.")
# Rows, and cells that were filled, clipped or unknown, by the part of the data.
COUNTED = ("_train", "_test")


def metric_keys(internal: Mapping[str, float]) -> list[str]:
    """Names of the metrics of the model itself, known ones first, in their order."""
    found = [
        key
        for key in internal
        if not key.startswith((*BASELINES, *OTHER)) and not key.endswith(COUNTED)
    ]
    known = list(TITLES)
    return sorted(
        found, key=lambda key: (known.index(key) if key in known else len(known), found.index(key))
    )


def quality_rows(internal: Mapping[str, float], draws: Sequence[Mapping[str, float]]) -> list[Row]:
    """A row for each metric of the model."""
    return [
        Row(
            title=metric_title(key),
            value=internal[key],
            draws=[one[key] for one in draws if key in one],
            baselines={
                name: internal[p + key] for p, name in BASELINES.items() if p + key in internal
            },
            note=" (lower is better)" if less_is_better(key) else "",
        )
        for key in metric_keys(internal)
    ]


def quality_table(found: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of the table; the columns of the spread only where a metric has other
    draws.
    """
    names = list(dict.fromkeys(name for row in found for name in row.baselines))
    spread = any(row.draws for row in found)
    head = [
        "metric",
        "this run",
        *(["mean", "standard deviation", "lowest to highest"] if spread else []),
        *names,
    ]
    lines = []
    for row in found:
        every = [row.value, *row.draws]
        between = f"{number(min(every))} to {number(max(every))}"
        shown = [number(fmean(every)), number(stdev(every)), between] if row.draws else ["", "", ""]
        beside = [number(row.baselines[name]) if name in row.baselines else "" for name in names]
        lines.append(
            [
                f"{row.title}{row.note}",
                number(row.value),
                *(shown if spread else []),
                *beside,
            ]
        )
    return head, lines


WIDTH = 560
# Figures of noted numbers beside the step size; a trace may hold many.
MOST_NOTED = 3
MOST_VALUES = 8  # of a parameter that is a list

WARNING = (
    "Internal: this page shows exact numbers computed on private records, which no epsilon covers. "
    "It is for the operator of the training. What may leave is the privacy statement, and what "
    "`dpflows release` writes."
)
PUBLIC = "The data set is declared public, so the exact numbers on this page are no secret."


def run_report(facts: Facts) -> str:
    """The whole page."""
    sections: tuple[Callable[[Facts], Iterator[str]], ...] = (
        _promise,
        _budget,
        _quality,
        _terms,
        _groups,
        _steps,
        _attacks,
        _run,
    )
    parts = [part for section in sections for part in section(facts)]
    public = facts.statement.data.public
    banner = html.paragraph(PUBLIC, "note") if public else html.paragraph(WARNING, "internal")
    return html.page(f"Report of {facts.name}", [banner, html.tiles(_tiles(facts)), *parts])


def _tiles(facts: Facts) -> Iterator[tuple[str, str]]:
    promise, internal, share = facts.statement.guarantee, facts.internal, facts.share
    yield (
        f"ε = {promise.epsilon:.4g}",
        f"at delta = {promise.delta:g}, for {unit_words(promise)}, {promise.adjacency}",
    )
    yield (
        percent_in_words(right_guess(promise.epsilon, promise.delta)),
        "of an attacker's best guesses are right, at most (a coin: 50 %)",
    )
    for row in quality_rows(internal, [])[:1]:
        others = ", ".join(f"{name} {number(value)}" for name, value in row.baselines.items())
        yield number(row.value), row.title + (f" ({others})" if others else "")
    if share is not None and share.limited:
        yield f"{100 * share.left:.3g} %", f"of the budget of {share.dataset} left"


def _beside(*found: figures.Picture | None) -> Iterator[str]:
    shown = [
        html.figure(one.png, one.description, one.caption, WIDTH)
        for one in found
        if one is not None
    ]
    if shown:
        yield html.beside(shown)


def _promise(facts: Facts) -> Iterator[str]:
    s, promise = facts.statement, facts.statement.guarantee
    yield html.heading("What an attacker may learn")
    yield html.paragraph(in_words(promise), "lead")
    yield html.paragraph(s.composition)
    if facts.noisy and facts.noisy.get("values"):
        yield html.paragraph(
            "The noisy metric below is a release of its own: it adds epsilon "
            f"{facts.noisy['epsilon']:g} for one {promise.unit} of the {facts.noisy['records']}, "
            "which the figures here leave out."
        )
    for reason in s.reasons:
        yield html.paragraph(f"This run must not be released: {reason}.", "internal")
    yield html.rows(
        [
            ("epsilon", f"{promise.epsilon:.6g} (asked: {promise.target_epsilon:g})"),
            ("delta", f"{promise.delta:g}"),
            (
                "odds of any conclusion",
                f"change by a factor of at most {odds(promise.epsilon)}, beyond delta",
            ),
            ("unit, adjacency", f"{unit_words(promise)}, {promise.adjacency}"),
            ("accountant", accountant_words(promise)),
            ("may be released", "yes, where audit and policy agree" if s.releasable else "no"),
        ]
    )
    yield from _beside(figures.epsilon_figure(s), _spent(facts))
    if why := curve_words(promise, s.renyi.epsilon):
        yield html.paragraph(why)


def _spent(facts: Facts) -> figures.Picture | None:
    return figures.trace_figure(facts.trace, "spent_epsilon", facts.statement.guarantee.delta)


def _budget(facts: Facts) -> Iterator[str]:
    yield html.heading("Budget")
    if not facts.trace:
        yield html.paragraph(
            "The run holds no trace, so when epsilon was spent is not known, only how much."
        )
    elif len(facts.trace) == 1:
        yield html.paragraph("Epsilon was spent at once: there was one release.")
    share = facts.share
    if share is None:
        yield html.paragraph("There is no ledger to ask here, or it does not hold this data set.")
    elif not share.limited:
        yield html.paragraph(
            f"The ledger records every run on {share.dataset!r} and limits none: the data set is "
            "declared public."
        )
    else:
        yield html.paragraph(f"{share.dataset}: {share.guarantee}.")
        yield from _beside(figures.share_figure(share), figures.history_figure(share))
        yield html.grid(
            "Shares of the budget, at the data set's one Rényi order",
            ("charged", "share"),
            [
                ("before this run", f"{number(100 * share.before)} %"),
                ("by this run", f"{number(100 * share.own)} %"),
                ("since", f"{number(100 * share.after)} %"),
                ("left", f"{number(100 * share.left)} %"),
            ],
        )


def _metrics(facts: Facts, rows: Sequence[Row]) -> Iterator[str]:
    tested = facts.internal.get("rows_test") or facts.internal.get("sessions_test")
    where = f"exact, on the {'test' if tested else 'training'} records"
    yield html.paragraph(_spread_words(facts))
    head, lines = quality_table(rows)
    yield html.grid(f"Metrics ({where})", head, lines)
    if not any(row.baselines for row in rows):
        yield html.paragraph("No baselines were measured (evaluate.baselines).")
    yield from _beside(figures.metrics_figure(rows))


def _quality(facts: Facts) -> Iterator[str]:
    yield html.heading("How good the model is")
    rows = quality_rows(facts.internal, facts.draws)
    yield from _metrics(facts, rows) if rows else [html.paragraph("No metric was measured.")]
    if facts.noisy and facts.noisy.get("values"):
        yield _noisy_table(facts.noisy)
    if facts.conventions:
        said = "; ".join(
            f"{key.replace('_', ' ')}: {value}" for key, value in facts.conventions.items()
        )
        yield html.paragraph(f"Conventions of the ranking metrics: {said}.")
    own = (report_figures.CANARIES, report_figures.EMPIRICAL)
    yield from _beside(
        *(_curve(facts, name, png) for name, png in facts.pictures.items() if name not in own)
    )


def _noisy_table(noisy: Mapping[str, Any]) -> str:
    """The metrics that were paid for, with what their noise may hide."""
    errors = noisy.get("standard_errors", {})
    lines = [
        (
            metric_title(key),
            number(value),
            number(errors[key]) if key in errors else "",
        )
        for key, value in noisy["values"].items()
    ]
    return html.grid(
        f"Released with noise, at epsilon {noisy['epsilon']:g} of its own for the "
        f"{noisy['records']}",
        ("metric", "value", "standard error of its noise"),
        lines,
    )


def _curve(facts: Facts, name: str, png: bytes) -> figures.Picture:
    """A stored curve over the iterations, with its ends in words."""
    key = name.split("/")[-1].removesuffix(".png")
    title = metric_title(key)
    rows = [row for row in facts.curve if key in row]
    ends = ""
    if rows:
        first, last = (
            f"{number(row[key])} at iteration {row['iteration']:g}" for row in (rows[0], rows[-1])
        )
        ends = f": {first}, {last}"
    return figures.Picture(
        png, f"{title} over the iterations of the training{ends}.", f"{title} over the iterations."
    )


def _spread_words(facts: Facts) -> str:
    count = len(facts.draws)
    if not count:
        return (
            "One draw of the noise has no spread: another run of the same configuration would give "
            "other numbers. Train it again to see by how much; this page then shows mean and "
            "standard deviation."
        )
    others = "another finished run" if count == 1 else f"{count} other finished runs"
    return (
        f"Mean and spread are over this run and {others} of the same configuration; only the noise "
        "differs. Each of them was charged."
    )


def _terms(facts: Facts) -> Iterator[str]:
    yield from term_section(facts.terms, MOST_DRAWN)


def _groups(facts: Facts) -> Iterator[str]:
    table = facts.subgroups
    if not table:
        return
    yield html.heading(f"By {table['column']}")
    name = metric_title(str(table["metric"]))
    if not table["groups"]:
        yield html.paragraph(
            f"No group has the {table['least']} records that are needed to be shown."
        )
        return
    lines = [
        (str(row["group"]), f"{int(row['rows'])}", number(float(row["value"])))
        for row in table["groups"]
    ]
    caption = (
        f"{name.capitalize()} in groups of at least {table['least']} records; smaller ones are put "
        "together"
    )
    yield html.grid(caption, (str(table["column"]), "records", name), lines)
    yield from _beside(figures.subgroup_figure(table))


def _steps(facts: Facts) -> Iterator[str]:
    names = figures.noted(facts.trace)[:MOST_NOTED]
    rate = facts.statement.training.parameters.get("learning_rate")
    if not names and rate is None:
        return
    yield html.heading("Steps")
    if "step_size" not in names:
        said = "The trace holds no step sizes that change" + (
            f"; the step size is {rate:g}." if isinstance(rate, int | float) else "."
        )
        yield html.paragraph(said)
    delta = facts.statement.guarantee.delta
    yield from _beside(*(figures.trace_figure(facts.trace, name, delta) for name in names))


def _attacks(facts: Facts) -> Iterator[str]:
    found = list(report_figures.found(facts))
    if found:
        yield html.heading("What attacks found")
        for said, _ in found:
            yield html.paragraph(said)
        yield from _beside(*(picture for _, picture in found))


def _parameters(given: Mapping[str, Any]) -> Iterator[str]:
    """Those that have a value; of a long one, such as the weights of a start, its length."""
    for key, value in given.items():
        if isinstance(value, float):
            yield f"{key} {value:.6g}"
        elif isinstance(value, list | tuple) and len(value) > MOST_VALUES:
            yield f"{key} of {len(value)} numbers"
        elif value is not None:
            yield f"{key} {value}"


def _run(facts: Facts) -> Iterator[str]:
    s = facts.statement
    lines = mechanism_lines(s)
    shown = (
        lines
        if len(lines) <= 6
        else [*lines[:5], f"and {len(lines) - 5} more runs, in the statement"]
    )
    parameters = ", ".join(_parameters(s.training.parameters))
    what = algorithm_words(s.training.algorithm)
    reason = f": {s.training.reason}" if s.training.reason else ""
    yield html.heading("The run")
    yield html.rows(
        [
            ("run", facts.run_id),
            (
                "data set",
                f"{s.data.name}, public n = {s.data.public_n} ({s.data.n_kind}), "
                f"{s.data.dimension} columns",
            ),
            (
                "algorithm",
                " ".join(filter(None, (s.training.algorithm, what and f"({what})"))) + reason,
            ),
            ("parameters", parameters),
            ("loss", f"{s.training.loss}, l1 = {s.training.l1:g}, l2 = {s.training.l2:g}"),
            *[(f"releases {index}", line) for index, line in enumerate(shown, start=1)],
            ("ledger entry", f"{s.ledger.entry}, head {s.ledger.head}"),
            ("created", s.created),
            ("check it", f"dpflows audit {facts.run_id}"),
        ]
    )
    if facts.link:
        yield html.link("This run in MLflow, while `dpflows ui` runs", facts.link)
    yield html.heading("Limits")
    yield html.items(s.limits)
