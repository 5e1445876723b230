"""The price of the best of a random number of trials: exact laws on small sets, dp-accounting,
storage and draws.
"""

from __future__ import annotations

from math import exp, inf, log
from typing import Any

import numpy as np
import pytest
from dp_accounting import SelfComposedDpEvent, dp_event
from dp_accounting.dp_event import GaussianDpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gamma, gammaln
from scipy.stats import chi2, logser, norm, poisson

from dpcore.accounting import ORDERS, Events
from dpcore.accounting.curves import curve_of, delta_of, epsilon_of
from dpcore.errors import InputError, PriceUnknown
from dpcore.mechanisms import (
    Composition,
    Gaussian,
    Laplace,
    Mechanism,
    RepeatNegativeBinomial,
    RepeatPoisson,
    gaussian_delta,
)
from dpcore.mechanisms.repeated import Repeated, log_delta
from dpcore.problem import Adjacency
from dpcore.sampling import Poisson, Sampled

ONE = (Composition((Gaussian(1.0, 20.0), Laplace(1.0, 30.0)), (100, 1)),)
LAWS = [(10.0, 0.0), (10.0, 1.0), (4.0, 0.5), (1.5, -0.5), (60.0, 1.0)]


def repeated(trials: tuple[Composition, ...], mean: float, eta: float) -> Repeated:
    """The law with this mean; an infinite ``eta`` stands for Poisson."""
    return (
        RepeatPoisson.of_mean(trials, mean)
        if eta == inf
        else RepeatNegativeBinomial.of_mean(trials, mean, float(eta))
    )


class Finite(Mechanism):
    """A mechanism on finitely many outcomes, from its two laws; prices are exact, in the dearer
    direction.
    """

    __slots__ = ("first", "second")
    kind = "finite"

    def __init__(self, first: np.ndarray, second: np.ndarray) -> None:
        self.first, self.second = first, second

    def rdp(self, alphas: np.ndarray) -> np.ndarray:
        return np.maximum(
            divergence(self.first, self.second, alphas), divergence(self.second, self.first, alphas)
        )

    def release(self, value: Any, rng: np.random.Generator) -> int:
        return int(rng.choice(len(self.first), p=self.first))

    def distance(self, value: Any, other: Any) -> float:
        return 0.0

    @property
    def pure_epsilon(self) -> float:
        return float(np.abs(np.log(self.first / self.second)).max())


def divergence(p: np.ndarray, q: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """Rényi divergence of two laws on the same outcomes at each order, in log space."""
    exponent = np.log(p) * alphas[:, None] + np.log(q) * (1.0 - alphas)[:, None]
    top = exponent.max(axis=1)
    return (top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))) / (alphas - 1.0)


def chances(law: Repeated, most: int) -> np.ndarray:
    """P(K = k) for k = 1 .. ``most`` from the laws' own formulas, not by the code's recursion."""
    k = np.arange(1, most + 1)
    if isinstance(law, RepeatPoisson):
        return poisson.pmf(k, law.rate) / -np.expm1(-law.rate)
    assert isinstance(law, RepeatNegativeBinomial)
    if law.eta == 0.0:
        return logser.pmf(k, 1.0 - law.gamma)
    # prod_{l < k} (l + eta)/(l + 1) = Gamma(k + eta) / (Gamma(eta) k!)
    falling = np.exp(gammaln(k + law.eta) - gammaln(k + 1.0)) / gamma(law.eta)
    return (1.0 - law.gamma) ** k * falling / (law.gamma**-law.eta - 1.0)


def selected(law: Repeated, outcomes: np.ndarray, most: int = 4000) -> np.ndarray:
    """The law of the highest of K outcomes (in the order of the array), summed over K."""
    below = np.concatenate([[0.0], np.cumsum(outcomes)])
    total = np.zeros(len(outcomes))
    for trials, chance in enumerate(chances(law, most), start=1):
        if chance < 1e-18:
            break
        total += chance * np.diff(below**trials)
    return total


