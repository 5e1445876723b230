"""Faults in exact pairs, random allocation, what is stated and the filters of a ledger."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PAIRS, TESTS = "dpcore/mechanisms/pairs.py", "tests/dpcore/mechanisms/test_pairs.py"
EXACT, LIMITS = "dpcore/accounting/exact.py", "dpcore/accounting/limits.py"
PLD = "tests/dpcore/accounting/test_pld.py"
FILTER, MU = "dpcore/accounting/gaussian_filter.py", "tests/tasks/ledger/test_gdp_filter.py"
EPOCHS = "tests/dpcore/mechanisms/test_allocation.py"
EVENTS, KEPT = "dpcore/accounting/events.py", "tests/stored/test_first_rules.py"
TRIALS = "tests/dpcore/mechanisms/test_discrete_trials.py"
LONG = "tests/dpcore/train/test_long_plans.py"

MUTANTS = [
    # both contributions alike, one side of the pair, the chance of no batch forgotten
    Mutant(PAIRS, "np.log(q) - s * z - s * s / 2.0", "np.log(q) + s * z - s * s / 2.0", TESTS),
    Mutant(
        PAIRS,
        "log_q = np.logaddexp(np.log1p(-q), np.log(q) - s * z - s * s / 2.0)",
        "log_q = 0.0 * z",
        TESTS,
    ),
    Mutant(
        PAIRS,
        "np.logaddexp(np.log1p(-q), np.log(q) + s * z - s * s / 2.0)",
        "np.logaddexp(0.0, np.log(q) + s * z - s * s / 2.0)",
        TESTS,
    ),
    Mutant(PAIRS, "(2.0 * float(alphas.max()) - 1.0) * s + 12.0", "12.0", TESTS),
    Mutant(PAIRS, "distance, rate) - np.log1p(-rate)", "distance, rate)", TESTS),
    Mutant(
        PAIRS, "renyi.gaussian(alphas, 2.0 * distance)", "renyi.gaussian(alphas, distance)", TESTS
    ),
    Mutant("dpcore/sampling.py", "base.ratio / 2.0, rate", "base.ratio / 4.0, rate", TESTS),
    # rounds of a plan that are not written out
    Mutant(EVENTS, ".charges(count) * self.rounds", ".charges(count)", LONG),
    Mutant(EVENTS, "totals[index] += count * self.rounds", "totals[index] += count", LONG),
    Mutant(EVENTS, "order=((0, len(self) * times),)", "order=((0, len(self)),)", LONG),
    # what was charged by rules 1 is priced by rules 1, and the number is part of the list
    Mutant(
        EVENTS,
        "    if rules == 1:\n        mechanism = first",
        "    if False:\n        mechanism = first",
        KEPT,
    ),
    Mutant(EVENTS, "second(mechanism) if rules <= 2 else mechanism", "mechanism", TRIALS),
    Mutant(
        "dpcore/mechanisms/repeated.py", "exact -= log1p(-share)", "exact += log1p(-share)", TRIALS
    ),
    Mutant(EVENTS, 'stored.get("rules", 1)', 'stored.get("rules", 2)', KEPT),
    Mutant(EVENTS, "if self.rules == 1 else", "if self.rules == 2 else", KEPT),
    # what is stated, by whom, and what noise a ledger lets a run have
    Mutant(
        EXACT,
        "from_gaussian_mechanism(2.0 / inner.ratio",
        "from_gaussian_mechanism(4.0 / inner.ratio",
        PLD,
    ),
    Mutant(LIMITS, "self.delta * (1.0 - GRID_SHARE) if", "self.delta if", PLD),
    Mutant(EVENTS, "self.rules > 1 and any(on_grid", "any(on_grid", PLD),
    Mutant(
        "dpcore/accounting/calibrate.py",
        "if len(targets) == len(limits) else",
        "if targets else",
        PLD,
    ),
    Mutant(
        "dpcore/descent/gradient.py",
        "return Poisson(rate).amplify(gaussian, problem.adjacency, kept)",
        "return on_batch(problem, rate, gaussian)",
        "tests/dpcore/algorithms/test_noisy_gradients.py",
    ),
    # a ledger that counts mu^2: no amplification, nothing that only a curve knows, fixed at opening
    Mutant(
        FILTER,
        "return inner.ratio**2",
        "return (inner.ratio * getattr(getattr(mechanism, 'sampler', None), 'rate', 1.0)) ** 2",
        MU,
    ),
    Mutant(
        FILTER,
        '    raise PriceUnknown(\n        f"A filter of',
        "    return float(restate.__globals__['curve_by'](mechanism, 2)[10])\n"
        '    raise PriceUnknown(\n        f"A filter of',
        MU,
    ),
    Mutant(FILTER, "delta * (1.0 - KEPT)", "delta", MU),
    Mutant(FILTER, "-2.0 * float(ndtri_exp", "-1.9 * float(ndtri_exp", MU),
    Mutant(
        "tasks/ledger/ledger.py",
        "elif found.to_body() != target.to_body():",
        "elif False:  # what was remembered is believed",
        MU,
    ),
    Mutant(
        "dpcore/accounting/budget.py", "self._in_mu = in_mu and adaptive", "self._in_mu = False", MU
    ),
    # random allocation: the larger direction, a price for every epoch that was begun, one partition
    Mutant(
        "dpcore/mechanisms/pairs.py",
        "np.maximum(\n            curve[part], np.minimum(epoch_added(alphas[part], distance, bins), bound[part])\n        )",
        "curve[part]",
        EPOCHS,
    ),
    Mutant(
        "dpcore/mechanisms/pairs.py",
        "distance**2 / 2.0 * (1.0 +",
        "distance**2 / 8.0 * (1.0 +",
        EPOCHS,
    ),
    Mutant(
        "dpcore/sampling.py", "-(-count // self.sampler.bins)", "count // self.sampler.bins", EPOCHS
    ),
    Mutant(
        "dpcore/sampling.py", "rng.integers(self.bins, size=n)", "np.arange(n) % self.bins", EPOCHS
    ),
    Mutant("dpcore/accounting/budget.py", "if not again or not self._left:", "if True:", EPOCHS),
    Mutant("dpcore/accounting/events.py", "charges(2) < 2", "charges(2) < 1", EPOCHS),
]
