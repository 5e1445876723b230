"""``dpflows ui --report``: the report of a run, written to a file and shown."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from pathlib import Path

from dpcore.errors import InputError
from tasks.home import Home


def show_report(run: str | None, as_json: bool) -> None:
    """Write the report of ``run`` (default: the latest training), print where it is, and open a browser if one is.

    Raises ``InputError`` for a run that is none, or has no statement.
    """
    home = Home.find().prepare()
    from tasks.report.store import write_report
    from tasks.tracking import tracking_client

    name, path = write_report(tracking_client(home), run, home.root / "reports")
    if as_json:
        sys.stdout.write(json.dumps({"schema_version": 1, "run_id": name, "report": str(path)}) + "\n")
        return
    sys.stdout.write(f"{path}\n")
    sys.stdout.flush()
    if has_display():
        open_page(path)


def has_display() -> bool:
    """Whether somebody sits at a screen: a terminal to the command, and a display that a browser could use."""
    screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.stdout.isatty() and bool(screen)


def open_page(path: Path) -> None:
    """Open the browser of the desktop; without one the printed path is enough."""
    try:
        webbrowser.open(path.as_uri())
    except webbrowser.Error:
        return


def require_report(run: str | None, report: bool) -> None:
    """Raise ``InputError`` for a run that is named without asking for its report."""
    if run is not None and not report:
        raise InputError(
            f"Expected --report with a run, got {run!r} alone; `dpflows ui --report {run}` shows its report."
        )
