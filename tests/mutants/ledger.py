"""Faults in what a ledger keeps: a head that is not compared, draws without a record, names that nobody asks for."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LEDGER, KEPT, NAMES = "tasks/ledger", "tests/ledger/test_kept_head.py", "tests/ledger/test_second_names.py"

MUTANTS = [
    Mutant(f"{LEDGER}/guard.py", "last[0] < head.seq:", "last[0] < 0:", KEPT),
    Mutant(f"{LEDGER}/guard.py", "or at.hash != head.hash:", "or False:", KEPT),
    Mutant(f"{LEDGER}/guard.py", "== head.key:", "!= '':", KEPT),
    Mutant(f"{LEDGER}/store.py", "PRAGMA wal_autocheckpoint=1", "PRAGMA wal_autocheckpoint=1000", KEPT),
    Mutant(f"{LEDGER}/store.py", "written != kept[0]:", "kept[0] is None:", KEPT),
    Mutant(f"{LEDGER}/reservation.py", "if not self._draws:", "if self._draws == 1:", KEPT),
    Mutant(f"{LEDGER}/ledger.py", 'if kind == "cancelled" and drawn:', 'if kind == "drawn":', KEPT),
    Mutant(f"{LEDGER}/verify.py", "if drawn := self.draws.get(record.entry):", "if drawn := 0:", KEPT),
    Mutant(f"{LEDGER}/witness.py", "if newest is None or newest.seq < head.seq:", "if True:", KEPT),
    Mutant(f"{LEDGER}/files.py", '{"files": list(self.each)} if len(self.each) > 1 else {}', "{}", NAMES),
    Mutant(f"{LEDGER}/reader.py", "{dataset, *files.read_as(connection, marks)}", "{dataset}", NAMES),
    Mutant("tasks/home.py", "config.ledger.url != schema.ledger:", "not schema.ledger:", NAMES),
]
