"""The page of the budget: every data set of a ledger on one self-contained page, for its owner.

All of it follows from the ledger, from declarations and from the home's list of releases: no record
and no internal number stands here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from math import floor
from pathlib import Path
from typing import Any

from dpcore.accounting.events import Events
from dpcore.accounting.gaussian_filter import budget_of, cost_of
from dpcore.errors import DPFlowsError
from tasks.drawing import counted, html, number
from tasks.ledger.entries import entries, entry
from tasks.ledger.reader import LedgerReader
from tasks.ledger.summary import detail, last_run
from tasks.report.facts import history

LOW = 0.2  # share of a budget below which the page warns
MOST_BLOCKS = 60  # rows of a heat map; the newest blocks stay
MOST_CHANGES = 60  # columns; the newest changes stay
FILE = "budget.html"


def budget_page(
    ledger: LedgerReader,
    firings: Mapping[str, Sequence[str]] | None = None,
    releases: Sequence[Mapping[str, Any]] = (),
    waiting: Sequence[str] = (),
) -> str:
    """The page. ``firings``: by data set, when a schedule fires next; ``releases``: what was
    approved by whom, with the ``data`` set each is of; ``waiting``: runs that are trained and not
    stored yet.
    """
    known = ledger.datasets()
    parts: list[str] = [html.paragraph(f"Ledger {ledger.store.shown}, written {_now()}.", "note")]
    if not known:
        parts.append(html.paragraph("No budget was opened yet: `dpflows ledger init` opens one."))
    for text in waiting:
        parts.append(html.paragraph(f"Alarm: {text}", "internal"))
    for dataset in known:
        own = [one for one in releases if one.get("data") == dataset.name]
        parts += _dataset(ledger, dataset.name, (firings or {}).get(dataset.name, ()), own)
    return html.page("Privacy budgets", parts)


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _dataset(
    ledger: LedgerReader, name: str, firings: Sequence[str], releases: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """The part of one data set."""
    report = detail(ledger, name, last=0)
    charged = [one for one in entries(ledger, name) if one["state"] != "cancelled"]
    yield html.heading(name)
    for text in alarms(report, charged):
        yield html.paragraph(f"Alarm: {text}", "internal")
    if report["limited"]:
        yield html.tiles(_tiles(report, fitting(ledger, report, charged)))
        yield html.paragraph(f"It bounds {report['bounds']}.")
        yield heat_map(ledger, name)
    else:
        yield html.paragraph("Public data: every run is recorded, none is limited.")
    lines = [("runs charged", str(len(charged)))]
    if charged:
        lines.append(
            ("newest", f"{charged[-1]['at'][:16].replace('T', ' ')} UTC, {charged[-1]['state']}")
        )
    lines += [("next firing", text) for text in firings]
    yield html.rows(lines)
    if releases:
        yield html.grid(
            f"Releases from {name}",
            ("release", "epsilon", "delta", "approved by", "at"),
            [_release(one) for one in releases],
        )


def _release(one: Mapping[str, Any]) -> tuple[str, ...]:
    epsilon, delta = (_given(one.get(key)) for key in ("epsilon", "delta"))
    at = str(one["at"])[:10]
    return f"{one['name']}@{one['version']}", epsilon, delta, str(one["approved_by"]), at


def _given(value: object) -> str:
    return "–" if value is None else f"{float(str(value)):.4g}"


def alarms(report: Mapping[str, Any], charged: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the owner of a budget should know now."""
    found = []
    low = [row["block"] for row in report["blocks"] if row["share_left"] < LOW]
    if low:
        shown = ", ".join(low[:5]) + (f" and {len(low) - 5} more" if len(low) > 5 else "")
        found.append(f"less than {LOW:.0%} of the budget is left in {shown}.")
    states = Counter(one["state"] for one in charged)
    if lost := states["forfeited"]:
        found.append(f"{lost} charged {'run' if lost == 1 else 'runs'} gave no result.")
    if still := states["reserved"]:
        found.append(
            f"{still} {'entry is' if still == 1 else 'entries are'} open: training, or died."
        )
    return found


