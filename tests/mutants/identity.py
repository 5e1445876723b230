"""Faults in whom a row is charged to: ids that two readers spell, rows that name nobody, what hangs
on one record.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RULE, UNITS, N = "dpcore/identity.py", "tasks/data/units.py", "tests/neighbours"
KERNELS, SPLIT = "tasks/data/split_kernels.py", "tests/tasks/data/test_split.py"

MUTANTS = [
    Mutant(
        RULE,
        "text = text.strip() if ascii else text.strip(BLANKS)",
        "pass",
        f"{N}/test_neighbours.py",
    ),
    Mutant(RULE, 'text = plain.rstrip("0").rstrip(".")', "text = plain", f"{N}/test_neighbours.py"),
    Mutant(RULE, 'text = normalize("NFC", text)', "pass", "tests/dpcore/test_identity.py"),
    Mutant(
        RULE,
        'return text if "e" not in text else',
        "return str(float(value)) if value else",
        "tests/dpcore/test_identity.py",
    ),
    Mutant(
        RULE,
        "if unit and size >= EXACT",
        "if unit and size > 2.0**70 + EXACT",
        "tests/dpcore/test_identity.py",
    ),
    Mutant(RULE, "if nobody:", "if nobody and False:", "tests/dpcore/test_identity.py"),
    Mutant(
        UNITS,
        "part = pc.ascii_trim(part, characters=ASCII_BLANKS)",
        "pass",
        "tests/tasks/data/test_ids_together.py",
    ),
    Mutant(
        UNITS,
        'pc.invert(pc.starts_with(bare, "0"))',
        "pc.is_valid(bare)",
        "tests/tasks/data/test_ids_together.py",
    ),
    Mutant(UNITS, "none = NO_VALUE | schema.marks(name)", "none = NO_VALUE", f"{N}/test_doors.py"),
    Mutant(
        "tasks/readers/numbers.py",
        '"letor" or schema.label.kind == "relevance"',
        '"letor"',
        f"{N}/test_doors.py",
    ),
    Mutant(
        "tasks/data/split.py",
        "canonical_texts(values, self.text.strip, self.text.decimal)",
        "list(map(str, values))",
        "tests/tasks/data/test_load.py",
    ),
    Mutant(KERNELS, "vb == middle and s & one == 0", "vb == middle", SPLIT),
    Mutant(KERNELS, "return low if under else high, -k", "return high, -k", SPLIT),
    Mutant(KERNELS, "            seen += np.uint64(LONGEST)\n", "", SPLIT),
    Mutant(
        "tasks/data/split.py",
        "np.append(self._of_numbers(found), self.of_values([]))",
        "np.append(self._of_numbers(found), np.uint64(0))",
        SPLIT,
    ),
    Mutant(
        "tasks/data/load.py",
        "_one_class(schema, train) and not promised",
        "_one_class(schema, train)",
        f"{N}/test_doors.py",
    ),
    Mutant(
        "dpcore/estimators/fitted.py",
        'STAY = ("_lineage", "_member", "internal_")',
        'STAY = ("_lineage", "_member")',
        "tests/dpcore/estimators/test_estimators.py",
    ),
]
