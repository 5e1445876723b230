"""Imports point one way, flows -> tasks -> dpcore, and each library stays in its room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Libraries that only the named modules of dpcore may import.
ROOMS = {
    "pandas": (
        "dpcore/preprocess",
        "dpcore/features",
        "dpcore/synthetic",
        "dpcore/preprocess/design.py",
        "dpcore/estimators",
    ),
    "sklearn": ("dpcore/estimators", "dpcore/preprocess", "dpcore/features", "dpcore/metrics"),
    "dp_accounting": ("dpcore/accounting/exact.py",),
    "numba": ("dpcore/objective/kernels.py",),
    "torch": ("dpcore/network",),
    "randomgen": ("dpcore/noise.py",),
    "cryptography": ("dpcore/noise.py",),
}
NEVER_IN_DPCORE = {
    "prefect",
    "mlflow",
    "sqlalchemy",
    "tasks",
    "flows",
    "typer",
    "rich",
    "pydantic",
    "yaml",
}


def imports(path: Path) -> set[str]:
    """Top-level names that a module imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", modules("dpcore"), ids=lambda p: str(p.relative_to(ROOT)))
def test_dpcore_knows_nothing_of_what_stands_above_it(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    used = imports(path)
    assert not used & NEVER_IN_DPCORE
    for library, rooms in ROOMS.items():
        assert library not in used or place.startswith(rooms), f"{place} imports {library}"


@pytest.mark.parametrize("path", modules("tasks"), ids=lambda p: str(p.relative_to(ROOT)))
def test_tasks_do_not_import_flows(path: Path) -> None:
    assert "flows" not in imports(path)


def test_constraints_hold_no_address() -> None:
    assert "://" not in (ROOT / "conf" / "constraints.txt").read_text(encoding="utf-8")


def test_nothing_logs_to_the_active_mlflow_run() -> None:
    for package in ("tasks", "flows"):
        for path in modules(package):
            text = path.read_text(encoding="utf-8")
            assert "mlflow.log_" not in text, f"{path} logs to whatever run happens to be active"
            assert "mlflow.start_run" not in text, f"{path} opens a run that a thread may lose"
