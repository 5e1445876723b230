"""A reservation: budget that is already on disk, waiting for the run that draws noise against it.

Who holds a reservation, and whether that process still lives.

A process is named by host, boot, pid namespace, pid and start time, so that a reused pid, a reboot
or a container with its own numbering is never mistaken for the owner.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, Protocol, Self

import psutil

from dpcore.errors import DPFlowsError, InputError


class Entries(Protocol):
    """What a reservation writes to: the ledger that it stands in."""

    def note_draw(self, entry: str, dataset: str) -> None: ...

    def close_entry(self, entry: str, dataset: str, kind: str, body: dict[str, Any]) -> str: ...

    def state_of(self, entry: str) -> str | None: ...


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
    """Return the start time of a process in the system's own words, "" when there is none, None
    when unknown.
    """
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
    """Return True only when ``owner`` certainly lives no more; another host or an unknown state is
    not certain.
    """
    here = this_process()
    if owner["host"] != here["host"]:
        return False
    if owner["boot"] != here["boot"]:
        return bool(owner["boot"] and here["boot"])
    if owner["namespace"] != here["namespace"]:
        return False
    started = _started(owner["pid"])
    return started is not None and started != owner["started"]


class Reservation:
    """Charged budget of one run. ``on_charge`` must be called before each release draws anything.

    It ends in exactly one of: ``commit`` (the result exists), ``forfeit`` (charged in full, no
    result), ``cancel`` (gives the budget back; only by the process that reserved, and only before
    the first ``on_charge``). Used as a context manager it cancels or forfeits what was left open,
    and commits what lies whole on disk (``keeps``). A process that dies leaves it charged.
    """

    def __init__(
        self,
        ledger: Entries,
        entry_id: str,
        dataset: str,
        head: str = "",
        notes: tuple[str, ...] = (),
    ) -> None:
        self.entry_id = entry_id
        self.dataset = dataset
        self.head = head  # hash of the reserving record, for the statement
        self.notes = notes
        self.state = "reserved"
        self._ledger = ledger
        self._owner = this_process()
        self._draws = 0
        self._open = True
        self._lock = RLock()  # a signal may come before it is given back, and ends the block
        self._result: Callable[[], Mapping[str, str] | None] = lambda: None

    def charged(self, head: str, notes: tuple[str, ...]) -> Self:
        """This reservation, now that its record with hash ``head`` is on disk."""
        self.head, self.notes = head, notes
        return self

    @property
    def draws(self) -> int:
        """How many releases were charged so far in this process."""
        return self._draws

    @property
    def fate(self) -> str:
        """What became of the budget of a run that did not end well, in words."""
        entry = f"ledger entry {self.entry_id} of {self.dataset!r}"
        if self.state == "cancelled":
            return f"Budget: nothing was drawn, so nothing was spent ({entry} is cancelled)."
        if self.state == "committed":
            return f"Budget: the run was trained and stays charged ({entry} is committed)."
        if self.state == "reserved" and not self._draws:
            return (
                "Budget: nothing was drawn, but this could not be written down, so the run stays "
                f"charged in full ({entry} is reserved)."
            )
        return (
            f"Budget: noise was drawn, so the run stays charged in full ({entry} is {self.state})."
        )

    def on_charge(self) -> None:
        """Count one release, before its rows are drawn. Raises when the reservation is closed or
        another process's.

        The first one is a record of its own, on disk when this returns: the entry cannot be
        cancelled from there on.
        """
        self._require_owner("draw on")
        with self._lock:
            if not self._open:
                raise DPFlowsError(
                    f"Expected an open reservation, got {self._words()}; reserve again: a retry is "
                    "a new charge."
                )
            if not self._draws:
                self._ledger.note_draw(self.entry_id, self.dataset)
            self._draws += 1

    def keeps(self, result: Callable[[], Mapping[str, str] | None]) -> None:
        """Have ``result`` asked, where the block fails, for the hashes of a result that lies whole
        on disk: it is committed as the killed process of another is (``recover``), for it is paid.
        """
        self._result = result

    def commit(self, hashes: dict[str, str] | None = None) -> str:
        """Record that the run ended, with the SHA-256 of its ``weights``, ``statement``, ...;
        return the new head.
        """
        self._require_owner("commit")
        self._shut()
        return self._close("committed", {"hashes": _checked(hashes), "draws": self._draws})

    def forfeit(self, reason: str) -> str:
        """Record that the run gave no result; it stays charged in full. Return the new head."""
        self._require_owner("forfeit")
        self._shut()
        return self._close("forfeited", {"reason": reason, "by": "owner", "draws": self._draws})

    def cancel(self, reason: str = "cancelled before the first release") -> str:
        """Give the budget back: nothing was drawn. Raises when a release was charged. Return the
        new head.
        """
        self._require_owner("cancel")
        with self._lock:
            if self._draws:
                raise DPFlowsError(
                    f"Expected no charged release for a cancellation, got {self._words()} after "
                    f"{self._draws}; what was drawn stays charged: forfeit it."
                )
            self._open = False  # from here on nothing can be drawn, even if the write below fails
        return self._close("cancelled", {"reason": reason})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if self.state != "reserved":
            return
        reason = f"ended by {kind.__name__}" if kind else "left without a result"
        try:
            kept = self._result() if self._draws else None
            if kept is not None:
                self.commit(dict(kept))
            elif self._draws:
                self.forfeit(reason)
            else:
                self.cancel(reason)
        except DPFlowsError as failed:
            # What failed may have been closed before this block heard of it. Else the budget stays
            # reserved, which is charged in full; the first error says why the run ended.
            if error is None:
                raise
            if not self._closed_already():
                error.add_note(str(failed))

    def __reduce__(self) -> Any:
        raise TypeError("A reservation belongs to the process that made it and cannot be pickled.")

    def _closed_already(self) -> bool:
        """Whether the ledger holds the end of this entry, which this block was not told of."""
        try:
            self.state = self._ledger.state_of(self.entry_id) or self.state
        except DPFlowsError:
            return False  # it does not answer
        return self.state != "reserved"

    def _shut(self) -> None:
        with self._lock:
            self._open = False

    def _close(self, kind: str, body: dict[str, Any]) -> str:
        head = self._ledger.close_entry(self.entry_id, self.dataset, kind, body)
        self.state = kind
        return head

    def _require_owner(self, verb: str) -> None:
        if this_process() != self._owner:
            raise DPFlowsError(
                f"Expected the process that reserved {self.entry_id} to {verb} it, got process "
                f"{this_process()['pid']}; run the training in the process that reserves (pid "
                f"{self._owner['pid']})."
            )

    def _words(self) -> str:
        return f"entry {self.entry_id} of {self.dataset!r} ({self.state})"


def _checked(hashes: dict[str, str] | None) -> dict[str, str]:
    for name, value in (hashes or {}).items():
        if len(value) != 64 or set(value) - set("0123456789abcdef"):
            raise InputError(
                f"Expected the SHA-256 of {name!r} as 64 hex digits, got "
                f"hashes[{name!r}]={value!r}."
            )
    return dict(hashes or {})
