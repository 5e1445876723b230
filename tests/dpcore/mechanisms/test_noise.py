"""Noise: laws by Kolmogorov-Smirnov and exact chi-square tests, grids, and where the randomness
comes from.

Fixed seeds, so a pass stays a pass; the thresholds are for a chance of a false alarm of 1e-6 over
fresh seeds, and every test of a law also rejects noise of 2/3 and 3/2 the scale.
"""

from __future__ import annotations

import time
from math import log2, sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import randomgen
from scipy import stats

from dpcore import noise
from dpcore.errors import InputError
from dpcore.mechanisms import GammaNorm, Gaussian, Laplace
from dpcore.noise import (
    integer_gaussian,
    integer_laplace,
    noise_source,
    plain_generator,
    secret_stream,
    secure_generator,
)

ALARM = 1e-6
DRAWS = 20000
ROUNDING = 2.0**-10


def flat(mechanism, size: int = DRAWS, seed: int = 1) -> np.ndarray:
    return mechanism.release(np.full(size, 3.0), plain_generator(seed)) - 3.0


LAWS = {
    "gaussian": (lambda scale: Gaussian(1.0, scale), stats.norm),
    "gaussian-discrete": (lambda scale: Gaussian(100.0, scale, ROUNDING), stats.norm),
    "laplace": (lambda scale: Laplace(1.0, scale), stats.laplace),
    "laplace-discrete": (lambda scale: Laplace(20000.0, scale, ROUNDING), stats.laplace),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("scale", [0.01, 1.7, 1e5])
def test_each_coordinate_follows_the_law(name: str, scale: float) -> None:
    make, law = LAWS[name]
    p_value = stats.kstest(flat(make(scale)) / scale, law.cdf).pvalue
    assert p_value > ALARM
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(flat(make(scale * wrong)) / scale, law.cdf).pvalue < ALARM


@pytest.mark.parametrize("name", LAWS)
def test_coordinates_and_calls_are_uncorrelated(name: str) -> None:
    make, _ = LAWS[name]
    rng = plain_generator(3)
    mechanism = make(2.0)
    first, second = (mechanism.release(np.zeros(DRAWS), rng) for _ in range(2))
    for one, two in ((first, second), (first[:-1], first[1:])):
        assert abs(np.corrcoef(one, two)[0, 1]) < 5.0 / sqrt(len(one))


@pytest.mark.parametrize("dimension", [1, 2, 10])
def test_gamma_norm_has_a_gamma_length_and_a_uniform_direction(dimension: int) -> None:
    rng, scale = plain_generator(4), 0.8
    draws = np.array([GammaNorm(1.0, scale).release(np.zeros(dimension), rng) for _ in range(4000)])
    lengths = np.linalg.norm(draws, axis=1)
    assert stats.kstest(lengths / scale, stats.gamma(dimension).cdf).pvalue > ALARM
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * lengths / scale, stats.gamma(dimension).cdf).pvalue < ALARM
    # Under a uniform direction the mean of unit vectors is small: 5.2 standard errors a coordinate.
    assert np.max(np.abs((draws / lengths[:, None]).mean(axis=0))) < 5.2 / sqrt(4000 * dimension)


def chi_square(draws: np.ndarray, law: dict[int, float]) -> float:
    """P-value of the counts of the values in ``law``, everything else in one more cell."""
    counts = np.array([np.sum(draws == value) for value in law], dtype=float)
    shares = np.array(list(law.values()))
    counts, shares = (
        np.append(counts, len(draws) - counts.sum()),
        np.append(shares, 1 - shares.sum()),
    )
    return float(stats.chisquare(counts, shares * len(draws)).pvalue)


@pytest.mark.parametrize("scale", [1, 2, 5])
def test_integer_laws_are_exact(scale: int) -> None:
    def gaussian_law(s: float) -> dict[int, float]:
        values = np.arange(-60, 61)
        weights = np.exp(-(values**2) / (2 * s * s))
        return {
            int(v): float(w)
            for v, w in zip(values, weights / weights.sum(), strict=True)
            if abs(v) <= 2 * s
        }

    def laplace_law(s: float) -> dict[int, float]:
        def upper(x: float) -> float:
            return 0.5 * np.exp(-x / s)

        law = {0: 1.0 - 2 * upper(0.5)}
        for k in range(1, int(3 * s) + 1):
            law[k] = law[-k] = upper(k - 0.5) - upper(k + 0.5)
        return law

    rng = plain_generator(6)
    for draw, law in ((integer_gaussian, gaussian_law), (integer_laplace, laplace_law)):
        draws = draw(scale, 100_000, rng)
        assert draws.dtype == np.int64
        assert chi_square(draws, law(scale)) > ALARM
        for wrong in (2 / 3, 3 / 2):
            assert chi_square(draws, law(scale * wrong)) < ALARM


