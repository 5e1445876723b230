"""Tables, figures and page of a comparison, attached to its parent run."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from tasks.compare.cell import Record
from tasks.compare.export import write
from tasks.compare.figures import draw
from tasks.compare.page import write_page
from tasks.statement import software

PAGE = "comparison.html"


def report(
    client: MlflowClient, run_id: str, folder: Path, records: Sequence[Record], facts: Mapping[str, Any]
) -> list[str]:
    """Write tables, figures and page to ``folder``, attach them under report/ and remove the folder; returns names."""
    folder.mkdir(parents=True, exist_ok=True)
    write(records, facts, folder)
    write_page(records, facts, draw(records, folder, facts), folder / PAGE)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    client.log_artifacts(run_id, str(folder), "report")
    shutil.rmtree(folder)
    return names


def machine() -> dict[str, Any]:
    """What the seconds were measured on."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": software(),
    }
