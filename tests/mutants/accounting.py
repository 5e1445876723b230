"""Faults in profiles, conversions, amplification, relations, counts and the door."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

M, A = "dpcore/mechanisms", "dpcore/accounting"
TM, TA = "tests/dpcore/mechanisms", "tests/dpcore/accounting"

MUTANTS = [
    # profiles and conversion
    Mutant(
        "dpcore/mechanisms/gaussian.py",
        "epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0",
        "epsilon / mu - mu / 2.0, epsilon / mu - mu / 2.0",
        f"{TA}/test_known_faults.py",
    ),
    Mutant(
        "dpcore/accounting/curves.py",
        "np.log1p(-1.0 / orders) - (log_delta",
        "-np.log1p(-1.0 / orders) - (log_delta",
        f"{TA}/test_conversion.py",
    ),
    Mutant(
        "dpcore/accounting/curves.py",
        "(log_delta + np.log(orders)) / (orders - 1.0)",
        "(log_delta + 2 * np.log(orders)) / (orders - 1.0)",
        f"{TA}/test_conversion.py",
    ),
    Mutant(
        "dpcore/accounting/curves.py",
        "return -log_delta / (orders - 1.0)",
        "return -log_delta / orders",
        f"{TA}/test_conversion.py",
    ),
    Mutant(
        "dpcore/accounting/curves.py",
        "<= delta * delta else least",
        "<= 100 * delta else least",
        f"{TA}/test_conversion.py",
    ),
    # amplification
    Mutant(
        "dpcore/mechanisms/renyi.py",
        "terms = np.concatenate([np.arange(2, size + 1) for size in sizes])",
        "terms = np.concatenate([np.arange(1, size) for size in sizes])",
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        "dpcore/mechanisms/renyi.py",
        "moments + table.sizes * log_rest)",
        "moments)",
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        "dpcore/mechanisms/pairs.py",
        "log_expm1(j * (j - 1.0) * (distance * distance / 2.0))",
        "log_expm1(j * (j - 1.0) * (distance * distance / 4.0))",
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        "dpcore/mechanisms/pairs.py",
        "exponent = r * z - r * r / 2.0",
        "exponent = r * z + r * r / 2.0",
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        "dpcore/mechanisms/subsampling.py",
        "factor: float = 3.0",
        "factor: float = 2.0",
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        "dpcore/mechanisms/subsampling.py",
        "np.log1p(-rate) + spread, np.log(rate) + binary",
        "np.log1p(-rate) + binary, np.log(rate) + binary",
        f"{TA}/test_ternary.py",
    ),
    Mutant(
        "dpcore/mechanisms/subsampling.py",
        "np.log1p(rate * np.expm1(epsilon))",
        "np.log1p(rate * rate * np.expm1(epsilon))",
        f"{TM}/test_threshold.py",
    ),
    Mutant(
        "dpcore/mechanisms/subsampling.py",
        "log_corner(highest, t, 1.0)",
        "log_corner(highest, t, 0.5)",
        f"{TA}/test_ternary.py",
    ),
    Mutant(
        "dpcore/mechanisms/subsampling.py",
        "_log_q(j, -(j - 0.5) * t, t)",
        "_log_q(j, -(j + 0.5) * t, t)",
        f"{TA}/test_ternary.py",
    ),
    Mutant(
        "dpcore/mechanisms/subsampling.py",
        "np.maximum(spread, binary), binary",
        "spread, binary",
        f"{TA}/test_ternary.py",
    ),
    # samplers, relations, loss distributions
    Mutant("dpcore/noise.py", "        rows += 1\n", "", f"{TM}/test_sampling_draws.py"),
    Mutant("dpcore/noise.py", "max(-log1p(-rate), 1e-300)", "rate", f"{TM}/test_sampling_draws.py"),
    Mutant(
        "dpcore/noise.py",
        "        part - start\n",
        "        part\n",
        f"{TM}/test_sampling_draws.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "met(n * count, rate, rng)",
        "met(n * count - 1, rate, rng)",
        f"{TM}/test_sampling_draws.py",
    ),
    Mutant(
        "dpcore/accounting/budget.py",
        "mechanism is self._last or mechanism == self._last",
        'getattr(mechanism, "sampler", 0) == getattr(self._last, "sampler", 1)',
        f"{TM}/test_sampling_draws.py",
    ),
    Mutant(
        "dpcore/accounting/budget.py",
        "return self._left.pop(0)",
        "return self._left[0]",
        f"{TM}/test_sampling_draws.py",
    ),
    Mutant(
        "dpcore/accounting/budget.py",
        "if not again or not self._left:",
        "if not self._left:",
        f"{TM}/test_sampling_draws.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "size=size, replace=False",
        "size=size, replace=True",
        f"{TM}/test_sampling_draws.py",
    ),
    Mutant("dpcore/sampling.py", "rng.permutation(n)[", "np.arange(n)[", f"{TM}/test_permuted.py"),
    Mutant(
        "dpcore/sampling.py",
        'sampled.contributions != "pair"',
        'sampled.contributions != "none"',
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        "dpcore/sampling.py",
        'if sampled.adjacency is Adjacency.ADD_REMOVE:\n        return (\n            "Lemma 2.3',
        'if sampled.adjacency is None:\n        return (\n            "Lemma 2.3',
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        "dpcore/accounting/events.py",
        'inner, mechanism.sampler, Adjacency.REPLACE_ONE, "ball"',
        "inner, mechanism.sampler, Adjacency.ADD_REMOVE",
        f"{TA}/test_relations.py",
    ),
    Mutant(
        "dpcore/accounting/events.py",
        "inner = mechanism.mechanism.replaced()",
        "inner = mechanism.mechanism",
        f"{TA}/test_relations.py",
    ),
    Mutant(
        "dpcore/accounting/exact.py",
        "total += count * mechanism.ratio**2",
        "total += mechanism.ratio**2",
        f"{TA}/test_pld.py",
    ),
    Mutant(
        "dpcore/accounting/exact.py",
        ".self_compose(count)",
        ".self_compose(1)",
        f"{TA}/test_pld.py",
    ),
    Mutant(
        "dpcore/accounting/exact.py",
        '"sampling_prob": rate,',
        '"sampling_prob": rate / 2,',
        f"{TA}/test_pld.py",
    ),
    # counts, doors and searches
    Mutant(
        "dpcore/accounting/events.py",
        "total += count * curve_by(mechanism, self.rules)",
        "total += curve_by(mechanism, self.rules)",
        "tests/dpcore/accounting/test_events.py",
    ),
]
