"""What seconds were measured on: processor, cores, memory, linear algebra and versions."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
from threadpoolctl import threadpool_info

from tasks.statement import software


def machine() -> dict[str, Any]:
    """Facts of this machine by name; threads of the linear algebra are those in force now."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "processor": processor(),
        "cores": f"{usable} usable of {os.cpu_count()} ({psutil.cpu_count(logical=False) or 'unknown'} physical)",
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load": ", ".join(f"{value:.1f}" for value in os.getloadavg()),
        "linear_algebra": linear_algebra(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": software(),
    }


@lru_cache(maxsize=1)
def processor() -> str:
    """The model of the processor, as the system names it."""
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    except OSError:
        named = None
    if named:
        return named[1].strip()
    try:  # macOS
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return platform.processor() or "unknown"


def linear_algebra() -> str:
    """Libraries of linear algebra and OpenMP that are loaded, each once with version and threads."""
    found = {
        f"{one['internal_api']} {one.get('version') or ''}".strip() + f": {_threads(one['num_threads'])}"
        for one in threadpool_info()
    }
    return "; ".join(sorted(found)) or "none loaded"


def _threads(count: int) -> str:
    return f"{count} thread" + ("" if count == 1 else "s")
