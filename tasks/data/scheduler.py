"""How a Dask scheduler is reached: one of this machine, made for one run, or one elsewhere by TLS
alone.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dpcore.errors import DPFlowsError, InputError

CONNECT = 30.0  # seconds
LOCAL = ("127.0.0.1", "localhost", "::1")


def connect(
    address: str | None, workers: int | None, tls: Mapping[str, str | None]
) -> tuple[Any, Any]:
    """A client of the scheduler at ``address``, or of a cluster of processes on this machine; and
    what to close.

    Raises ``InputError`` where Dask is missing, or a scheduler elsewhere is not reached by TLS.
    """
    try:
        import dask
        from distributed import Client, LocalCluster, Security
    except ImportError:
        raise InputError(
            "Expected Dask for engine.kind=dask, which is not installed; pip install "
            "'dpflows[dask]', or use engine.kind=shards."
        ) from None
    dask.config.set(
        {
            "distributed.admin.event-loop": "tornado",
            "distributed.comm.timeouts.connect": f"{CONNECT:g}s",
        }
    )
    logging.getLogger("distributed").setLevel(logging.ERROR)
    if address is None:
        # Pages of tasks, logs and stacks stay off, which a dashboard that is off leaves on.
        dask.config.set({f"distributed.{one}.http.routes": [] for one in ("scheduler", "worker")})
        # Others on this machine can reach its ports: a certificate of one run keeps them out.
        cluster = LocalCluster(
            n_workers=workers or max(1, len(os.sched_getaffinity(0))),
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            memory_limit=0,
            silence_logs=logging.ERROR,
            protocol="tls://",
            security=Security.temporary(),
        )
        return Client(cluster), cluster
    security = security_of(address, tls)
    try:
        return Client(address, security=security, timeout=f"{CONNECT:g}s"), None
    except Exception as error:
        raise DPFlowsError(
            f"Expected the Dask scheduler at {address} to answer, got {type(error).__name__}; "
            "start it, or correct engine.address and the certificates. Nothing was spent."
        ) from None


def security_of(address: str, tls: Mapping[str, str | None]) -> Any:
    """What a client of the scheduler at ``address`` shows and asks for; None on this machine.

    Raises ``InputError`` where one elsewhere would not be reached by TLS.
    """
    from distributed import Security

    require_encrypted(address)
    if not address.startswith("tls://"):
        return None
    given = tls_files(tls)
    return Security(
        tls_ca_file=given["ca"],
        tls_client_cert=given["cert"],
        tls_client_key=given["key"],
        require_encryption=True,
    )


def require_encrypted(address: str) -> None:
    """Raise ``InputError`` for what is no address, and where a scheduler elsewhere would not be
    reached by TLS.
    """
    try:
        parts = urlsplit(address)
        named = bool(parts.scheme and parts.hostname and parts.port)
    except ValueError:  # a port that is no number, brackets that do not close
        named = False
    if unencrypted(address):
        raise InputError(
            f"Expected a tls:// address of a scheduler elsewhere, got engine.address={address!r}: "
            "exact sums go over the network; give tls://... with engine.ca, cert and key."
        )
    if not named:
        raise InputError(
            "Expected engine.address as tls://HOST:PORT (tcp:// on this machine), got "
            f"{address!r}; the scheduler's log names it."
        )


def tls_files(given: Mapping[str, str | None]) -> dict[str, str]:
    """The files of TLS; raises ``InputError`` for one that is not named, not there, or no
    certificate or key.
    """
    found = {name: given.get(name) or "" for name in ("ca", "cert", "key")}
    for name, file in found.items():
        if not file:
            raise InputError(
                f"Expected engine.{name} for a tls:// scheduler, got none; name the file."
            )
        if not Path(file).is_file():
            raise InputError(
                f"Expected the file of engine.{name}, got {file!r}, which is none; correct it."
            )
    _require_certificates(found)
    return found


def _require_certificates(files: Mapping[str, str]) -> None:
    """Read them as TLS will, so that a plan refuses what a connection would."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    named = f"engine.ca={files['ca']!r} as a certificate of an authority"
    try:
        context.load_verify_locations(files["ca"])
        named = f"engine.cert={files['cert']!r} with its private engine.key={files['key']!r}"
        context.load_cert_chain(files["cert"], files["key"], password=_no_password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"Expected {named} in PEM form, got {type(error).__name__} ({reason}); correct the "
            "file."
        ) from None


def _no_password() -> str:
    """Nobody is asked in the middle of a run."""
    raise ValueError("the key has a password; give one without")


def unencrypted(address: str) -> bool:
    """Whether what goes to ``address`` leaves this machine, and not by TLS."""
    parts = urlsplit(address)
    return parts.scheme != "tls" and parts.hostname not in LOCAL
