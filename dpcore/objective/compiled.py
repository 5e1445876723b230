"""Whether compiled passes are used, which losses they know, and where their machine code is kept:
said once a process, from public facts.
"""

from __future__ import annotations

import os
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from dpcore.losses import (
    Hinge,
    HuberHinge,
    HuberRegression,
    Logistic,
    Loss,
    Sigmoid,
    Squared,
    Weighted,
)

# Look-ups of a whole training (rows times entries times passes) from which loading and compiling
# pays for itself.
WORTH = 2.0e9

# Losses that passes know, by number.
NUMBERS: dict[type, int] = {
    Logistic: 0,
    Hinge: 1,
    HuberHinge: 2,
    Sigmoid: 3,
    Squared: 4,
    HuberRegression: 5,
}
Terms = tuple[int, float, float, float]  # number of the loss, its parameter, weights of the classes

cache_folder: Path | None = None
_on = False


def available() -> bool:
    """Whether numba is installed (the extra ``fast``)."""
    return find_spec("numba") is not None


def in_use() -> bool:
    """Whether compiled passes are taken where there are any."""
    return _on


def use(on: bool = True, folder: Path | None = None) -> bool:
    """Take compiled passes from now on where numba is installed, or no longer; returns whether they
    are taken.

    ``folder`` keeps the machine code from one process to the next. It is private to its owner, for
    what lies in it is run; where it cannot be written, every process compiles anew.
    """
    global _on
    if on and folder is not None:
        keep_in(folder)
    _on = on and available()
    return _on


def keep_in(folder: Path) -> None:
    """Keep machine code under ``folder`` from now on, unless this process has a place for it."""
    global cache_folder
    if cache_folder is None and _private(folder) is not None:
        cache_folder = _private(folder / _sources())


def _sources() -> str:
    """The name of what was compiled. numba looks at the file of a pass alone, not at those of the
    passes that it calls: after a change of one of these it would run the old one.
    """
    here = Path(__file__).parent
    digest = sha256()
    for path in sorted(here.rglob("*kernels.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _private(folder: Path) -> Path | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owned = folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o022
        return folder if owned and os.access(folder, os.W_OK) else None
    except OSError:
        return None


def name() -> str:
    """What a run's record says of its passes."""
    return "compiled (numba)" if _on else "numpy and scipy"


def terms_of(loss: Loss) -> Terms | None:
    """How kernels know ``loss``; None where they do not."""
    up = down = 1.0
    if isinstance(loss, Weighted):
        up, down, loss = loss.positive, loss.negative, loss.base
    number = NUMBERS.get(type(loss))
    return None if number is None else (number, float(getattr(loss, "h", 1.0)), up, down)