def fitting(
    ledger: LedgerReader, report: Mapping[str, Any], charged: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """How many runs like the newest one, with the numbers that were released about its model, its
    blocks still hold: by the filter that the budget has, and as exact Gaussian composition would
    count where all releases have a mu (a comparison alone).
    """
    if not charged:
        return {}
    newest = last_run(charged)
    blocks = {block for one in newest for block in one["blocks"]}
    left = min((row["left"] for row in report["blocks"] if row["block"] in blocks), default=0.0)
    found = {"by the ledger": _times(left, sum(float(one["cost"]) for one in newest))}
    with suppress(DPFlowsError):  # a release without a mu: there is nothing to compare with
        costs = {one["entry"]: _mu(ledger, one, report["adjacency"]) for one in charged}
        spent = max(_total(costs, charged, block) for block in blocks)
        budget = budget_of(report["epsilon"], report["delta"])
        own = sum(costs[one["entry"]] for one in newest)
        found["by exact Gaussian composition"] = _times(budget - spent, own)
    return found


def _total(costs: Mapping[str, float], charged: Sequence[Mapping[str, Any]], block: str) -> float:
    """What the entries of one block cost together."""
    return sum(costs[one["entry"]] for one in charged if block in one["blocks"])


def _mu(ledger: LedgerReader, one: Mapping[str, Any], adjacency: str) -> float:
    """mu^2 of an entry."""
    return cost_of(Events.from_json(str(entry(ledger, one["entry"])["events"])), adjacency)


def _times(left: float, cost: float) -> str:
    return "any number" if cost <= 0 else str(max(0, floor(left / cost * (1 + 1e-9))))


def _tiles(report: Mapping[str, Any], fit: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    share = report["share_left"]
    yield (
        f"ε = {report['epsilon']:g}",
        f"at delta = {report['delta']:g}, for one {report['unit']}, {report['adjacency']}, of all "
        "runs together",
    )
    yield f"{100 * max(0.0, share):.1f} %", "left in the fullest block"
    yield f"ε = {number(report['fits_epsilon'])}", "of one Gaussian run still fits there"
    for how, times in fit.items():
        yield times, f"more runs like the newest, {how}"


def heat_map(ledger: LedgerReader, name: str) -> str:
    """Share of its budget that each block had spent after each change, as a picture with words."""
    story = history(ledger, name)
    if not story.blocks:
        return html.paragraph("No block was touched yet: each has its whole budget.")
    blocks = story.blocks[-MOST_BLOCKS:]
    shares = story.shares[-MOST_BLOCKS:, -MOST_CHANGES:]
    times = story.times[-MOST_CHANGES:]
    high, wide = 18, max(6, 600 // len(times))
    cells = "".join(
        f'<rect x="{wide * k}" y="{high * i}" width="{wide}" height="{high - 2}" '
        f'fill-opacity="{0.05 + 0.95 * min(1.0, max(0.0, float(share))) ** 0.5:.3f}">'
        f"<title>{escape(blocks[i])}: {100 * float(share):.1f} % on "
        f"{times[k]:%Y-%m-%d}</title></rect>"
        for i, row in enumerate(shares)
        for k, share in enumerate(row)
    )
    described = (
        f"Share of the budget spent by {counted(len(blocks), 'block')}, over "
        f"{counted(len(times), 'change')} {_days(times)}: the stronger the colour, the more."
    )
    picture = (
        f'<svg class="heat" viewBox="0 0 {wide * len(times)} {high * len(blocks)}" role="img" '
        f'aria-label="{escape(described, quote=True)}" preserveAspectRatio="none" '
        f'style="height:{high * len(blocks)}px">{cells}</svg>'
    )
    names = "".join(f"<li>{escape(one)}</li>" for one in blocks)
    ends = [f"{100 * float(row[-1]):.0f} %" for row in shares]
    now = "".join(f"<li>{one}</li>" for one in ends)
    return (
        f'<figure class="map"><div class="heatmap" style="--row:{high}px"><ol>{names}</ol>{picture}'
        f'<ol class="now">{now}</ol></div><figcaption>{escape(described)} At the right: spent now.'
        "</figcaption></figure>"
    )


def _days(times: Sequence[datetime]) -> str:
    first, last = (f"{when:%Y-%m-%d}" for when in (times[0], times[-1]))
    return f"on {first}" if first == last else f"from {first} to {last}"


def write_budget(path: Path, text: str) -> Path:
    """Write the page for the owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    beside.chmod(0o600)
    return beside.replace(path)
