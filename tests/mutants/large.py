"""Faults in sums over codes and shards: clips, norms, shifts, the order of shards, and what may leave a worker."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CODED = "tests/dpcore/objective/test_coded.py"
NORMS = "tests/dpcore/objective/test_kept_norms.py"
COLUMNS = "tests/dpcore/objective/test_columns_as_codes.py"
LINES = "tests/dpcore/objective/test_lines.py"
ROWS = "dpcore/objective/coded/rows.py"
SHARDS = "tests/tasks/data/test_shards.py"
WORKERS = "tests/tasks/data/test_workers.py"
VIEWED = "tests/tasks/data/test_kept_views.py"
BYTES = "tests/tasks/kinds/test_kept_bytes.py"
NEIGHBOURS = "tests/neighbours/test_rows.py"
KERNELS = "dpcore/objective/kernels.py"
COMPILED = "dpcore/objective/coded/kernels.py"
VIEWS = "tests/dpcore/objective/test_objective.py"
FOLDS = "dpcore/objective/shards.py"

MUTANTS = [
    Mutant(
        COMPILED,
        "v[i] = math.sqrt(max(v[i] + start, 0.0) + hidden) * (1.0 + 4.5e-16)",
        "v[i] = math.sqrt(max(v[i] + start - hidden, 0.0)) * (1.0 - 4.5e-16)",
        NEIGHBOURS,
    ),
    Mutant(
        "dpcore/objective/coded/codes.py",
        "@ squared - layout.slopes",
        "@ squared + layout.slopes",
        CODED,
    ),
    Mutant(COMPILED, "        clip_slopes(zs, vs, clip)\n", "", NEIGHBOURS),
    Mutant(
        COMPILED,
        "v[i] = lengths[i] * factor[i] * (1.0 + 4.5e-16)",
        "v[i] = lengths[i] * factor[i] * factor[i]",
        NEIGHBOURS,
    ),
    # norms kept from one pass to the next
    Mutant("dpcore/objective/fused.py", "found[0] is squares:\n", "True:\n", NORMS),
    Mutant(
        "dpcore/objective/fused.py",
        "list(left)  # after",
        "pass  # after",
        "tests/dpcore/objective/test_chunks.py",
    ),
    Mutant(
        "dpcore/objective/fused.py",
        "return known[rows.picked] if",
        "return known[: rows.n] if",
        NORMS,
    ),
    Mutant(
        "dpcore/objective/fused.py",
        "is squares else np.empty(0)",
        "is squares or True else np.empty(0)",
        NORMS,
    ),
    Mutant(
        "dpcore/objective/fused.py",
        '    kept.pop("norms", None)  # before',
        "    # before",
        NORMS,
    ),
    Mutant(
        "dpcore/objective/multiclass.py",
        'self._kept("against", (label, loss), form)',
        'self._kept(("against", label), (loss,), form)',
        BYTES,
    ),
    Mutant("tasks/data/store.py", "LABEL_BYTES * (1 + self.classes)", "LABEL_BYTES", BYTES),
    Mutant("tasks/data/store.py", "folder=self.folder.parent)", "folder=self.folder)", SHARDS),
    Mutant(
        "tasks/data/workers.py",
        "key = pickle.dumps(step)",
        "key = pickle.dumps(step[0])",
        VIEWED,
    ),
    Mutant(
        "tasks/data/workers.py",
        "list(self.views)[:-VIEWS]",
        "list(self.views)[: -9 * VIEWS]",
        VIEWED,
    ),
    Mutant(
        "tasks/data/workers.py",
        "if any(isinstance(item, PerShard) for item in step[1]):",
        "if not step[1]:",
        VIEWED,
    ),
    Mutant(
        "dpcore/objective/fused.py", "plain + len(hats) - len(hats) % 2", "plain + len(hats)", CODED
    ),
    Mutant(KERNELS, "e if margin >= 0.0 else 1.0", "1.0 if margin >= 0.0 else e", CODED),
    Mutant(
        KERNELS,
        "z[i] = min(z[i] * (up if y[i] > 0.0 else down), clip)",
        "z[i] = min(z[i], clip) * (up if y[i] > 0.0 else down)",
        NEIGHBOURS,
    ),
    # points on a line
    Mutant("dpcore/objective/base.py", "64.0 * UNIT", "1e-6", LINES),
    Mutant(KERNELS, "z[i] = a[i] + places[k] * b[i]", "z[i] = a[i] - places[k] * b[i]", LINES),
    Mutant(COMPILED, "z[2 * i + 1] * factor[i] - offset[1]", "z[2 * i + 1] * factor[i]", LINES),
    Mutant("dpcore/objective/linear.py", "np.fmin(losses, clip)", "losses", LINES),
    Mutant(FOLDS, "first + (rows.start - first) % step", "first", NEIGHBOURS),
    Mutant(FOLDS, "rows[a:b] - (end - size)", "rows[a:b] - (end - size) - (a > 0)", NEIGHBOURS),
    Mutant(
        FOLDS, "np.searchsorted(rows, ends)", 'np.searchsorted(rows, ends, "right")', NEIGHBOURS
    ),
    Mutant(
        "dpcore/objective/fused.py",
        "min(start + CHUNK, n)",
        "min(start + CHUNK + 1, n)",
        NEIGHBOURS,
    ),
    Mutant(
        "dpcore/preprocess/coding.py",
        "if not (levelled(part.one) or levelled(part.other)):",
        "if False:",
        COLUMNS,
    ),
    Mutant(
        "dpcore/objective/coded/codes.py",
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
        COLUMNS,
    ),
    Mutant("dpcore/objective/coded/codes.py", "float(column.max()) <= 1.0", "True", COLUMNS),
    Mutant("dpcore/objective/shards.py", "np.all(rows[1:] >= rows[:-1])", "True", SHARDS),
    Mutant(
        "tasks/data/store.py",
        "except BlockingIOError:  # whoever made it still writes there\n            continue",
        "except BlockingIOError:\n            lock = os.open(folder, os.O_RDONLY)",
        SHARDS,
    ),
    Mutant(
        "tasks/data/load.py",
        "sweep(place)  # what",
        "_ = place  # what",
        "tests/tasks/data/test_kills.py",
    ),
    Mutant("tasks/data/store.py", "if error.errno not in FULL", "if error.errno in FULL", SHARDS),
    Mutant(
        "tasks/data/store.py",
        "O_EXCL, 0o600)\n    with",
        "O_EXCL, 0o644)\n    with",
        SHARDS,
    ),
    Mutant(
        "tasks/data/workers.py",
        'return "failed", type(error).__name__',
        'return "failed", str(error)',
        WORKERS,
    ),
    Mutant(
        "tasks/data/scheduler.py",
        "    _require_certificates(found)\n",
        "",
        "tests/tasks/kinds/test_engine.py",
    ),
    Mutant(
        "tasks/options/engine.py",
        "if given and not connects:",
        "if False:",
        "tests/tasks/kinds/test_engine.py",
    ),
    Mutant(
        "tasks/options/engine.py",
        'if given and engine.kind == "auto":',
        "if False:",
        "tests/tasks/kinds/test_engine.py",
    ),
    Mutant(
        "tasks/kinds/network.py",
        "    check_read(config.model or ModelSection())\n",
        "",
        "tests/tasks/kinds/network/test_flow.py",
    ),
    Mutant(
        "tasks/data/scheduler.py",
        'parts.scheme != "tls" and',
        'parts.scheme == "udp" and',
        "tests/tasks/data/test_scheduler.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "_words(halvings * words, rng).reshape(halvings, words)",
        "_words((halvings + 1) * words, rng).reshape(halvings + 1, words)",
        "tests/dpcore/test_coins.py",
    ),
    Mutant(
        "dpcore/noise.py",
        "np.bitwise_and.reduce(thrown, axis=0)",
        "np.bitwise_or.reduce(thrown, axis=0)",
        "tests/dpcore/test_coins.py",
    ),
    Mutant(
        COMPILED, "found[i] = column[np.uint64(rows[i])]", "found[i] = column[np.uint64(i)]", CODED
    ),
    Mutant(
        "dpcore/objective/rows.py",
        "Scaled(self.inner.gather(rows), self.shift, self.scale, self.lengths[rows])",
        "Scaled(self.inner.gather(rows), self.shift, self.scale, self.lengths[: len(rows)])",
        VIEWS,
    ),
    Mutant(
        "dpcore/objective/linear.py",
        "self._views, self._whole = {}, None",
        "self._views = {}",
        VIEWS,
    ),
    Mutant(
        "dpcore/objective/linear.py",
        "return whole.transform(shift, scale).take(picked)",
        "return whole.transform(shift, scale)",
        VIEWS,
    ),
    Mutant(
        "tasks/data/cluster.py",
        "range(TRIES)",
        "range(1)",
        "tests/tasks/data/test_scheduler.py",
    ),
    Mutant("tasks/data/workers.py", "now - rows.asked > IDLE", "False", WORKERS),
    Mutant(
        "tasks/data/cluster.py",
        "a, b)) for step, values in steps]",
        "0, b - a)) for step, values in steps]",
        WORKERS,
    ),
    Mutant(
        "tasks/data/workers.py",
        "if expected not in (None, mine.digests[file]):",
        "if expected is not None and not mine.digests[file]:",
        WORKERS,
    ),
    Mutant(
        "tasks/data/workers.py",
        "                found.update(np.ascontiguousarray(array).data)\n",
        "",
        WORKERS,
    ),
    Mutant("tasks/data/cluster.py", "given, self.cluster.digests)", "given)", WORKERS),
]
