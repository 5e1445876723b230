"""Faults in what audits claim."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

AUDIT, TEST_CANARIES = "dpcore/audit", "tests/dpcore/audit/test_canaries.py"

# Canaries: coins that are known or public, missing corrections, a charge that is dropped, numbers
# that are too large.
MUTANTS = [
    Mutant(
        "tasks/audit/rules_derived.py",
        "if registry.knows(asked_for):",
        "if asked_for is registry:",
        "tests/tasks/audit/test_planned.py",
    ),
    Mutant(
        "dpcore/audit/canaries.py",
        "np.argsort(scores), []",
        "np.argsort(canaries.included), []",
        TEST_CANARIES,
    ),
    Mutant(
        "dpcore/audit/canaries.py",
        "(1.0 - confidence) / len(SHARES)",
        "(1.0 - confidence)",
        TEST_CANARIES,
    ),
    Mutant(
        "dpcore/audit/canaries.py", "len(SHARES) * curve_p_value", "curve_p_value", TEST_CANARIES
    ),
    Mutant(
        "dpcore/audit/canaries.py",
        "source.random(count) < 0.5",
        "rng.random(count) < 0.5",
        TEST_CANARIES,
    ),
    Mutant(
        "dpcore/audit/canaries.py",
        "np.where(self.included, self.y, -self.y)",
        "self.y",
        TEST_CANARIES,
    ),
    Mutant("dpcore/audit/canaries.py", "norm_bound * INSIDE", "norm_bound * 1.001", TEST_CANARIES),
    Mutant("dpcore/audit/bounds.py", "2.0 * canaries * delta", "2.0 * delta", TEST_CANARIES),
    Mutant("dpcore/audit/bounds.py", "1.0 / (1.0 + exp(-epsilon))", "0.5", TEST_CANARIES),
    Mutant(
        "dpcore/audit/bounds.py",
        "binom.sf(right - 1, guesses, q)",
        "binom.sf(right, guesses, q)",
        TEST_CANARIES,
    ),
    Mutant("dpcore/audit/bounds.py", "ndtri(rate) - mu", "ndtri(rate) - 2.0 * mu", TEST_CANARIES),
    Mutant("dpcore/audit/bounds.py", "ndtri(rate) - mu", "ndtri(rate) - mu / 2.0", TEST_CANARIES),
    Mutant("dpcore/audit/bounds.py", "(rate - deltas) / growth", "rate / growth", TEST_CANARIES),
    Mutant("dpcore/audit/bounds.py", "(guesses - c + 1)", "(c + 1)", TEST_CANARIES),
    Mutant(
        "dpcore/audit/bounds.py", "total * guesses / canaries - right_mass", "0.0", TEST_CANARIES
    ),
    Mutant(
        "dpcore/audit/bounds.py",
        "np.geomspace(1e-9, 0.5, 40)",
        "np.array([0.4, 0.5])",
        TEST_CANARIES,
    ),
    Mutant(
        "dpcore/accounting/budget.py",
        "observer.released(mechanism, rows, query, value)",
        "observer.released(mechanism, rows, query, mechanism.release(query(self._objective), "
        "self._secret))",
        TEST_CANARIES,
    ),
    Mutant(
        "dpcore/audit/canaries.py", "np.ravel(value) - without", "np.ravel(value)", TEST_CANARIES
    ),
    Mutant(
        "dpcore/audit/canaries.py",
        "rng.permutation(known.n)[len(y) :]",
        "np.arange(known.n)",
        TEST_CANARIES,
    ),
    Mutant(
        "dpcore/audit/canaries.py",
        "np.argmin(np.sum(np.log(spreads)",
        "np.argmax(np.sum(np.log(spreads)",
        TEST_CANARIES,
    ),
    Mutant(
        "dpcore/audit/attack.py",
        "query(self.pair[0]), query(self.pair[1])",
        "query(self.pair[0]), 0.0",
        "tests/dpcore/audit/test_scaled_gd.py",
    ),
    Mutant(
        "dpcore/audit/attack.py",
        "other[-1] = 0.0",
        "other[-1] = 0.5",
        "tests/dpcore/audit/test_scaled_gd.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "ROUNDED * sqrt(total)",
        "ROUNDED * sqrt(total) / 2.0",
        "tests/dpcore/audit/test_scaled_gd.py",
    ),
]
