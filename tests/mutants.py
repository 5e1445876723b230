"""The faults that ``mutate.py`` plants: one line of one file each, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class Mutant:
    """In ``file``, the one place that reads ``old`` becomes ``new``; ``tests`` must fail."""

    file: str
    old: str
    new: str
    tests: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.old.strip()} -> {self.new.strip()}"


M, A = "dpcore/mechanisms", "dpcore/accounting"
TM, TA = "tests/mechanisms", "tests/accounting"

MUTANTS = [
    # closed forms
    Mutant(
        f"{M}/renyi.py", "alphas * (ratio * ratio / 2.0)", "alphas * (ratio * ratio / 4.0)", f"{TM}/test_mechanisms.py"
    ),
    Mutant(f"{M}/renyi.py", "down = alphas * loss", "down = -alphas * loss", f"{TM}/test_mechanisms.py"),
    Mutant(
        f"{M}/renyi.py",
        "quadratic = alphas * (eta * eta / 8.0)",
        "quadratic = alphas * (eta * eta / 16.0)",
        f"{TM}/test_selection.py",
    ),
    Mutant(
        f"{M}/renyi.py",
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
    Mutant("dpcore/noise.py", "keep = ~(negative & (magnitude == 0))", "keep = magnitude >= 0", f"{TM}/test_noise.py"),
    Mutant("dpcore/noise.py", "slack / sqrt(max(value.size, 1))", "slack * max(value.size, 1)", f"{TM}/test_noise.py"),
    Mutant("dpcore/noise.py", "slack / max(value.size, 1)", "slack * max(value.size, 1)", f"{TM}/test_noise.py"),
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
        f"{M}/gaussian.py",
        "self.sensitivity * (1.0 + self.rounding) / self.sigma",
        "self.sensitivity / self.sigma",
        f"{TM}/test_noise.py",
    ),
    Mutant(
        f"{M}/gaussian.py",
        "sensitivity=2.0 * self.sensitivity",
        "sensitivity=self.sensitivity",
        f"{TA}/test_relations.py",
    ),
    # selection, threshold, perturbation, permutation
    Mutant(
        f"{M}/selection.py",
        "rng.gumbel(scale=self.scale, size=scores.shape)",
        "rng.gumbel(scale=self.scale * 2 / 3, size=scores.shape)",
        f"{TM}/test_selection.py",
    ),
    Mutant(
        f"{M}/selection.py",
        "np.argmax(scores + rng.laplace",
        "np.argmax(scores - 0 * rng.laplace",
        f"{TM}/test_selection.py",
    ),
    Mutant(f"{M}/selection.py", "(2.0 if self.two_sided else 1.0)", "1.0", f"{TM}/test_selection.py"),
    Mutant(
        f"{M}/threshold.py",
        "bar = self.threshold + draw(scale=self.threshold_scale)",
        "bar = self.threshold",
        f"{TM}/test_threshold.py",
    ),
    Mutant(
        f"{M}/threshold.py",
        "return alphas * slope + np.log(self.max_queries) / (alphas - 1.0)",
        "return alphas * slope",
        f"{TM}/test_threshold.py",
    ),
    Mutant(
        f"{M}/threshold.py",
        "renyi.laplace(alphas, threshold) + 2.0 * query",
        "renyi.laplace(alphas, threshold) + query",
        f"{TM}/test_threshold.py",
    ),
    Mutant(
        f"{M}/perturbation.py",
        "log1p(self.smoothness / self.curvature)",
        "log1p(-self.smoothness / self.curvature)",
        f"{TM}/test_perturbation.py",
    ),
    Mutant(
        f"{M}/perturbation.py", "self.lipschitz * (1.0 if", "self.lipschitz * (0.5 if", f"{TM}/test_perturbation.py"
    ),
    Mutant(
        f"{M}/perturbation.py",
        "return 2.0 * self.gradient_norm",
        "return self.gradient_norm",
        f"{TM}/test_perturbation.py",
    ),
    Mutant(
        f"{M}/perturbation.py",
        "(log(2.0) + log_ndtr(t)) / (alphas - 1.0)",
        "log_ndtr(t) / (alphas - 1.0)",
        f"{TM}/test_perturbation.py",
    ),
    Mutant(
        f"{M}/permuted.py", "dtype=np.float64) / self.n", "dtype=np.float64) / (2 * self.n)", f"{TM}/test_permuted.py"
    ),
    Mutant(
        f"{M}/permuted.py",
        "(alphas - 1.0) * self.ratios**2 / 2.0",
        "(alphas - 1.0) * self.ratios / 2.0",
        f"{TM}/test_permuted.py",
    ),
    # profiles and conversion
    Mutant(
        f"{M}/profile.py",
        "epsilon / mu - mu / 2.0, epsilon / mu + mu / 2.0",
        "epsilon / mu - mu / 2.0, epsilon / mu - mu / 2.0",
        f"{TA}/test_known_faults.py",
    ),
    Mutant(
        f"{A}/conversion.py",
        "np.log1p(-1.0 / orders) - (log_delta",
        "-np.log1p(-1.0 / orders) - (log_delta",
        f"{TA}/test_conversion.py",
    ),
    Mutant(
        f"{A}/conversion.py",
        "(log_delta + np.log(orders)) / (orders - 1.0)",
        "(log_delta + 2 * np.log(orders)) / (orders - 1.0)",
        f"{TA}/test_conversion.py",
    ),
    Mutant(
        f"{A}/conversion.py",
        "return -log_delta / (orders - 1.0)",
        "return -log_delta / orders",
        f"{TA}/test_conversion.py",
    ),
    Mutant(
        f"{A}/conversion.py", "<= delta * delta else least", "<= 100 * delta else least", f"{TA}/test_conversion.py"
    ),
    # amplification
    Mutant(
        f"{M}/binomial.py",
        "terms = np.concatenate([np.arange(2, size + 1) for size in sizes])",
        "terms = np.concatenate([np.arange(1, size) for size in sizes])",
        f"{TA}/test_subsampling.py",
    ),
    Mutant(f"{M}/binomial.py", "moments + table.sizes * log_rest)", "moments)", f"{TA}/test_subsampling.py"),
    Mutant(
        f"{M}/subsampling.py",
        "log_expm1(j * (j - 1.0) * (ratio * ratio / 2.0))",
        "log_expm1(j * (j - 1.0) * (ratio * ratio / 4.0))",
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        f"{M}/subsampling.py",
        "exponent = ratio * z - ratio * ratio / 2.0",
        "exponent = ratio * z + ratio * ratio / 2.0",
        f"{TA}/test_subsampling.py",
    ),
    Mutant(f"{M}/subsampling.py", "factor: float = 3.0", "factor: float = 2.0", f"{TA}/test_subsampling.py"),
    Mutant(
        f"{M}/subsampling.py",
        "np.log1p(-rate) + spread, np.log(rate) + binary",
        "np.log1p(-rate) + binary, np.log(rate) + binary",
        f"{TA}/test_ternary.py",
    ),
    Mutant(
        f"{M}/subsampling.py",
        "np.log1p(rate * np.expm1(epsilon))",
        "np.log1p(rate * rate * np.expm1(epsilon))",
        f"{TM}/test_threshold.py",
    ),
    Mutant(f"{M}/ternary.py", "shrink = 1.0 if", "shrink = 0.5 if", f"{TA}/test_ternary.py"),
    Mutant(f"{M}/ternary.py", "_log_q(j, -(j - 0.5) * t, t)", "_log_q(j, -(j + 0.5) * t, t)", f"{TA}/test_ternary.py"),
    Mutant(f"{M}/ternary.py", "np.maximum(spread, binary) if", "spread if", f"{TA}/test_ternary.py"),
    # samplers, relations, loss distributions
    Mutant(
        "dpcore/sampling.py", "int(rng.binomial(n, self.rate))", "round(n * self.rate)", f"{TM}/test_sampling_draws.py"
    ),
    Mutant("dpcore/sampling.py", "size=size, replace=False", "size=size, replace=True", f"{TM}/test_sampling_draws.py"),
    Mutant("dpcore/sampling.py", "rng.permutation(n)[", "np.arange(n)[", f"{TM}/test_permuted.py"),
    Mutant(
        "dpcore/sampling.py",
        'sampled.contributions != "pair"',
        'sampled.contributions != "none"',
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        "dpcore/sampling.py",
        "if sampled.adjacency is Adjacency.REPLACE_ONE:\n        return None",
        "if sampled.adjacency is not None:\n        return None",
        f"{TA}/test_subsampling.py",
    ),
    Mutant(
        f"{A}/relations.py",
        'inner, mechanism.sampler, Adjacency.REPLACE_ONE, "ball"',
        "inner, mechanism.sampler, Adjacency.ADD_REMOVE",
        f"{TA}/test_relations.py",
    ),
    Mutant(
        f"{A}/relations.py",
        "inner = mechanism.mechanism.replaced()",
        "inner = mechanism.mechanism",
        f"{TA}/test_relations.py",
    ),
    Mutant(f"{A}/pld.py", "total += count * mechanism.ratio**2", "total += mechanism.ratio**2", f"{TA}/test_pld.py"),
    Mutant(f"{A}/pld.py", ".self_compose(count)", ".self_compose(1)", f"{TA}/test_pld.py"),
    Mutant(f"{A}/pld.py", '"sampling_prob": rate,', '"sampling_prob": rate / 2,', f"{TA}/test_pld.py"),
    # selection among trials
    Mutant(f"{M}/repeated.py", "(1.0 + self.eta) * min(", "(1.0 - self.eta) * min(", "tests/tuning/test_repeated.py"),
    Mutant(f"{M}/repeated.py", "curve + self._selection(alphas, curve)", "curve", "tests/tuning/test_repeated.py"),
    Mutant(
        f"{M}/repeated.py",
        "(1.0 - 1.0 / alphas) * curve + depth / alphas",
        "(1.0 - 1.0 / alphas) * curve",
        "tests/tuning/test_repeated.py",
    ),
    Mutant(f"{M}/repeated.py", " + log(self.mean) / (alphas - 1.0)", "", "tests/tuning/test_repeated.py"),
    Mutant(f"{M}/repeated.py", "return self.rate * np.exp(", "return np.exp(", "tests/tuning/test_repeated.py"),
    Mutant(f"{M}/repeated.py", "if self.cap or not all(", "if not all(", "tests/tuning/test_repeated.py"),
    Mutant(
        f"{M}/repeated.py",
        "np.exp(np.max(hats, axis=0))",
        "np.exp(np.min(hats, axis=0))",
        "tests/tuning/test_repeated.py",
    ),
    Mutant(
        f"{M}/repeated.py",
        "sqrt(sum(n * item.ratio**2 for",
        "sqrt(sum(item.ratio**2 for",
        "tests/tuning/test_repeated.py",
    ),
    Mutant("dpcore/tuning.py", ", setting.algorithm.adaptive)", ")", "tests/tuning/test_tuned.py"),
    Mutant(
        f"{M}/repeated.py",
        "log1p(1.0 / (a - 1.0))) for",
        "log1p(3.0 / (a - 1.0))) for",
        "tests/tuning/test_repeated.py",
    ),
    Mutant(
        f"{M}/repeated.py",
        "np.asarray(np.max([one.rdp(alphas) for one in self.trials], axis=0))",
        "np.asarray(np.min([one.rdp(alphas) for one in self.trials], axis=0))",
        "tests/tuning/test_repeated.py",
    ),
    Mutant(
        f"{M}/repeated.py",
        "range(self.draw(rng) - 1)",
        "range(round(self.mean) - 1)",
        "tests/tuning/test_repeated.py",
    ),
    Mutant(
        f"{M}/repeated.py",
        "self.rate / expm1(self.rate)",
        "self.rate / exp(self.rate)",
        "tests/tuning/test_repeated.py",
    ),
    Mutant(f"{M}/repeated.py", "if score > best:", "if score >= best:", "tests/tuning/test_repeated.py"),
    Mutant(
        f"{A}/relations.py", "return mechanism.mapped(_replaced)", "return mechanism", "tests/tuning/test_repeated.py"
    ),
    Mutant(
        "dpcore/tuning.py",
        "noisy = door(self._scoring(problem)).release(self._score, lambda data: right(data, weights, problem))",
        "noisy = door(self._scoring(problem))._objective.score_counts(weights, SIDES).trace()",
        "tests/tuning/test_tuned.py",
    ),
    Mutant(
        "dpcore/tuning.py",
        "Events.of([self._score], adjacency=problem.adjacency, unit=problem.unit)\n        )",
        "Events.of([], adjacency=problem.adjacency, unit=problem.unit)\n        )",
        "tests/tuning/test_tuned.py",
    ),
    Mutant("dpcore/tuning.py", "SCORE_SENSITIVITY = 1.0", "SCORE_SENSITIVITY = 0.5", "tests/tuning/test_tuned.py"),
    Mutant(
        "dpcore/tuning.py",
        "self.attempt(index, door, np.random.default_rng(seed))",
        "self.attempt(index, door, np.random.default_rng())",
        "tests/tuning/test_tuned.py",
    ),
    Mutant(
        "dpcore/tuning.py",
        "return float(counts[0, 1] + counts[1, 0])",
        "return 2.0 * float(counts[0, 1] + counts[1, 0])",
        "tests/tuning/test_tuned.py",
    ),
    Mutant(
        "dpcore/tuning.py",
        "budget.note(setting=index)",
        "budget.note(setting=index, trials=selection.draw(rng))",
        "tests/tuning/test_tuned.py",
    ),
    # counts, doors and searches
    Mutant(
        f"{A}/events.py",
        "total += count * curve_of(mechanism)",
        "total += curve_of(mechanism)",
        "tests/core/test_events.py",
    ),
    # class weights: constants, terms, and what comes before a clip
    Mutant(
        "dpcore/weighted.py",
        "return self.largest * self.base.lipschitz",
        "return self.base.lipschitz",
        "tests/algorithms/test_class_weights.py",
    ),
    Mutant(
        "dpcore/weighted.py",
        "return self.largest * self.base.smoothness",
        "return self.base.smoothness",
        "tests/algorithms/test_class_weights.py",
    ),
    Mutant(
        "dpcore/weighted.py",
        "return max(self.positive, self.negative)",
        "return min(self.positive, self.negative)",
        "tests/algorithms/test_class_weights.py",
    ),
    Mutant(
        "dpcore/objective.py",
        "value if shares is None else value * shares, clip",
        "value, clip",
        "tests/algorithms/test_class_weights.py",
    ),
    Mutant("dpcore/objective.py", "coefficient *= shares", "pass", "tests/algorithms/test_class_weights.py"),
    Mutant(
        "dpcore/algorithms/minimise.py",
        "self.shares * self.loss.slope(z)",
        "self.loss.slope(z)",
        "tests/algorithms/test_class_weights.py",
    ),
    # releases before a training
    Mutant(
        f"{A}/sequel.py",
        "self.limit.ratio(self.before.then(events))",
        "self.limit.ratio(events)",
        "tests/core/test_sequel.py",
    ),
    Mutant(f"{A}/sequel.py", "ratios.max(initial=0.0)", "ratios.min(initial=9.0)", "tests/core/test_sequel.py"),
    Mutant(
        "dpcore/train.py",
        "events = events if before is None else before.then(events)",
        "events = events if before is None else events.then(events)",
        "tests/core/test_sequel.py",
    ),
    Mutant(
        "dpcore/train.py", "algorithm.adaptive or before is not None", "algorithm.adaptive", "tests/core/test_sequel.py"
    ),
]

N, TN = "dpcore/network", "tests/network"

# Networks: norms, cuts, overflow, start, refusals. Their tests skip without torch, and what skips kills nothing.
NETWORK_MUTANTS = [
    Mutant(f"{N}/clipping.py", "lengths(self.a) + (1.0 if", "lengths(self.a) + (0.0 if", f"{TN}/test_gradients.py"),
    Mutant(f"{N}/clipping.py", "total + lengths(self.bias)", "total", f"{TN}/test_gradients.py"),
    Mutant(f"{N}/clipping.py", "clip_norm * (1.0 - MARGIN[dtype]) /", "clip_norm /", f"{TN}/test_rounding.py"),
    Mutant(f"{N}/clipping.py", "clamp_min(1e-30)).clamp_max(1.0)", "clamp_min(1e-30))", f"{TN}/test_gradients.py"),
    Mutant(
        f"{N}/clipping.py",
        "None if bool(torch.isfinite(norms).all()) else torch.isfinite(norms)",
        "None",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        f"{N}/clipping.py",
        'reduction="sum")\n            slopes',
        'reduction="mean")\n            slopes',
        f"{TN}/test_gradients.py",
    ),
    Mutant(f"{N}/clipping.py", "found if len({id(layer)", "found if True or len({id(layer)", f"{TN}/test_gradients.py"),
    Mutant(f"{N}/clipping.py", "return total + hidden *", "return total + 0.0 *", f"{TN}/test_rounding.py"),
    Mutant(f"{N}/clipping.py", "(1.0 - (k + 3) * limits", "(1.0 - 0.0 * limits", f"{TN}/test_rounding.py"),
    Mutant(f"{N}/clipping.py", "square() + k * limits.tiny", "square()", f"{TN}/test_rounding.py"),
    Mutant(f"{N}/clipping.py", "torch.float64 if k > LONG else None", "None", f"{TN}/test_rounding.py"),
    Mutant(f"{N}/objective.py", "clip * (1.0 - MARGIN[self.network.dtype])", "clip * 1.0", f"{TN}/test_rounding.py"),
    Mutant(f"{N}/network.py", "self._theta += self._start", "pass", f"{TN}/test_gradients.py"),
    Mutant(f"{N}/network.py", "copy=True) if total is None", "copy=False) if total is None", f"{TN}/test_gradients.py"),
    Mutant(f"{N}/objective.py", "posinf=inf), clip)", "posinf=inf), inf)", f"{TN}/test_gradients.py"),
    Mutant(f"{N}/checks.py", "torch.allclose(scores, alone", "torch.allclose(scores, scores", f"{TN}/test_models.py"),
    Mutant(f"{N}/checks.py", "not torch.equal(buffer, before[name])", "False", f"{TN}/test_models.py"),
    Mutant(f"{N}/models.py", "isinstance(found, type) and issubclass", "True or issubclass", f"{TN}/test_models.py"),
    Mutant(f"{N}/models.py", "torch.manual_seed(spec.seed)", "pass", f"{TN}/test_models.py"),
]
MUTANTS += NETWORK_MUTANTS if find_spec("torch") else []

METRICS, TEST_METRICS = "dpcore/metrics.py", "tests/core/test_probability_metrics.py"
MUTANTS += [
    Mutant(
        METRICS,
        "sorted_score[1:] != sorted_score[:-1], True",
        "sorted_score[1:] == sorted_score[1:], True",
        TEST_METRICS,
    ),
    Mutant(METRICS, "np.sum((p - happened) ** 2, axis=1)", "np.sum(np.abs(p - happened), axis=1)", TEST_METRICS),
    Mutant(METRICS, "small = sizes < least", "small = sizes <= least", TEST_METRICS),
    Mutant(METRICS, "if rest.sum() >= least:", "if rest.any():", TEST_METRICS),
    Mutant(METRICS, 'if loss == "logistic":', 'if loss in ("logistic", "hinge"):', TEST_METRICS),
    Mutant(METRICS, "for label in np.unique(y)]", "for label in range(2)]", TEST_METRICS),
]

AUDIT, TEST_CANARIES = "dpcore/audit", "tests/audit/test_canaries.py"

# Canaries: coins that are known or public, missing corrections, a charge that is dropped, numbers that are too large.
MUTANTS += [
    Mutant(f"{AUDIT}/canaries.py", "np.argsort(scores), []", "np.argsort(canaries.included), []", TEST_CANARIES),
    Mutant(f"{AUDIT}/canaries.py", "(1.0 - confidence) / len(SHARES)", "(1.0 - confidence)", TEST_CANARIES),
    Mutant(f"{AUDIT}/canaries.py", "len(SHARES) * curve_p_value", "curve_p_value", TEST_CANARIES),
    Mutant(f"{AUDIT}/canaries.py", "source.random(count) < 0.5", "rng.random(count) < 0.5", TEST_CANARIES),
    Mutant(f"{AUDIT}/canaries.py", "np.where(self.included, self.y, -self.y)", "self.y", TEST_CANARIES),
    Mutant(f"{AUDIT}/canaries.py", "norm_bound * INSIDE", "norm_bound * 1.001", TEST_CANARIES),
    Mutant(f"{AUDIT}/bounds.py", "2.0 * canaries * delta", "2.0 * delta", TEST_CANARIES),
    Mutant(f"{AUDIT}/bounds.py", "1.0 / (1.0 + exp(-epsilon))", "0.5", TEST_CANARIES),
    Mutant(f"{AUDIT}/bounds.py", "binom.sf(right - 1, guesses, q)", "binom.sf(right, guesses, q)", TEST_CANARIES),
    Mutant(f"{AUDIT}/one_run.py", "ndtri(rate) - mu", "ndtri(rate) - 2.0 * mu", TEST_CANARIES),
    Mutant(f"{AUDIT}/one_run.py", "ndtri(rate) - mu", "ndtri(rate) - mu / 2.0", TEST_CANARIES),
    Mutant(f"{AUDIT}/one_run.py", "(rate - deltas) / growth", "rate / growth", TEST_CANARIES),
    Mutant(f"{AUDIT}/one_run.py", "(guesses - c + 1)", "(c + 1)", TEST_CANARIES),
    Mutant(f"{AUDIT}/one_run.py", "total * guesses / canaries - right_mass", "0.0", TEST_CANARIES),
    Mutant(f"{AUDIT}/one_run.py", "np.geomspace(1e-9, 0.5, 40)", "np.array([0.4, 0.5])", TEST_CANARIES),
    Mutant(
        f"{AUDIT}/watch.py",
        "released = super().release(mechanism, query)",
        "released = mechanism.release(query(self._objective), self._secret)",
        TEST_CANARIES,
    ),
    Mutant(f"{AUDIT}/watch.py", "np.ravel(released) - without", "np.ravel(released)", TEST_CANARIES),
    Mutant(f"{AUDIT}/watch.py", "rng.permutation(known.n)[len(y) :]", "np.arange(known.n)", TEST_CANARIES),
    Mutant(
        f"{AUDIT}/watch.py",
        "np.argmin(np.sum(np.log(spreads)",
        "np.argmax(np.sum(np.log(spreads)",
        TEST_CANARIES,
    ),
    Mutant(
        f"{AUDIT}/releases.py", "query(pair[0]), query(pair[1])", "query(pair[0]), 0.0", "tests/audit/test_scaled_gd.py"
    ),
    Mutant(f"{AUDIT}/neighbours.py", "other[-1] = 0.0", "other[-1] = 0.5", "tests/audit/test_scaled_gd.py"),
    Mutant(
        "dpcore/algorithms/scaled_gd.py",
        "ROUNDED * sqrt(total)",
        "ROUNDED * sqrt(total) / 2.0",
        "tests/audit/test_scaled_gd.py",
    ),
]

SOFTMAX, TEST_JOINT = "dpcore/softmax.py", "tests/algorithms/test_joint_softmax.py"

# Joint softmax: constants of one margin in place of those of all classes, clips that miss the norm of the row.
MUTANTS += [
    Mutant(SOFTMAX, "= sqrt(2.0)", "= sqrt(2.0) / 2", TEST_JOINT),
    Mutant(SOFTMAX, "smoothness: ClassVar[float] = 0.5", "smoothness: ClassVar[float] = 0.25", TEST_JOINT),
    Mutant(SOFTMAX, "slope, slope)) * self.row_norms[rows]", "slope, slope)) * 0.5", TEST_JOINT),
    Mutant(SOFTMAX, "np.minimum(value, clip)", "value", TEST_JOINT),
    Mutant("dpcore/algorithms/dp_svrg.py", "problem.norm_bound**2 * problem.loss", "0.5 * problem.loss", TEST_JOINT),
    Mutant(
        "dpcore/algorithms/schedule.py",
        "problem.sensitivity(problem.lipschitz)",
        "problem.sensitivity(problem.norm_bound)",
        TEST_JOINT,
    ),
    Mutant(
        "dpcore/one_vs_rest.py", "(one_class(problem)) * problem.outputs", "(problem)", "tests/test_auto_multiclass.py"
    ),
]

CAPPED = "tests/sparse/test_capped.py"

# Caps of the slope: priced but not kept, or kept at another size; evidence of a selection that is not used.
MUTANTS += [
    Mutant("dpcore/algorithms/admm_objp.py", "records.with_labels(records.y, loss)", "records", CAPPED),
    Mutant("dpcore/capped.py", "return min(self.base.lipschitz, self.cap)", "return self.cap / 2", CAPPED),
    Mutant("dpcore/capped.py", "self.base.slope(z), -self.cap", "self.base.slope(z), -2.0 * self.cap", CAPPED),
    Mutant(
        "dpcore/algorithms/two_phase.py",
        "np.minimum(doubt, 1e70) ** 4",
        "doubt * 0.0",
        "tests/sparse/test_selection.py",
    ),
    Mutant(
        "dpcore/penalties.py",
        'name == "nuclear" and problem.outputs == 1',
        "False",
        "tests/sparse/test_matrix_penalty.py",
    ),
]

OVERFLOW = "tests/core/test_overflow.py"

# Scores that overflow, steps that do, and an adaptive run that is cheap under its own relation alone.
MUTANTS += [
    Mutant("dpcore/objective.py", "        W = readable(W)\n", "", OVERFLOW),
    Mutant("dpcore/ranking/objective.py", "        w = readable(w)\n", "", OVERFLOW),
    Mutant("dpcore/algorithms/dp_sgd.py", " + STABLE * problem.l2", "", OVERFLOW),
    Mutant("dpcore/algorithms/admm.py", " + STABLE * problem.l2", "", OVERFLOW),
    Mutant(
        "dpcore/accounting/events.py",
        "curve_of(restate(mechanism, adjacency, Adjacency.REPLACE_ONE))",
        "curve_of(mechanism)",
        "tests/core/test_budget.py",
    ),
]

RANKING = "tests/ranking/test_algorithms.py"

# What labels can do to a sum over sessions counted half, and the price of a ball where a triangle alone is proved.
MUTANTS += [
    Mutant(
        "dpcore/algorithms/listnet_one_shot.py",
        "min(2.0 * clip_norm, float(diameters.max()))",
        "min(clip_norm, float(diameters.max()))",
        RANKING,
    ),
    Mutant("dpcore/algorithms/privbr.py", "return clip_norm, 2.0 * clip_norm", "return clip_norm, clip_norm", RANKING),
    Mutant("dpcore/algorithms/privbr.py", "return clip_norm, clip_norm", "return clip_norm, clip_norm / 2.0", RANKING),
    Mutant("dpcore/algorithms/privbr.py", 'geometry = "ball" if centred', 'geometry = "ball" if True', RANKING),
]

# Losses of candidates cut higher than the choice among them is priced for.
MUTANTS += [
    Mutant(
        "dpcore/algorithms/dp_agd.py",
        "batch.value_sum(W, clip_loss)",
        "batch.value_sum(W, 2.0 * clip_loss)",
        "tests/algorithms/test_every_algorithm.py",
    ),
    Mutant(
        "dpcore/algorithms/privgene.py",
        "records.value_sum(crowd, cap)",
        "records.value_sum(crowd, 2.0 * cap)",
        "tests/algorithms/test_every_algorithm.py",
    ),
]
