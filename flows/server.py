"""The local Prefect server of one command: started early, found again when one runs already,
stopped at the end.

Prefect can start such a server by itself, but only after it was imported and with its log on our
standard error. Started here, it comes up while the other libraries are imported, and its log goes
to a file.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener
from uuid import uuid4

from dpcore.errors import DPFlowsError
from tasks.home import Home
from tasks.stores import ensure_stores

STARTUP_SECONDS = 120.0
# What the stores of a first run take, several times over, in bytes.
LEAST_FREE = 20 * 10**6
# What `dpflows ui --prefect` leaves behind, so that a training beside it needs no server of its
# own.
ADDRESS_FILE = "server.json"
# The folder of the flow runs whose process lives.
FLOWS = "flows"

# Uvicorn, which ends when its standard input does: with this process, even where that is killed
# outright.
SERVE = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
from uvicorn.main import main
main()
"""

# A proxy of the environment must not see requests to this machine.
_local = build_opener(ProxyHandler({}))


def free_port() -> int:
    """A port of 127.0.0.1 that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def get_json(url: str, body: object = None, timeout: float = 2.0) -> object:
    """GET, or POST with a ``body``, from a server on this machine; raises ``OSError`` when it does
    not answer.
    """
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json"})
    with _local.open(request, timeout=timeout) as answer:
        return json.load(answer)


def healthy(api: str) -> bool:
    """Whether a Prefect server answers at ``api``."""
    try:
        return get_json(f"{api}/health") is True
    except (OSError, ValueError):
        return False


def end_flow_run(flow_run: str) -> bool:
    """Tell Prefect that the process of ``flow_run`` is gone: it would stay RUNNING for ever after a
    kill -9. Whether it was told, or knows no such run.

    A server that does not answer is left alone.
    """
    api = os.environ.get("PREFECT_API_URL")
    if not api or not flow_run:
        return False
    state = {
        "type": "CRASHED",
        "name": "Crashed",
        "message": "its process ended without closing it",
    }
    try:
        get_json(f"{api}/flow_runs/{flow_run}/set_state", {"state": state, "force": True})
    except HTTPError as error:
        return error.code == 404
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def living(home: Home, flow_run: str) -> Iterator[None]:
    """Keep on disk whose process runs ``flow_run``, for as long as it does: one that is killed
    before it opens an MLflow run leaves nothing else.
    """
    if not flow_run:
        yield
        return
    from tasks.ledger.reservation import this_process

    place = home.root / FLOWS / f"{flow_run}.json"
    place.parent.mkdir(mode=0o700, exist_ok=True)
    place.write_text(json.dumps(this_process()), encoding="utf-8")
    try:
        yield
    finally:
        place.unlink(missing_ok=True)


def end_gone(home: Home) -> list[str]:
    """End the flow runs in ``home`` whose process is certainly gone; returns them."""
    from tasks.ledger.reservation import is_gone

    ended = []
    for place in sorted((home.root / FLOWS).glob("*.json")):
        with suppress(OSError, ValueError, KeyError):
            if is_gone(json.loads(place.read_text(encoding="utf-8"))) and end_flow_run(place.stem):
                place.unlink(missing_ok=True)
                ended.append(place.stem)
    return ended


def tell_released(home: Home, data: str, payload: dict[str, object]) -> None:
    """The event ``dpflows.released`` of a data set, to a Prefect server that runs; else nothing.

    Written without Prefect, whose import takes longer than a release.
    """
    api = os.environ.get("PREFECT_API_URL") or running_address(home)
    if not api:
        return
    about = {"prefect.resource.id": f"dpflows.data.{data}", "prefect.resource.name": data}
    event = {
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "dpflows.released",
        "resource": {**about, "dpflows.data": data},
        "payload": payload,
    }
    with suppress(OSError, ValueError):
        get_json(f"{api}/events", [event])


def require_space(folder: Path) -> None:
    """Raise ``DPFlowsError`` where the disk of ``folder`` is too full for the stores of a run;
    nothing was spent.
    """
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE:
        raise DPFlowsError(
            f"Expected at least {LEAST_FREE // 10**6} MB free for Prefect, MLflow and the ledger, "
            f"got {free / 1e6:.1f} MB in {folder}; free some, or name another folder in "
            "DPFLOWS_HOME. Nothing was spent."
        )


def reachable(url: str) -> bool:
    """Whether something answers ``url`` with success."""
    try:
        with _local.open(url, timeout=2.0):
            return True
    except OSError:
        return False


def is_free(port: int) -> bool:
    """Whether ``port`` of 127.0.0.1 can be taken now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def running_address(home: Home) -> str | None:
    """The address of a server that ``dpflows ui --prefect`` keeps on this store, if it answers."""
    try:
        api = json.loads((home.prefect / ADDRESS_FILE).read_text())["api"]
    except (OSError, ValueError, KeyError):
        return None
    return api if healthy(api) else None


