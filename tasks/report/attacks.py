"""What attacks found: canaries in the run, and fits of its algorithm on synthetic neighbours."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.report.facts import Facts
from tasks.report.figures import Picture

CANARIES, EMPIRICAL = "figures/canaries.png", "figures/empirical.png"
# Chance at which a promise counts as refuted.
REFUTED = 0.05


def found(facts: Facts) -> Iterator[tuple[str, Picture | None]]:
    """A sentence for each attack, with its figure where that is stored."""
    for kind, name, words in (("canary.", CANARIES, _canaries), ("empirical.", EMPIRICAL, _fits)):
        numbers = {key.removeprefix(kind): value for key, value in facts.internal.items() if key.startswith(kind)}
        if numbers:
            said, png = words(numbers), facts.pictures.get(name)
            yield said, None if png is None else Picture(png, said, said.split(":")[0] + ".")


def _canaries(numbers: dict[str, float]) -> str:
    gaussian = numbers.get("gaussian_lower_bound")
    also = "" if gaussian is None else f", {gaussian:.3g} for Gaussian outputs"
    verdict = "refute the claim" if numbers["p_value"] <= REFUTED else "do not speak against the claim"
    return (
        f"{numbers['count']:.0f} canaries in this run: {numbers['right']:.0f} of {numbers['guesses']:.0f} guesses "
        f"about them were right, so epsilon is at least {numbers['epsilon_lower_bound']:.3g}{also} (95 % confidence), "
        f"beside a claim of {numbers['claimed_epsilon']:.4g}. The guesses {verdict}."
    )


def _fits(numbers: dict[str, float]) -> str:
    return (
        f"2 x {numbers['fits']:.0f} fits of this algorithm on synthetic neighbours: epsilon is at least "
        f"{numbers['lower_bound_any_mechanism']:.3g}, {numbers['lower_bound_gaussian_outputs']:.3g} for Gaussian "
        f"outputs (95 % confidence), at noise for a claim of {numbers['claimed_here']:.4g}, where an attack shows most."
    )
