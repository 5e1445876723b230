"""Faults in what a ledger keeps: a head that is not compared, draws without a record, names that
nobody asks for.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LEDGER, KEPT, NAMES = (
    "tasks/ledger",
    "tests/tasks/ledger/test_kept_head.py",
    "tests/tasks/ledger/test_second_names.py",
)
DRAWN = "tests/tasks/ledger/test_first_draw.py"
COUNTED = "tests/tasks/ledger/test_counting.py"
STOPPED = "tests/tasks/ledger/test_interrupted.py"

MUTANTS = [
    Mutant("tasks/ledger/witness.py", "last[0] < head.seq:", "last[0] < 0:", KEPT),
    Mutant(
        "tasks/ledger/witness.py",
        "[(one.seq, one.hash) for one in records[:1]] != [(head.seq, head.hash)]",
        "[one.seq for one in records[:1]] != [head.seq]",
        KEPT,
    ),
    Mutant("tasks/ledger/witness.py", "== head.key:", "!= '':", KEPT),
    Mutant(
        "tasks/ledger/witness.py", "if not is_marked(connection, witness) or", "if True or", KEPT
    ),
    Mutant(
        "tasks/ledger/witness.py", "for record in following:", "for record in records[1:]:", KEPT
    ),
    Mutant(
        "tasks/ledger/engines.py", "PRAGMA wal_checkpoint(PASSIVE)", "PRAGMA data_version", KEPT
    ),
    Mutant("tasks/ledger/engines.py", "if not busy and carried == pages:", "if not busy:", KEPT),
    Mutant("tasks/ledger/store.py", "or self.gone(connection, kept))", "or '')", KEPT),
    Mutant(
        "tasks/ledger/store.py",
        "self._note_mark(connection)\n        return True",
        "return True",
        KEPT,
    ),
    Mutant("tasks/ledger/store.py", "self.path is None and self._bare(consequence)", "False", KEPT),
    Mutant("tasks/ledger/store.py", "written != kept[0]:", "kept[0] is None:", KEPT),
    Mutant("tasks/ledger/reservation.py", "if not self._draws:", "if self._draws == 1:", DRAWN),
    Mutant(
        "tasks/ledger/ledger.py", 'if kind == "cancelled" and drawn:', 'if kind == "drawn":', DRAWN
    ),
    Mutant(
        "tasks/ledger/verify.py",
        "if drawn := self.draws.get(record.entry):",
        "if drawn := 0:",
        DRAWN,
    ),
    Mutant(
        "tasks/ledger/witness.py", "if newest is None or newest.seq < head.seq:", "if True:", KEPT
    ),
    Mutant(
        "tasks/ledger/facts.py",
        '{"files": list(self.each)} if len(self.each) > 1 else {}',
        "{}",
        NAMES,
    ),
    Mutant(
        "tasks/ledger/reader.py",
        "{dataset, *ledger_facts.read_as(connection, marks)}",
        "{dataset}",
        NAMES,
    ),
    Mutant(
        "tasks/ledger/__init__.py",
        "config.ledger.url != schema.ledger:",
        "not schema.ledger:",
        NAMES,
    ),
    Mutant(
        "tasks/ledger/summary.py",
        "if _about(one, weights) and _priced_as(one, newest)",
        "if one is newest",
        COUNTED,
    ),
    Mutant(
        "tasks/report/budget.py",
        '_times(left, sum(float(one["cost"]) for one in newest))',
        '_times(left, float(newest[-1]["cost"]))',
        COUNTED,
    ),
    Mutant(
        "tasks/ledger/reservation.py",
        "kept = self._result() if self._draws else None",
        "kept = None",
        STOPPED,
    ),
    Mutant("tasks/ledger/ledger.py", "one.__exit__(kind, error, trace)", "pass", STOPPED),
    Mutant(
        "tasks/record/outbox.py", "pending.entry == entry else None", "False else None", STOPPED
    ),
]
