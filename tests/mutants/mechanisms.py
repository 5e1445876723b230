"""Faults in prices and noise of single releases."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

M, A = "dpcore/mechanisms", "dpcore/accounting"
TM, TA = "tests/dpcore/mechanisms", "tests/dpcore/accounting"

MUTANTS = [
    # closed forms
    Mutant(
        "dpcore/mechanisms/renyi.py",
        "alphas * (ratio * ratio / 2.0)",
        "alphas * (ratio * ratio / 4.0)",
        f"{TM}/test_mechanisms.py",
    ),
    Mutant(
        "dpcore/mechanisms/renyi.py",
        "down = alphas * loss",
        "down = -alphas * loss",
        f"{TM}/test_mechanisms.py",
    ),
    Mutant(
        "dpcore/mechanisms/renyi.py",
        "quadratic = alphas * (eta * eta / 8.0)",
        "quadratic = alphas * (eta * eta / 16.0)",
        f"{TM}/test_selection.py",
    ),
    Mutant(
        "dpcore/mechanisms/renyi.py",
        "log_cosh((alphas - 0.5) * epsilon)",
        "log_cosh((alphas - 1.0) * epsilon)",
        f"{TM}/test_mechanisms.py",
    ),
    # noise
    Mutant(
        "dpcore/noise.py",
        "rng.standard_normal(value.shape) * sigma + value",
        "rng.standard_normal(value.shape) * (sigma * 2 / 3) + value",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "rng.laplace(scale=scale, size=value.shape)",
        "rng.laplace(scale=scale * 2 / 3, size=value.shape)",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "rng.gamma(dimension, scale)",
        "rng.gamma(1, scale)",
        f"{TM}/test_noise.py",
    ),
    Mutant("dpcore/noise.py", "u + scale * v", "u + v", f"{TM}/test_noise.py"),
    Mutant(
        "dpcore/noise.py",
        "keep = ~(negative & (magnitude == 0))",
        "keep = magnitude >= 0",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "slack / sqrt(max(value.size, 1))",
        "slack * max(value.size, 1)",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "slack / max(value.size, 1)",
        "slack * max(value.size, 1)",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "return np.rint(np.asarray(noisy) / grid) * grid",
        "return np.asarray(noisy)",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "ChaCha(key=secrets.randbits(256), rounds=20)",
        "ChaCha(key=secrets.randbits(8), rounds=20)",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "AESCounter(key=secrets.randbits(128))",
        "AESCounter(key=secrets.randbits(8))",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "AESCounter(key=secrets.randbits(128))",
        "AESCounter(secrets.randbits(128))",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/mechanisms/gaussian.py",
        "self.sensitivity * (1.0 + self.rounding) / self.sigma",
        "self.sensitivity / self.sigma",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        "dpcore/mechanisms/gaussian.py",
        "sensitivity=2.0 * self.sensitivity",
        "sensitivity=self.sensitivity",
        f"{TA}/test_relations.py",
    ),
    # selection, threshold, perturbation, permutation
    Mutant(
        "dpcore/mechanisms/selection.py",
        "rng.gumbel(scale=self.scale, size=scores.shape)",
        "rng.gumbel(scale=self.scale * 2 / 3, size=scores.shape)",
        f"{TM}/test_selection.py",
    ),
    Mutant(
        "dpcore/mechanisms/selection.py",
        "np.argmax(scores + rng.laplace",
        "np.argmax(scores - 0 * rng.laplace",
        f"{TM}/test_selection.py",
    ),
    Mutant(
        "dpcore/mechanisms/selection.py",
        "(2.0 if self.two_sided else 1.0)",
        "1.0",
        f"{TM}/test_selection.py",
    ),
    Mutant(
        "dpcore/mechanisms/selection.py",
        "bar = self.threshold + draw(scale=self.threshold_scale)",
        "bar = self.threshold",
        f"{TM}/test_threshold.py",
    ),
    Mutant(
        "dpcore/mechanisms/selection.py",
        "= alphas * slope + np.log(self.max_queries) / (alphas - 1.0)",
        "= alphas * slope",
        f"{TM}/test_threshold.py",
    ),
    Mutant(
        "dpcore/mechanisms/selection.py",
        "renyi.laplace(alphas, threshold) + 2.0 * query",
        "renyi.laplace(alphas, threshold) + query",
        f"{TM}/test_threshold.py",
    ),
    Mutant(
        "dpcore/mechanisms/perturbation.py",
        "log1p(self.smoothness / self.curvature)",
        "log1p(-self.smoothness / self.curvature)",
        f"{TM}/test_perturbation.py",
    ),
    Mutant(
        "dpcore/mechanisms/perturbation.py",
        "self.lipschitz * (1.0 if",
        "self.lipschitz * (0.5 if",
        f"{TM}/test_perturbation.py",
    ),
    Mutant(
        "dpcore/mechanisms/perturbation.py",
        "return 2.0 * self.gradient_norm",
        "return self.gradient_norm",
        f"{TM}/test_perturbation.py",
    ),
    Mutant(
        "dpcore/mechanisms/perturbation.py",
        "(log(2.0) + log_ndtr(t)) / (alphas - 1.0)",
        "log_ndtr(t) / (alphas - 1.0)",
        f"{TM}/test_perturbation.py",
    ),
    Mutant(
        "dpcore/mechanisms/gaussian.py",
        "dtype=np.float64) / self.n",
        "dtype=np.float64) / (2 * self.n)",
        f"{TM}/test_permuted.py",
    ),
    Mutant(
        "dpcore/mechanisms/gaussian.py",
        "(alphas - 1.0) * self.ratios**2 / 2.0",
        "(alphas - 1.0) * self.ratios / 2.0",
        f"{TM}/test_permuted.py",
    ),
]
