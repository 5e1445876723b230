"""Secret random numbers, and noise drawn in a way that survives the known attacks on floating-point
noise.

**Generator.** One stream a run, with a key from the operating system that is kept nowhere: AES-128
in counter mode where the processor has instructions for it (4 ns a word of 64 bits), ChaCha20 with
256 bits elsewhere (17 ns; AES without instructions is slower yet). Both are bit generators of
randomgen under ``numpy.random.Generator``: every vectorised sampler of numpy on a cryptographic
stream, wheels for Python 3.11 to 3.13. Compared: OpenDP has proved samplers, but draws one value a
call through a C interface (some 10^5 a second), with its own value types and no permutations or
index samples, which the batches here need too.

**Two forms of noise** (Mironov 2012 for the attack that both answer).
 - *rounded* (default): floating-point noise, and the noisy output is rounded to a power-of-two grid
   of about scale/2^12. Rounding the output is post-processing, so the price is that of real-number
   noise; low-order bits carry nothing about the input any more. It blunts the attack and is no
   proof about the sampler.
 - *discrete* (exact): the input is rounded to a grid g, which moves two neighbours apart by at most
   g in each coordinate, and that is in the price; the noise is an integer law on the grid, drawn
   with integer arithmetic alone. The field ``rounding`` of the additive mechanisms selects it
   (``with_noise`` sets it): the share by which the sensitivity grows. The grid follows from it and
   from the shape of the value, which is public, so no price needs to know a dimension.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from math import ceil, floor, frexp, log1p, log2, sqrt
from typing import Any

import numpy as np
from randomgen import AESCounter, ChaCha

from dpcore.errors import InputError, here, require_maker

Array = np.ndarray

# The output grid of the rounded form is the power of two below scale / 2^OUTPUT_BITS: it adds 1e-8
# to the variance.
OUTPUT_BITS = 12
# The exact form uses at least 2^GRID_BITS grid steps a standard deviation, so rounding its scale up
# costs < 0.1 %.
GRID_BITS = 10
# Beyond this many steps a standard deviation 64-bit integers would overflow; no real setting comes
# near it.
LARGEST_SCALE = 2**52
# Grid values are cut here: a projection, so neighbours come no further apart, and sums with noise
# stay exact integers.
LARGEST_VALUE = 2.0**52

FORMS = {
    "rounded": "floating-point noise from a cryptographic generator, output rounded to a "
    "power-of-two grid",
    "discrete": "input rounded to a power-of-two grid within the priced sensitivity, exact integer "
    "noise on that grid",
}


class SecretGenerator(np.random.Generator):
    """A generator of the process that made it: a copy elsewhere would draw the same noise a second
    time.
    """

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._maker = here()

    def __getattribute__(self, name: str) -> Any:
        if name[:2] != "__":
            maker = object.__getattribute__(self, "__dict__").get("_maker")
            if maker is not None:
                require_maker(maker, "a secret generator")
        return super().__getattribute__(name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "A secret generator stays in its process and is never copied: its noise would be drawn "
            "twice."
        )

    def __copy__(self) -> Any:
        return self.__reduce_ex__(2)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__reduce_ex__(2)


def secure_generator() -> np.random.Generator:
    """A generator on a fresh ``secret_stream``; nothing can replay it.

    It refuses in another process than the one that made it, a forked child included.
    """
    return SecretGenerator(secret_stream())


def secret_stream() -> AESCounter | ChaCha:
    """AES-128 in counter mode (NIST SP 800-38A) on processors that help with it, ChaCha20 (RFC
    8439) on others, keyed by the operating system.
    """
    stream = AESCounter(key=secrets.randbits(128))
    return stream if stream.use_aesni else ChaCha(key=secrets.randbits(256), rounds=20)


def noise_source() -> str:
    """What secret noise of this machine is drawn from, in the words of a statement."""
    name = "ChaCha20" if isinstance(secret_stream(), ChaCha) else "AES-128 in counter mode"
    return f"{name}, keyed by the operating system, key not kept"


def plain_generator(seed: int) -> np.random.Generator:
    """The switch for tests: the same interface from a fixed seed. A run that used it is never
    releasable.
    """
    return np.random.Generator(np.random.PCG64(seed))


def plain_gaussian(dimension: int, sigma: float, rng: np.random.Generator) -> Array:
    """N(0, sigma^2) a coordinate in floating point, for noise that goes into a computation."""
    return rng.standard_normal(dimension) * sigma


def plain_gamma_norm(dimension: int, scale: float, rng: np.random.Generator) -> Array:
    """Density ~ exp(-||z|| / scale): a uniform direction times Gamma(d, scale), in floating
    point.
    """
    direction = rng.standard_normal(dimension)
    return direction * (rng.gamma(dimension, scale) / np.linalg.norm(direction))


def rounded_gaussian(value: Array, sigma: float, rng: np.random.Generator) -> Array:
    """value + N(0, sigma^2) a coordinate, rounded to the output grid of sigma."""
    value = np.asarray(value, dtype=np.float64)
    return _rounded(rng.standard_normal(value.shape) * sigma + value, sigma)


def rounded_laplace(value: Array, scale: float, rng: np.random.Generator) -> Array:
    """value + Laplace(scale) a coordinate, rounded to the output grid of scale."""
    value = np.asarray(value, dtype=np.float64)
    return _rounded(rng.laplace(scale=scale, size=value.shape) + value, scale)


def rounded_gamma_norm(value: Array, scale: float, rng: np.random.Generator) -> Array:
    """value + z, density of z ~ exp(-||z|| / scale): a uniform direction times Gamma(d, scale),
    then rounded.
    """
    value = np.asarray(value, dtype=np.float64)
    return _rounded(plain_gamma_norm(value.size, scale, rng).reshape(value.shape) + value, scale)


def _rounded(noisy: Array, scale: float) -> Array:
    """Nearest multiples of the power of two below scale / 2^OUTPUT_BITS."""
    grid = 2.0 ** (floor(log2(scale)) - OUTPUT_BITS)
    return np.rint(np.asarray(noisy) / grid) * grid


def discrete_gaussian(value: Array, sigma: float, slack: float, rng: np.random.Generator) -> Array:
    """Round ``value`` to a grid g with sqrt(d) g <= ``slack``, add discrete Gaussian noise of at
    least sigma on it.

    Two rounded neighbours differ by at most ``slack`` more than the plain ones in L2. The law is
    P(k) ~ exp(-k^2 / (2 s^2)) with s = ceil(sigma / g), drawn exactly.
    """
    value = np.asarray(value, dtype=np.float64)
    grid = _grid(sigma, slack / sqrt(max(value.size, 1)))
    noise = integer_gaussian(_steps(sigma, grid), value.size, rng).reshape(value.shape)
    noisy: Array = (_on_grid(value, grid) + noise) * grid
    return noisy


def discrete_laplace(value: Array, scale: float, slack: float, rng: np.random.Generator) -> Array:
    """Round ``value`` to a grid g with d g <= ``slack`` (L1), add Laplace noise of at least
    ``scale`` rounded to it.

    The noise is the nearest grid point of a real Laplace variable, so on grid inputs the result is
    post-processing of the Laplace mechanism and has its price at every order, sampled or not; it is
    drawn exactly all the same.
    """
    value = np.asarray(value, dtype=np.float64)
    grid = _grid(scale, slack / max(value.size, 1))
    noise = integer_laplace(_steps(scale, grid), value.size, rng).reshape(value.shape)
    noisy: Array = (_on_grid(value, grid) + noise) * grid
    return noisy


def integer_gaussian(scale: int, size: int, rng: np.random.Generator) -> Array:
    """``size`` exact draws of P(k) ~ exp(-k^2 / (2 scale^2)) on the integers, as int64.

    Canonne, Kamath & Steinke (2020), Algorithm 3, with proposals of the integer scale itself, which
    keeps every probability a product of ratios of integers: accept a two-sided geometric k with
    chance exp(-o^2 / (2 scale^2)), o = | |k| - scale | = a scale + r, as exp(-a^2/2) exp(-a
    r/scale) exp(-r^2 / (2 scale^2)).
    """

    def propose(count: int) -> Array:
        magnitude = _geometric(scale, count, rng)
        negative = rng.integers(0, 2, count) == 1
        keep = ~(negative & (magnitude == 0))
        whole, rest = np.divmod(np.abs(magnitude - scale), scale)
        keep &= _chance_exp(whole * whole, 2, rng)
        keep &= _chance_exp(whole * rest, scale, rng)
        keep &= _fraction_exp(rng, (rest, scale), (rest, 2 * scale))
        drawn: Array = np.where(negative, -magnitude, magnitude)[keep]
        return drawn

    return _collect(propose, size)


def integer_laplace(scale: int, size: int, rng: np.random.Generator) -> Array:
    """``size`` exact draws of round(X), X ~ Laplace(scale), as int64: 0 with chance 1 - e^(-1/(2
    scale)), else a sign and 1 + a geometric of ratio e^(-1/scale)."""
    away = _chance_exp(np.ones(size, dtype=np.int64), 2 * scale, rng)
    magnitude = np.where(away, 1 + _geometric(scale, size, rng), 0)
    return np.where(rng.integers(0, 2, size) == 1, -magnitude, magnitude)


def _grid(scale: float, step: float) -> float:
    return float(2.0 ** floor(log2(min(step, scale / 2**GRID_BITS))))


def _steps(scale: float, grid: float) -> int:
    steps = ceil(scale / grid)
    if steps > LARGEST_SCALE:
        raise InputError(
            f"Expected at most {LARGEST_SCALE} grid steps in the noise scale, got {steps}; the "
            "exact form needs a larger rounding share for values of this dimension; or use the "
            "rounded form."
        )
    return steps


def _on_grid(value: Array, grid: float) -> Array:
    return np.rint(
        np.clip(np.nan_to_num(value / grid, nan=0.0), -LARGEST_VALUE, LARGEST_VALUE)
    ).astype(np.int64)


def _collect(propose: Callable[[int], Array], size: int) -> Array:
    """Ask ``propose`` for batches until ``size`` accepted draws are there."""
    parts: list[Array] = []
    found = 0
    while found < size:
        part = propose(int((size - found) * 1.5) + 16)
        parts.append(part)
        found += len(part)
    return np.concatenate(parts)[:size] if parts else np.empty(0, dtype=np.int64)


def _geometric(scale: int, size: int, rng: np.random.Generator) -> Array:
    """P(k) ~ exp(-k / scale), k >= 0: u + scale v with u < scale kept with chance exp(-u/scale), v
    of ratio exp(-1).
    """

    def propose(count: int) -> Array:
        u = rng.integers(0, scale, count)
        drawn: Array = u[_chance_exp(u, scale, rng)]
        return drawn

    u = _collect(propose, size)
    v = np.zeros(size, dtype=np.int64)
    going = np.arange(size)
    while len(going):
        going = going[_chance_exp(np.ones(len(going), dtype=np.int64), 1, rng)]
        v[going] += 1
    return u + scale * v


def _chance_exp(top: Array, bottom: int, rng: np.random.Generator) -> Array:
    """Booleans that are true with chance exp(-top / bottom) exactly, for integers top >= 0, bottom
    > 0.

    The whole part is that many chances of exp(-1).
    """
    whole, rest = np.divmod(top, bottom)
    result = _fraction_exp(rng, (rest, bottom))
    going = np.flatnonzero(result & (whole > 0))
    while len(going):
        alive = _fraction_exp(rng, (np.ones(len(going), dtype=np.int64), 1))
        result[going[~alive]] = False
        whole[going] -= 1
        going = going[alive & (whole[going] > 0)]
    return result


def _fraction_exp(rng: np.random.Generator, *factors: tuple[Array, int]) -> Array:
    """Booleans that are true with chance exp(-g), g the product of ratios top / bottom, each in [0,
    1].

    Draw chances g/1, g/2, ... until one fails; the number drawn is odd with chance exp(-g) (von
    Neumann). A chance of g/k is one of each ratio and one of 1/k, so no product of integers is ever
    formed.
    """
    odd = np.ones(len(factors[0][0]), dtype=bool)
    going = np.arange(len(odd))
    k = 1
    while len(going):
        for top, bottom in (*factors, (None, k)):
            limit = 1 if top is None else top[going]
            going = going[rng.integers(0, bottom, len(going)) < limit]
        odd[going] = ~odd[going]
        k += 1
    return odd


MOST_HALVINGS = 4
# Rows whose coins are thrown at a time.
THROWN = 2**22
# From so many rows on coins are thrown for each of them: below, choosing a few takes as long.
MANY = 8_192


def poisson_rows(n: int, rate: float, rng: np.random.Generator) -> Array:
    """Sorted rows of ``n``, each with chance ``rate`` by itself; the work grows with the batch, not
    with n.

    Of many rows at a rate 1/2 .. 1/16 each is drawn by coins of its own (``by_coins``), else they
    are met one after the other (``met``), or those that are left out where these are fewer.
    """
    halvings = halvings_of(rate)
    if halvings and n >= MANY:
        return by_coins(n, halvings, rng)
    if rate <= 0.5:
        return met(n, rate, rng)
    return np.delete(np.arange(n), met(n, 1.0 - rate, rng))


def poisson_batches(n: int, rate: float, count: int, rng: np.random.Generator) -> list[Array]:
    """``count`` draws of ``poisson_rows``; those that are ``met`` are met one batch after the
    other, as rows of a table so many times as long.
    """
    if rate > 0.5 or (halvings_of(rate) and n >= MANY):
        return [poisson_rows(n, rate, rng) for _ in range(count)]
    rows, starts = met(n * count, rate, rng), n * np.arange(count)
    return [
        part - start
        for part, start in zip(np.split(rows, rows.searchsorted(starts[1:])), starts, strict=True)
    ]


def halvings_of(rate: float) -> int:
    """k where ``rate`` is 2^-k with k of 1 to ``MOST_HALVINGS``, else 0."""
    mantissa, exponent = frexp(rate)
    return 1 - exponent if mantissa == 0.5 and 1 <= 1 - exponent <= MOST_HALVINGS else 0


def by_coins(n: int, halvings: int, rng: np.random.Generator) -> Array:
    """Sorted rows of ``n``, each with chance exactly 2^-``halvings`` by itself: those whose fair
    coins all show heads, 64 rows at a time by the AND of random words.
    """
    found: list[Array] = []
    for start in range(0, n, THROWN):
        rows = min(THROWN, n - start)
        words = -(-rows // 64)
        thrown = _words(halvings * words, rng).reshape(halvings, words)
        heads = np.bitwise_and.reduce(thrown, axis=0).view(np.uint8)
        shown = np.unpackbits(heads, count=rows, bitorder="little").view(np.bool_)
        found.append(np.flatnonzero(shown).astype(np.int32 if n < 2**31 else np.int64))
        if start:
            found[-1] += start
    return np.concatenate(found) if len(found) > 1 else found[0]


def _words(count: int, rng: np.random.Generator) -> Array:
    """Uniform words of 64 bits, shape (count,)."""
    return rng.integers(0, 2**64 - 1, size=count, dtype=np.uint64, endpoint=True)


def met(n: int, rate: float, rng: np.random.Generator) -> Array:
    """Sorted rows of ``n``, each with chance ``rate`` by itself, by the gaps between them.

    A gap is beyond k with chance (1 - rate)^k = exp(-k t), t = -ln(1 - rate), independently of all
    before: it is one more than the whole part of an exponential over t. numpy draws exponentials to
    2^-53 and their tail to 1e-19; all else is in whole numbers.
    """
    mean = 1.0 / max(-log1p(-rate), 1e-300)
    parts, last = [np.empty(0, np.int64)], -1
    while last < n - 1:
        expected = (n - 1 - last) * rate
        gaps = rng.standard_exponential(int(expected + 3.0 * sqrt(expected)) + 8)
        gaps *= mean
        rows = np.minimum(gaps, n, out=gaps).astype(np.int64)
        rows += 1
        rows[0] += last
        parts.append(np.cumsum(rows, out=rows))
        last = int(rows[-1])
    parts[-1] = parts[-1][: parts[-1].searchsorted(n)]
    return parts[-1] if len(parts) == 2 else np.concatenate(parts)


def distinct(n: int, size: int, rng: np.random.Generator) -> Array:
    """``size`` distinct indices below ``n``, sorted, every set equally likely; O(size log size)
    work.
    """
    rows = rng.choice(n, size=size, replace=False, shuffle=False)
    if n <= 2**16 and size >= 2**10:  # 16 bits are sorted by counting, in a quarter of the time
        return np.sort(rows.astype(np.uint16), kind="stable").astype(np.int64)
    # half the width sorts in half the time, the whole one picks in half of it
    rows = rows.astype(np.int32) if n < 2**31 else rows
    rows.sort()
    return rows.astype(np.int64, copy=False)
