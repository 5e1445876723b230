"""Measure what trainings take by the number of rows and of columns, and draw it.

``python docs/scaling.py measure FOLDER [PATTERN]`` trains in a process of its own for each cell of
``cells()`` that is not yet in ``docs/data/machine/scaling.csv`` (and whose name has PATTERN in it),
on made-up Parquet parts under FOLDER, which go as soon as they are read. ``python docs/scaling.py
draw`` fits a line to each algorithm and writes ``docs/images/scaling.png`` and the tables of
``docs/benchmarks.md``. Seconds are of the processor, workers of a cluster included; memory is
anonymous memory, which mapped files are not.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).resolve().parent
CELLS = HERE / "data" / "machine" / "scaling.csv"
PICTURE = HERE / "images" / "scaling.png"
PAGE = HERE / "benchmarks.md"
MARK = "<!-- python docs/scaling.py draw -->"
END = "<!-- drawn -->"
LEVELS = [f"l{k:02d}" for k in range(12)]
ROWS = (50_000, 160_000, 500_000, 1_600_000, 5_000_000)
MOST, COLUMNS, AT = 50_000_000, (7, 28, 56, 112), 500_000
PART = 1_000_000
ALGORITHMS: dict[str, dict[str, Any]] = {
    "scaled_gd": {"name": "scaled_gd", "steps": 32, "sampling_rate": 1.0},
    "scaled_gd at rate 1/16": {"name": "scaled_gd", "steps": 256, "sampling_rate": 0.0625},
    "dp_sgd at rate 1/16": {"name": "dp_sgd", "steps": 256, "sampling_rate": 0.0625},
    "dp_agd": {"name": "dp_agd", "rounds": 16},
    "output_gd": {"name": "output_gd", "steps": 32},
    "objective_perturbation": {"name": "objective_perturbation"},
    "rsgd_ar": {"name": "rsgd_ar", "epochs": 8},
}
SUMMED = tuple(ALGORITHMS)[:4]
ENGINES = ("matrix", "codes", "shards", "dask")


@dataclass(frozen=True)
class Cell:
    engine: str
    algorithm: str
    n: int
    columns: int

    @property
    def name(self) -> str:
        return f"{self.engine}/{self.algorithm}/{self.n}/{self.columns}"


@dataclass(frozen=True)
class Found:
    """Seconds of the processor to encode and to train, passes over the rows, MB of anonymous memory
    (of the process, and of the largest worker), columns of the encoded table.
    """

    encode_seconds: float
    train_seconds: float
    passes: float
    memory_mb: float
    worker_mb: float
    width: int


def cells() -> list[Cell]:
    """By rows at 14 columns, by columns at 500,000 rows."""
    found = [
        Cell(engine, name, n, 14)
        for n in ROWS
        for engine in ENGINES
        for name in ALGORITHMS
        if name in SUMMED or (engine == "matrix" and n <= 2_000_000)
    ]
    found += [Cell(engine, "scaled_gd", AT, columns) for columns in COLUMNS for engine in ENGINES]
    return [
        *found,
        Cell("shards", "scaled_gd", 16_000_000, 14),
        Cell("shards", "scaled_gd", MOST, 14),
    ]


def make(folder: Path, n: int, columns: int) -> Path:
    """Parquet parts of categories and numbers, 4 to 3, and their schema; its path."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = folder / f"rows-{n}-{columns}.yaml"
    parts = folder / schema.stem
    if schema.exists():
        return schema
    parts.mkdir(parents=True, exist_ok=True)
    categories, count = round(columns * 4 / 7), max(2, -(-n // PART))
    names = [f"{'c' if k < categories else 'x'}{k:03d}" for k in range(columns)]
    for part in range(count):
        place = parts / f"part-{part:03d}.parquet"
        if place.exists():
            continue
        rng, rows = np.random.default_rng([n, part]), n // count + (part < n % count)
        table, score = {}, np.zeros(rows)
        for name in names:
            if name.startswith("c"):
                code = rng.integers(0, 12, rows, dtype=np.int32)
                table[name] = pa.DictionaryArray.from_arrays(pa.array(code), pa.array(LEVELS))
                score += 0.2 * (code % 3 - 1.0)
            else:
                table[name] = 100 * rng.random(rows)
                score += table[name] / 100 - 0.5
        said = np.where(score + rng.logistic(size=rows) > 0, "yes", "no")
        table["y"] = pa.array(said).dictionary_encode()
        pq.write_table(pa.table(table), place.with_suffix(".new"), row_group_size=2**20)
        place.with_suffix(".new").rename(place)
    kinds = {
        name: {"kind": "categorical", "levels": LEVELS}
        if name.startswith("c")
        else {"kind": "numeric", "low": 0, "high": 100}
        for name in names
    }
    label = {"column": "y", "positive": "yes", "negative": "no"}
    told = {"schema_version": 1, "name": "rows", "public": {"n": n}, "columns": kinds}
    schema.write_text(yaml.safe_dump({**told, "label": label}))
    return schema


class Watch:
    """The largest anonymous memory of this process and of its workers, and processor time of both,
    looked at ten times a second.
    """

    def __init__(self) -> None:
        import psutil

        self.here, self.end = psutil.Process(), Event()
        self.memory = self.worker = self.beside = 0.0
        self.thread = Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self) -> None:
        while not self.end.wait(0.1):
            self.once()

    def once(self) -> float:
        """Seconds of the processor so far."""
        import psutil

        self.memory = max(self.memory, anonymous(self.here.pid))
        workers = 0.0
        for child in below(self.here.pid):
            try:
                times = psutil.Process(child).cpu_times()
                self.worker = max(self.worker, anonymous(child))
                workers += times.user + times.system
            except (psutil.Error, OSError):
                continue
        self.beside = max(self.beside, workers)
        return time.process_time() + self.beside


def below(pid: int) -> list[int]:
    """The processes that ``pid`` started, and those that they did; psutil would look at all of the
    machine for them, ten times a second.
    """
    try:
        told = [place.read_text() for place in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(child) for text in told for child in text.split()]
    return children + [one for child in children for one in below(child)]


def anonymous(pid: int) -> float:
    """MB of anonymous memory of a process."""
    told = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(told[1]) / 1024 if told else 0.0


def train(cell: Cell, schema: Path) -> Found:
    """Encode and train in this process, as ``dpflows train`` does between its charges."""
    from dpcore.objective import compiled
    from dpcore.train import run as fit
    from tasks import training
    from tasks.config import parse_config
    from tasks.kinds.engine import passes_of
    from tasks.readers.parts import parts_at

    if cell.engine == "codes":
        compiled.WORTH = 0.0
    relation = "add_remove" if cell.algorithm in SUMMED else "replace_one"
    values: dict[str, Any] = {
        "data": {"name": str(schema), "path": str(schema.with_suffix(""))},
        "privacy": {"delta": 1e-9, "adjacency": relation},
        "algorithm": ALGORITHMS[cell.algorithm],
    }
    if cell.algorithm not in SUMMED:
        values["objective"] = {"l2": 0.01}
    kinds = {"matrix": "memory", "shards": "shards", "dask": "dask"}
    if cell.engine in kinds:
        values["engine"] = {"kind": kinds[cell.engine]}
        if cell.engine == "dask":
            values["engine"]["workers"] = 2
    assert parts_at(schema.with_suffix(""))
    job = training.prepare(parse_config(values))
    planned = training.plan_training(job)
    watch = Watch()
    start = watch.once()
    run = training.read_run(job, planned)
    read = watch.once()
    sums = run.sums.open()
    ready = job.kind.runnable(planned, sums)
    if cell.engine != "dask":
        at = np.zeros(sums.dimension)  # passes are compiled once a machine, and kept
        sums.gradient_sum(at, 1.0), sums.value_sum(at, 1.0), sums.take(slice(0, 9))
    begun = watch.once()
    fit(ready, sums, seed=0, fixed_noise_seed=1)
    done = watch.once()
    watch.end.set()
    width, passes = job.problem.dimension, passes_of(planned)
    return Found(read - start, done - begun, passes, watch.memory, watch.worker, width)


def measure(folder: Path, pattern: str = "") -> None:
    """Fill in the cells that are not there, one process each."""
    CELLS.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    there = {Cell(e, a, int(n), int(c)).name for e, a, n, c, *_ in stored()}
    if not CELLS.exists():
        names = [field.name for kind in (Cell, Found) for field in fields(kind)]
        CELLS.write_text(",".join(names) + "\n")
    wanted = [cell for cell in cells() if cell.name not in there and re.search(pattern, cell.name)]
    wanted.sort(key=lambda cell: (cell.n, cell.columns))
    for k, cell in enumerate(wanted):
        if any([*map(str, astuple(cell))] == row[:4] for row in stored()):
            continue  # another process was quicker
        schema = make(folder, cell.n, cell.columns)
        call = [sys.executable, __file__, "cell", str(schema), json.dumps(astuple(cell))]
        home = {"DPFLOWS_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
        environment = {**os.environ, **home, "PYTHONPATH": str(HERE.parent)}
        done = subprocess.run(call, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.stderr.write(f"{cell.name}: ended with {done.returncode}\n")
        else:
            found = json.loads(done.stdout.splitlines()[-1])
            with CELLS.open("a", newline="") as file:
                csv.writer(file, lineterminator="\n").writerow(
                    [*astuple(cell), *(round(value, 3) for value in found)]
                )
        after = wanted[k + 1] if k + 1 < len(wanted) else None
        if after is None or (after.n, after.columns) != (cell.n, cell.columns):
            shutil.rmtree(schema.with_suffix(""))
            schema.unlink()


def stored() -> list[list[str]]:
    if not CELLS.exists():
        return []
    with CELLS.open(newline="") as file:
        return list(csv.reader(file))[1:]


def table() -> dict[tuple[str, str], list[tuple[int, Found]]]:
    """The cells by engine and algorithm, by rows, of 14 columns."""
    found: dict[tuple[str, str], dict[int, Found]] = {}
    for engine, algorithm, n, columns, *numbers in stored():
        if int(columns) == 14:
            cell = Found(*map(float, numbers[:5]), int(numbers[5]))
            found.setdefault((engine, algorithm), {})[int(n)] = cell
    return {key: sorted(cells.items()) for key, cells in found.items()}


def by_columns() -> dict[str, list[tuple[int, Found]]]:
    """Cells of ``scaled_gd`` at ``AT`` rows by engine, by columns, where there are several."""
    found: dict[str, dict[int, Found]] = {}
    for engine, algorithm, n, columns, *numbers in stored():
        if algorithm == "scaled_gd" and int(n) == AT:
            cell = Found(*map(float, numbers[:5]), int(numbers[5]))
            found.setdefault(engine, {})[int(columns)] = cell
    return {engine: sorted(cells.items()) for engine, cells in found.items() if len(cells) > 2}


def line(x: Any, y: Any) -> tuple[float, float, float]:
    """Constant and slope of y over x with equal relative errors, and the largest relative error."""
    X = np.stack([np.ones(len(x)), np.asarray(x, dtype=float)], axis=1)
    y = np.asarray(y, dtype=float)
    found = np.linalg.lstsq(X / y[:, None], np.ones(len(y)), rcond=None)[0]
    return float(found[0]), float(found[1]), float(np.max(np.abs(X @ found / y - 1.0)))


def slope(found: tuple[float, float, float]) -> str:
    """Microseconds a row of a fitted line; where rows are few beside the constant, none is seen."""
    return f"{1e6 * found[1]:.2f}" if found[1] > 0.0 else "lost in the start"


def page() -> str:
    """The table of fits: seconds and memory by rows."""
    rows = [
        "| sums by | algorithm | rows | to encode, us a row | to train, us a row | line misses by "
        "| memory, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for (engine, algorithm), cells_there in table().items():
        n, found = [k for k, _ in cells_there], [cell for _, cell in cells_there]
        if len(n) < 3:
            continue
        encode = line(n, [cell.encode_seconds for cell in found])
        train = line(n, [cell.train_seconds for cell in found])
        spread = f"{n[0]:,} to {n[-1]:,}"
        memory = f"{found[0].memory_mb:.0f} to {found[-1].memory_mb:.0f}"
        rows.append(
            f"| {engine} | {algorithm} | {spread} | {slope(encode)} | {slope(train)} | "
            f"{100 * train[2]:.0f} % | {memory} |"
        )
    return "\n".join(rows) + "\n" + page_by_columns()


def page_by_columns() -> str:
    """The same by columns, nothing where there are none."""
    rows = [
        f"\n| sums by, {AT:,} rows, `scaled_gd` | columns | to encode, s a column | to train, s a "
        "column | line misses by | memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    for engine, cells_there in by_columns().items():
        d, found = [k for k, _ in cells_there], [cell for _, cell in cells_there]
        encode = line(d, [cell.encode_seconds for cell in found])
        train = line(d, [cell.train_seconds for cell in found])
        memory = f"{found[0].memory_mb:.0f} to {found[-1].memory_mb:.0f}"
        rows.append(
            f"| {engine} | {d[0]} to {d[-1]} | {encode[1]:.3f} | {train[1]:.3f} | "
            f"{100 * train[2]:.0f} % | {memory} |"
        )
    return "\n".join(rows) + "\n" if len(rows) > 2 else ""


def draw() -> None:
    """Seconds to train and memory over rows, and seconds over columns, on logarithmic axes, with
    the fitted lines.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    from tasks.drawing.chart import looks

    seen = {key: found for key, found in table().items() if len(found) >= 3}
    shown = looks(f"{engine}: {algorithm}" for engine, algorithm in seen)
    figure, (left, right, wide) = plt.subplots(1, 3, figsize=(15, 5))
    for (engine, algorithm), found in seen.items():
        label = f"{engine}: {algorithm}"
        look, n = shown[label], np.array([k for k, _ in found])
        seconds = [cell.train_seconds for _, cell in found]
        constant, slope, _ = line(n, seconds)
        style = {"color": look.colour, "linewidth": 0.9}
        left.plot(n, seconds, look.marker, color=look.colour, markersize=4)
        left.plot(n, constant + slope * n, look.dash, **style)
        memory = [cell.memory_mb + cell.worker_mb for _, cell in found]
        right.plot(n, memory, look.dash, marker=look.marker, markersize=4, label=label, **style)
    columns = by_columns()
    styles = looks(columns)
    for engine, cells_there in columns.items():
        d, look = np.array([k for k, _ in cells_there]), styles[engine]
        seconds = [cell.train_seconds for _, cell in cells_there]
        constant, slope, _ = line(d, seconds)
        wide.plot(d, seconds, look.marker, color=look.colour, markersize=4, label=engine)
        wide.plot(d, constant + slope * d, look.dash, color=look.colour, linewidth=0.9)
    for panel, over, name in (
        (left, "rows", "seconds to train"),
        (right, "rows", "anonymous memory, MB"),
        (wide, "columns of the table", f"seconds to train {AT:,} rows, scaled_gd"),
    ):
        panel.set(xscale="log", yscale="log", xlabel=over, ylabel=name)
        panel.grid(alpha=0.3)
    if columns:
        wide.legend(fontsize=6.5)
    right.legend(fontsize=6.5)
    figure.tight_layout()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)
    head, rest = PAGE.read_text(encoding="utf-8").partition(MARK)[::2]
    after = rest.partition(END)[2] if END in rest else "\n\n" + rest.partition("\n\n")[2]
    PAGE.write_text(f"{head}{MARK}\n{page()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "measure":
        measure(Path(given[0]), *given[1:])
    elif what == "draw":
        draw()
    elif what == "cell":
        sys.stdout.write(
            json.dumps(astuple(train(Cell(*json.loads(given[1])), Path(given[0])))) + "\n"
        )