def pairs(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Neighbouring laws on two to five outcomes: random ones, and a rare best outcome, which is the
    worst case.
    """
    found = []
    for size, spread in ((2, 0.5), (3, 1.5), (5, 0.2)):
        first = rng.dirichlet(np.ones(size))
        second = first * np.exp(rng.uniform(-spread, spread, size))
        found.append((first, second / second.sum()))
    for rare in (1e-4, 1e-2):
        found.append((np.array([1.0 - rare, rare]), np.array([1.0 - 3.0 * rare, 3.0 * rare])))
    return found


@pytest.mark.parametrize(("mean", "eta"), [*LAWS[:4], (3.0, inf), (12.0, inf), (1.2, inf)])
def test_theorems_hold_on_exact_laws_and_come_close(mean: float, eta: float) -> None:
    """Papernot & Steinke (2022), Theorems 2 and 6, against the exact law of the best of K finite
    trials.
    """
    alphas = np.array([1.1, 1.5, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0, 200.0])
    closest = 0.0
    for first, second in pairs(np.random.default_rng(3)):
        price = repeated((Composition((Finite(first, second),), (1,)),), mean, eta)
        for p, q in ((first, second), (second, first)):
            exact = divergence(selected(price, p), selected(price, q), alphas)
            assert np.all(exact <= price.rdp(alphas) * (1 + 1e-9))
            closest = max(closest, float((exact / price.rdp(alphas)).max()))
            if np.isfinite(price.pure_epsilon):
                assert np.abs(
                    np.log(selected(price, p) / selected(price, q))
                ).max() <= price.pure_epsilon * (1 + 1e-9)
    assert closest > 0.5  # a bound that is far away from every law would pass anything


@given(
    st.floats(1.05, 40.0),
    st.sampled_from([0.0, 1.0, -0.5, 3.0, inf]),
    st.floats(1e-3, 0.5),
    st.floats(-2.0, 2.0),
)
@settings(max_examples=25, deadline=None)
def test_no_two_point_law_breaks_the_bound(
    mean: float, eta: float, chance: float, shift: float
) -> None:
    first = np.array([1.0 - chance, chance])
    moved = chance * exp(shift) / (1.0 - chance + chance * exp(shift))
    second = np.array([1.0 - moved, moved])
    price = repeated((Composition((Finite(first, second),), (1,)),), mean, eta)
    alphas = np.array([1.2, 2.0, 4.0, 16.0, 64.0])
    for p, q in ((first, second), (second, first)):
        exact = divergence(selected(price, p), selected(price, q), alphas)
        assert np.all(exact <= price.rdp(alphas) * (1 + 1e-7) + 1e-12)


@pytest.mark.parametrize("sigma", [2.0, 20.0, 300.0])
@pytest.mark.parametrize(
    ("mean", "eta"), [(1.5, 0), (10.0, 0), (10.0, 1), (200.0, 1), (7.0, 0.5), (3.0, 2.5)]
)
def test_golden_dp_accounting_negative_binomial(sigma: float, mean: float, eta: float) -> None:
    """The curve of dp-accounting's RepeatAndSelectDpEvent on the same orders and order 1, and its
    epsilon.
    """
    steps = 64
    price = repeated((Composition((Gaussian(1.0, sigma),), (steps,)),), mean, eta)
    public = RdpAccountant([1.0, *ORDERS])
    public.compose(
        RepeatAndSelectDpEvent(SelfComposedDpEvent(GaussianDpEvent(sigma), steps), mean, eta)
    )
    np.testing.assert_allclose(curve_of(price), public.rdp[1:], rtol=2e-9)
    assert epsilon_of(curve_of(price), 1e-6) == pytest.approx(public.get_epsilon(1e-6), rel=2e-9)


@pytest.mark.parametrize("sigma", [2.0, 20.0, 300.0])
@pytest.mark.parametrize("rate", [1.0, 4.0, 30.0])
def test_golden_dp_accounting_poisson(sigma: float, rate: float) -> None:
    """Theorem 6 as dp-accounting has it, plus ln 1/(1 - e^-rate) / (a - 1) for at least one
    trial.
    """
    price = RepeatPoisson((Composition((Gaussian(1.0, sigma),), (64,), cap=True),), rate)
    public = RdpAccountant(list(ORDERS))
    event = dp_event.SelfComposedDpEvent(GaussianDpEvent(sigma), 64)
    public.compose(RepeatAndSelectDpEvent(event, rate, inf))
    theirs = public.rdp - np.log1p(-exp(-rate)) / (ORDERS - 1.0)
    np.testing.assert_allclose(
        curve_of(price), np.minimum.accumulate(theirs[::-1])[::-1], rtol=1e-9
    )


@pytest.mark.parametrize("mu", [0.05, 0.4, 1.5])
@pytest.mark.parametrize("mean", [1.5, 4.0, 20.0])
def test_gaussian_trials_under_poisson_by_quadrature(mu: float, mean: float) -> None:
    """Theorem 6 with the exact delta of a Gaussian trial, against the density of the best of K
    Gaussian scores.

    Scores that grow or fall with the likelihood ratio are the extreme orders of outcomes.
    """
    law = RepeatPoisson.of_mean((Composition((Gaussian(1.0, 2.0 / mu),), (4,)),), mean)
    alphas = np.array([1.5, 2.0, 4.0, 8.0, 20.0])
    x = np.linspace(-14.0, 14.0, 200_001) + mu / 2.0
    step, bound = x[1] - x[0], law.rdp(alphas)
    known = [exp(law.trials[0].log_delta(alphas, log(a / (a - 1.0)))) for a in alphas]
    np.testing.assert_allclose(
        known, [gaussian_delta(log(a / (a - 1.0)), mu) for a in alphas], rtol=1e-9
    )
    closest = 0.0
    for sign in (1.0, -1.0):
        logs = []
        for shift in (0.0, mu):
            below = norm.cdf(sign * (x - shift))
            logs.append(
                norm.logpdf(x - shift)
                + log(law.rate)
                + law.rate * (below - 1.0)
                - log(-np.expm1(-law.rate))
            )
        for first, second in (logs, logs[::-1]):
            exact = [
                log(np.exp(a * first + (1.0 - a) * second).sum() * step) / (a - 1.0) for a in alphas
            ]
            assert np.all(exact <= bound * (1 + 1e-6))
            closest = max(closest, float(np.max(exact / bound)))
    assert closest > 0.1


def test_an_adaptive_trial_is_bounded_by_its_curve_alone() -> None:
    listed = RepeatPoisson((Composition((Gaussian(1.0, 20.0),), (64,)),), 4.0)
    cap = RepeatPoisson((Composition((Gaussian(1.0, 20.0),), (64,), cap=True),), 4.0)
    assert (
        np.all(listed.rdp(ORDERS) <= cap.rdp(ORDERS))
        and listed.rdp(ORDERS)[40] < 0.98 * cap.rdp(ORDERS)[40]
    )
    both = RepeatPoisson((*listed.trials, *cap.trials), 4.0)
    np.testing.assert_array_equal(both.rdp(ORDERS), cap.rdp(ORDERS))
    with pytest.raises(InputError, match="cap to be true or false"):
        Composition((Gaussian(1.0, 1.0),), (1,), cap=1)  # type: ignore[arg-type]


def test_delta_inside_the_poisson_bound_is_the_conversion() -> None:
    curve = curve_of(ONE[0])
    for epsilon in (0.01, 0.3, 2.0):
        assert exp(log_delta(ORDERS, curve, epsilon)) == pytest.approx(
            delta_of(curve, epsilon), rel=1e-12
        )


@pytest.mark.parametrize(("mean", "eta"), [*LAWS, (10.0, inf)])
def test_settings_cost_the_largest_curve(mean: float, eta: float) -> None:
    cheap, dear = (
        Composition((Gaussian(1.0, 20.0),), (50,)),
        Composition((Gaussian(1.0, 20.0),), (100,)),
    )
    crossing = Composition((Laplace(1.0, 2.0),), (1,))
    whole = repeated((cheap, dear), mean, eta)
    np.testing.assert_array_equal(whole.rdp(ORDERS), repeated((dear,), mean, eta).rdp(ORDERS))
    mixed = repeated((dear, crossing), mean, eta)
    np.testing.assert_array_equal(
        mixed.trial_rdp(ORDERS), np.maximum(dear.rdp(ORDERS), crossing.rdp(ORDERS))
    )
    alone = [repeated((one,), mean, eta).rdp(ORDERS) for one in (dear, crossing)]
    assert np.all(mixed.rdp(ORDERS) >= np.maximum(*alone) * (1 - 1e-12))


@pytest.mark.parametrize(("mean", "eta"), [*LAWS, (10.0, inf), (2.0, inf)])
def test_mean_and_draws_follow_the_law(mean: float, eta: float) -> None:
    """Chi-square on 40,000 draws, false alarm 1e-6; the same draws must reject a mean that is half
    as large again.
    """
    law, other = repeated(ONE, mean, eta), repeated(ONE, 1.5 * mean, eta)
    assert law.mean == pytest.approx(mean, rel=1e-9)
    rng = np.random.default_rng(11)
    draws = np.array([law.draw(rng) for _ in range(40_000)])
    assert draws.min() >= 1
    assert misfit(law, draws) < 1.0 < misfit(other, draws)


def misfit(law: Repeated, draws: np.ndarray) -> float:
    """Chi-square over its quantile at 1 - 1e-6; cells with fewer than 20 expected draws count as
    one.
    """
    expected = chances(law, 5000) * len(draws)
    seen = np.bincount(draws, minlength=len(expected) + 1)[1 : len(expected) + 1].astype(float)
    large = expected >= 20
    cells = np.append(expected[large], len(draws) - expected[large].sum())
    found = np.append(seen[large], len(draws) - seen[large].sum())
    return float(
        ((found - cells) ** 2 / np.maximum(cells, 1e-9)).sum() / chi2.ppf(1 - 1e-6, len(cells) - 1)
    )


@pytest.mark.parametrize("eta", [0.0, inf])
def test_stored_text_gives_the_price_again(eta: float) -> None:
    batch = Composition(
        (Sampled(Gaussian(1.0, 2.0), Poisson(0.1), Adjacency.ADD_REMOVE), Gaussian(1.0, 9.0)),
        (50, 1),
    )
    events = Events.of([repeated((batch, *ONE), 10.0, eta)], adjacency="add_remove")
    again = Events.from_json(events.to_json())
    assert again == events and again.to_json() == events.to_json()
    np.testing.assert_array_equal(again.price(), events.price())
    replaced = again.price("replace_one")
    assert np.all(replaced >= events.price()) and np.isfinite(replaced).any()
    [inside] = again.table
    double = repeated(
        (Composition((Gaussian(2.0, 20.0), Laplace(2.0, 30.0)), (100, 1)),), 10.0, eta
    )
    plain = Events.of([repeated(ONE, 10.0, eta)], adjacency="add_remove")
    np.testing.assert_allclose(plain.price("replace_one"), double.rdp(ORDERS))
    with pytest.raises(PriceUnknown, match="add_remove"):
        Events.of([inside], adjacency="replace_one")


def test_exact_noise_reaches_the_releases_inside() -> None:
    formed = repeated(ONE, 10.0, 0.0).with_noise("discrete")
    assert all(item.rounding > 0 for item in formed.trials[0].mechanisms)
    assert np.all(formed.rdp(ORDERS) > repeated(ONE, 10.0, 0.0).rdp(ORDERS))


def test_release_returns_the_best_and_the_earlier_of_equals() -> None:
    law = repeated(ONE, 30.0, 1.0)
    scores = iter([0.1, 0.7, 0.7, 0.3, -inf] * 500)
    ran: list[int] = []

    def trial(rng: np.random.Generator) -> tuple[float, int]:
        ran.append(len(ran))
        return next(scores), ran[-1]

    rng, same = np.random.default_rng(5), np.random.default_rng(5)
    best = law.release(trial, rng)
    assert len(ran) == law.draw(same) and len(ran) > 2
    assert best == 1


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: RepeatNegativeBinomial((), 0.0, 0.1), "at least one composition in trials"),
        (
            lambda: RepeatNegativeBinomial((Gaussian(1.0, 1.0),), 0.0, 0.1),
            "at least one composition",
        ),  # type: ignore[arg-type]
        (lambda: RepeatNegativeBinomial(ONE, -1.0, 0.1), "eta > -1, got eta=-1.0"),
        (lambda: RepeatNegativeBinomial(ONE, 0.0, 1.0), r"gamma in \(0, 1\), got gamma=1.0"),
        (lambda: RepeatPoisson(ONE, 0.0), "rate"),
        (lambda: RepeatPoisson(ONE, 1e4), "at most 500"),
        (lambda: RepeatPoisson.of_mean(ONE, 1.0), "above 1 and at most 500, got mean=1.0"),
        (lambda: RepeatNegativeBinomial.of_mean(ONE, 1e4, 0.0), "at most 500"),
        (lambda: Composition((), ()), "at least one mechanism"),
        (lambda: Composition((Gaussian(1.0, 1.0),), (1, 2)), "one count for each"),
        (lambda: Composition((3,), (1,)), "Expected mechanisms in a composition"),  # type: ignore[arg-type]
        (lambda: repeated(ONE, 10.0, 0.0).distance(0.0, 1.0), "releases inside a trial"),
        (lambda: ONE[0].release(0.0, np.random.default_rng(0)), "use its parts"),
        (lambda: ONE[0].distance(0.0, 1.0), "measure its parts"),
    ],
)
def test_what_is_no_selection_is_refused(build: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build()  # type: ignore[operator]


def test_pure_trials_stay_pure_under_the_negative_binomial_alone() -> None:
    pure = (Composition((Laplace(1.0, 4.0),), (2,)),)
    law = RepeatNegativeBinomial.of_mean(pure, 10.0, 1.0)
    assert law.pure_epsilon == pytest.approx(3.0 * 0.5)
    assert RepeatPoisson.of_mean(pure, 10.0).pure_epsilon == inf
    assert law.rdp(np.array([1e6]))[0] <= 0.5 + 2.0 * 0.5 + log(10.0) / 1e6 + 1e-9


def test_a_cap_bounds_no_pure_epsilon() -> None:
    """An adaptive trial keeps below a curve: what it released instead may have any pure epsilon."""
    assert Composition((Laplace(1.0, 2.0),), (3,)).pure_epsilon == pytest.approx(1.5)
    assert Composition((Laplace(1.0, 2.0),), (3,), cap=True).pure_epsilon == inf
