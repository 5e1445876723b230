"""What an attacker may learn: the bounds against mechanisms whose error rates are known exactly."""

from __future__ import annotations

import re
from itertools import pairwise
from math import exp, log

import numpy as np
import pytest
from scipy.stats import norm

from dpcore.accounting.curves import CONVERSIONS
from dpcore.accounting.limits import ACCOUNTANTS
from dpcore.algorithms import registry
from dpcore.preprocess.terms import Axis, Term
from tasks.drawing import odds, percent_in_words
from tasks.drawing.terms import WIDTH, term_svg
from tasks.record.statement import Guarantee
from tasks.record.wording import ACCOUNTANTS as ACCOUNTANT_WORDS
from tasks.record.wording import CONVERSIONS as CONVERSION_WORDS
from tasks.record.wording import (
    UNITS_IN_WORDS,
    accountant_words,
    algorithm_words,
    curve_words,
    detection,
    in_words,
    right_guess,
    unit_words,
)
from tasks.report.figures import widened


def promise(**changes: object) -> Guarantee:
    values: dict[str, object] = {
        "unit": "record",
        "adjacency": "add_remove",
        "epsilon": 1.0,
        "delta": 1e-6,
        "target_epsilon": 1.0,
        "accountant": "rdp",
        "conversion": "cks",
    }
    return Guarantee.model_validate(values | changes)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_randomised_response_attains_the_bounds(epsilon: float) -> None:
    """The answer is true with chance e^eps / (1 + e^eps); believing it is the best guess and the
    best test.
    """
    true = exp(epsilon) / (1 + exp(epsilon))
    assert right_guess(epsilon, 0.0) == pytest.approx(true, rel=1e-12)
    false_alarm = 1 - true
    assert detection(epsilon, 0.0, false_alarm) == pytest.approx(true, rel=1e-12)
    # Believing it half of the time halves both rates.
    assert detection(epsilon, 0.0, false_alarm / 2) == pytest.approx(true / 2, rel=1e-12)


@pytest.mark.parametrize("mu", [0.2, 1.0, 2.5])
def test_the_gaussian_mechanism_stays_below_them(mu: float) -> None:
    """Its rates are known: guess Phi(mu / 2), power Phi(z_a + mu); its delta is that of Balle &
    Wang (2018).
    """
    closest = np.inf
    for epsilon in np.linspace(0.05, 6.0, 60):
        delta = float(
            norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        )
        assert norm.cdf(mu / 2) <= right_guess(epsilon, delta) + 1e-12
        for false_alarm in (0.01, 0.05, 0.3):
            power = norm.cdf(norm.ppf(false_alarm) + mu)
            bound = detection(epsilon, delta, false_alarm)
            assert power <= bound + 1e-12
            closest = min(closest, bound - power)
    assert closest < 0.05  # bounds that were always 1 would pass the rest


def test_ends() -> None:
    assert right_guess(0.0, 0.0) == 0.5 and detection(0.0, 0.0) == pytest.approx(0.05)
    assert right_guess(0.0, 1.0) == 1.0 and detection(0.0, 1.0) == 1.0
    assert right_guess(1e6, 0.0) == 1.0 and detection(1e6, 0.0) == 1.0
    assert odds(log(3)) == "3" and odds(1e6) == "more than 4e8"


@pytest.mark.parametrize(
    ("share", "shown"),
    [(0.5, "50 %"), (0.7311, "73.1 %"), (0.99996, "more than 99.9 %"), (1.0, "100 %")],
)
def test_shares(share: float, shown: str) -> None:
    assert percent_in_words(share) == shown


def test_paragraph_has_all_numbers_of_the_promise() -> None:
    text = in_words(promise())
    for part in (
        "73.1 %",
        "13.6 %",
        "5 %",
        "epsilon = 1 ",
        "delta = 1e-06",
        "one record",
        "add_remove",
    ):
        assert part in text
    assert "next to nothing" not in text and "next to nothing" in in_words(promise(epsilon=8.0))


@pytest.mark.parametrize("unit", UNITS_IN_WORDS)
@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one", "replace_labels"])
def test_every_unit_and_relation_is_said(unit: str, adjacency: str) -> None:
    text = in_words(promise(unit=unit, adjacency=adjacency))
    assert unit_words(promise(unit=unit)) in text and adjacency in text and "{" not in text


def test_accountants_conversions_and_algorithms_are_said_in_words() -> None:
    assert set(ACCOUNTANT_WORDS) == set(ACCOUNTANTS) - {"auto"} and set(CONVERSION_WORDS) == set(
        CONVERSIONS
    )
    assert (
        accountant_words(promise(accountant="gdp"))
        == "gdp (Gaussian noise on the full data, composed exactly)"
    )
    assert accountant_words(promise()).endswith("conversion cks (Canonne, Kamath & Steinke 2020)")
    assert algorithm_words("scaled_gd").startswith("Noisy full-batch descent")
    assert (
        all(20 < len(algorithm_words(name)) < 130 for name in registry)
        and algorithm_words("other") == ""
    )


def test_a_curve_above_the_stated_point_is_explained() -> None:
    said = curve_words(promise(accountant="gdp"), 1.25)
    assert (
        said is not None
        and "The promise is epsilon = 1 at delta" in said
        and "would state 1.25" in said
    )
    assert curve_words(promise(), 1.0) is None


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.1018), (0.5, 0.5), (0.0, 0.0199)])
def test_a_small_difference_does_not_fill_its_axis(low: float, high: float) -> None:
    ends = widened(low, high)
    assert ends[1] - ends[0] == pytest.approx(0.02) and sum(ends) == pytest.approx(low + high)
    assert widened(0.3, 0.9) == (0.3, 0.9)


@pytest.mark.parametrize("levels", [2, 40])
def test_letters_of_terms_can_be_read_where_a_page_is_320_pixels_wide(levels: int) -> None:
    """A panel is 440 CSS pixels wide and is shown at 301; letters do not touch those below."""
    city = Axis("city", labels=tuple(f"a level number {k}" for k in range(levels)))
    age = Axis("age", numbers=(0.0, 50.0, 99.5))
    for axis in (city, age):
        values = np.linspace(-1.0, 1.0, len(axis))[None]
        picture = term_svg(Term(axis.name, (axis,), values, None, 1.0, np.zeros(1), ()))
        sizes = [float(one) for one in re.findall(r"font-size='([\d.]+)'", picture)]
        assert len(sizes) > 2 and min(sizes) * 301 / WIDTH >= 8
        ends = re.findall(r"<text x='[\d.]+' y='([\d.]+)'[^>]*text-anchor='end'", picture)
        apart = [below - above for above, below in pairwise(sorted(map(float, ends)))]
        assert min(gap for gap in apart if gap > 0) >= min(sizes)
