"""Where the rows of a training are kept and its sums are made: a choice among equals, so it changes
no promise.
"""

from __future__ import annotations

from dpcore.errors import InputError
from tasks.config.train import EngineSection
from tasks.data.scheduler import require_encrypted, tls_files
from tasks.kinds.base import Job
from tasks.kinds.engine import choose
from tasks.options.base import Option

TLS = ("ca", "cert", "key")


class Engine(Option):
    """What was asked for is refused where it does not go; without it the rule of
    ``tasks.kinds.engine`` holds.
    """

    name = "engine"
    asked = "config.engine"

    def check(self, job: Job) -> None:
        if job.config.engine is not None:
            require_meant(job.config.engine, connects=job.config.engine.kind in ("auto", "dask"))
        choose(job)


def require_meant(engine: EngineSection, connects: bool) -> None:
    """Raise ``InputError`` for a setting that would be ignored, an address that is none, and files
    of TLS that are not there: before a file of the data is opened, and in a plan too.

    ``connects``: whether workers are asked for, or may be.
    """
    given = {name: getattr(engine, name) for name in ("address", "workers", *TLS)}
    given = {name: value for name, value in given.items() if value is not None}
    if given and not connects:
        raise _pointless(given, f"beside engine.kind={engine.kind}", "it is for engine.kind=dask")
    if engine.address is None:
        of_scheduler = {name: value for name, value in given.items() if name in TLS}
        if of_scheduler:
            raise _pointless(of_scheduler, "without engine.address", "name the scheduler")
        if given and engine.kind == "auto":
            raise _pointless(given, "beside engine.kind=auto", "it is for engine.kind=dask")
        return
    require_encrypted(engine.address)
    if engine.workers is not None:
        raise _pointless(
            {"workers": engine.workers}, "beside engine.address", "a scheduler has its own"
        )
    if engine.address.startswith("tls://"):
        tls_files({name: given.get(name) for name in TLS})
    elif files := {name: value for name, value in given.items() if name in TLS}:
        raise _pointless(files, f"for {engine.address}", "they are for tls:// addresses")


def _pointless(given: dict[str, object], where: str, why: str) -> InputError:
    name, value = next(iter(given.items()))
    return InputError(
        f"Expected no engine.{name} {where}, got {value!r}, which nothing would read: {why}, or "
        "leave it out."
    )
