"""Make the picture of the report that the README shows: ``python docs/picture.py``.

A training on the built-in table with the default configuration, its report by ``dpflows ui
--report``, and the upper part of that page as a headless Chromium shows it (``DPFLOWS_CHROMIUM``
names one), in 128 colours. Noise is drawn anew, so the numbers differ from time to time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "report.png"
WIDTH, HEIGHT, COLOURS = 1000, 1150, 128


def report(home: Path) -> Path:
    """The page of a training in a new home."""
    environment = {**os.environ, "DPFLOWS_HOME": str(home), "PYTHONPATH": str(ROOT)}
    for call in (["train"], ["ui", "--report", "--json"]):
        command = [sys.executable, "-m", "flows.cli", *call]
        done = subprocess.run(
            command, cwd=home, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
    return Path(json.loads(done.stdout.splitlines()[-1])["report"])


def picture(page: Path, place: Path) -> None:
    """The upper part of a page as a small PNG."""
    browser = os.environ.get("DPFLOWS_CHROMIUM") or shutil.which("chromium") or "chromium"
    shot = place.with_suffix(".raw.png")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--screenshot={shot}", f"--window-size={WIDTH},{HEIGHT}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    with Image.open(shot) as image:
        image.convert("RGB").quantize(COLOURS).save(place, optimize=True)
    shot.unlink()


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        picture(report(Path(folder)), PICTURE)
    sys.stdout.write(f"{PICTURE}: {PICTURE.stat().st_size / 1000:.0f} kB\n")
