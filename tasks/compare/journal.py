"""Finished cells on disk, one JSON line each, so that a comparison that was killed goes on where it was."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpcore.errors import DPFlowsError


class Journal:
    """An append-only file of records. A line is on disk (fsync) when ``append`` returns; a torn last line is no line.

    ``done`` holds finished cells by their hash, ``begun`` those whose noise may have been drawn.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def read(self) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """Return (finished records by cell, hashes of cells that had begun)."""
        done: dict[str, dict[str, Any]] = {}
        begun: set[str] = set()
        for line in self._lines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if "begun" in entry:
                begun.add(entry["begun"])
            elif entry.get("status") == "done":
                done[entry["cell"]] = entry
        return done, begun

    def _lines(self) -> list[bytes]:
        try:
            return self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DPFlowsError(f"Expected a readable file of finished cells at {self.path}, got {error}.") from error

    def begin(self, cell: str) -> None:
        """Note that the noise of a charged cell is about to be drawn."""
        self.append({"begun": cell})

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one line; it starts on a line of its own even after one that was torn."""
        text = json.dumps(entry, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        with self._lock:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(handle).st_size
                torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
                os.write(handle, b"\n" + text if torn else text)
                os.fsync(handle)
            finally:
                os.close(handle)