def test_chances_of_an_exponential_are_exact_beyond_one() -> None:
    rng = plain_generator(7)
    for top, bottom in ((0, 3), (1, 3), (3, 3), (7, 3)):
        share = noise._chance_exp(np.full(50_000, top, dtype=np.int64), bottom, rng).mean()
        chance = np.exp(-top / bottom)
        assert abs(share - chance) <= 5.2 * sqrt(chance * (1 - chance) / 50_000) + 1e-12


@pytest.mark.parametrize("scale", [0.013, 1.0, 7e4])
def test_rounded_output_lies_on_a_power_of_two_grid_near_scale_over_4096(scale: float) -> None:
    for mechanism in (Gaussian(1.0, scale), Laplace(1.0, scale), GammaNorm(1.0, scale)):
        noisy = mechanism.release(np.linspace(0.0, 1.0, 1000), plain_generator(9))
        grid = 2.0 ** (np.floor(log2(scale)) - 12)
        assert np.array_equal(noisy / grid, np.rint(noisy / grid))


@pytest.mark.parametrize("dimension", [1, 30, 1000])
def test_discrete_output_lies_on_a_grid_that_the_price_covers(dimension: int) -> None:
    """Two inputs at the plain sensitivity are at most (1 + rounding) of it apart on the grid."""
    sensitivity, sigma, slack = 1.0, 0.5, ROUNDING
    grid = noise._grid(sigma, slack * sensitivity / sqrt(dimension))
    assert sqrt(dimension) * grid <= slack * sensitivity
    assert log2(grid) == round(log2(grid))
    noisy = Gaussian(sensitivity, sigma, ROUNDING).release(
        np.full(dimension, 0.3), plain_generator(1)
    )
    assert np.array_equal(noisy / grid, np.rint(noisy / grid))
    rng = np.random.default_rng(0)
    for _ in range(20):
        first = rng.normal(size=dimension)
        step = rng.normal(size=dimension)
        second = first + step / np.linalg.norm(step)
        apart = np.linalg.norm((noise._on_grid(first, grid) - noise._on_grid(second, grid)) * grid)
        assert apart <= sensitivity * (1 + slack)
    assert Gaussian(sensitivity, sigma, ROUNDING).ratio == sensitivity * (1 + ROUNDING) / sigma


@pytest.mark.parametrize("dimension", [1, 30, 1000])
def test_the_discrete_grid_is_fine_enough_for_its_dimension(dimension: int) -> None:
    """The released values resolve sqrt(d) g <= slack (L2), d g <= slack (L1): no coarser power of
    two divides them.
    """
    for make, share in ((Gaussian, sqrt(dimension)), (Laplace, dimension)):
        noisy = make(1.0, 0.5, ROUNDING).release(np.zeros(dimension), plain_generator(2))
        noisy = np.concatenate(
            [noisy, make(1.0, 0.5, ROUNDING).release(np.zeros(dimension), plain_generator(3))]
        )
        too_coarse = 2.0 ** (np.floor(log2(ROUNDING / share)) + 1)
        assert not np.array_equal(noisy / too_coarse, np.rint(noisy / too_coarse))


def test_the_discrete_form_costs_what_its_fields_say() -> None:
    orders = np.array([2.0, 30.0])
    plain, exact = Gaussian(1.0, 2.0), Gaussian(1.0, 2.0, ROUNDING)
    np.testing.assert_allclose(
        exact.rdp(orders), plain.rdp(orders) * (1 + ROUNDING) ** 2, rtol=1e-12
    )
    laplace = Laplace(1.0, 2.0, ROUNDING)
    assert laplace.pure_epsilon == 0.5 * (1 + ROUNDING)


@pytest.mark.parametrize(("sigma", "shift"), [(3, 1), (3, 7), (10, 4)])
def test_the_discrete_gaussian_has_the_curve_of_the_real_one(sigma: int, shift: int) -> None:
    values = np.arange(-60 * sigma, 60 * sigma + 1)
    logs = -(values**2) / (2.0 * sigma**2)
    moved = -((values - shift) ** 2) / (2.0 * sigma**2)
    norm = np.log(np.exp(logs).sum())
    for order in (2.0, 2.5, 7.0):
        total = order * moved + (1 - order) * logs - norm
        exact = float(np.log(np.exp(total - total.max()).sum()) + total.max()) / (order - 1)
        assert exact <= Gaussian(float(shift), float(sigma)).rdp(np.array([order]))[0] * (1 + 1e-12)


