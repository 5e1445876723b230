"""The figures of a run's report, as PNG with their description. Small enough that a phone shows
their letters.

What attacks found: canaries in the run, and fits of its algorithm on synthetic neighbours.

Budget of each block over time.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from matplotlib.dates import AutoDateFormatter, AutoDateLocator, date2num
from matplotlib.figure import Figure

from dpcore.accounting.curves import epsilon_of
from dpcore.errors import DPFlowsError
from tasks.drawing.curves import (
    BLUE,
    BUDGET_TITLES,
    DPI,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    canvas,
    changing,
    thin,
)
from tasks.record.statement import Statement
from tasks.report.facts import Facts, History, Share

POINTS = 2000


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG, the words that stand for it where it is not seen, and its caption."""

    png: bytes
    description: str
    caption: str


def picture(figure: Any, description: str, caption: str) -> Picture:
    sink = io.BytesIO()
    figure.savefig(sink, dpi=DPI, metadata={"Description": description})
    return Picture(sink.getvalue(), description, caption)


def curve_of(statement: Statement) -> tuple[np.ndarray, np.ndarray]:
    """Deltas and the epsilon of the stored Rényi curve at each of them, where there is one."""
    curve = np.array([inf if value is None else value for value in statement.renyi.curve])
    orders = np.array(statement.renyi.orders)
    found = []
    for delta in np.logspace(-2, -12, 61):
        try:
            epsilon = epsilon_of(curve, float(delta), statement.guarantee.conversion, orders)
        except DPFlowsError:
            continue
        if np.isfinite(epsilon):
            found.append((float(delta), float(epsilon)))
    return np.array([delta for delta, _ in found]), np.array([epsilon for _, epsilon in found])


def epsilon_figure(statement: Statement) -> Picture | None:
    """Epsilon against delta: the Rényi curve, and the promise as a point."""
    deltas, epsilons = curve_of(statement)
    if not len(deltas):
        return None
    promise = statement.guarantee
    figure, [panel] = canvas(2.9)
    panel.plot(deltas, epsilons, color=BLUE, linewidth=1.6, label="Rényi accountant")
    panel.plot(
        [promise.delta],
        [promise.epsilon],
        "o",
        color=ORANGE,
        markersize=7,
        label=f"stated ({promise.accountant})",
    )
    panel.set_xscale("log")
    panel.set_xlabel("delta (log axis)")
    panel.set_ylabel("epsilon")
    panel.set_ylim(bottom=0.0)
    panel.legend(frameon=False, fontsize=9)
    ends = (
        f"from {epsilons[0]:.3g} at delta = {deltas[0]:.0e} to {epsilons[-1]:.3g} at delta = "
        f"{deltas[-1]:.0e}"
    )
    description = (
        f"Epsilon against delta. The Rényi curve rises {ends}; stated is epsilon = "
        f"{promise.epsilon:.4g} at delta = {promise.delta:g} by {promise.accountant}."
    )
    return picture(figure, description, "The same releases at other values of delta.")


def trace_figure(trace: Sequence[Mapping[str, float]], key: str, delta: float) -> Picture | None:
    """One number of the trace over the releases; None where there are not two of it."""
    rows = [row for row in thin(trace, POINTS) if key in row]
    if len(rows) < 2:
        return None
    x, y = [row["release"] for row in rows], [row[key] for row in rows]
    name = BUDGET_TITLES.get(key, key.replace("_", " "))
    figure, [panel] = canvas(2.9)
    panel.plot(x, y, color=BLUE, linewidth=1.6)
    panel.set_xlabel("release")
    panel.set_ylabel(name)
    if min(y) >= 0:
        panel.set_ylim(bottom=0.0)
    at = f" at delta = {delta:g}" if key == "spent_epsilon" else ""
    description = (
        f"{name[0].upper()}{name[1:]}{at} over {int(x[-1])} releases: {y[0]:.4g} at the first "
        f"shown, {y[-1]:.4g} at the last, between {min(y):.4g} and {max(y):.4g}."
    )
    caption = f"{name[0].upper()}{name[1:]}{at}, release after release."
    return picture(figure, description, caption)


