"""Faults in sums over codes and shards: clips, norms, shifts, the order of shards, and what may leave a worker."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CODED = "tests/dpcore/objective/test_coded.py"
ROWS = "dpcore/objective/coded/rows.py"
SHARDS = "tests/tasks/data/test_shards.py"
WORKERS = "tests/tasks/data/test_workers.py"

MUTANTS = [
    Mutant(
        ROWS,
        "np.sqrt(np.maximum(sums + self.start, 0.0) + self.hidden)",
        "np.sqrt(np.maximum(sums + self.start, 0.0))",
        CODED,
    ),
    Mutant(
        "dpcore/objective/kernels.py", "c[i] = min(max(c[i], -bound), bound)", "c[i] = c[i]", CODED
    ),
    Mutant("dpcore/objective/fused.py", "scale * (total - mass * shift)", "scale * total", CODED),
    Mutant(
        "dpcore/objective/coded/codes.py",
        "int(self.codes(k).max()) >= size",
        "int(self.codes(k).max()) > size",
        CODED,
    ),
    Mutant("dpcore/objective/coded/codes.py", "float(column.max()) <= 1.0", "True", CODED),
    Mutant("dpcore/objective/shards.py", "np.all(rows[1:] >= rows[:-1])", "True", SHARDS),
    Mutant(
        "tasks/data/store.py",
        "except BlockingIOError:  # whoever made it still writes there\n            continue",
        "except BlockingIOError:\n            lock = os.open(folder, os.O_RDONLY)",
        SHARDS,
    ),
    Mutant("tasks/data/store.py", "_sweep(parent)\n        folder", "folder", SHARDS),
    Mutant("tasks/data/store.py", "if error.errno not in FULL", "if error.errno in FULL", SHARDS),
    Mutant("tasks/data/shards.py", "0o600", "0o644", SHARDS),
    Mutant(
        "tasks/data/workers.py",
        'return "failed", type(error).__name__',
        'return "failed", str(error)',
        WORKERS,
    ),
    Mutant(
        "tasks/data/cluster.py", 'parts.scheme != "tls" and', 'parts.scheme == "udp" and', WORKERS
    ),
    Mutant(
        "dpcore/sampling.py",
        "for _ in range(halvings - 1):",
        "for _ in range(halvings):",
        "tests/dpcore/test_coins.py",
    ),
    Mutant("tasks/data/cluster.py", "range(TRIES)", "range(1)", WORKERS),
    Mutant("tasks/data/workers.py", "now - rows.asked > IDLE", "False", WORKERS),
    Mutant("tasks/data/workers.py", "not S_ISDIR(facts.st_mode) or ", "", WORKERS),
    Mutant(
        "tasks/data/cluster.py",
        "a, b)) for step, values in steps]",
        "0, b - a)) for step, values in steps]",
        WORKERS,
    ),
]
