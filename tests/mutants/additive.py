"""Faults in additive models: what their terms say, fine blocks and crosses, and the libraries beside
them.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    # what an additive library is given, and what a pass leaves out
    Mutant(
        "tasks/peers/worker.py",
        "part.argmax(axis=1), -1)",
        "part.argmax(axis=1), 0)",
        "tests/tasks/peers/test_peers.py",
    ),
    Mutant(
        "tasks/peers/__init__.py",
        'in ("hats", "bins")',
        'in ("bins",)',
        "tests/tasks/peers/test_peers.py",
    ),
    Mutant(
        "dpcore/algorithms/base.py",
        "    algorithm.check(problem)\n",
        "    pass\n",
        "tests/tasks/peers/test_peers.py",
    ),
    Mutant(
        "dpcore/metrics.py",
        "-np.sign(np.asarray(y)) * score",
        "np.sign(np.asarray(y)) * score",
        "tests/dpcore/test_probability_metrics.py",
    ),
    Mutant(
        "dpcore/metrics.py",
        'ERRORS = ("error", "loss", "brier_score")',
        'ERRORS = ("error", "loss")',
        "tests/dpcore/test_probability_metrics.py",
    ),
    Mutant(
        "dpcore/objective/coded/codes.py",
        "np.flatnonzero(told)",
        "np.flatnonzero(told)[1:]",
        "tests/dpcore/objective/test_coded.py",
    ),
    Mutant(
        "dpcore/objective/sparse.py",
        "kept = (scale != 0.0)[X.indices]",
        "kept = (scale == 0.0)[X.indices]",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/objective/coded/rows.py",
        "seen = self.layout.active(scale)",
        "seen = self.layout.active(scale)[1:]",
        "tests/dpcore/objective/test_coded.py",
    ),
    # fine blocks and crosses: paid for before they are chosen, chosen by noisy marginals, products
    Mutant(
        "dpcore/descent/marginals.py",
        "means[columns].max() > DOMINANT",
        "means[columns].max() < DOMINANT",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "        total = 0.0\n        for block in self.released:",
        "        total = 0.0\n        for block in [one for one in self.blocks if not one.fine]:",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "counted = scale * ~self.fine",
        "counted = scale",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "block.fine and not (self.intercept and ",
        "block.fine and not (",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "total += 2.0 if k > 1 else 1.0",
        "total += 2.0 if k > 1 and not block.fine else 1.0",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "                    1.0 - 1.0 / k\n",
        "                    1.0 - 2.0 / k\n",
        "tests/test_auto_fine.py",
    ),
    # below some n mu fine blocks have no sums, and only then
    Mutant(
        "dpcore/descent/marginals.py",
        "refined(blocks) if signal < TOLD_FROM else ()",
        "refined(blocks)",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "(totals - batch.n * self.centers)[self.summed]",
        "totals - batch.n * self.centers",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "block.fine and block in released and",
        "block.fine and",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "largest * bins // (len(hats) - 1)",
        "largest * bins // len(hats)",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "parts - max(over), 0.0",
        "parts - min(over), 0.0",
        "tests/test_auto_fine.py",
    ),
    # which fine blocks move: by noisy gradients alone, against what drawing and noise explain
    Mutant(
        "dpcore/descent/marginals.py",
        "- chance - drawn))",
        "- chance))",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "chance = (1.0 - np.sum(basis**2, axis=1)) * root**2",
        "chance = root**2",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "self._excess(columns, smooth) <= 0.0",
        "self._excess(columns, smooth) > 0.0",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        " if made._told(term[0])]",
        "]",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/descent/marginals.py",
        "(self.noise / self.rate) ** 2",
        "self.noise**2",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/algorithms/scaled_gd.py",
        "view.without(held & ~w.any(axis=0))",
        "view.without(held)",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/algorithms/scaled_gd.py",
        "velocity = np.where(held, 0.0, pull)",
        "velocity = pull",
        "tests/test_auto_fine.py",
    ),
    Mutant(
        "dpcore/preprocess/terms.py",
        "np.outer(dense[:, -1] - 1.0, self.intercept)",
        "0.0",
        "tests/dpcore/preprocess/test_terms.py",
    ),
    Mutant(
        "dpcore/preprocess/terms.py",
        "BAND_WIDTH * abs(scale) * noise",
        "abs(scale) * noise",
        "tests/dpcore/preprocess/test_terms.py",
    ),
    Mutant(
        "dpcore/preprocess/terms.py",
        "BAND_WIDTH * abs(scale)",
        "BAND_WIDTH * scale",
        "tests/dpcore/preprocess/test_terms.py",
    ),
    Mutant(
        "dpcore/preprocess/parts.py",
        "one[0][:, :, None] * self.other.width",
        "one[0][:, :, None] * self.one.width",
        "tests/dpcore/preprocess/test_terms.py",
    ),
    Mutant(
        "dpcore/preprocess/terms.py",
        "noise * np.linalg.norm(piece.basis - at, axis=1)",
        "noise * np.linalg.norm(piece.basis, axis=1)",
        "tests/dpcore/preprocess/test_terms.py",
    ),
]
