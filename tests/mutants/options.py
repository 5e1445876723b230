"""Faults in what an option is asked: a rule, a charge or a line of the statement that is left
out.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TOY, RULES = "tests/tasks/options/test_registration.py", "tests/tasks/options/test_rules.py"

MUTANTS = [
    Mutant("tasks/options/rules.py", "facts[self.fact] not in self.allowed", "False", RULES),
    Mutant(
        "tasks/options/__init__.py",
        "    check_rules(config, schema, kind, command, ",
        "    sorted(",
        RULES,
    ),
    Mutant("tasks/options/__init__.py", "[option.name for option in found])", "[])", TOY),
    Mutant(
        "tasks/training/__init__.py",
        "    if beside and asked > room.left",
        "    if beside and 0 > room.left",
        TOY,
    ),
    Mutant("tasks/record/run.py", "            *added.released,\n", "", TOY),
    Mutant("tasks/record/run.py", "            *added.limits,\n", "", TOY),
    Mutant("flows/train.py", 'run = hooked("before_fit", run, reservation)', "pass", TOY),
]
