"""``dpflows bench --speed``: whole trainings beside other libraries, and all lines of one run in
pieces that are kept until it ends.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from dpcore.accounting.limits import Target
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective, compiled, fused
from dpcore.problem import Adjacency, Problem
from dpcore.train import Planned, Result, plan, run
from tasks.home import make_private
from tasks.peers import PeerRun, find_peer
from tasks.peers.process import PeerError
from tasks.peers.speed import (
    CATEGORIES,
    NUMBERS,
    Line,
    Work,
    accounting,
    best,
    dense,
    encoding,
    line,
    made_rows,
    ranking,
    scaling,
    start,
    sums,
    together,
    with_passes,
    with_short_indices,
)

BATCHES, PEER_SECONDS = (256, 4096), 300.0


def fits(n: int) -> list[Line]:
    """``auto`` and a sampled descent to scikit-learn's logistic regression on the same rows, n as
    in Adult.
    """
    rng = np.random.default_rng(2)
    rows = made_rows(n, False, rng)
    X, w = with_short_indices(rows.X), rng.normal(size=rows.width)
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-(X @ w))), 1.0, -1.0)
    problem = Problem(
        n=n, dimension=rows.width, loss=Logistic(), norm_bound=float(np.sqrt(15)), intercept=True
    )
    target = Target(1.0, 1e-6, "cks", "auto")
    planned = {
        f"scaled_gd, q = {q:g}": plan("scaled_gd", {"sampling_rate": q}, problem, target)
        for q in (1.0, 1 / 16)
    }
    planned["dp_agd"] = plan("dp_agd", {}, problem, target)
    stored = rows if compiled.available() else X
    made = LinearObjective(stored, y, Logistic())
    works: dict[str, Work] = {"other": lambda: LogisticRegression(C=1.0, max_iter=200).fit(X, y)}
    for name, one in planned.items():
        works[name] = with_passes(True, partial(run, one, made))
    found = best(works, 3)
    base = found.pop("other")
    return [line(name, "scikit-learn's fit", t / base, t * 1e9 / n) for name, t in found.items()]


def libraries(n: int) -> list[Line]:
    """Epochs of ``dp_sgd`` to those of Opacus, and objective perturbation to diffprivlib's, by the
    clock; one line says so where a library is not installed.
    """
    rng = np.random.default_rng(2)
    rows = made_rows(n, False, rng)
    y, bound = rng.choice([-1.0, 1.0], n), float(np.sqrt(CATEGORIES + NUMBERS + 1))
    add = Problem(n=n, dimension=rows.width, loss=Logistic(), norm_bound=bound, intercept=True)
    swap = replace(add, adjacency=Adjacency.REPLACE_ONE, l2=1e-3)
    made = LinearObjective(with_short_indices(rows.X), y, Logistic())
    lines = []
    for batch in BATCHES:
        ours = epoch(add, batch)
        for loading, said in (("rows", "row by row"), ("batches", "batches cut in one piece")):
            named = {"batch_size": batch, "epochs": 1, "accountant": "rdp", "loading": loading}
            what = f"dp_sgd epoch at batch {batch:,}", f"Opacus' epoch, {said}"
            lines.append(beside(what, "opacus", named, partial(run, ours, made), made, add))
    fit = plan("objective_perturbation", {}, swap, Target(1.0, 1e-6, "cks", "auto"))
    what = "objective_perturbation", "diffprivlib's fit"
    lines.append(beside(what, "diffprivlib", {}, partial(run, fit, made), made, swap))
    return lines


def beside(
    what: tuple[str, str],
    name: str,
    given: Mapping[str, Any],
    work: Work,
    made: LinearObjective,
    problem: Problem,
) -> Line:
    """``work`` to the same by another library, in seconds of the clock: it has its own process."""
    peer = find_peer(name)
    other = PeerRun(peer, peer.parameters(given), None, PEER_SECONDS)
    try:
        theirs = min(float(other.train(made, problem, (1.0, 1e-6), 0)["seconds"]) for _ in range(2))
    except PeerError:
        return line(what[0], f"{what[1]}: not installed", None, nanoseconds(work, made.n))
    ours = nanoseconds(work, made.n)
    return line(*what, ours * made.n / 1e9 / theirs, ours)


def nanoseconds(work: Callable[[], Result], n: int) -> float:
    """Of a row, of the training alone and by the clock, as the other libraries count theirs."""
    work()
    return min(work().seconds for _ in range(10)) / n * 1e9


def epoch(problem: Problem, batch: int) -> Planned:
    """An epoch of ``dp_sgd`` in batches of about ``batch`` rows."""
    given = {"sampling_rate": min(batch / problem.n, 1.0), "steps": -(-problem.n // batch)}
    return plan("dp_sgd", given, problem, Target(1.0, 1e-6, "cks", "rdp"))


def epochs(n: int) -> list[Line]:
    """Epochs of ``dp_sgd`` on a sparse matrix by compiled passes to those by numpy and scipy."""
    if not compiled.available():
        return []
    rng = np.random.default_rng(2)
    rows, y = made_rows(n, False, rng), rng.choice([-1.0, 1.0], n)
    problem = Problem(
        n=n, dimension=rows.width, loss=Logistic(), norm_bound=float(np.sqrt(15)), intercept=True
    )
    made, lines = LinearObjective(with_short_indices(rows.X), y, Logistic()), []
    for batch in BATCHES:
        work = partial(run, epoch(problem, batch), made)
        found = best({"compiled": with_passes(True, work), "numpy": with_passes(False, work)}, 10)
        ratio = found["compiled"] / found["numpy"]
        what = f"dp_sgd epoch at batch {batch:,}, compiled"
        lines.append(line(what, "the same in numpy and scipy", ratio, found["compiled"] / n * 1e9))
    return lines


def sections(n: int, elsewhere: bool = True) -> dict[str, Callable[[], list[Line]]]:
    """What is measured for tables of about n rows, in pieces of less than some minutes.

    ``elsewhere``: those too that take processes of their own.
    """
    small = min(n, 48_842)
    sizes = tuple(sorted({max(n // 20, 1000), n // 4, n}))
    found: dict[str, Callable[[], list[Line]]] = {
        "sums": partial(sums, n),
        "dense": partial(dense, max(n // 4, 1000)),
        "threads": partial(together, max(n, fused.THREADED)),
        "fits": partial(fits, small),
        "epochs": partial(epochs, small),
        "accounting": accounting,
        "ranking": partial(ranking, max(min(n // 100, 1500), 20)),
    }
    if elsewhere:
        found |= {"libraries": partial(libraries, small), "start": start}
    else:
        del found["threads"]
    return found | {
        "encoding": partial(encoding, min(n, 200_000)),
        "scaling": partial(scaling, sizes),
    }


def machine() -> dict[str, Any]:
    """What the numbers hang on: processor, memory, versions."""
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = [one.partition(":")[2].strip() for one in told.splitlines() if "model name" in one]
    return {
        "processor": named[0] if named else platform.processor() or platform.machine(),
        "processors": fused.threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("dpflows", "numpy", "scipy", "scikit-learn")},
        "passes": f"numba {version('numba')}" if compiled.available() else "numpy",
    }


def measured(n: int, elsewhere: bool = True, kept: Path | None = None) -> dict[str, Any]:
    """All lines of ``sections``, with the machine that they were measured on.

    A section that is done is a line of the file ``kept``, and is not measured again where a run was
    interrupted on the same machine and versions; a run that ends removes it.
    """
    head = {"schema_version": 2, "rows": n, **machine()}
    done = _read(kept, head)
    for name, work in sections(n, elsewhere).items():
        if name not in done:
            done[name] = work()
            if kept is not None:
                make_private(kept.parent)
                kept.write_text("\n".join(map(json.dumps, [head, *map(list, done.items())])))
    if kept is not None:
        kept.unlink(missing_ok=True)
    return {**head, "lines": [one for lines in done.values() for one in lines]}


def _read(kept: Path | None, head: dict[str, Any]) -> dict[str, list[Line]]:
    """The sections of an interrupted run like this one; empty where there is none."""
    try:
        texts = kept.read_text().splitlines() if kept else []
        stored: list[Any] = [json.loads(text) for text in texts]
    except (OSError, ValueError):
        return {}
    return dict(stored[1:]) if stored[:1] == [head] else {}
