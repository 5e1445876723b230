"""A headless Chromium spoken to over the DevTools protocol: open a page, ask it, and hear what it
asked for.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 300.0


def find_chromium() -> str | None:
    """The browser that ``DPFLOWS_CHROMIUM`` names, else one on the path."""
    named = os.environ.get("DPFLOWS_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab. ``requests`` are the addresses it asked for, ``errors`` what its console complained
    of.
    """

    def __init__(self, socket: Any) -> None:
        self.socket = socket
        self.count = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser, and note the events that come before its answer."""
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=PATIENCE))
            if message.get("id") == self.count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return dict(message["result"])
            self._note(message["method"], message["params"])

    def _note(self, event: str, what: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(what["exceptionDetails"]["text"])
        elif event == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(what["entry"]["text"])

    def open(self, address: str, width: int = 1200, height: int = 900) -> None:
        """Show an address in a window of this size; return when it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def shot(self, file: Path, whole: bool = False) -> None:
        """Keep a picture of what is shown, or of the ``whole`` page."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)[
            "result"
        ].get("value")

    def wait(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Ask until the answer is true; raises ``TimeoutError`` with what the page shows."""
        until = time.monotonic() + seconds
        while not (answer := self.ask(expression)):
            if time.monotonic() > until:
                shown = str(self.ask("document.body.innerText"))[:2000]
                raise TimeoutError(
                    f"{expression} did not become true; the page shows:\n{shown}\nerrors: "
                    f"{self.errors}"
                )
            time.sleep(0.2)
        return answer


def keep(tab: Page, name: str, whole: bool = False) -> None:
    """A picture for people, where they asked for it."""
    if folder := os.environ.get("DPFLOWS_SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        tab.shot(Path(folder) / f"{name}.png", whole)


@contextmanager
def browser(program: str, folder: Path) -> Iterator[Page]:
    """A browser with a profile of its own in ``folder``, ended with the block."""
    from websockets.sync.client import connect

    options = [
        "--headless",
        "--disable-gpu",
        "--no-first-run",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium's sandbox refuses root
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([program, *options, "about:blank"], **quiet) as process:  # type: ignore[call-overload]
        try:
            tab = Request(
                f"http://127.0.0.1:{_port(folder, process)}/json/new?about:blank", method="PUT"
            )
            with urlopen(tab, timeout=PATIENCE) as answer:
                address = json.load(answer)["webSocketDebuggerUrl"]
            with connect(address, max_size=None, open_timeout=PATIENCE, compression=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def _port(folder: Path, process: Any) -> int:
    """The port that the browser chose and wrote down."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        try:
            return int((folder / "DevToolsActivePort").read_text().splitlines()[0])
        except (OSError, ValueError, IndexError):
            time.sleep(0.05)
    raise TimeoutError("Chromium did not say which port it listens on.")
