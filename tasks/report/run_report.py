"""The report of one run: one self-contained page, internal to the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tasks.release import page
from tasks.release.statement_text import mechanism_lines
from tasks.report import attacks, figures, quality_table
from tasks.report.facts import Facts
from tasks.report.words import (
    accountant_words,
    algorithm_words,
    curve_words,
    in_words,
    odds,
    percent,
    right_guess,
    unit_words,
)

WIDTH = 560
# Figures of noted numbers beside the step size; a trace may hold many.
MOST_NOTED = 3

WARNING = (
    "Internal: this page shows exact numbers computed on private records, which no epsilon covers. It is for the "
    "operator of the training. What may leave is the privacy statement, and what `dpflows release` writes."
)
PUBLIC = "The data set is declared public, so the exact numbers on this page are no secret."


def run_report(facts: Facts) -> str:
    """The whole page."""
    sections: tuple[Callable[[Facts], Iterator[str]], ...] = (
        _promise,
        _budget,
        _quality,
        _groups,
        _steps,
        _attacks,
        _run,
    )
    parts = [part for section in sections for part in section(facts)]
    public = facts.statement.data.public
    banner = page.paragraph(PUBLIC, "note") if public else page.paragraph(WARNING, "internal")
    return page.page(f"Report of {facts.name}", [banner, page.tiles(_tiles(facts)), *parts])


def _tiles(facts: Facts) -> Iterator[tuple[str, str]]:
    promise, internal, share = facts.statement.guarantee, facts.internal, facts.share
    yield f"ε = {promise.epsilon:.4g}", f"at delta = {promise.delta:g}, for {unit_words(promise)}, {promise.adjacency}"
    yield (
        percent(right_guess(promise.epsilon, promise.delta)),
        "of an attacker's best guesses are right, at most (a coin: 50 %)",
    )
    for row in quality_table.rows(internal, [])[:1]:
        others = ", ".join(f"{name} {quality_table.number(value)}" for name, value in row.baselines.items())
        yield quality_table.number(row.value), row.title + (f" ({others})" if others else "")
    if share is not None and share.limited:
        yield f"{100 * share.left:.3g} %", f"of the budget of {share.dataset} left"


def _beside(*found: figures.Picture | None) -> Iterator[str]:
    shown = [page.figure(one.png, one.description, one.caption, WIDTH) for one in found if one is not None]
    if shown:
        yield page.beside(shown)


def _promise(facts: Facts) -> Iterator[str]:
    s, promise = facts.statement, facts.statement.guarantee
    yield page.heading("What an attacker may learn")
    yield page.paragraph(in_words(promise), "lead")
    yield page.paragraph(s.composition)
    if facts.noisy and facts.noisy.get("values"):
        yield page.paragraph(
            f"The noisy metric below is a release of its own: it adds epsilon {facts.noisy['epsilon']:g} for one "
            f"{promise.unit} of the {facts.noisy['records']}, which the figures here leave out."
        )
    for reason in s.reasons:
        yield page.paragraph(f"This run must not be released: {reason}.", "internal")
    yield page.rows(
        [
            ("epsilon", f"{promise.epsilon:.6g} (asked: {promise.target_epsilon:g})"),
            ("delta", f"{promise.delta:g}"),
            ("odds of any conclusion", f"change by a factor of at most {odds(promise.epsilon)}, beyond delta"),
            ("unit, adjacency", f"{unit_words(promise)}, {promise.adjacency}"),
            ("accountant", accountant_words(promise)),
            ("may be released", "yes, where audit and policy agree" if s.releasable else "no"),
        ]
    )
    yield from _beside(figures.epsilon_figure(s), _spent(facts))
    if why := curve_words(promise, s.renyi.epsilon):
        yield page.paragraph(why)


def _spent(facts: Facts) -> figures.Picture | None:
    return figures.trace_figure(facts.trace, "spent_epsilon", facts.statement.guarantee.delta)


def _budget(facts: Facts) -> Iterator[str]:
    yield page.heading("Budget")
    if not facts.trace:
        yield page.paragraph("The run holds no trace, so when epsilon was spent is not known, only how much.")
    elif len(facts.trace) == 1:
        yield page.paragraph("Epsilon was spent at once: there was one release.")
    share = facts.share
    if share is None:
        yield page.paragraph("There is no ledger to ask here, or it does not hold this data set.")
    elif not share.limited:
        yield page.paragraph(
            f"The ledger records every run on {share.dataset!r} and limits none: the data set is declared public."
        )
    else:
        yield page.paragraph(f"{share.dataset}: {share.guarantee}.")
        yield from _beside(figures.share_figure(share), figures.history_figure(share))
        yield page.grid(
            "Shares of the budget, at the data set's one Rényi order",
            ("charged", "share"),
            [
                ("before this run", f"{100 * share.before:.4g} %"),
                ("by this run", f"{100 * share.own:.4g} %"),
                ("since", f"{100 * share.after:.4g} %"),
                ("left", f"{100 * share.left:.4g} %"),
            ],
        )


def _quality(facts: Facts) -> Iterator[str]:
    yield page.heading("How good the model is")
    rows = quality_table.rows(facts.internal, facts.draws)
    if rows:
        tested = facts.internal.get("rows_test") or facts.internal.get("sessions_test")
        where = f"exact, on the {'test' if tested else 'training'} records"
        yield page.paragraph(_spread_words(facts))
        head, lines = quality_table.table(rows)
        yield page.grid(f"Metrics ({where})", head, lines)
        if not any(row.baselines for row in rows):
            yield page.paragraph("No baselines were measured (evaluate.baselines).")
        yield from _beside(figures.metrics_figure(rows))
    else:
        yield page.paragraph("No metric was measured.")
    if facts.noisy and facts.noisy.get("values"):
        errors = facts.noisy.get("standard_errors", {})
        noisy = [
            (
                quality_table.title(key),
                *(quality_table.number(one[key]) if key in one else "" for one in (values, errors)),
            )
            for values in [facts.noisy["values"]]
            for key in values
        ]
        cost = facts.noisy["epsilon"]
        yield page.grid(
            f"Released with noise, at epsilon {cost:g} of its own for the {facts.noisy['records']}",
            ("metric", "value", "standard error of its noise"),
            noisy,
        )
    if facts.conventions:
        said = "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in facts.conventions.items())
        yield page.paragraph(f"Conventions of the ranking metrics: {said}.")
    own = (attacks.CANARIES, attacks.EMPIRICAL)
    yield from _beside(*(_curve(facts, name, png) for name, png in facts.pictures.items() if name not in own))


def _curve(facts: Facts, name: str, png: bytes) -> figures.Picture:
    """A stored curve over the iterations, with its ends in words."""
    key = name.split("/")[-1].removesuffix(".png")
    title = quality_table.title(key)
    rows = [row for row in facts.curve if key in row]
    ends = ""
    if rows:
        first, last = (
            f"{quality_table.number(row[key])} at iteration {row['iteration']:g}" for row in (rows[0], rows[-1])
        )
        ends = f": {first}, {last}"
    return figures.Picture(png, f"{title} over the iterations of the training{ends}.", f"{title} over the iterations.")


def _spread_words(facts: Facts) -> str:
    count = len(facts.draws)
    if not count:
        return (
            "One draw of the noise has no spread: another run of the same configuration would give other numbers. "
            "Train it again to see by how much; this page then shows mean and standard deviation."
        )
    others = "another finished run" if count == 1 else f"{count} other finished runs"
    return (
        f"Mean and spread are over this run and {others} of the same configuration; only the noise differs. Each of "
        "them was charged."
    )


def _groups(facts: Facts) -> Iterator[str]:
    table = facts.subgroups
    if not table:
        return
    yield page.heading(f"By {table['column']}")
    name = quality_table.title(str(table["metric"]))
    if not table["groups"]:
        yield page.paragraph(f"No group has the {table['least']} records that are needed to be shown.")
        return
    lines = [
        (str(row["group"]), f"{int(row['rows'])}", quality_table.number(float(row["value"]))) for row in table["groups"]
    ]
    caption = f"{name.capitalize()} in groups of at least {table['least']} records; smaller ones are put together"
    yield page.grid(caption, (str(table["column"]), "records", name), lines)
    yield from _beside(figures.subgroup_figure(table))


def _steps(facts: Facts) -> Iterator[str]:
    names = figures.noted(facts.trace)[:MOST_NOTED]
    rate = facts.statement.training.parameters.get("learning_rate")
    if not names and rate is None:
        return
    yield page.heading("Steps")
    if "step_size" not in names:
        said = "The trace holds no step sizes that change" + (
            f"; the step size is {rate:g}." if isinstance(rate, int | float) else "."
        )
        yield page.paragraph(said)
    delta = facts.statement.guarantee.delta
    yield from _beside(*(figures.trace_figure(facts.trace, name, delta) for name in names))


def _attacks(facts: Facts) -> Iterator[str]:
    found = list(attacks.found(facts))
    if found:
        yield page.heading("What attacks found")
        for said, _ in found:
            yield page.paragraph(said)
        yield from _beside(*(picture for _, picture in found))


def _run(facts: Facts) -> Iterator[str]:
    s = facts.statement
    lines = mechanism_lines(s)
    shown = lines if len(lines) <= 6 else [*lines[:5], f"and {len(lines) - 5} more runs, in the statement"]
    parameters = ", ".join(
        f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in s.training.parameters.items()
    )
    what = algorithm_words(s.training.algorithm)
    reason = f": {s.training.reason}" if s.training.reason else ""
    yield page.heading("The run")
    yield page.rows(
        [
            ("run", facts.run_id),
            ("data set", f"{s.data.name}, public n = {s.data.public_n} ({s.data.n_kind}), {s.data.dimension} columns"),
            ("algorithm", " ".join(filter(None, (s.training.algorithm, what and f"({what})"))) + reason),
            ("parameters", parameters),
            ("loss", f"{s.training.loss}, l1 = {s.training.l1:g}, l2 = {s.training.l2:g}"),
            *[(f"releases {index}", line) for index, line in enumerate(shown, start=1)],
            ("ledger entry", f"{s.ledger.entry}, head {s.ledger.head}"),
            ("created", s.created),
            ("check it", f"dpflows audit {facts.run_id}"),
        ]
    )
    yield page.heading("Limits")
    yield page.items(s.limits)
