"""Faults in what a comparison keeps and shows: stale cells, a ceiling of other columns, narrow
bands, cut tables.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CLOSURE, TEST_CLOSURE = "tasks/record/sources.py", "tests/tasks/record/test_closure.py"
LINES, TEST_LINES = "tasks/compare/baselines.py", "tests/tasks/compare/test_lines.py"
TEST_PRINTED = "tests/dpcore/algorithms/test_printed_values.py"
TEST_COMMAND = "tests/tasks/compare/test_command.py"
TEST_FLOW = "tests/tasks/compare/test_compare_flow.py"

MUTANTS = [
    # each setting of a comparison on private rows is paid by itself
    Mutant(
        "tasks/compare/batch.py",
        "self.charges.get(id(cell.setting))",
        "next(iter(self.charges.values()), None)",
        TEST_FLOW,
    ),
    Mutant(
        "tasks/compare/charge.py",
        "compose(group, config, plans)) for group in by_setting(private)",
        "compose(group[:1], config, plans)) for group in by_setting(private)",
        TEST_FLOW,
    ),
    Mutant(CLOSURE, "waiting += names", "waiting += names[:1]", TEST_CLOSURE),
    Mutant(CLOSURE, "waiting += parents(name)", "pass", TEST_CLOSURE),
    Mutant(CLOSURE, '"pkgutil.iter_modules" in names', '"nothing" in names', TEST_CLOSURE),
    Mutant(CLOSURE, "for name in LIBRARIES:", "for name in LIBRARIES[:-1]:", TEST_CLOSURE),
    Mutant(
        "dpcore/algorithms/non_private.py",
        "strengths[:, -1] = 0.0",
        "pass",
        "tests/dpcore/train/test_train.py",
    ),
    Mutant(
        "dpcore/algorithms/non_private.py",
        "strengths - slope",
        "strengths + slope",
        "tests/dpcore/train/test_train.py",
    ),
    Mutant(
        "tasks/compare/cell.py",
        "wide[:, :-1] if problem.intercept else wide",
        "wide",
        TEST_LINES,
    ),
    Mutant(LINES, "encodings(here or used)", "encodings(used[:1])", TEST_LINES),
    Mutant(
        "tasks/kinds/sessions.py", 'update={"conventions": None, **said}', "update={}", TEST_LINES
    ),
    Mutant(
        "tasks/kinds/base.py",
        'float(registry["non_private"].default_l2) if given is None else given',
        "job.problem.l2",
        TEST_LINES,
    ),
    Mutant(
        "tasks/kinds/table.py",
        "with threadpool_limits(1):",
        "with threadpool_limits(2):",
        TEST_LINES,
    ),
    Mutant(
        "tasks/kinds/quality.py",
        '"root_mean_squared_error": unit *',
        '"root_mean_squared_error":',
        TEST_LINES,
    ),
    Mutant(
        "tasks/compare/statistics.py",
        "student.ppf((1 + LEVEL) / 2, len(values) - 1)",
        "1.96",
        "tests/tasks/compare/test_statistics.py",
    ),
    Mutant(
        "tasks/compare/effects.py",
        "DIFFERENT_SIZES = 1.5",
        "DIFFERENT_SIZES = 1.0",
        "tests/tasks/compare/test_figures.py",
    ),
    Mutant(
        "tasks/drawing/sheet.py",
        "across.append(line.name)",
        "across.insert(0, line.name)",
        "tests/tasks/compare/test_figures.py",
    ),
    Mutant(
        "tasks/drawing/sheet.py",
        "(*_loss_of(other, chart, found), *_adjacency_of(panel, main))",
        "_adjacency_of(panel, main)",
        "tests/tasks/compare/test_figures.py",
    ),
    Mutant(
        "tasks/drawing/sheet.py",
        "chart.loss if len(alike) > 1 else name",
        "name",
        "tests/tasks/compare/test_figures.py",
    ),
    Mutant(
        "flows/terminal.py", "if not console.is_terminal:", "if console.is_terminal:", TEST_COMMAND
    ),
    Mutant(
        "flows/commands/compare.py", "natural_width(table) > width and", "False and", TEST_COMMAND
    ),
    Mutant(
        "tasks/compare/export.py",
        "map(fmean, draws.values())",
        "sum(draws.values(), [])",
        TEST_COMMAND,
    ),
    Mutant(
        "tasks/home.py",
        'Path(__file__).resolve().parents[1] / "conf"',
        'Path("conf").absolute()',
        "tests/tasks/record/test_words_of_a_run.py",
    ),
    Mutant(
        "tasks/config/values.py",
        "MOST_EPSILON = 100.0",
        "MOST_EPSILON = 1e12",
        "tests/tasks/record/test_words_of_a_run.py",
    ),
    Mutant(
        "tasks/record/wording.py",
        "units / limit)",
        "units)",
        "tests/tasks/record/test_words_of_a_run.py",
    ),
    Mutant(
        "tasks/kinds/sessions.py",
        "usual if chosen.conventions is None else NAMED[chosen.conventions]",
        "usual",
        "tests/tasks/kinds/test_ranking_flow.py",
    ),
    Mutant(
        "dpcore/ranking/metrics.py",
        'if conventions.gain == "exponential"\n        else placed.y.astype(np.float64)',
        "",
        "tests/dpcore/ranking/test_conventions.py",
    ),
    Mutant("dpcore/algorithms/dp_agd.py", "rounds=(60,", "rounds=(50,", TEST_PRINTED),
    Mutant("dpcore/algorithms/dp_blsgd.py", "growth=(0.3,", "growth=(0.03,", TEST_PRINTED),
    Mutant(
        "dpcore/algorithms/dp_blsgd.py", "reset_factor=(1.2,", "reset_factor=(1.1,", TEST_PRINTED
    ),
    Mutant("dpcore/algorithms/rsgd_ar.py", "batch_size=(4000,", "batch_size=(400,", TEST_PRINTED),
    Mutant(
        "dpcore/algorithms/ssadmm.py",
        "penalty_parameter=(0.25,",
        "penalty_parameter=(0.5,",
        TEST_PRINTED,
    ),
    Mutant(
        "tasks/compare/resume.py",
        "for line in config.printed]",
        "for line in ()]",
        "tests/tasks/compare/test_feasible.py",
    ),
    Mutant(
        "dpcore/accounting/observers.py",
        "bisect_left(self._before, release)",
        "len(self._before)",
        "tests/tasks/compare/test_engine.py",
    ),
    Mutant(
        "tasks/drawing/sheet.py",
        "len(names) > 1 and len(stems) == 1",
        "len(names) > 1",
        "tests/tasks/compare/test_figures.py",
    ),
]