class LocalServer:
    """A Prefect server on 127.0.0.1 for the length of a ``with`` block; ``ready()`` waits until it
    answers.

    Nothing is started where ``PREFECT_API_URL`` names a server, or where one runs on this store
    already.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        self.log = home.prefect / "server.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.api = os.environ.get("PREFECT_API_URL") or running_address(home)

    def __enter__(self) -> LocalServer:
        if self.api is None:
            require_space(self.log.parent)
            ensure_stores(self.home)
            port = free_port()
            self.api = f"http://127.0.0.1:{port}/api"
            self.process = _start(port, self.log)
        os.environ["PREFECT_API_URL"] = self.api
        return self

    def ready(self) -> None:
        """Wait for the server; raises ``DPFlowsError`` when it dies or does not answer in time.

        One that ``PREFECT_API_URL`` names on this machine must answer now; others are Prefect's
        affair.
        """
        if self.process is None:
            if urlsplit(str(self.api)).hostname in ("127.0.0.1", "localhost") and not healthy(
                str(self.api)
            ):
                raise DPFlowsError(
                    f"Expected a Prefect server at PREFECT_API_URL={self.api}, which does not "
                    "answer; start it, or unset the variable: a local server is then started."
                )
            return
        give_up = time.monotonic() + STARTUP_SECONDS
        while not healthy(str(self.api)):
            if self.process.poll() is not None or time.monotonic() > give_up:
                require_space(self.log.parent)
                raise DPFlowsError(
                    "Expected Prefect's local server to start, but it did not; its log is "
                    f"{self.log}."
                )
            time.sleep(0.05)

    def drain(self, flow_run_id: str, seconds: float = 3.0) -> None:
        """Wait until the server has recorded the end of a flow's tasks: they reach it as events, a
        moment late.
        """
        give_up = time.monotonic() + seconds
        unfinished: dict[str, object] = {
            "flow_runs": {"id": {"any_": [flow_run_id]}},
            "task_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}},
        }
        while time.monotonic() < give_up:
            try:
                if get_json(f"{self.api}/task_runs/count", unfinished) == 0:
                    return
            except (OSError, ValueError, URLError):
                return
            time.sleep(0.1)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process is None:
            return
        os.environ.pop("PREFECT_API_URL", None)
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


def _start(port: int, log: Path) -> subprocess.Popen[bytes]:
    """Start what Prefect itself starts when no server is configured: the API without UI and without
    schedulers.
    """
    command = [sys.executable, "-c", SERVE, "--factory", "prefect.server.api.server:create_app"]
    options = [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--log-level",
        "error",
        "--lifespan",
        "on",
    ]
    environment = {
        **os.environ,
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
        "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    }
    with log.open("ab") as sink:
        # Its own session: an interrupt at the keyboard ends the flow first, which still needs the
        # server to say so.
        return subprocess.Popen(
            command + options,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
