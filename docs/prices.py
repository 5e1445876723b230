"""Make the table of prices of the page on accounting: ``python docs/prices.py [--check]``.

Steps of a descent on sums of clipped gradients when a record is replaced: what a batch of fixed
size costs, what Poisson batches cost by price rules 1, and what they cost now, by the Rényi curve
of the exact pair and by its privacy-loss distribution. ``--check`` ends with 1 where the page
differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dpcore.accounting.curves import ORDERS, epsilon_of
from dpcore.accounting.exact import pld_epsilon
from dpcore.accounting.first_rules import first_ball
from dpcore.mechanisms import Gaussian
from dpcore.mechanisms.subsampling import fixed_size_gaussian
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson

PAGE = Path(__file__).parent / "explanation" / "accounting.md"
BEGIN, END = "<!-- python docs/prices.py -->\n", "<!-- end -->\n"
# Sampling rate, clip norm over sigma, steps.
SETTINGS = (
    (0.01, 1.0, 1000),
    (0.01, 0.5, 1000),
    (0.001, 1 / 0.7, 10_000),
    (0.05, 0.5, 500),
    (0.1, 0.2, 200),
    (0.256, 1 / 3, 256),
)
DELTAS = (1e-5, 1e-8)


def row(rate: float, share: float, steps: int) -> list[str]:
    """One row of the table."""
    pair = Poisson(rate).amplify(Gaussian(2.0, 1.0 / share), Adjacency.REPLACE_ONE, "ball")
    curves = (
        fixed_size_gaussian(ORDERS, 2.0 * share, rate),
        first_ball(ORDERS, 2.0 * share, rate),
        pair.rdp(ORDERS),
    )
    found = [[epsilon_of(steps * curve, delta) for delta in DELTAS] for curve in curves]
    found.append([pld_epsilon([(pair, steps)], delta) for delta in DELTAS])
    setting = f"{rate:g}, {share:.3g}, {steps}"
    return [setting, *(" / ".join(f"{value:.4g}" for value in values) for values in found)]


def table() -> str:
    """The table as Markdown."""
    heads = ["q, C/σ, steps", "fixed size", "rules 1", "exact pair, curve", "exact pair, pld"]
    rows = [heads, ["---"] * len(heads), *(row(*setting) for setting in SETTINGS)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def main(arguments: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    made = before + BEGIN + table() + END + rest.split(END)[1]
    if arguments == ["--check"]:
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
