"""Faults in the selection among a random number of trials."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

M, A = "dpcore/mechanisms", "dpcore/accounting"
TM, TA = "tests/dpcore/mechanisms", "tests/dpcore/accounting"

MUTANTS = [
    # selection among trials
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "(1.0 + self.eta) * min(",
        "(1.0 - self.eta) * min(",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "curve + self._selection(alphas, curve)",
        "curve",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "(1.0 - 1.0 / alphas) * curve + depth / alphas",
        "(1.0 - 1.0 / alphas) * curve",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        " + log(self.mean) / (alphas - 1.0)",
        "",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "= self.rate * np.exp(",
        "= np.exp(",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "if self.cap or len(gaussians)",
        "if len(gaussians)",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "np.exp(np.max(hats, axis=0))",
        "np.exp(np.min(hats, axis=0))",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "sqrt(sum(n * item.ratio**2 for",
        "sqrt(sum(item.ratio**2 for",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/train/search.py",
        ", setting.algorithm.adaptive)",
        ")",
        "tests/dpcore/train/test_tuned.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "log1p(1.0 / (a - 1.0)), share)",
        "log1p(3.0 / (a - 1.0)), share)",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "np.asarray(np.max([one.rdp(alphas) for one in self.trials], axis=0))",
        "np.asarray(np.min([one.rdp(alphas) for one in self.trials], axis=0))",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "range(self.draw(rng) - 1)",
        "range(round(self.mean) - 1)",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "self.rate / expm1(self.rate)",
        "self.rate / exp(self.rate)",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/mechanisms/repeated.py",
        "if score > best:",
        "if score >= best:",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/accounting/events.py",
        "return mechanism.mapped(_replaced)",
        "return mechanism",
        "tests/dpcore/mechanisms/test_repeated.py",
    ),
    Mutant(
        "dpcore/train/search.py",
        "noisy = door(self._scoring(problem)).release(\n                self._score, lambda data: "
        "right(data, weights, problem)\n            )",
        "noisy = door(self._scoring(problem))._objective.score_counts(weights, SIDES).trace()",
        "tests/dpcore/train/test_tuned.py",
    ),
    Mutant(
        "dpcore/train/search.py",
        "Events.of([self._score], adjacency=problem.adjacency, unit=problem.unit)\n        )",
        "Events.of([], adjacency=problem.adjacency, unit=problem.unit)\n        )",
        "tests/dpcore/train/test_tuned.py",
    ),
    Mutant(
        "dpcore/train/search.py",
        "SCORE_SENSITIVITY = 1.0",
        "SCORE_SENSITIVITY = 0.5",
        "tests/dpcore/train/test_tuned.py",
    ),
    Mutant(
        "dpcore/train/search.py",
        "self.attempt(index, door, np.random.default_rng(seed))",
        "self.attempt(index, door, np.random.default_rng())",
        "tests/dpcore/train/test_tuned.py",
    ),
    Mutant(
        "dpcore/train/search.py",
        "return float(counts[0, 1] + counts[1, 0])",
        "return 2.0 * float(counts[0, 1] + counts[1, 0])",
        "tests/dpcore/train/test_tuned.py",
    ),
    Mutant(
        "dpcore/train/search.py",
        "budget.note(setting=index)",
        "budget.note(setting=index, trials=selection.draw(rng))",
        "tests/dpcore/train/test_tuned.py",
    ),
]