def share_figure(share: Share) -> Picture:
    """The budget of the block as one bar: runs before, this run, runs since, what is left."""
    parts = [
        ("before", share.before, GREY),
        ("this run", share.own, ORANGE),
        ("since", share.after, BLUE),
        ("left", share.left, PALE),
    ]
    figure, [panel] = canvas(1.25)
    start = 0.0
    for name, size, colour in parts:
        if size > 0:
            panel.barh(
                [0],
                [100 * size],
                left=[100 * start],
                color=colour,
                label=name,
                edgecolor="white",
                linewidth=0.8,
            )
            start += size
    panel.set_yticks([])
    panel.spines[["left"]].set_visible(False)
    panel.set_xlim(0, 100 * max(1.0, start))
    panel.set_xlabel("% of the budget")
    figure.legend(
        loc="outside upper left",
        ncols=4,
        frameon=False,
        fontsize=9,
        handlelength=1.0,
        columnspacing=1.0,
    )
    description = (
        f"The budget of {_where(share)} as a bar: {100 * share.before:.3g} % charged before this "
        f"run, {100 * share.own:.3g} % by this run, {100 * share.after:.3g} % since, "
        f"{100 * share.left:.3g} % left."
    )
    return picture(figure, description, f"Budget of {_where(share)}, by the ledger.")


def history_figure(share: Share) -> Picture | None:
    """How the budget was spent, entry after entry; None for a single entry."""
    if len(share.steps) < 2:
        return None
    totals = 100 * np.cumsum([step.share for step in share.steps])
    figure, [panel] = canvas(2.5)
    x = np.arange(1, len(totals) + 1)
    panel.step(np.append(0, x), np.append(0, totals), where="post", color=BLUE, linewidth=1.6)
    own = [k for k, step in enumerate(share.steps) if step.own]
    panel.plot(x[own], totals[own], "o", color=ORANGE, markersize=7, label="this run")
    panel.axhline(100, color=INK, linestyle="--", linewidth=1.0)
    panel.set(
        xlabel="charged entry, oldest first",
        ylabel="% of the budget spent",
        xlim=(0, len(totals) + 0.5),
    )
    panel.set_ylim(0, max(108.0, float(totals[-1]) * 1.05))
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.0, 0.9))
    description = (
        f"Budget of {_where(share)} spent after each of {len(totals)} charged entries, from "
        f"{share.steps[0].at[:10]} to {share.steps[-1].at[:10]}: {totals[-1]:.3g} % in the end."
    )
    return picture(figure, description, "The budget over time; the dashed line is the whole of it.")


def _where(share: Share) -> str:
    return share.dataset if share.block == "all" else f"block {share.block} of {share.dataset}"


@dataclass(frozen=True, slots=True)
class Row:
    """A metric for the figure: this run, other draws, baselines by name; ``note`` says which end is
    good.
    """

    title: str
    value: float
    draws: Sequence[float]
    baselines: Mapping[str, float]
    note: str = ""


LEAST_WIDTH = 0.02  # of the axis of a metric

MARKS = (("|", GREY), ("|", GREEN), ("|", INK), ("|", BLUE))


