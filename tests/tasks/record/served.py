"""Asking a model that MLflow serves."""

from __future__ import annotations

import subprocess
import time
from urllib.error import URLError
from urllib.request import Request, urlopen


def ask(request: Request, process: subprocess.Popen[bytes]) -> bytes:
    """The answer, as soon as the server takes requests."""
    give_up = time.monotonic() + 300
    while True:
        try:
            with urlopen(request, timeout=300) as answer:
                return bytes(answer.read())
        except URLError:
            assert process.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.5)
