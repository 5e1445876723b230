"""A library in an interpreter of its own: started once, asked one thing at a time, ended by us."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import numpy as np

WORKER = Path(__file__).with_name("worker.py")
STARTUP_SECONDS = 180.0
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_running: dict[tuple[str, str], PeerProcess] = {}
_missing: dict[tuple[str, str], str] = {}
_lock = threading.Lock()


class PeerError(Exception):
    """A library could not be imported, failed in a training or did not answer in time."""


class PeerProcess:
    """One library in one interpreter. Requests wait for each other; after a failure the next one
    starts it anew.

    ``python`` is the path of an interpreter that has the library; its linear algebra keeps to one
    thread, as ours does.
    """

    def __init__(self, python: str, name: str) -> None:
        self.python, self.name = python, name
        self.versions: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None
        self._lines: Queue[str | None] = Queue()
        self._lock = threading.Lock()
        self._log: Any = None

    def start(self) -> dict[str, str]:
        """Start it where it does not run; returns the versions that it has. Raises ``PeerError``
        with the reason.
        """
        with self._lock:
            self._start()
        return self.versions

    def ask(
        self, arrays: Mapping[str, Any], asked: dict[str, Any], timeout: float
    ) -> dict[str, Any]:
        """The answer for ``arrays``: rows ``X`` (n, d), labels ``y`` (n,), and rows ``T`` that are
        to be scored, where there are any; raises ``PeerError``.
        """
        with self._lock, tempfile.TemporaryDirectory(prefix="dpflows-peer-") as folder:
            self._start()
            rows = Path(folder) / "rows.npz"
            np.savez(rows, **arrays)
            process = self._process
            assert process is not None and process.stdin is not None
            try:
                process.stdin.write(json.dumps({**asked, "rows": str(rows)}) + "\n")
                process.stdin.flush()
            except OSError as error:
                raise self._failed(f"its process ended ({error})") from None
            found = self._answer(timeout)
        if "error" in found:
            raise PeerError(f"{self.name}: {found['error']}")
        return found

    def end(self) -> None:
        """End the process at once; a request that waits for it fails. It may be called by any
        thread.
        """
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if process.stdin is not None:
                with suppress(OSError):  # what was not read any more
                    process.stdin.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
        command = [self.python, str(WORKER), self.name]
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": self._log,
            "text": True,
        }
        try:
            # Its own session: an interrupt at the keyboard is ours to handle.
            self._process = subprocess.Popen(
                command, env=environment, start_new_session=True, **pipes
            )
        except OSError as error:
            self._end()
            raise PeerError(f"{self.python} does not start ({error.strerror})") from None
        self._lines = Queue()
        threading.Thread(
            target=_pump, args=(self._process.stdout, self._lines), daemon=True
        ).start()
        found = self._answer(STARTUP_SECONDS)
        if "ready" not in found:
            self._end()
            raise PeerError(f"{self.name} cannot be imported ({found.get('missing')})")
        self.versions = {str(key): str(value) for key, value in found["ready"].items()}

    def _answer(self, timeout: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout)
        except Empty:
            raise self._failed(f"no answer within {timeout:g} s") from None
        if line is None:
            raise self._failed("its process ended without an answer")
        try:
            return dict(json.loads(line))
        except ValueError:
            raise self._failed("its process answered no JSON") from None

    def _failed(self, what: str) -> PeerError:
        """End the process; the error holds the last line that it complained with."""
        last = ""
        if self._log is not None:
            self._log.seek(0)
            last = next(
                (line.strip() for line in reversed(self._log.read().splitlines()) if line.strip()),
                "",
            )
        self._end()
        return PeerError(f"{self.name}: {what}" + (f": {last[:200]}" if last else ""))


def _pump(stream: Any, lines: Queue[str | None]) -> None:
    """Move lines to a queue, where one may wait for them with a time limit; None at the end."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def peer_process(python: str | None, name: str) -> PeerProcess:
    """The process of a library, one for each interpreter; raises ``PeerError`` where it cannot be
    imported.

    Both are found out once in the life of this program.
    """
    key = (python or sys.executable, name)
    with _lock:
        if key in _missing:
            raise PeerError(_missing[key])
        if key not in _running:
            process = PeerProcess(*key)
            try:
                process.start()
            except PeerError as error:
                _missing[key] = str(error)
                raise
            _running[key] = process
        return _running[key]


@atexit.register
def end_all() -> None:
    """End all processes of other libraries."""
    with _lock:
        for process in _running.values():
            process.end()
        _running.clear()
        _missing.clear()
