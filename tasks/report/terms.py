"""What the model of a run says, in its report: a panel for each of its terms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpcore.preprocess.terms import Term
from tasks.drawing import html
from tasks.drawing.terms import describe, term_svg
from tasks.record.explain import MOST_DRAWN

WIDTH = 440  # CSS pixels


def term_section(stored: Mapping[str, Any] | None) -> Iterator[str]:
    """Parts of the page from ``report/terms.json``; nothing of a model without terms."""
    if not stored:
        return
    terms = [Term.from_dict(one) for one in stored["terms"][:MOST_DRAWN]]
    unit, outputs = str(stored["unit"]), stored["outputs"]
    yield html.heading("What the model says")
    yield html.paragraph(
        f"A score is a constant and one term a column, in {unit}, the most important first. This "
        "follows from what was released, and may leave with the model."
    )
    yield html.beside(
        html.figure(
            term_svg(term, outputs).encode(),
            describe(term, unit),
            f"{term.name}: importance {term.importance:.3f}",
            WIDTH,
            "svg+xml",
        )
        for term in terms
    )
    left = len(stored["terms"]) - len(terms)
    if left:
        yield html.paragraph(f"{left} more terms are in report/terms.json.")
    for note in stored["notes"]:
        yield html.paragraph(str(note))
