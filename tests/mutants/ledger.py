"""Faults in what a ledger keeps: a head that is not compared, draws without a record, names that nobody asks for."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LEDGER, KEPT, NAMES = "tasks/ledger", "tests/ledger/test_kept_head.py", "tests/ledger/test_second_names.py"

MUTANTS = [
    Mutant("tasks/ledger/guard.py", "last[0] < head.seq:", "last[0] < 0:", KEPT),
    Mutant("tasks/ledger/guard.py", "or at.hash != head.hash:", "or False:", KEPT),
    Mutant("tasks/ledger/guard.py", "== head.key:", "!= '':", KEPT),
    Mutant("tasks/ledger/store.py", "PRAGMA wal_autocheckpoint=1", "PRAGMA wal_autocheckpoint=1000", KEPT),
    Mutant("tasks/ledger/store.py", "written != kept[0]:", "kept[0] is None:", KEPT),
    Mutant("tasks/ledger/reservation.py", "if not self._draws:", "if self._draws == 1:", KEPT),
    Mutant("tasks/ledger/ledger.py", 'if kind == "cancelled" and drawn:', 'if kind == "drawn":', KEPT),
    Mutant("tasks/ledger/verify.py", "if drawn := self.draws.get(record.entry):", "if drawn := 0:", KEPT),
    Mutant("tasks/ledger/witness.py", "if newest is None or newest.seq < head.seq:", "if True:", KEPT),
    Mutant("tasks/ledger/files.py", '{"files": list(self.each)} if len(self.each) > 1 else {}', "{}", NAMES),
    Mutant("tasks/ledger/reader.py", "{dataset, *files.read_as(connection, marks)}", "{dataset}", NAMES),
    Mutant("tasks/ledger/place.py", "config.ledger.url != schema.ledger:", "not schema.ledger:", NAMES),
]
