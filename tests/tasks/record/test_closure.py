"""A finished cell is kept while nothing that it was computed with has changed, and undone when
something has.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.compare import resume
from tasks.home import Home
from tasks.record import sources as record_sources
from tasks.record.sources import LIBRARIES, ROOT, code_version, source_digest
from tests.tasks.compare.test_engine import comparison_of

Sources = Path

# What computes or decides about a number of a record, each with a fault of its own in the past.
RELATED = (
    *(
        "tasks/kinds/quality.py",
        "tasks/kinds/base.py",
        "tasks/kinds/sessions.py",
        "tasks/kinds/network.py",
    ),
    *("tasks/training/__init__.py", "tasks/kinds/table.py", "tasks/compare/baselines.py"),
    *(
        "tasks/compare/variants.py",
        "tasks/compare/grid.py",
        "tasks/compare/cell.py",
        "tasks/compare/folds.py",
    ),
    *(
        "dpcore/metrics.py",
        "dpcore/algorithms/dp_sgd.py",
        "dpcore/algorithms/non_private.py",
        "tasks/data/load.py",
    ),
    *(
        "tasks/readers/text.py",
        "tasks/schema/model.py",
        "dpcore/__init__.py",
        "tasks/compare/__init__.py",
    ),
)
UNRELATED = (
    *("flows/cli.py", "flows/compare.py", "tasks/compare/figures.py", "tasks/compare/page.py"),
    *("tasks/compare/statistics.py", "tasks/release/manifest.py", "tasks/report/page.py"),
)
# Libraries that sources of a cell import and that no number goes through.
NO_NUMBERS = (
    "dask",
    "distributed",
    "fsspec",
    "matplotlib",
    "mlflow",
    "psutil",
    "pydantic",
    "safetensors",
    "sqlalchemy",
    "threadpoolctl",
    "yaml",
)
DISTRIBUTIONS = {"sklearn": "scikit-learn", "dp_accounting": "dp-accounting"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """A copy of the program's sources."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("dpcore", "tasks", "flows"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def before(sources: Sources) -> str:
    """The hash of the copy as it is."""
    return source_digest(sources)


def changed_by(sources: Sources, name: str, before: str) -> bool:
    """Whether one more line in a file gives another hash."""
    file = sources / name
    text = file.read_text()
    try:
        file.write_text(text + "\n# edited\n")
        return source_digest(sources) != before
    finally:
        file.write_text(text)


@pytest.mark.parametrize("name", RELATED)
def test_an_edit_of_what_computes_a_cell_undoes_it(
    sources: Sources, name: str, before: str
) -> None:
    assert changed_by(sources, name, before)


@pytest.mark.parametrize("name", UNRELATED)
def test_an_edit_elsewhere_keeps_cells(sources: Sources, name: str, before: str) -> None:
    assert not changed_by(sources, name, before)


def test_a_new_algorithm_is_in_the_closure(sources: Sources, before: str) -> None:
    file = sources / "dpcore" / "algorithms" / "newest.py"
    file.write_text("X = 1\n")
    try:
        assert source_digest(sources) != before
    finally:
        file.unlink()


def test_the_closure_is_what_python_imports() -> None:
    """Every module of ours that a fresh interpreter has loaded after importing the entry is in the
    closure.
    """
    code = (
        f"import sys, {record_sources.ENTRY}; print(*(n for n in sys.modules if n.split('.')[0] in "
        "('dpcore', 'tasks')))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "tasks.training" in loaded
    assert set(loaded) <= set(record_sources.closure())


@pytest.mark.parametrize("library", LIBRARIES)
def test_another_version_of_a_library_undoes_cells(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = code_version()
    whole = record_sources.installed
    monkeypatch.setattr(
        record_sources, "installed", lambda name: "0.0.1" if name == library else whole(name)
    )
    code_version.cache_clear()
    try:
        assert code_version() != before
    finally:
        code_version.cache_clear()


def test_every_library_of_the_closure_is_named_or_has_no_numbers() -> None:
    seen = set()
    for name, file in record_sources.closure().items():
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        seen |= {
            found.partition(".")[0] for found in record_sources.names_in(file.read_bytes(), package)
        }
    others = {
        name
        for name in seen
        if name not in sys.stdlib_module_names and name not in ("dpcore", "tasks")
    }
    assert {DISTRIBUTIONS.get(name, name) for name in others} <= {*LIBRARIES, *NO_NUMBERS}


def test_relative_and_guarded_imports_are_read() -> None:
    text = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a.b\nelse:\n    import "
        "c\nfrom . import d\nfrom ..e import f\ndef g():\n    from h import i\n"
    )
    found = list(record_sources.imported(ast.parse(text), "p.q"))
    assert found == [
        "typing",
        "typing.TYPE_CHECKING",
        "c",
        "p.q",
        "p.q.d",
        "p.e",
        "p.e.f",
        "h",
        "h.i",
    ]


def test_cells_of_other_code_are_run_again(
    small: Path, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [cell.key for cell in resume.make_comparison(comparison_of(small), home).cells]
    assert [cell.key for cell in resume.make_comparison(comparison_of(small), home).cells] == keys
    monkeypatch.setattr(resume, "code_version", lambda: "another")
    assert not {
        cell.key for cell in resume.make_comparison(comparison_of(small), home).cells
    } & set(keys)
