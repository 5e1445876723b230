"""Faults in bounds of computed numbers: margins left out, taken of the wrong thing, or sums that
cancel.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BOUNDS = "dpcore/ranking/bounds.py"
SESSIONS = "tests/dpcore/ranking/test_rounding.py"
STRETCHES = "tests/dpcore/objective/test_stretches.py"
EXTREMES = "tests/dpcore/test_extremes.py"
SMALL_PARTS = "tests/dpcore/algorithms/test_small_parts.py"

MUTANTS = [
    # a record in the ball of its price; sums in stretches
    Mutant(
        "dpcore/sampling.py",
        "rounding=inner.rounding / 2.0",
        "rounding=inner.rounding",
        "tests/dpcore/mechanisms/test_pairs.py",
    ),
    Mutant("dpcore/objective/sparse.py", "STRETCH = 32_768", "STRETCH = 2**40", STRETCHES),
    Mutant("dpcore/objective/fused.py", "CHUNK = 2**16", "CHUNK = 2**40", STRETCHES),
    Mutant(
        "dpcore/objective/users.py",
        "total += shares[users] @ gradients[users]",
        "total = shares @ gradients",
        STRETCHES,
    ),
    # sums whose terms cancel: centring, margins, margins of the result
    Mutant(
        "dpcore/ranking/documents.py",
        "documents.centred() if isinstance(self.scorer, Linear) else documents",
        "documents",
        SESSIONS,
    ),
    Mutant(
        BOUNDS,
        "margin = 16.0 * error * sizes.max(axis=1) ** 2",
        "margin = 0.0 * sizes.max(axis=1)",
        SESSIONS,
    ),
    Mutant(
        BOUNDS,
        "margin = 16.0 * error * sizes.max(axis=1) ** 2",
        "margin = 1e-12 * np.maximum(largest, 0.0)",
        SESSIONS,
    ),
    Mutant(
        BOUNDS,
        "margin = (n * n + wide + out + 16) * UNIT * total**2",
        "margin = 0.0 * total",
        SESSIONS,
    ),
    Mutant(
        BOUNDS,
        "margin = (n * n + wide + out + 16) * UNIT * total**2",
        "margin = 1e-12 * np.maximum(part, 0.0)",
        SESSIONS,
    ),
    Mutant(BOUNDS, "+ (12 * (n + 8) + 8 * width) * UNIT * total", "", SESSIONS),
    Mutant(BOUNDS, "+ 4 * (n + 8) * UNIT * sizes", "", SESSIONS),
    Mutant(BOUNDS, "CANCELS = 2.0**-10", "CANCELS = 0.0", SESSIONS),
    # sums behind a promised gradient norm
    Mutant("dpcore/descent/minimise.py", "STRETCH = 1024", "STRETCH = 2**30", EXTREMES),
    Mutant(
        "dpcore/algorithms/objective_perturbation.py",
        "max(tolerance, 2.0 * rounding_of_gradients(problem, inner, tilt))",
        "tolerance",
        EXTREMES,
    ),
    Mutant(
        "dpcore/algorithms/admm_objp.py",
        "at_most(problem.n * (at.y - rho * at.z), longest)",
        "problem.n * (at.y - rho * at.z)",
        EXTREMES,
    ),
    Mutant(BOUNDS, "np.sqrt(squares + margin)", "np.sqrt(squares)", SESSIONS),
    # what a record adds, beside numbers that are far larger
    Mutant("dpcore/objective/rounding.py", "FAR = 2.0**36", "FAR = 2.0**200", SMALL_PARTS),
    Mutant(
        "dpcore/algorithms/dp_svrg.py",
        "4.0 * rounded_sum(problem.n) + 16.0 * UNIT",
        "16.0 * UNIT",
        SMALL_PARTS,
    ),
    Mutant(
        "dpcore/algorithms/mpadmm.py",
        "at_most(at.x - step * pulled, FAR * self.bound(problem, steps.rho, step))",
        "at.x - step * pulled",
        SMALL_PARTS,
    ),
    Mutant(
        "dpcore/algorithms/dp_blsgd.py",
        "within((falls - wanted) / divisor, FAR * unit)",
        "(falls - wanted) / divisor",
        SMALL_PARTS,
    ),
    Mutant(
        "dpcore/descent/line_search.py",
        "within(np.minimum(gaps, FAR * cap), FAR * cap)",
        "penalty",
        SMALL_PARTS,
    ),
]
