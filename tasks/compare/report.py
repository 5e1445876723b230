"""Tables, figures and page of a comparison, attached to its parent run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow import MlflowClient

from tasks.compare.cell import CellRecord
from tasks.compare.export import write, write_frame
from tasks.compare.figures import draw
from tasks.compare.page import write_page
from tasks.compare.ratios import ratios, rows_of

PAGE = "comparison.html"


def report(
    client: MlflowClient, run_id: str, folder: Path, records: Sequence[CellRecord], facts: Mapping[str, Any]
) -> list[str]:
    """Write tables, figures and page to ``folder``, attach them under report/ and remove the folder; returns names."""
    folder.mkdir(parents=True, exist_ok=True)
    write(records, facts, folder)
    if beside := rows_of(ratios(records, facts)):
        write_frame(pd.DataFrame(beside), folder / "ratios")
    write_page(records, facts, draw(records, folder, facts), folder / PAGE)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    client.log_artifacts(run_id, str(folder), "report")
    shutil.rmtree(folder)
    return names
