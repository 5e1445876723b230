"""Who holds a reservation, and whether that process still lives.

A process is named by host, boot, pid namespace, pid and start time, so that a reused pid, a reboot or
a container with its own numbering is never mistaken for the owner.
"""

import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Return the start time of a process in the system's own words, "" when there is none, None when unknown."""
    if Path("/proc/self/stat").exists():
        text = _read(f"/proc/{pid}/stat")
        fields = text.rpartition(")")[2].split()
        # field 3 is the state: a zombie draws no noise any more
        return "" if not fields or fields[0] in "ZX" else fields[19]
    try:
        return str(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return ""
    except psutil.Error:
        return None


@lru_cache(maxsize=4)
def _identity(pid: int) -> dict[str, Any]:
    return {
        "host": platform.node(),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "namespace": _namespace(),
        "pid": pid,
        "started": _started(pid) or "",
    }


def this_process() -> dict[str, Any]:
    """Return the identity of the running process: plain values, as stored in the ledger."""
    return dict(_identity(os.getpid()))


def is_gone(owner: dict[str, Any]) -> bool:
    """Return True only when ``owner`` certainly lives no more; another host or an unknown state is not certain."""
    here = this_process()
    if owner["host"] != here["host"]:
        return False
    if owner["boot"] != here["boot"]:
        return bool(owner["boot"] and here["boot"])
    if owner["namespace"] != here["namespace"]:
        return False
    started = _started(owner["pid"])
    return started is not None and started != owner["started"]
