"""The one folder that everything of this project is written to, and the environment that keeps it
there.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dpcore.errors import InputError

PRIVATE_FOLDER = 0o700
UI_FILE = "ui.json"  # where `dpflows ui` says under which address MLflow answers
# Nothing is told to the makers of the libraries: what a flow is called and how often it runs is
# nobody's business. Prefect's server asks its own switch alone, whatever ``DO_NOT_TRACK`` says.
SILENCE = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}
# How long Prefect waits for a server that it starts itself, in a script: 20 seconds are too few for
# a new store.
PATIENCE = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}
# The configuration files of the installed package. They lie beside it: the first ``conf`` on
# Python's path may be a folder of the user's.
CONF = Path(__file__).resolve().parents[1] / "conf"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths below ``root`` (``./runs``, or ``DPFLOWS_HOME``): MLflow, Prefect, ledger, unfinished
    models.
    """

    root: Path

    @classmethod
    def find(cls, environ: Mapping[str, str] | None = None) -> Home:
        """The folder that ``DPFLOWS_HOME`` names, else ``runs`` in the working directory; nothing
        is created. Raises ``InputError`` where a file has that name.
        """
        environ = os.environ if environ is None else environ
        found = cls(Path(environ.get("DPFLOWS_HOME") or "runs").expanduser().absolute())
        found._require_folder()
        return found

    @property
    def prefect(self) -> Path:
        return self.root / "prefect"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def outbox(self) -> Path:
        """Trained models between the ledger's commit and MLflow's confirmation; empty when all went
        well.
        """
        return self.root / "outbox"

    @property
    def tracking_uri(self) -> str:
        return sqlite_url(self.root / "mlflow.db")

    @property
    def ledger_url(self) -> str:
        return sqlite_url(self.root / "ledger.db")

    def environment(self) -> dict[str, str]:
        """Variables that keep Prefect and MLflow inside ``root``, silent towards the network and
        free of pickle.
        """
        return {
            "PREFECT_HOME": str(self.prefect),
            "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
            **SILENCE,
            **PATIENCE,
            **self._guards(),
        }

    def _guards(self) -> dict[str, str]:
        return {
            "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MPLCONFIGDIR": str(self.root / "matplotlib"),
        }

    def defaults(self) -> dict[str, str]:
        """Variables that a user may set otherwise: a shared MLflow server, how much Prefect
        says.
        """
        return {
            "MLFLOW_TRACKING_URI": self.tracking_uri,
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "PREFECT_LOGGING_SERVER_LEVEL": "ERROR",
            "MLFLOW_LOGGING_LEVEL": "WARNING",
        }

    @contextmanager
    def adopted(self) -> Iterator[Home]:
        """This home for the length of a flow, whoever calls it: a command, a script, another flow
        or a worker.

        Makes the folders for their owner alone and sets what MLflow reads while it runs, as the
        commands do. Prefect stays where the caller has it. The environment is put back at the end,
        so that a flow in another folder has another home. Raises ``InputError`` where the folder
        cannot be made.
        """
        self._make_folders(self.root, self.artifacts, self.outbox)
        silence()
        wanted = self._guards()
        wanted |= {
            name: value for name, value in self.defaults().items() if not os.environ.get(name)
        }
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield self
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _require_folder(self) -> None:
        there = next(place for place in (self.root, *self.root.parents) if place.exists())
        if not there.is_dir():
            raise InputError(
                f"Expected a folder for DPFLOWS_HOME, got the file {there}; name another folder."
            )

    def _make_folders(self, *folders: Path) -> None:
        self._require_folder()
        for folder in folders:
            make_private(folder)

    def prepare(self) -> Home:
        """Create the folders for their owner alone (0700) and set the environment; call it before
        Prefect is imported.

        Raises ``InputError`` where the folder cannot be made.
        """
        self._make_folders(self.root, self.prefect, self.artifacts, self.outbox)
        os.environ.update(self.environment())
        for name, value in self.defaults().items():
            os.environ.setdefault(name, value)
        return self


def silence() -> None:
    """Turn off what Prefect and MLflow would tell their makers, in a process that has imported them
    already too.
    """
    os.environ.update(SILENCE)
    if telemetry := sys.modules.get("mlflow.telemetry.client"):
        telemetry.set_telemetry_client()  # disabled by now, which makes it none


def make_private(folder: Path) -> None:
    """Create ``folder`` with its parents; only the owner may enter it, also where it existed with
    wider rights.
    """
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid():
            folder.chmod(PRIVATE_FOLDER)
    except OSError as error:
        raise InputError(
            f"Expected a folder that can be written at {folder}, got {error.strerror}; set "
            "DPFLOWS_HOME."
        ) from error


@contextmanager
def one_at_a_time(home: Home, what: str) -> Iterator[None]:
    """One process at a time of those that use ``home``; the second waits."""
    home.root.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
    with (home.root / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{path.as_posix()}"


def tracking_page(home: Home) -> str:
    """The address of MLflow's pages: a server's own, that of `dpflows ui`, or its default one."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if urlsplit(uri).scheme in ("http", "https"):
        return uri.rstrip("/")
    try:
        return str(json.loads((home.root / UI_FILE).read_text())["mlflow"])
    except (OSError, ValueError, KeyError):
        return "http://127.0.0.1:5000"


def write_whole(path: Path, text: str) -> None:
    """Write ``path`` so that it is there whole or not at all, on disk when this returns."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    sync(beside)
    beside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have a file, or the names of a folder, on disk when this returns."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
