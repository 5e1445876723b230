"""Faults in what a kind of model is asked: numbers, files and words that one kind of several would
miss.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

EVALUATE, RUN, NAMES = (
    "tasks/training/__init__.py",
    "tasks/record/run.py",
    "tasks/audit/rules_derived.py",
)
TOY, SELECT = "tests/tasks/kinds/test_kinds.py", "tests/tasks/options/test_select_flow.py"

MUTANTS = [
    Mutant("tasks/kinds/__init__.py", "if kind.fits(config, schema)", "if True", TOY),
    Mutant(
        "tasks/options/base.py",
        "algorithm, noise = job.algorithm,",
        "algorithm, noise = job.config.algorithm,",
        SELECT,
    ),
    Mutant(EVALUATE, "    if job.public:", "    if not job.public:", TOY),
    Mutant(EVALUATE, " | kind.counts(job, data)", "", TOY),
    Mutant(EVALUATE, "if data.groups is None or (each", "if data.groups is not None or (each", TOY),
    Mutant("tasks/kinds/quality.py", '"internal": not job.public', '"internal": job.public', TOY),
    Mutant(RUN, "            *own.limits,\n", "", TOY),
    Mutant(RUN, "        **own.params,\n", "", TOY),
    Mutant(NAMES, "name in kind.param_names", "False", TOY),
    Mutant(NAMES, "name == kind.numbers or ", "", TOY),
]
