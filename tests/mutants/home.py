"""Faults in stores, moved homes, the gate, backfills and drafts: what would stop people or mislead
them.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORES, TEST_STORES = "tasks/stores/__init__.py", "tests/tasks/stores/test_stores.py"
MOVED, TEST_MOVED = "tasks/stores/moved.py", "tests/tasks/stores/test_move.py"
GATE, TEST_GATE = "tasks/release/gate.py", "tests/tasks/release/test_gate.py"
BACKFILL, TEST_BACKFILL = "tasks/retraining/backfill.py", "tests/tasks/retraining/test_backfill.py"
DRAFTS = "tests/tasks/profile/test_profile_drafts.py"
SERVED = "tests/tasks/record/test_predict_fn.py"

# Two makers at once, half stores, lost rows; places of others; trivial models; a budget that is
# asked once a run.
MUTANTS = [
    Mutant(
        STORES, "fcntl.flock(file, fcntl.LOCK_EX)", "fcntl.flock(file, fcntl.LOCK_SH)", TEST_STORES
    ),
    Mutant(
        STORES,
        "missing = [store for store in stores if not _known(folder, store)]",
        "missing = stores",
        TEST_STORES,
    ),
    Mutant(STORES, "store.create(unfinished, lock)", "store.create(store.path, lock)", TEST_STORES),
    Mutant(
        STORES,
        "if _holds_rows(copy, store.used):",
        "if _holds_rows(store.path, store.used):",
        TEST_STORES,
    ),
    Mutant(STORES, " and not _copy_of(store).exists()", "", TEST_STORES),
    Mutant(STORES, "    copy.unlink(missing_ok=True)\n", "", TEST_STORES),
    Mutant(MOVED, 'place.startswith(f"{before}/")', "place.startswith(before)", TEST_MOVED),
    Mutant(MOVED, "if any(root ==", "if all(root ==", TEST_MOVED),
    Mutant(MOVED, "or _same(root, home.root)", "", TEST_MOVED),
    Mutant(GATE, "one.delta * one.n < 1:", "one.delta * one.n < 2:", TEST_GATE),
    Mutant(
        GATE,
        "if not direction(metric) * (own - plain) > ROUNDING:",
        "if direction(metric) * (own - plain) < -ROUNDING:",
        TEST_GATE,
    ),
    Mutant(
        GATE,
        "return -1 if metric is not None and less_is_better(metric) else 1",
        "return 1",
        TEST_GATE,
    ),
    Mutant(
        "tasks/record/example.py",
        "if spread <= ROUNDING * size and same_label:",
        "if False:",
        TEST_GATE,
    ),
    Mutant(BACKFILL, "+ self.pending.get(name, 0) for", "for", TEST_BACKFILL),
    Mutant(
        BACKFILL,
        "view.charge(job.schema.name, events, job.blocks, job.public)",
        "pass",
        TEST_BACKFILL,
    ),
    Mutant("tasks/retraining/schedule.py", "if not asked and late >", "if late >", TEST_BACKFILL),
    Mutant("tasks/profile/labels.py", ">= 2 + max(", ">= 1 + max(", DRAFTS),
    Mutant("tasks/profile/labels.py", "2 * telling(name)", "telling(name)", DRAFTS),
    Mutant(
        "tasks/profile/labels.py",
        '"public": {"n": len(queries)}',
        '"public": {"n": len(labels)}',
        DRAFTS,
    ),
    Mutant("tasks/profile/private.py", 'columns[name] = {"kind": kind}\n', "\n", DRAFTS),
    Mutant("tasks/record/scoring.py", "\nread_any_as_text()\n", "\n", SERVED),
    Mutant("tasks/record/scoring.py", "        if not missing:\n", "        if True:\n", SERVED),
]
