"""Faults in what algorithms, objectives and metrics compute."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

M, A = "dpcore/mechanisms", "dpcore/accounting"
TM, TA = "tests/dpcore/mechanisms", "tests/dpcore/accounting"

MUTANTS = [
    # momentum and a penalty
    Mutant(
        "dpcore/descent/admm.py",
        "1.0 / (rho * (1.0 - momentum))",
        "1.0 / rho",
        "tests/dpcore/descent/test_momentum.py",
    ),
    Mutant(
        "dpcore/algorithms/scaled_gd.py",
        "l1 = problem.l1 / (1.0 - momentum)",
        "l1 = problem.l1",
        "tests/dpcore/descent/test_momentum.py",
    ),
    # class weights: constants, terms, and what comes before a clip
    Mutant(
        "dpcore/losses.py",
        "return self.largest * self.base.lipschitz",
        "return self.base.lipschitz",
        "tests/dpcore/algorithms/test_class_weights.py",
    ),
    Mutant(
        "dpcore/losses.py",
        "return self.largest * self.base.smoothness",
        "return self.base.smoothness",
        "tests/dpcore/algorithms/test_class_weights.py",
    ),
    Mutant(
        "dpcore/losses.py",
        "return max(self.positive, self.negative)",
        "return min(self.positive, self.negative)",
        "tests/dpcore/algorithms/test_class_weights.py",
    ),
    Mutant(
        "dpcore/losses.py",
        "self._weighted(self.base.value(z, y), y)",
        "self._weighted(self.base.value(z, y), None)",
        "tests/dpcore/algorithms/test_class_weights.py",
    ),
    Mutant(
        "dpcore/losses.py",
        "self._weighted(self.base.slope(z, y), y)",
        "self._weighted(self.base.slope(z, y), None)",
        "tests/dpcore/algorithms/test_class_weights.py",
    ),
    Mutant(
        "dpcore/descent/minimise.py",
        "self.shares * self.loss.slope(z)",
        "self.loss.slope(z)",
        "tests/dpcore/algorithms/test_class_weights.py",
    ),
    # releases before a training
    Mutant(
        "dpcore/accounting/limits.py",
        "self.limit.ratio(self.before.then(events))",
        "self.limit.ratio(events)",
        "tests/dpcore/accounting/test_sequel.py",
    ),
    Mutant(
        "dpcore/accounting/limits.py",
        "ratios.max(initial=0.0)",
        "ratios.min(initial=9.0)",
        "tests/dpcore/accounting/test_sequel.py",
    ),
    Mutant(
        "dpcore/train/planning.py",
        "events = events if before is None else before.then(events)",
        "events = events if before is None else events.then(events)",
        "tests/dpcore/accounting/test_sequel.py",
    ),
    Mutant(
        "dpcore/train/planning.py",
        "algorithm.adaptive or before is not None",
        "algorithm.adaptive",
        "tests/dpcore/accounting/test_sequel.py",
    ),
]

METRICS, TEST_METRICS = "dpcore/metrics.py", "tests/dpcore/test_probability_metrics.py"
MUTANTS += [
    Mutant(
        METRICS,
        "sorted_score[1:] != sorted_score[:-1], True",
        "sorted_score[1:] == sorted_score[1:], True",
        TEST_METRICS,
    ),
    Mutant(
        METRICS,
        "np.sum((p - happened) ** 2, axis=1)",
        "np.sum(np.abs(p - happened), axis=1)",
        TEST_METRICS,
    ),
    Mutant(METRICS, "small = sizes < least", "small = sizes <= least", TEST_METRICS),
    Mutant(METRICS, "if rest.sum() >= least:", "if rest.any():", TEST_METRICS),
    Mutant(METRICS, 'if loss == "logistic":', 'if loss in ("logistic", "hinge"):', TEST_METRICS),
    Mutant(METRICS, "for label in np.unique(y)]", "for label in range(2)]", TEST_METRICS),
]

SOFTMAX, TEST_JOINT = (
    "dpcore/objective/multiclass.py",
    "tests/dpcore/algorithms/test_joint_softmax.py",
)

# Joint softmax: constants of one margin in place of those of all classes, clips that miss the norm
# of the row.
MUTANTS += [
    Mutant(SOFTMAX, "= sqrt(2.0)", "= sqrt(2.0) / 2", TEST_JOINT),
    Mutant(
        SOFTMAX,
        "smoothness: ClassVar[float] = 0.5",
        "smoothness: ClassVar[float] = 0.25",
        TEST_JOINT,
    ),
    Mutant(
        SOFTMAX,
        "row_norms(slope) * self.rows.lengths_at(rows) * (1.0",
        "row_norms(slope) * 0.5 * (1.0",
        TEST_JOINT,
    ),
    Mutant(SOFTMAX, "classes), y), clip", "classes), y), inf", TEST_JOINT),
    Mutant(
        "dpcore/algorithms/dp_svrg.py",
        "problem.norm_bound**2 * problem.loss",
        "0.5 * problem.loss",
        TEST_JOINT,
    ),
    Mutant(
        "dpcore/descent/permuted.py",
        "problem.sensitivity(problem.lipschitz)",
        "problem.sensitivity(problem.norm_bound)",
        TEST_JOINT,
    ),
    Mutant(
        "dpcore/train/one_vs_rest.py",
        "(one_class(problem)), problem.outputs)",
        "(problem), 1)",
        "tests/test_auto_multiclass.py",
    ),
]

CAPPED = "tests/dpcore/test_capped.py"

# Caps of the slope: priced but not kept, or kept at another size; evidence of a selection that is
# not used.
MUTANTS += [
    Mutant(
        "dpcore/algorithms/admm_objp.py", "records.with_labels(records.y, loss)", "records", CAPPED
    ),
    Mutant(
        "dpcore/algorithms/admm_objp.py",
        "return min(self.base.lipschitz, self.cap)",
        "return self.cap / 2",
        CAPPED,
    ),
    Mutant(
        "dpcore/algorithms/admm_objp.py",
        ", of(least_rho(problem)))",
        ", 0.0)",
        "tests/dpcore/algorithms/test_admm.py",
    ),
    Mutant(
        "dpcore/algorithms/admm_objp.py",
        "self.base.slope(t), -self.cap",
        "self.base.slope(t), -2.0 * self.cap",
        CAPPED,
    ),
    Mutant(
        "dpcore/algorithms/two_phase.py",
        "np.minimum(doubt, 1e70) ** 4",
        "doubt * 0.0",
        "tests/dpcore/algorithms/test_selection.py",
    ),
    Mutant(
        "dpcore/penalties.py",
        'name == "nuclear" and problem.outputs == 1',
        "False",
        "tests/dpcore/test_matrix_penalty.py",
    ),
]

OVERFLOW = "tests/dpcore/objective/test_overflow.py"

ROWS, TEST_ROWS = "dpcore/objective/rows.py", "tests/dpcore/objective/test_objective.py"

# Rows that are scaled inside the products, and what their storage hides of a norm.
MUTANTS += [
    Mutant(ROWS, "mass[...] += c.sum(axis=0)", "pass", TEST_ROWS),
    Mutant(
        ROWS,
        "self.lengths * (1.0 + self.margin) if self.margin else self.lengths",
        "self.lengths",
        TEST_ROWS,
    ),
    Mutant(
        ROWS,
        "return np.asarray(times(W) - self.shift @ W)",
        "return np.asarray(times(W))",
        "tests/tasks/compare/test_iterates.py",
    ),
    Mutant(
        "dpcore/objective/linear.py",
        "            self._views, self._whole = {}, None\n",
        "",
        TEST_ROWS,
    ),
    Mutant(
        "dpcore/objective/users.py",
        "        self.rows.check_rows(problem)\n",
        "",
        "tests/dpcore/train/test_train.py",
    ),
]

# Scores that overflow, steps that do, and an adaptive run that is cheap under its own relation
# alone.
MUTANTS += [
    Mutant(
        "dpcore/objective/linear.py",
        "weighted_sum(readable(w), coefficient)",
        "weighted_sum(w, coefficient)",
        TEST_ROWS,
    ),
    Mutant(
        "dpcore/ranking/documents.py",
        "        w = readable(w)\n",
        "",
        "tests/dpcore/ranking/test_objective.py",
    ),
    Mutant("dpcore/descent/gradient.py", " + STABLE * problem.l2", "", OVERFLOW),
    Mutant(
        "dpcore/accounting/events.py",
        "curve_by(restate(mechanism, adjacency, Adjacency.REPLACE_ONE), rules)",
        "curve_by(mechanism, rules)",
        "tests/dpcore/accounting/test_budget.py",
    ),
]

RANKING = "tests/dpcore/ranking/test_algorithms.py"

# What labels can do to a sum over sessions counted half, and the price of a ball where a triangle
# alone is proved.
MUTANTS += [
    Mutant(
        "dpcore/algorithms/listnet_one_shot.py",
        "min(2.0 * clip_norm, largest)",
        "min(clip_norm, largest)",
        RANKING,
    ),
    Mutant(
        "dpcore/algorithms/privbr.py",
        "return clip_norm, 2.0 * clip_norm",
        "return clip_norm, clip_norm",
        RANKING,
    ),
    Mutant(
        "dpcore/algorithms/privbr.py",
        "return clip_norm, clip_norm",
        "return clip_norm, clip_norm / 2.0",
        RANKING,
    ),
    Mutant(
        "dpcore/algorithms/privbr.py",
        "return max(min(self.cap * (scale if scale > 0 else largest), largest), TINY)",
        "return max(self.cap * (scale if scale > 0 else largest), TINY)",
        RANKING,
    ),
    Mutant(
        "dpcore/algorithms/privbr.py",
        'geometry = "ball" if centred',
        'geometry = "ball" if True',
        RANKING,
    ),
]

# Losses of candidates cut higher than the choice among them is priced for.
MUTANTS += [
    Mutant(
        "dpcore/algorithms/dp_agd.py",
        "batch.value_sum(W, clip_loss)",
        "batch.value_sum(W, 2.0 * clip_loss)",
        "tests/dpcore/algorithms/test_every_algorithm.py",
    ),
    Mutant(
        "dpcore/algorithms/privgene.py",
        "records.value_sum(crowd, cap)",
        "records.value_sum(crowd, 2.0 * cap)",
        "tests/dpcore/algorithms/test_every_algorithm.py",
    ),
    # views of a batch die with it
    Mutant(
        "dpcore/accounting/budget.py",
        "return Lease(value, self._life, (*self._views, step))",
        "return value",
        "tests/dpcore/accounting/test_budget.py",
    ),
    Mutant(
        "dpcore/accounting/budget.py",
        "return Lease(value, self._life, (*self._views, step))",
        "return Lease(value)",
        "tests/dpcore/accounting/test_budget.py",
    ),
    Mutant(
        "dpcore/accounting/budget.py",
        "return living",
        "return value",
        "tests/dpcore/accounting/test_budget.py",
    ),
    # who looks is told through every view
    Mutant(
        "dpcore/accounting/budget.py",
        "(*self._views, step)",
        "(step,)",
        "tests/dpcore/accounting/test_budget.py",
    ),
    # what is paid for is there, or the price is back
    Mutant(
        "dpcore/train/running.py",
        "if on_weights is not None:",
        "if False:",
        "tests/dpcore/estimators/test_charge.py",
    ),
    Mutant(
        "dpcore/accounting/limits.py",
        "if not drawn:",
        "if True:",
        "tests/dpcore/estimators/test_charge.py",
    ),
    Mutant(
        "dpcore/accounting/limits.py",
        "if not drawn:",
        "if False:",
        "tests/dpcore/estimators/test_charge.py",
    ),
    Mutant(
        "dpcore/train/running.py",
        'with np.errstate(all="ignore"):',
        "with np.errstate():",
        "tests/dpcore/estimators/test_charge.py",
    ),
    # a search is many fits
    Mutant(
        "dpcore/estimators/spent.py",
        "payer is None or payer is not budget",
        "payer is None",
        "tests/dpcore/estimators/test_searches.py",
    ),
    Mutant(
        "dpcore/estimators/spent.py",
        "self.sent = True",
        "pass",
        "tests/dpcore/estimators/test_searches.py",
    ),
    Mutant(
        "dpcore/estimators/spent.py",
        "len(budget.history) < 2",
        "True",
        "tests/dpcore/estimators/test_searches.py",
    ),
    # coefficients are those of predict
    Mutant(
        "dpcore/estimators/rows.py",
        "self.longest <= self.norm_bound",
        "self.longest < inf",
        "tests/dpcore/estimators/test_coefficients.py",
    ),
    Mutant(
        "dpcore/estimators/rows.py",
        "shift, scale = np.zeros(self.columns), np.maximum(np.abs(low), np.abs(high))",
        "pass",
        "tests/dpcore/estimators/test_coefficients.py",
    ),
    # first steps of the papers, the exponential mean, settings under protocol=quick
    Mutant(
        "dpcore/descent/gradient.py",
        "return 2.0 / (problem.l2 + smoothness)",
        "return 1.0 / (problem.l2 + smoothness)",
        "tests/dpcore/algorithms/test_every_algorithm.py",
    ),
    Mutant(
        "dpcore/algorithms/dp_sgd.py",
        "return total / (1.0 - self.ema**self.steps)",
        "return total",
        "tests/dpcore/algorithms/test_noisy_gradients.py",
    ),
    Mutant(
        "dpcore/algorithms/base.py",
        "return Preset(**own | changes)",
        "return Preset(**changes | own)",
        "tests/dpcore/algorithms/test_every_algorithm.py",
    ),
    Mutant(
        "tasks/compare/__init__.py",
        "[*smaller, *others]",
        "[*others, *smaller]",
        "tests/tasks/compare/test_configs.py",
    ),
]