def test_values_that_no_grid_holds_do_not_raise() -> None:
    value = np.array([np.nan, np.inf, -np.inf, 1e300])
    noisy = Gaussian(1.0, 1.0, ROUNDING).release(value, plain_generator(0))
    assert np.all(np.isfinite(noisy))


def test_a_grid_too_fine_for_integers_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match="rounding"):
        Gaussian(1.0, 1e9, 1e-12).release(np.zeros(4), plain_generator(0))


def test_no_values_need_no_noise() -> None:
    for mechanism in (
        Gaussian(1.0, 1.0),
        Gaussian(1.0, 1.0, ROUNDING),
        Laplace(1.0, 1.0),
        Laplace(1.0, 1.0, ROUNDING),
    ):
        assert mechanism.release(np.zeros(0), plain_generator(0)).shape == (0,)


def test_two_secure_generators_never_repeat_each_other() -> None:
    one, two = secure_generator(), secure_generator()
    assert isinstance(one, np.random.Generator)
    assert not np.array_equal(one.integers(0, 2**62, 8), two.integers(0, 2**62, 8))


def plain_processor(key: int) -> SimpleNamespace:
    """In place of AES where the processor has no instructions for it."""
    return SimpleNamespace(use_aesni=False)


STREAMS = [
    ("AESCounter", [128], "AES-128 in counter mode"),
    ("ChaCha", [128, 256], "ChaCha20"),
]


@pytest.mark.parametrize(("kind", "bits", "named"), STREAMS)
def test_a_key_of_the_operating_system_alone_decides(
    monkeypatch: pytest.MonkeyPatch, kind: str, bits: list[int], named: str
) -> None:
    asked = []

    def randbits(bits: int) -> int:
        asked.append(bits)
        return 5

    if kind == "ChaCha":
        monkeypatch.setattr(noise, "AESCounter", plain_processor)
    elif not randomgen.AESCounter(key=0).use_aesni:
        pytest.skip("a processor without instructions for AES")
    monkeypatch.setattr(noise.secrets, "randbits", randbits)
    first, second = secure_generator(), secure_generator()
    assert asked == 2 * bits
    assert type(first.bit_generator).__name__ == kind
    assert np.array_equal(first.integers(0, 2**62, 4), second.integers(0, 2**62, 4)), (
        "nothing but the key decides"
    )
    assert noise_source().startswith(f"{named}, keyed by the operating system")


# A key, and where a block of zeros goes: RFC 4493, section 4 ("Subkey Generation").
AES_KEY = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c")
AES_ZEROS = bytes.fromhex("7df76b0c1ab899b33e42f047b91b546f")


def test_the_stream_is_aes_in_counter_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise.secrets, "randbits", lambda bits: int.from_bytes(AES_KEY, "little"))
    stream = secret_stream()
    if not isinstance(stream, randomgen.AESCounter):
        pytest.skip("a processor without instructions for AES")
    drawn = np.asarray(stream.random_raw(2**14), dtype="<u8").tobytes()
    assert drawn[:16] == AES_ZEROS
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    code = ciphers.Cipher(ciphers.algorithms.AES(AES_KEY), ciphers.modes.ECB()).encryptor()
    counted = b"".join(block.to_bytes(16, "little") for block in range(2**13))
    assert drawn == code.update(counted)


def test_the_plain_generator_is_the_switch_for_tests() -> None:
    first, second = (Gaussian(1.0, 2.0).release(np.zeros(5), plain_generator(12)) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(("rounding", "least"), [(0.0, 1e6), (ROUNDING, 2e5)])
@pytest.mark.slow
def test_a_million_coordinates_a_second(rounding: float, least: float) -> None:
    """Best of three, so that a busy machine does not fail it; about 2e7 and 2e6 on an idle core."""
    mechanism, rng = Gaussian(1.0, 1.0, rounding), secure_generator()
    value = np.zeros(100_000)
    mechanism.release(value, rng)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        mechanism.release(value, rng)
        seconds.append(time.perf_counter() - start)
    assert len(value) / min(seconds) > least