def metrics_figure(rows: Sequence[Row]) -> Picture:
    """One narrow panel for each metric: a dot for this run, pale dots for other draws, ticks for
    the baselines.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.baselines))
    looks = {name: MARKS[index % len(MARKS)] for index, name in enumerate(names)}
    figure, panels = canvas(0.78 * len(rows) + 0.45, len(rows))
    for panel, row in zip(panels, rows, strict=True):
        for name, value in row.baselines.items():
            mark, colour = looks[name]
            panel.plot(
                [value], [0], mark, color=colour, markersize=15, markeredgewidth=2.2, label=name
            )
        if row.draws:
            panel.plot(
                row.draws,
                np.zeros(len(row.draws)),
                "o",
                color=ORANGE,
                alpha=0.35,
                markersize=6,
                label="other draws",
            )
        panel.plot([row.value], [0], "o", color=ORANGE, markersize=8, label="this run")
        panel.set_title(f"{row.title}{row.note}", loc="left", fontsize=9, color=INK, pad=2)
        panel.set_yticks([])
        panel.spines[["left"]].set_visible(False)
        panel.margins(x=0.08, y=0.9)
        panel.set_xlim(*widened(*panel.get_xlim()))
        panel.locator_params(axis="x", nbins=5)
    handles: dict[str, Any] = {}
    for panel in panels:
        found, labels = panel.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper left",
        ncols=2,
        frameon=False,
        fontsize=9,
        columnspacing=1.2,
        markerscale=0.6,
    )
    described = "; ".join(
        f"{row.title} {row.value:.4g}"
        + "".join(f", {name} {value:.4g}" for name, value in row.baselines.items())
        for row in rows
    )
    return picture(
        figure,
        f"Metrics of this run beside the baselines: {described}.",
        "This run beside the baselines.",
    )


def widened(low: float, high: float) -> tuple[float, float]:
    """Ends of an axis at least ``LEAST_WIDTH`` long, so that a difference that means little does
    not look large.
    """
    missing = max(0.0, LEAST_WIDTH - (high - low)) / 2.0
    return low - missing, high + missing


def subgroup_figure(table: Mapping[str, Any]) -> Picture:
    """The metric in each group as a bar, largest group on top."""
    rows = list(table["groups"])[:20]
    figure, [panel] = canvas(0.3 * len(rows) + 0.9)
    names = [f"{row['group']} ({int(row['rows'])})" for row in rows]
    values = [float(row["value"]) for row in rows]
    panel.barh(range(len(rows)), values, color=BLUE, height=0.62)
    panel.set_yticks(range(len(rows)), names)
    panel.invert_yaxis()
    panel.grid(axis="y", visible=False)
    name = str(table["metric"]).replace("_", " ")
    panel.set_xlabel(name)
    panel.margins(x=0.14)
    for place, value in enumerate(values):
        panel.text(value, place, f" {value:.3f}", va="center", fontsize=9, color=INK)
    listed = ", ".join(f"{row['group']} {float(row['value']):.4g}" for row in rows)
    return picture(
        figure,
        f"{name.capitalize()} by {table['column']}: {listed}.",
        f"{name.capitalize()} by {table['column']}.",
    )


def noted(trace: Sequence[Mapping[str, float]]) -> list[str]:
    """What the trace holds beside epsilon and changes: step sizes first."""
    return sorted(changing(trace), key=lambda key: key != "step_size")


CANARIES, EMPIRICAL = "figures/canaries.png", "figures/empirical.png"
# Chance at which a promise counts as refuted.
REFUTED = 0.05


def found(facts: Facts) -> Iterator[tuple[str, Picture | None]]:
    """A sentence for each attack, with its figure where that is stored."""
    for kind, name, words in (("canary.", CANARIES, _canaries), ("empirical.", EMPIRICAL, _fits)):
        numbers = {
            key.removeprefix(kind): value
            for key, value in facts.internal.items()
            if key.startswith(kind)
        }
        if numbers:
            said, png = words(numbers), facts.pictures.get(name)
            yield said, None if png is None else Picture(png, said, said.split(":")[0] + ".")


def _canaries(numbers: dict[str, float]) -> str:
    gaussian = numbers.get("gaussian_lower_bound")
    also = "" if gaussian is None else f", {gaussian:.3g} for Gaussian outputs"
    verdict = (
        "refute the claim" if numbers["p_value"] <= REFUTED else "do not speak against the claim"
    )
    return (
        f"{numbers['count']:.0f} canaries in this run: {numbers['right']:.0f} of "
        f"{numbers['guesses']:.0f} guesses about them were right, so epsilon is at least "
        f"{numbers['epsilon_lower_bound']:.3g}{also} (95 % confidence), beside a claim of "
        f"{numbers['claimed_epsilon']:.4g}. The guesses {verdict}."
    )


def _fits(numbers: dict[str, float]) -> str:
    return (
        f"2 x {numbers['fits']:.0f} fits of this algorithm on synthetic neighbours: epsilon is at "
        f"least {numbers['lower_bound_any_mechanism']:.3g}, "
        f"{numbers['lower_bound_gaussian_outputs']:.3g} for Gaussian outputs (95 % confidence), at "
        f"noise for a claim of {numbers['claimed_here']:.4g}, where an attack shows most."
    )


LINES = 8
"""Up to this many blocks are drawn as lines, more as a map of colours."""


def draw(story: History) -> Figure:
    """Return a figure of the share that each block has spent after each run, under the whole
    guarantee.
    """
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(f"{story.dataset.name}: {story.dataset.guarantee()}", fontsize=8)
    if len(story.blocks) <= LINES:
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(AutoDateFormatter(locator))
        for block, shares in zip(story.blocks, story.shares, strict=True):
            axes.step([date2num(time) for time in story.times], shares, where="post", label=block)
        axes.axhline(1.0, color="black", linestyle="--", label="budget")
        axes.set(xlabel="time (UTC)", ylabel="share of the budget spent")
        axes.legend()
        return figure
    image = axes.imshow(
        story.shares, aspect="auto", origin="lower", interpolation="nearest", vmin=0, vmax=1
    )
    shown = np.unique(np.linspace(0, len(story.blocks) - 1, 12).astype(int))
    axes.set_yticks(shown, [story.blocks[index] for index in shown])
    axes.set(xlabel="changes of the ledger, oldest first", ylabel="block")
    figure.colorbar(image, label="share of the budget spent")
    return figure
