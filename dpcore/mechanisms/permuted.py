"""One Gaussian release whose sensitivity depends on the batch that holds the differing record (RSGD-AR, bolt-on)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from dpcore.checks import require_below_one, require_count, require_nonnegative, require_positive
from dpcore.errors import InputError
from dpcore.mechanisms import renyi
from dpcore.mechanisms.base import Array, Mechanism, l2_distance, mechanism, settle
from dpcore.mechanisms.profile import gaussian_delta
from dpcore.noise import discrete_gaussian, rounded_gaussian
from dpcore.problem import Adjacency


@mechanism("randomised_sensitivity_gaussian")
@dataclass(frozen=True, slots=True)
class RandomisedSensitivityGaussian(Mechanism):
    """Add N(0, sigma^2 I) once to a value that moves by at most D_j when the replaced record is in batch j.

    ``sensitivities`` are the D_j and ``sizes`` the batch sizes, in one order; the other of the ``n`` records are in no
    batch and move nothing. Alone its price is that of the largest D_j. ``Permuted(sizes, n).amplify`` makes it the
    mixture over a secret uniform permutation (``permuted_rdp``). ``rounding`` > 0 selects the exact discrete form, at
    that share of the largest D_j more for every batch; see ``Gaussian``.
    """

    sensitivities: tuple[float, ...]
    sizes: tuple[int, ...]
    n: int
    sigma: float
    rounding: float = 0.0

    def __post_init__(self) -> None:
        settle(self)
        require_positive(sigma=self.sigma)
        require_below_one(rounding=self.rounding)
        require_count(n=self.n)
        for bound, size in zip(self.sensitivities, self.sizes, strict=False):
            require_nonnegative(sensitivity=bound)
            require_count(size=size)
        if len(self.sensitivities) != len(self.sizes) or not 0 < sum(self.sizes) <= self.n:
            raise InputError(
                f"Expected one sensitivity a batch and batches of at most n={self.n} rows together, got "
                f"{len(self.sensitivities)} sensitivities, {len(self.sizes)} sizes of sum {sum(self.sizes)}."
            )

    @property
    def proved_for(self) -> Adjacency:
        """Replaced records only: another n would be another set of batches."""
        return Adjacency.REPLACE_ONE

    @property
    def sensitivity(self) -> float:
        """The largest D_j."""
        return max(self.sensitivities)

    def release(self, value: Array, rng: np.random.Generator) -> Array:
        """Return the noisy value, float64, same shape."""
        if self.rounding > 0.0:
            return discrete_gaussian(value, self.sigma, self.rounding * self.sensitivity, rng)
        return rounded_gaussian(value, self.sigma, rng)

    def rdp(self, alphas: Array) -> Array:
        """a max_j D_j^2 / (2 sigma^2), shape (k,): no secret permutation."""
        return renyi.gaussian(np.asarray(alphas, dtype=np.float64), float(self.ratios.max()))

    @property
    def ratios(self) -> Array:
        """D_j over sigma for each batch, the rounding of the input included."""
        return (np.array(self.sensitivities) + self.rounding * self.sensitivity) / self.sigma

    def permuted_rdp(self, alphas: Array) -> Array:
        """ln( sum_j q_j exp(a (a-1) D_j^2 / (2 sigma^2)) ) / (a-1), q_j = sizes_j / n, and D = 0 for the rest.

        Theorem 3.2 of the dissertation, in log space: the two outputs are mixtures over where the record lands, with
        equal weights, and exp((a-1) divergence) is jointly convex. Replace-one, ONE secret uniform permutation, no
        release of batches or inner iterates.
        """
        alphas = np.asarray(alphas, dtype=np.float64)[:, None]
        shares = np.array(self.sizes, dtype=np.float64) / self.n
        terms = renyi.log_expm1(alphas * (alphas - 1.0) * self.ratios**2 / 2.0) + np.log(shares)
        with np.errstate(divide="ignore"):
            excess = logsumexp(terms, axis=1)
        return np.logaddexp(0.0, excess) / (alphas[:, 0] - 1.0)

    def permuted_delta(self, epsilon: float) -> float:
        """sum_j q_j d_G(epsilon; D_j / sigma), d_G the exact Gaussian profile: the mixture's delta at ``epsilon``.

        The same argument as for the curve: the hockey-stick divergence is jointly convex (proved), and a record that
        is in no batch changes nothing. Sharper than any conversion of the curve. Rounding of the input counts in D_j.
        """
        return sum(
            size / self.n * gaussian_delta(epsilon, float(ratio))
            for ratio, size in zip(self.ratios, self.sizes, strict=True)
        )

    def distance(self, value: Array, other: Array) -> float:
        """Euclidean distance."""
        return l2_distance(value, other)
