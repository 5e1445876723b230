"""How fast sums, fits and encoding are here, as ratios to what stands beside them in the same run.

Each number is the best of several turns that are taken in rotation, in processor time of this
process, so that other work on the machine touches all of them alike. Rows are made up: nothing here
is private, and nothing is spent.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from dpcore.accounting.curves import ORDERS
from dpcore.accounting.limits import Target
from dpcore.features import Column
from dpcore.losses import Logistic
from dpcore.objective import LinearObjective, compiled, fused
from dpcore.objective.coded import CodedRows, Columns, Layout, Table
from dpcore.preprocess import Encoder, EncodingReport
from dpcore.preprocess.coding import Coding
from dpcore.problem import Problem
from dpcore.ranking.losses import ListNet
from dpcore.ranking.objective import SessionObjective
from dpcore.ranking.sessions import Sessions
from dpcore.ranking.synthetic import FEATURES, search
from dpcore.train import plan

CATEGORIES, LEVELS, NUMBERS, HATS, NODES = 8, 12, 6, 8, 253
DENSE_COLUMNS = 120
CANDIDATES = 8

Work = Callable[[], Any]
Line = dict[str, Any]


def best(
    works: Mapping[str, Work], turns: int = 5, clock: Callable[[], float] = process_time
) -> dict[str, float]:
    """Least seconds of each, taken in rotation; the first call of each, which compiles, is not
    counted. Linear algebra has one thread: others would spin on into the time of what comes next.
    """
    found = dict.fromkeys(works, np.inf)
    with threadpool_limits(1):
        for work in works.values():
            work()
        for _ in range(turns):
            for name, work in works.items():
                start = clock()
                work()
                found[name] = min(found[name], clock() - start)
    return {name: float(seconds) for name, seconds in found.items()}


def made_rows(n: int, levels_only: bool, rng: np.random.Generator) -> CodedRows:
    """Coded rows of 8 categories and 6 numbers as hats: by level alone, or with fractions."""
    width = CATEGORIES * LEVELS + NUMBERS * HATS + 1
    columns, codes, fractions, start = [], [], [], 0
    for _ in range(CATEGORIES):
        place = np.arange(LEVELS)
        columns.append(Columns("c", _entries(place, start + place, np.ones(LEVELS), LEVELS, width)))
        codes.append(rng.integers(0, LEVELS, n))
        start += LEVELS
    for _ in range(NUMBERS):
        if levels_only:
            at = np.linspace(0, HATS - 1, NODES)
            left = np.minimum(at.astype(int), HATS - 2)
            rows, value = np.tile(np.arange(NODES), 2), np.concatenate([1 - (at - left), at - left])
            spots = start + np.concatenate([left, left + 1])
            columns.append(Columns("x", _entries(rows, spots, value, NODES, width)))
            codes.append(rng.integers(0, NODES, n))
        else:
            place, one = np.arange(HATS - 1), np.ones(HATS - 1)
            basis = _entries(place, start + place, one, HATS, width)
            slopes = csr_array(_entries(place, start + place + 1, one, HATS, width) - basis)
            columns.append(Columns("x", basis, slopes))
            codes.append(rng.integers(0, HATS - 1, n))
            fractions.append(rng.random(n))
        start += HATS
    constant = np.zeros(width)
    constant[-1] = 1.0
    layout = Layout(columns, constant)
    return CodedRows(Table.of(layout, codes, fractions), layout)


def _entries(rows: Any, columns: Any, values: Any, levels: int, width: int) -> csr_array:
    found = csr_array((values, (rows, columns)), shape=(levels, width))
    found.sum_duplicates()
    found.eliminate_zeros()
    return found


def with_short_indices(X: csr_array) -> csr_array:
    """Places in 32 bits, as an encoder writes them."""
    places = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return csr_array((X.data, *places), shape=X.shape)


@contextmanager
def one_thread() -> Iterator[None]:
    """Passes on one thread: processor time adds up over threads."""
    before, fused.threads = fused.threads, lambda: 1
    try:
        yield
    finally:
        fused.threads = before


def with_passes(on: bool, work: Work) -> Work:
    """``work`` with compiled sums, or without."""

    def done() -> Any:
        before = compiled.in_use()
        compiled.use(on)
        try:
            return work()
        finally:
            compiled.use(before)

    return done


def sums(n: int) -> list[Line]:
    """One clipped gradient over n rows, and eight candidates of a line search."""
    rng = np.random.default_rng(0)
    levels, exact = made_rows(n, True, rng), made_rows(n, False, rng)
    y, c = rng.choice([-1.0, 1.0], n), rng.normal(size=n)
    X = with_short_indices(exact.X)
    turned = X.T
    w, W = rng.normal(size=X.shape[1]) / 4, rng.normal(size=(CANDIDATES, X.shape[1])) / 8
    kinds: dict[str, Any] = {
        "levels": levels,
        "fractions": exact,
        "sparse": X,
        "sparse, single": X.astype(np.float32),
    }
    made = {name: LinearObjective(rows, y, Logistic()) for name, rows in kinds.items()}
    with one_thread():
        works: dict[str, Work] = {"two products": lambda: (X @ w, turned @ c)}
        for name, sums_of in made.items():
            works[f"{name}, numpy"] = with_passes(False, partial(sums_of.gradient_sum, w, 0.5))
            if compiled.available():
                works[name] = with_passes(True, partial(sums_of.gradient_sum, w, 0.5))
        found = best(works)
        base = found.pop("two products")
        lines = [
            line(f"gradient, {name}", "scipy's two products", t / base, t / n * 1e9)
            for name, t in found.items()
        ]
        if compiled.available():
            searched = best(
                {
                    "today": with_passes(False, lambda: made["sparse"].value_sum(W, 1.0)),
                    "coded": with_passes(True, lambda: made["levels"].value_sum(W, 1.0)),
                },
                3,
            )
            what = "8 candidates, coded", "numpy and scipy on the matrix"
            lines.append(compared(what, searched, "coded", "today", n))
    return lines


def dense(n: int) -> list[Line]:
    """One clipped gradient of dense single-precision rows, to reading them once."""
    rng = np.random.default_rng(1)
    X = rng.random((n, DENSE_COLUMNS), dtype=np.float32)
    made = LinearObjective(X, rng.choice([-1.0, 1.0], n), Logistic())
    w, flat = rng.normal(size=DENSE_COLUMNS), X.reshape(-1).view(np.uint64)
    _ = made.rows.norms
    works: dict[str, Work] = {
        "read": lambda: np.bitwise_xor.reduce(flat),
        "numpy": with_passes(False, lambda: made.gradient_sum(w, 0.5)),
    }
    if compiled.available():
        works["compiled"] = with_passes(True, lambda: made.gradient_sum(w, 0.5))
    with one_thread():
        found = best(works)
    base = found.pop("read")
    return [
        line(f"dense gradient, {name}", "reading the rows once", t / base, t / n * 1e9)
        for name, t in found.items()
    ]


def together(n: int) -> list[Line]:
    """Two threads to one, by the clock, coded rows and dense ones; nothing on one processor."""
    if not compiled.available() or fused.threads() < 2:
        return []
    rng = np.random.default_rng(1)
    kinds: dict[str, Any] = {
        "coded": made_rows(n, False, rng),
        "dense": rng.random((n, DENSE_COLUMNS), dtype=np.float32),
    }
    lines = []
    for name, rows in kinds.items():
        made = LinearObjective(rows, rng.choice([-1.0, 1.0], n), Logistic())
        w = rng.normal(size=made.dimension)
        ask = partial(fused.gradient, made.rows, made.y, made.loss, w, 0.5)
        works = {str(k): with_passes(True, partial(ask, workers=k)) for k in (1, 2)}
        found = best(works, 5, perf_counter)
        ratio = found["2"] / found["1"]
        what = f"{name} gradient, two threads"
        lines.append(line(what, "one thread", ratio, found["2"] / n * 1e9))
    return lines


def accounting() -> list[Line]:
    """The price of one sampled step at every order to that by dp-accounting; nanoseconds are of an
    order.
    """
    from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    problem = Problem(n=10_000, dimension=5, loss=Logistic(), norm_bound=1.0)
    given = {"sampling_rate": 0.01, "steps": 1000}
    planned = plan("dp_sgd", given, problem, Target(1.0, 1e-6, "cks", "rdp"))
    [(mechanism, steps)] = planned.events.counts
    event = PoissonSampledDpEvent(0.01, GaussianDpEvent(planned.algorithm.noise_multiplier))
    orders = [float(order) for order in ORDERS]
    found = best(
        {
            "ours": lambda: mechanism.rdp(ORDERS),
            "other": lambda: RdpAccountant(orders).compose(event, steps),
        },
        3,
    )
    what = "price of sampled steps", "dp-accounting"
    return [compared(what, found, "ours", "other", len(ORDERS))]


def ranking(sessions: int) -> list[Line]:
    """One clipped gradient over made-up sessions, to two products with their documents."""
    table = search(sessions)
    X = np.column_stack([table[f"feature_{k}"] for k in range(1, FEATURES + 1)])
    parts = Sessions.from_rows(X, table["grade"], table["query"])
    made = SessionObjective(parts, ListNet())
    rng = np.random.default_rng(6)
    w, c = rng.normal(size=made.dimension), rng.normal(size=len(X))
    found = best(
        {"two products": lambda: (X @ w, c @ X), "ours": lambda: made.gradient_sum(w, 0.5)}, 3
    )
    what = "ranking gradient", "two products with all documents"
    return [compared(what, found, "ours", "two products", len(X))]


def start() -> list[Line]:
    """The start of a training up to its price, by the clock, to importing what it computes with;
    nanoseconds are of the whole.
    """
    calls = {
        "plan": ["-m", "flows.cli", "plan", "--json"],
        "imports": ["-c", "import numpy, scipy.sparse, pandas, sklearn.linear_model"],
    }
    with TemporaryDirectory() as home:
        environment = {**os.environ, "DPFLOWS_HOME": home, "PYTHONPATH": os.pathsep.join(sys.path)}
        call = partial(subprocess.run, env=environment, check=True, capture_output=True)
        works = {name: partial(call, [sys.executable, *words]) for name, words in calls.items()}
        found = best(works, 2, perf_counter)
    what = "start of a training", "importing numpy, scipy, pandas, scikit-learn"
    return [compared(what, found, "plan", "imports", 1)]


def encoding(n: int) -> list[Line]:
    """A frame of declared columns to codes, and to the sparse matrix."""
    rng = np.random.default_rng(3)
    texts = [f"v{k}" for k in range(LEVELS)]
    frame = pd.DataFrame(
        {
            f"c{j}": pd.Categorical.from_codes(rng.integers(0, LEVELS, n), pd.Index(texts))
            for j in range(CATEGORIES)
        }
        | {f"x{j}": rng.random(n) for j in range(NUMBERS)}
    )
    columns = [
        Column(name=f"c{j}", kind="categorical", levels=tuple(texts)) for j in range(CATEGORIES)
    ]
    columns += [Column(name=f"x{j}", low=0, high=1) for j in range(NUMBERS)]
    encoder = Encoder(columns, normalise="none", numeric="hats(8)", sparse=True)
    coding = Coding.of(encoder)
    assert coding is not None
    found = best(
        {
            "matrix": lambda: encoder.transform(frame),
            "codes": lambda: coding.table(frame, EncodingReport()),
        },
        3,
    )
    what = "encoding to codes", "encoding to a matrix"
    return [compared(what, found, "codes", "matrix", n)]


def scaling(sizes: tuple[int, ...]) -> list[Line]:
    """Nanoseconds a row of one pass against n: a straight line through the origin is what a pass
    should be.
    """
    lines = []
    for n in sizes:
        made = LinearObjective(
            made_rows(n, False, np.random.default_rng(4)), np.ones(n), Logistic()
        )
        w = np.random.default_rng(5).normal(size=made.dimension)
        t = best({"pass": with_passes(True, partial(made.gradient_sum, w, 0.5))}, 3, perf_counter)[
            "pass"
        ]
        lines.append(line(f"pass over {n:,} rows", "", None, t / n * 1e9))
    return lines


def line(what: str, to: str, ratio: float | None, nanoseconds: float) -> Line:
    """One measured line; nanoseconds are for a row."""
    return {
        "what": what,
        "to": to,
        "ratio": None if ratio is None else round(ratio, 3),
        "ns_a_row": round(nanoseconds, 1),
    }


def compared(
    what: tuple[str, str], found: Mapping[str, float], of: str, beside: str, n: int
) -> Line:
    """The seconds of the work ``of`` to those of the one ``beside`` it, for n rows."""
    return line(*what, found[of] / found[beside], found[of] / n * 1e9)
