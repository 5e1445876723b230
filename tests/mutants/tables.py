"""Faults in how tables are read: parts, texts, numbers, moments, databases."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

R, P = "tasks/readers", "tests/tasks/readers"
CELLS, LEVELS = "tests/dpcore/preprocess/test_makes_of_cells.py", "test_hashed_levels.py"

MUTANTS = [
    Mutant(f"{R}/parts.py", "if found in seen:", "if False:", f"{P}/test_parts.py"),
    Mutant(f"{R}/text.py", "for _ in range(skip):", "for _ in ():", f"{P}/test_readers.py"),
    Mutant(
        f"{R}/declared.py",
        "{mark}[0-9]{{3}})(?=",
        "{mark}[0-9]{{1,3}})(?=",
        f"{P}/test_readers.py",
    ),
    Mutant(f"{R}/sql.py", "if found or source is None or", "if found or", f"{P}/test_sql.py"),
    Mutant(f"{R}/parts.py", "url._replace(password=None)", "url", f"{P}/test_sql.py"),
    Mutant(
        "tasks/schema/__init__.py",
        "_make_text(item)",
        "pass",
        "tests/tasks/schema/test_schema.py",
    ),
    Mutant(
        "dpcore/preprocess/parts.py",
        "moment if moment.tzinfo is None else moment.astimezone(UTC)",
        "moment",
        CELLS,
    ),
    Mutant("dpcore/features.py", "if not NUMBER.fullmatch(bare):", "if False:", CELLS),
    Mutant(
        "dpcore/preprocess/parts.py",
        '(digest[:8], "big")',
        '(digest[:8], "little")',
        f"tests/dpcore/preprocess/{LEVELS}",
    ),
    Mutant(
        "dpcore/preprocess/frames.py",
        "if pa.types.is_integer(kind) and cells.null_count:",
        "if False:",
        "tests/dpcore/estimators/test_tables.py",
    ),
]
